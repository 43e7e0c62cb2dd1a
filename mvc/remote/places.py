"""How far a repository has dealt with a remote: files of ``.mvc/remotes/R`` that may be lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from mvc.errors import HistoryMissing, IoFailed
from mvc.ids import DIGEST_SIZE, CommitId
from mvc.remote.door import Door, Place, RemoteHead
from mvc.remote.remotes import Remote
from mvc.repo.context import Context
from mvc.repo.lookup.commits import leading_to
from mvc.store.journal.entries import RefValue
from mvc.store.snapshot import Snapshot

FETCHED = "place"
"""Up to where the remote's journal was read."""
REPORTS = "reports"
"""The same of what nodes report there, which not every fetch asks for."""
PUSHED = "pushed"
"""Up to where the remote has what this repository's own journal says."""
_MOST = 1 << 20  # bytes of such a file
_MOST_ENTRIES = 1 << 62


class KnownPlace(Struct, frozen=True):
    """A place in a journal, in dealings with the repository of this identity.

    ``tips``: where its branches and tags were after the last push. ``passed``: what
    was said there and not believed (``Remote.disbelieved``). ``kept``: versions of which it was not
    believed that they are forgotten by name.
    """

    identity: bytes
    place: Place
    tips: tuple[bytes, ...] = ()
    passed: tuple[str, ...] = ()
    kept: tuple[bytes, ...] = ()

    def after(self, place: Place, tips: Iterable[CommitId]) -> KnownPlace:
        """With another place, and where the refs are by then."""
        return KnownPlace(self.identity, place, tuple(map(bytes, tips)))

    def untold(self, context: Context, tips: Iterable[CommitId]) -> list[CommitId]:
        """The versions that lead to ``tips``, and that the remote did not have at the last push."""
        ids = [CommitId(id_) for id_ in self.tips if len(id_) == DIGEST_SIZE]
        told = [id_ for id_ in ids if context.store.has_commit(id_)]
        return leading_to(context.fresh(), tips, told)


def place_of(snapshot: Snapshot) -> Place:
    """The end of a journal."""
    return Place(snapshot.position.sequence, snapshot.position.chain)


def tips_of(refs: Mapping[str, RefValue]) -> list[CommitId]:
    """The versions that refs name."""
    return sorted({value for value in refs.values() if isinstance(value, CommitId)})


def known_place(context: Context, remote: Remote, name: str) -> KnownPlace | None:
    """What a file of the remote's folder says; None if it is lost or says nothing."""
    if not remote.name:
        return None
    with suppress(IoFailed, msgspec.MsgspecError, ValueError):
        data = context.store.fs.read_bytes(remote.folder(context) / name, _MOST)
        known = msgspec.json.decode(data, type=KnownPlace)
        numbers = known.place.sequence, known.place.seen
        kept = all(len(id_) == DIGEST_SIZE for id_ in known.kept)
        return known if kept and all(0 <= each < _MOST_ENTRIES for each in numbers) else None
    return None


def keep_place(context: Context, remote: Remote, name: str, known: KnownPlace) -> None:
    """Writes such a file, without a flush."""
    data = msgspec.json.encode(known)
    context.store.fs.replace_file(
        remote.folder(context) / name, lambda file: file.write(data), mode=None, durable=False
    )


def head_of(door: Door, context: Context, remote: Remote) -> RemoteHead:
    """What a remote is now; HistoryMissing if it is not the repository that was fetched from."""
    head = door.head()
    check_same(remote, known_place(context, remote, FETCHED), head)
    return head


def check_same(remote: Remote, known: KnownPlace | None, head: RemoteHead) -> None:
    """Raises HistoryMissing for a remote that is another repository, or has gone back."""
    if known is None or not known.identity or not head.identity:
        return
    again = (
        f"if that is meant: 'mvc remote remove {remote.name}', then "
        f"'mvc remote add {remote.name} {remote.url}'"
    )
    if head.identity != known.identity:
        raise HistoryMissing(
            f"{remote.name} is another repository than at the last fetch: {remote.url}", hint=again
        )
    if head.place.sequence < known.place.sequence:
        raise HistoryMissing(
            f"{remote.name} has gone back: it lacks operations from "
            f"{head.place.sequence} to {known.place.sequence - 1} that it had",
            hint=f"was it restored from a copy? {again}",
        )
