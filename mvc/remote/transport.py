"""The interface of all kinds of remotes: folders, ssh, https and buckets.

A journal is the log of a repository's operations. A transfer copies journal entries from one
repository to another. The *sender* produces *slices*: entries with the records (encoded contents)
that they need. The *receiver* decodes and hashes all contents of a slice before it publishes the
slice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct, field

from mvc.ids import CommitId, StatementId
from mvc.names import printable
from mvc.store.journal.entries import RefValue
from mvc.times import format_time, whole_second
from mvc.types import Bytes

BROUGHT, FETCH = "receive", "fetch"
"""Names of the operations that record received entries: pushed entries, and fetched entries."""

States = Literal["all", "none"] | int
"""Which states a transfer includes: all, none, or a number N.

N selects the states of live versions, and of the newest N versions of each branch.
"""


MOST_PATHS = 256
"""Limit of paths in one request."""
_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Place(Struct, frozen=True, array_like=True):
    """A position in a journal, between two entries.

    ``sequence``: the number of the entry after the position. ``chain``: the check of the entry
    before the position, a hash that covers this entry and all earlier entries. ``seen``: when the
    position was recorded, the number that the next new entry of the journal would get; 0 if the
    position was the end of the journal.
    """

    sequence: _Number
    chain: bytes
    seen: _Number = 0


class RemoteHead(Struct, frozen=True, array_like=True):
    """The current refs and properties of a remote.

    ``identity``: the check (a hash) of its journal's first entry. ``refs``: ``heads/NAME``,
    ``tags/NAME`` and ``HEAD``. ``time_ns``: the time by its clock. ``scopes``: permissions of the
    caller; empty if everything is permitted. ``unnamed``: the live versions, and the newest
    versions of an interrupted push, for which no ref was recorded. ``protected``: patterns of
    targets. A deployment to such a target needs the scope ``admin``, or a scope that names the
    target without wildcards, even if ``scopes`` is empty. ``leads_on``: whether the remote's
    journal contains the place in the request.
    """

    identity: bytes
    place: Place
    refs: Mapping[str, RefValue]
    time_ns: int
    bare: bool = False
    scopes: tuple[str, ...] = ()
    unnamed: tuple[CommitId, ...] = ()
    protected: tuple[str, ...] = ()
    leads_on: bool = False


class Wanted(Struct, frozen=True):
    """The request of a receiver.

    ``after``: position up to which the receiver has the sender's journal. ``versions``: versions to
    send with their ancestors; by default all versions that refs and deployments reach. ``have``:
    versions that the receiver has, with their states. ``objects``: contents that the receiver
    lacked in earlier attempts. They are sent as full records. ``restore``: versions that the
    receiver has, and whose absent states it wants. ``without``: versions whose states the receiver
    refuses, because it has purged them. ``due``: versions that the receiver has from another
    repository, and whose statements it wants. ``reports``: include the reports of
    nodes (machines that serve a model).

    ``live``: a target. The answer is one slice with the live version, its deployment, and the
    records of one file: ``paths`` has its path (by default, the only model is sent). With
    ``folder``, the slice has the records of all files at or below ``paths`` (by default, of all
    files but training states). ``have`` then lists versions of which the receiver has these files.
    The receiver lacks those contents of these files that are in ``objects``. No history is sent.
    """

    after: Place | None = None
    versions: tuple[CommitId, ...] = ()
    have: frozenset[CommitId] = frozenset()
    states: States = "all"
    objects: tuple[bytes, ...] = ()
    restore: tuple[CommitId, ...] = field(default=(), name="again")
    without: frozenset[CommitId] = frozenset()
    due: tuple[CommitId, ...] = ()
    reports: bool = False
    live: str = ""
    paths: Annotated[tuple[str, ...], Meta(max_length=MOST_PATHS)] = ()
    folder: bool = False


class Move(Struct, frozen=True, array_like=True):
    """A change of a ref from the value that the sender expects at the receiver to a new value."""

    name: str
    old: CommitId | None
    new: CommitId | None
    force: bool = False


class Slice(Struct):
    """Entries and the records that they need, in transit.

    ``head``: the encoded list of entries (``slices``). ``size``: number of bytes in ``records``.
    ``moves`` of refs are applied together with the last entry. Only the last slice has moves.
    ``place``: the position in the sender's journal after this slice. ``features``: features of the
    sender's format. The receiver refuses a slice with an unknown feature.
    """

    head: bytes
    size: int
    records: Iterable[Bytes]
    moves: tuple[Move, ...] = ()
    place: Place | None = None
    features: frozenset[str] = frozenset()


class RefusedDeployment(Struct, frozen=True):
    """A statement that the remote refused, because the deployment that it replaces is not live.

    ``retracts``: whether the statement is a retraction, not a deployment. ``id``: its id. ``live``:
    the version that is live at the remote, or None. ``author``, ``time_ns``: author and time of the
    deployment of this version.
    """

    target: str
    id: StatementId
    live: CommitId | None = None
    author: str = ""
    time_ns: int = 0
    retracts: bool = False

    def __str__(self) -> str:
        """A clause that names the deployment that was made meanwhile."""
        target = printable(self.target)
        if self.live is None:
            return f"nothing is live on {target} any more"
        who, when = printable(self.author) or "another author", whole_second(self.time_ns)
        return f"{who} deployed {self.live.short} to {target} meanwhile, at {format_time(when)}"


class Received(Struct, frozen=True):
    """The answer to a slice. The slice is published, unless ``missing`` contents are needed first.

    ``place``: the end of the receiver's journal. ``begun``: number of the first published
    operation, or 0. ``without``: versions for ``Wanted.without`` of the next attempt. ``retained``:
    versions that the sender purged, and that the receiver still needs and retains. ``identity``:
    the identity of the receiver, if this slice created the receiver. ``refused``: statements that
    were skipped, because other deployments were made meanwhile.
    """

    place: Place
    missing: tuple[bytes, ...] = ()
    without: frozenset[CommitId] = frozenset()
    retained: tuple[CommitId, ...] = field(default=(), name="held")
    begun: int = 0
    identity: bytes = b""
    refused: tuple[RefusedDeployment, ...] = ()


class Transport(Protocol):
    """A connection to a remote. Raises RemoteUnreachable, RemoteRefused and the store's errors."""

    url: str

    def head(self, after: Place | None = None) -> RemoteHead:
        """The remote's current head, and whether its journal contains ``after``. One round trip."""

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """The remote's entries, oldest first, as slices. One round trip for all slices."""

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        """Waits until the mark of the live version differs from ``mark``, and returns the new mark.

        None after ``seconds`` without a change. A mark is a text that changes with the version.
        """

    def receive(self, incoming: Slice) -> Received:
        """Sends a slice to the remote. Repeat the call if its answer was lost."""

    def close(self) -> None:
        """Closes the connection and everything opened for it."""
