"""How far a repository has dealt with a remote: files of ``.mvc/remotes/R`` that may be lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

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
"""Up to where the remote's journal was read."""
REPORTS = "reports"
"""The same of what nodes report there, which not every fetch asks for."""
PUSHED = "pushed"
"""Up to where the remote has what this repository's own journal says."""
_MOST = 1 << 20  # bytes of such a file


class KnownPlace(Struct, frozen=True):
    """A place in a journal, in dealings with the repository of this identity.

    ``tips``: where its branches and tags were after the last push, ``there``: where its journal
    ended when it was last asked. ``passed``: what was said there and not believed
    (``Remote.disbelieved``). ``kept``: versions of which it was not believed that they are
    forgotten by name. ``left``: the operations of this journal before number ``dealt`` whose
    deployments and retractions the remote lacks.
    """

    identity: bytes
    place: Place
    tips: tuple[Id, ...] = ()
    passed: tuple[str, ...] = ()
    kept: tuple[Id, ...] = ()
    there: Place | None = None
    dealt: int = 0
    left: tuple[int, ...] = ()

    def untold(self, store: Store, tips: Iterable[CommitId]) -> list[CommitId]:
        """The versions that lead to ``tips``, and that the remote did not have at the last push."""
        told = [id_ for id_ in map(CommitId, self.tips) if store.snapshot.has_commit(id_)]
        return leading_to(store.fresh(), tips, told)


def place_of(snapshot: Snapshot) -> Place:
    """The end of a journal."""
    return Place(snapshot.position.sequence, snapshot.position.chain)


def begins(snapshot: Snapshot, after: Place | None) -> Position:
    """Where the journal goes on from a place; its beginning if it does not lead on from there."""
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
    """Whether a journal continues a place; False too where it was compacted since."""
    with suppress(DamagedData):
        return begins(snapshot, after) != GENESIS
    return False


def tips_of(refs: Mapping[str, RefValue]) -> list[CommitId]:
    """The versions that refs name."""
    return sorted({value for value in refs.values() if isinstance(value, CommitId)})


def known_place(store: Store, remote: Remote, name: str) -> KnownPlace | None:
    """What a file of the remote's folder says; None if it is lost or says nothing."""
    if not remote.name:
        return None
    with suppress(IoFailed, msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(
            store.fs.read_bytes(remote.folder(store) / name, _MOST), type=KnownPlace
        )
    return None


def keep_place(store: Store, remote: Remote, name: str, known: KnownPlace) -> None:
    """Writes such a file, without a flush."""
    data = msgspec.json.encode(known)
    store.fs.replace_file(
        remote.folder(store) / name, lambda file: file.write(data), mode=None, durable=False
    )


class Known(Struct, frozen=True):
    """A remote's head, and what this repository knew before it asked for that.

    ``pushed``: None also where the remote's journal does not continue that of the last push.
    """

    head: RemoteHead
    fetched: KnownPlace | None
    reports: KnownPlace | None
    pushed: KnownPlace | None


def ask(transport: Transport, store: Store, remote: Remote) -> Known:
    """Asks for a remote's head. Raises HistoryMissing for another repository than before."""
    store.fresh()
    fetched, reports, pushed = (
        known_place(store, remote, name) for name in (FETCHED, REPORTS, PUSHED)
    )
    head = transport.head(None if pushed is None else pushed.there)
    check_identity(remote, fetched, head)
    if pushed is None or pushed.identity != head.identity:
        return Known(head, fetched, reports, pushed=None)
    is_back = not head.leads_on and head.place != pushed.there
    return Known(head, fetched, reports, pushed=None if is_back else pushed)


def check_identity(remote: Remote, known: KnownPlace | None, head: RemoteHead) -> None:
    """Raises HistoryMissing for a remote that is another repository than at the last fetch."""
    if known is None or known.identity in (b"", head.identity) or not head.identity:
        return
    raise HistoryMissing(
        f"{remote.name} is another repository than at the last fetch: {remote.url}",
        hint=f"if that is meant: 'mvc remote remove {remote.name}', then "
        f"'mvc remote add {remote.name} {remote.url}'",
    )


def check_same(remote: Remote, known: KnownPlace | None, head: RemoteHead) -> None:
    """Raises HistoryMissing for a remote that has gone back; ``ask`` has compared identities."""
    if known is not None and head.identity and head.place.sequence < known.place.sequence:
        raise HistoryMissing(
            f"{remote.name} has gone back: it lacks operations from "
            f"{head.place.sequence} to {known.place.sequence - 1} that it had",
            hint=f"was it restored from a copy? 'mvc push{remote.typed}' sends what it lacks and "
            "is here, and accepts it",
        )
