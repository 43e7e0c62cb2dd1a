"""The interface of all kinds of remotes: folders, ssh, https and buckets.

A journal is the log of a repository's operations. A fetch or push copies journal entries from one
repository, the *sender*, to another, the *receiver*. The entries are sent in *slices*. A slice is
some entries with the records (encoded tensors and manifests) that these entries need. The receiver
decodes and hashes all tensors and manifests of a slice before it publishes the slice.
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
"""Names of the operations in the receiver's journal that record a push, and a fetch."""

States = Literal["all", "none"] | int
"""Which states a fetch or push includes: all, none, or a number N.

N means the states of live versions, and of the newest N versions of each branch.
"""


MOST_PATHS = 256
"""Limit of paths in one request."""
_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Place(Struct, frozen=True, array_like=True):
    """A position in a journal, between two entries.

    ``sequence``: the number of the entry after the position. ``chain``: a hash of all entries
    before the position. ``seen``: 0 if the position was the end of the journal when it was
    recorded; otherwise the number after the newest entry of the journal at this time.
    """

    sequence: _Number
    chain: bytes
    seen: _Number = 0


class RemoteHead(Struct, frozen=True, array_like=True):
    """The current refs and properties of a remote.

    ``identity``: a hash of the first entry of the remote's journal. ``place``: the end of this
    journal. ``refs``: ``heads/NAME``, ``tags/NAME`` and ``HEAD``. ``time_ns``: the time by the
    remote's clock. ``scopes``: permissions of the caller; empty if everything is permitted.
    ``unnamed``: live versions, and the newest versions of interrupted pushes. ``protected``:
    patterns of targets. A deployment to such a target needs the scope ``admin``, or a scope that
    names the target without wildcards, even if ``scopes`` is empty. ``leads_on``: whether the
    remote's journal contains the place that the caller named (``after``).
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

    ``after``: the receiver has the sender's journal up to this position. ``versions``: versions to
    send with their ancestors; by default all versions that refs and deployments reach. ``have``:
    versions that the receiver has with their states. ``objects``: tensors and manifests that the
    receiver lacked in earlier attempts; they are sent with all data that their deltas need.
    ``restore``: versions whose states to send, although the receiver has the versions. ``without``:
    versions whose states the receiver has purged, and refuses. ``due``: versions whose deployments,
    annotations and signatures to send, although the receiver has the versions (from another
    repository). ``reports``: whether to send the reports of nodes (machines that serve a model).

    ``live``: a target. If set, no history is sent. The answer is one slice with the live version
    of the target, its deployment, and the records of the file in ``paths`` (by default, of the only
    model). With ``folder``, the slice has the records of all files at or below ``paths`` (by
    default, of all files except training states). If ``live`` is set, ``have`` and ``objects``
    refer only to these files.
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
    """A change of a ref at the receiver. ``old``: the value that the sender expects there."""

    name: str
    old: CommitId | None
    new: CommitId | None
    force: bool = False


class Slice(Struct):
    """Entries, and the records that these entries need.

    ``head``: the entries, encoded by ``mvc.remote.slices``. ``size``: number of bytes in
    ``records``. ``moves``: changes of refs, which the receiver applies together with the last
    entry. Only the last slice has moves. ``place``: the position in the sender's journal after this
    slice. ``features``: features of the sender's format. The receiver refuses unknown features.
    """

    head: bytes
    size: int
    records: Iterable[Bytes]
    moves: tuple[Move, ...] = ()
    place: Place | None = None
    features: frozenset[str] = frozenset()


class RefusedDeployment(Struct, frozen=True):
    """A deployment that the remote refused, because another deployment was made meanwhile.

    ``retracts``: whether a retraction (the end of a deployment) was refused instead. ``id``: the id
    of the refused deployment or retraction. ``live``: the version that is live at the remote, or
    None. ``author``, ``time_ns``: author and time of the deployment of this live version.
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
    """The answer to a slice. If contents are ``missing``, the slice is not published.

    ``place``: the end of the receiver's journal. ``begun``: number of the first published entry, or
    0. ``without``: versions for ``Wanted.without`` of the next attempt. ``retained``: versions that
    the sender purged, and that the receiver still needs and retains. ``identity``: the identity of
    the receiver, if this slice created the receiver. ``refused``: deployments and retractions that
    were skipped.
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
        """The remote's current refs and properties. ``after``: the place for ``leads_on``.

        Needs one round trip.
        """

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """The remote's entries, oldest first, as slices. One round trip for all slices."""

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        """Waits until the mark of ``target`` differs from ``mark``, and returns the new mark.

        A mark is a text that changes when another version is live, or is deployed. ``mark``: the
        mark that the caller knows. Returns None after ``seconds`` without a change.
        """

    def receive(self, incoming: Slice) -> Received:
        """Sends a slice to the remote. If the answer was lost, the call may be repeated."""

    def close(self) -> None:
        """Closes the connection and everything opened for it."""
