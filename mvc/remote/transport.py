"""The interface that every remote implements, whether a folder, ssh, https or a bucket.

A transfer copies entries from one repository to another. The *sender* produces slices, and the
*receiver* publishes one only after it has decoded and hashed every coding in it.
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
"""The operations of received entries: pushed by another repository, or fetched."""

States = Literal["all", "none"] | int
"""Which states a transfer includes: all, none, or those that are live on targets and those of the

last N versions of each branch.
"""


MOST_PATHS = 256
"""Limit of paths in one request."""
_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Place(Struct, frozen=True, array_like=True):
    """A position in a journal: the number of the next entry, and the check before it.

    ``seen``: where the journal ended at that time, if that was later; otherwise 0.
    """

    sequence: _Number
    chain: bytes
    seen: _Number = 0


class RemoteHead(Struct, frozen=True, array_like=True):
    """The current state of a remote.

    ``identity``: the check of its journal's first entry. ``refs``: ``heads/NAME``, ``tags/NAME``
    and ``HEAD``. ``time_ns``: its clock. ``scopes``: permissions of the caller; empty for all.
    ``unnamed``: live versions, and versions without a ref after an interrupted push. ``protected``:
    targets (``*`` matches any characters) that need a scope with their literal name. ``leads_on``:
    whether its journal contains the place in the request.
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

    ``after``: it has the sender's journal up to there. ``versions``: these and their ancestors; by
    default all that refs and deployments reach. ``have``: versions that it has with their states.
    ``objects``: contents that it lacked in earlier attempts, to be sent as full records.
    ``restore``: versions whose states it lacks and wants. ``without``: versions whose states it
    refuses, because they are purged there. ``due``: versions that it got elsewhere and whose
    statements it wants.
    ``reports``: include reports of nodes.

    ``live``: a target. The answer is one slice with the version that is live there and its
    deployment, and records of the file ``paths`` only (by default its only model). ``folder``: of
    all ``paths`` and files below them (by default all but training states). ``have`` are then
    versions of which the receiver has these files, except ``objects``; it needs none of their
    history.
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
    """A change of a ref from the value that the sender expects at the receiver to a new one."""

    name: str
    old: CommitId | None
    new: CommitId | None
    force: bool = False


class Slice(Struct):
    """Entries and the records that they need, in transit.

    ``head``: the encoded list of entries (``slices``). ``size``: number of bytes in ``records``.
    ``moves`` are applied together with the last entry; only the last slice has any. ``place``: the
    position in the sender's journal once this slice is received. ``features``: those of the
    sender's format; the receiver refuses unknown ones.
    """

    head: bytes
    size: int
    records: Iterable[Bytes]
    moves: tuple[Move, ...] = ()
    place: Place | None = None
    features: frozenset[str] = frozenset()


class RefusedDeployment(Struct, frozen=True):
    """A deployment or retraction (``retracts``) whose predecessor is no longer live at the remote.

    ``id``: of the statement. ``live``, ``author``, ``time_ns``: the version that is live there,
    None if nothing is, and its deployment.
    """

    target: str
    id: StatementId
    live: CommitId | None = None
    author: str = ""
    time_ns: int = 0
    retracts: bool = False

    def __str__(self) -> str:
        """The deployment that was made meanwhile."""
        target = printable(self.target)
        if self.live is None:
            return f"nothing is live on {target} any more"
        who, when = printable(self.author) or "another author", whole_second(self.time_ns)
        return f"{who} deployed {self.live.short} to {target} meanwhile, at {format_time(when)}"


class Received(Struct, frozen=True):
    """The answer to a slice: it is published, or the ``missing`` contents are needed first.

    ``place``: the end of the receiver's journal. ``begun``: number of the first operation that it
    published, or 0. ``without``: for the next attempt (``Wanted``). ``retained``: versions purged
    at the sender that remain stored here for now, because something needs them. ``identity``: of
    the receiver, if a new repository was created. ``refused``: statements skipped because of
    deployments made meanwhile.
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
        """The remote's current head, and whether its journal contains ``after``; one round trip."""

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """The remote's entries, oldest first; one round trip for all slices."""

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        """Waits until the mark of the live version differs from ``mark``, and returns the new one.

        None after ``seconds`` without a change. The mark only shows that something changed.
        """

    def receive(self, incoming: Slice) -> Received:
        """Sends a slice to the remote. Repeat the call if its answer was lost."""

    def close(self) -> None:
        """Closes the connection and everything opened for it."""
