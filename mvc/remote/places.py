"""Records how far the last fetch and the last push of a remote got, so that the next does less.

A journal is the log of all operations of a repository. A fetch records up to which position it read
the remote's journal. A push records up to which position it sent the local journal. The records
about a remote R are files in ``.mvc/remotes/R``. If such a file is lost, the next fetch or push
takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct, field

from mvc.errors import DamagedData, HistoryMissing, IoFailed
from mvc.ids import CommitId
from mvc.remote.remotes import Remote
from mvc.remote.slices import Id
from mvc.remote.transport import Place, RemoteHead, Transport
from mvc.repo.lookup.commits import leading_to
from mvc.store.journal.entries import RefValue
from mvc.store.journal.frames import GENESIS, Position
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store

FETCHED = "place"
"""Name of the file with the position up to which the remote's journal was fetched."""
REPORTS = "reports"
"""Name of the file with the position up to which reports of nodes were fetched.

Nodes are machines that serve models.
"""
PUSHED = "pushed"
"""Name of the file with the position up to which the remote received the local journal."""
_MOST = 1 << 20  # maximum number of bytes of each of these files


class KnownPlace(Struct, frozen=True):
    """What a file records about a remote. ``identity``: the id of the remote repository.

    ``place``: a position in the remote's or the local journal. ``tips``: versions of the remote's
    branches and tags after the last push. ``end``: end of the remote's journal at the last contact.
    ``passed``: kinds of statements (deployments, purges) that fetches skipped. ``retained``:
    versions that were purged at the remote, but not here. ``dealt`` and ``left`` are numbers of
    local operations. The remote has the deployments and retractions of all operations before
    ``dealt``, except of the operations ``left``.
    """

    identity: bytes
    place: Place
    tips: tuple[Id, ...] = ()
    passed: tuple[str, ...] = ()
    retained: tuple[Id, ...] = field(default=(), name="kept")
    end: Place | None = field(default=None, name="there")
    dealt: int = 0
    left: tuple[int, ...] = ()

    def new_since_push(self, store: Store, tips: Iterable[CommitId]) -> list[CommitId]:
        """``tips`` and their ancestors, except versions that the remote had at the last push."""
        known = [id_ for id_ in map(CommitId, self.tips) if store.snapshot.has_commit(id_)]
        return leading_to(store.fresh(), tips, known)


def place_of(snapshot: Snapshot) -> Place:
    """The position at the end of a journal."""
    return Place(snapshot.position.sequence, snapshot.position.chain)


def begins(snapshot: Snapshot, after: Place | None) -> Position:
    """Where to read on in a journal that was already read up to ``after``.

    GENESIS (the beginning) if ``after`` is None, or if the journal does not contain ``after``.
    """
    if after is None or after.sequence <= 0:
        return GENESIS
    end = snapshot.position
    if (after.sequence, after.chain) == (end.sequence, end.chain):
        return end
    if after.sequence > end.sequence:
        return GENESIS
    before = snapshot.by_sequence(after.sequence - 1)
    return GENESIS if before is None or before.check != after.chain else before.after


def leads_on(snapshot: Snapshot, after: Place | None) -> bool:
    """Whether a journal contains the position ``after``.

    After a journal was rewritten, it does not contain the earlier positions.
    """
    with suppress(DamagedData):
        return begins(snapshot, after) != GENESIS
    return False


def tips_of(refs: Mapping[str, RefValue]) -> list[CommitId]:
    """The versions that refs name, sorted."""
    return sorted({value for value in refs.values() if isinstance(value, CommitId)})


def known_place(store: Store, remote: Remote, name: str) -> KnownPlace | None:
    """Reads the file ``name`` in the remote's folder. None if the file is missing or invalid."""
    if not remote.name:
        return None
    with suppress(IoFailed, msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(
            store.fs.read_bytes(remote.folder(store) / name, _MOST), type=KnownPlace
        )
    return None


def keep_place(store: Store, remote: Remote, name: str, known: KnownPlace) -> None:
    """Writes ``known`` to the file ``name`` in the remote's folder, without a flush to disk."""
    data = msgspec.json.encode(known)
    store.fs.replace_file(
        remote.folder(store) / name, lambda file: file.write(data), mode=None, durable=False
    )


class Known(Struct, frozen=True):
    """The answer of a remote (``head``: its refs and properties), and the records about the remote.

    ``fetched``, ``reports`` and ``pushed`` are the contents of the three files. ``pushed`` is None
    if nothing was pushed yet, or if the remote's journal no longer contains ``pushed.end``.
    """

    head: RemoteHead
    fetched: KnownPlace | None
    reports: KnownPlace | None
    pushed: KnownPlace | None


def ask(transport: Transport, store: Store, remote: Remote) -> Known:
    """Asks a remote for its head, and reads the records about the remote.

    Raises HistoryMissing if the remote's URL now leads to another repository.
    """
    store.fresh()
    fetched, reports, pushed = (
        known_place(store, remote, name) for name in (FETCHED, REPORTS, PUSHED)
    )
    head = transport.head(None if pushed is None else pushed.end)
    check_identity(remote, fetched, head)
    if pushed is None or pushed.identity != head.identity:
        return Known(head, fetched, reports, pushed=None)
    is_back = not head.leads_on and head.place != pushed.end
    return Known(head, fetched, reports, pushed=None if is_back else pushed)


def check_identity(remote: Remote, known: KnownPlace | None, head: RemoteHead) -> None:
    """Raises HistoryMissing if the remote's identity changed since the last fetch."""
    if known is None or known.identity in (b"", head.identity) or not head.identity:
        return
    raise HistoryMissing(
        f"{remote.name} is a different repository than at the last fetch: {remote.url}",
        hint=f"if this is intended: 'mvc remote remove {remote.name}', then "
        f"'mvc remote add {remote.name} {remote.url}'",
    )


def check_same(remote: Remote, known: KnownPlace | None, head: RemoteHead) -> None:
    """Raises HistoryMissing if the remote's journal has become shorter since the last fetch."""
    if known is not None and head.identity and head.place.sequence < known.place.sequence:
        raise HistoryMissing(
            f"{remote.name} was rolled back: it lost the operations "
            f"{head.place.sequence} to {known.place.sequence - 1}",
            hint=f"if the remote is an older backup, 'mvc push{remote.typed}' sends the operations "
            "that this repository has",
        )
