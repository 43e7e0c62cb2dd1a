"""A transport: what every remote answers, whether a folder, ssh, https or a bucket leads to it.

A transfer takes entries of one open repository into another one. The side that has them *sends*
slices, the other one *receives* them; nothing received counts before every coding in it was
decoded and hashed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

from mvc.ids import CommitId, StatementId
from mvc.names import printable
from mvc.store.journal.entries import RefValue
from mvc.times import format_time
from mvc.types import Bytes

BROUGHT, FETCH = "receive", "fetch"
"""The operations of entries that came in: pushed by others, or fetched."""

States = Literal["all", "none"] | int
"""Whose states travel with the versions: those of all, of none, or of what is live on targets and
of the last so many of each branch.
"""


MOST_PATHS = 256
"""Paths that one question names."""
_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Place(Struct, frozen=True, array_like=True):
    """Up to where a journal was read: the number of its next entry, and the check before it.

    ``seen``: where the journal ended then, if that was further on; 0 if it was not.
    """

    sequence: _Number
    chain: bytes
    seen: _Number = 0


class RemoteHead(Struct, frozen=True, array_like=True):
    """What a remote is now.

    ``identity``: the check of its journal's first entry. ``refs``: branches (``heads/NAME``), tags
    (``tags/NAME``) and ``HEAD``. ``time_ns``: its clock, ns since 1970. ``scopes``: what the caller
    may do there; empty where everything is allowed. ``unnamed``: what is live, and versions that no
    ref leads to yet, because a push was interrupted. ``protected``: targets, with ``*`` for any
    characters, on which it takes only deployments of who has a scope that names them.
    ``leads_on``: whether its journal continues the place that was asked about.
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
    """What a receiver asks for.

    ``after``: it has what the sender's journal held up to there. ``versions``: these and what they
    need, by default all that branches, tags and deployments lead to. ``have``: versions that the
    receiver has with their states. ``objects``: ids of objects that it lacked, in all earlier tries
    together; they are sent whole. ``again``: versions that it has without their states, which it
    wants.
    ``without``: versions whose states it refuses, because they were forgotten by name there.
    ``due``: versions that it has from elsewhere, of which it gets all that is said. ``reports``:
    what nodes report is told, too.
    ``live``: a target; then it wants one slice, with nothing but the version that is live there,
    of its records those of the file ``paths`` (by default its only model), and the deployment. With
    ``folder`` those of all ``paths`` and what lies below, by default of all but training states.
    ``have`` are then versions of which it has these files, but for ``objects``, and nothing of
    their history.
    """

    after: Place | None = None
    versions: tuple[CommitId, ...] = ()
    have: frozenset[CommitId] = frozenset()
    states: States = "all"
    objects: tuple[bytes, ...] = ()
    again: tuple[CommitId, ...] = ()
    without: frozenset[CommitId] = frozenset()
    due: tuple[CommitId, ...] = ()
    reports: bool = False
    live: str = ""
    paths: Annotated[tuple[str, ...], Meta(max_length=MOST_PATHS)] = ()
    folder: bool = False


class Move(Struct, frozen=True, array_like=True):
    """A ref's value that the sender expects at the receiver, and the one that it asks for."""

    name: str
    old: CommitId | None
    new: CommitId | None
    force: bool = False


class Slice(Struct):
    """Entries, and the records that they need, as they travel.

    ``head`` is the encoded list of entries (``slices``), ``size`` the number of bytes in
    ``records``. ``moves`` happen together with the last entry; only the last slice has any.
    ``place``: up to where the sender's journal was read once this slice is received. ``features``:
    of the sender's format; a receiver refuses those that it does not know.
    """

    head: bytes
    size: int
    records: Iterable[Bytes]
    moves: tuple[Move, ...] = ()
    place: Place | None = None
    features: frozenset[str] = frozenset()


class RefusedDeployment(Struct, frozen=True):
    """A deployment, or a retraction (``retracts``), that replaces what is not live there now.

    ``id``: of the statement; ``live``, ``author`` and ``time_ns``: the version that is live there,
    who deployed it and when; no version if nothing is.
    """

    target: str
    id: StatementId
    live: CommitId | None = None
    author: str = ""
    time_ns: int = 0
    retracts: bool = False

    def __str__(self) -> str:
        """Who deployed what meanwhile."""
        target = printable(self.target)
        if self.live is None:
            return f"nothing is live on {target} any more"
        who, when = printable(self.author) or "somebody", format_time(self.time_ns)
        return f"{self.live.short} is live on {target} meanwhile, which {who} deployed at {when}"


class Received(Struct, frozen=True):
    """What became of a slice: either it is published, or ``missing`` objects are needed first.

    ``place``: the end of the receiver's journal, as of what was published; ``begun`` is the number
    of the first operation of it, 0 for none. ``without``: of the next try (``Wanted``). ``held``:
    versions that were forgotten by name elsewhere and are kept there for now, because something
    stands on them. ``identity``: of the receiver, where a head without one was no repository yet.
    ``refused``: statements that were left out because others deployed meanwhile.
    """

    place: Place
    missing: tuple[bytes, ...] = ()
    without: frozenset[CommitId] = frozenset()
    held: tuple[CommitId, ...] = ()
    begun: int = 0
    identity: bytes = b""
    refused: tuple[RefusedDeployment, ...] = ()


class Transport(Protocol):
    """An open way to a remote. Raises RemoteUnreachable, RemoteRefused and the store's errors."""

    url: str

    def head(self, after: Place | None = None) -> RemoteHead:
        """What the remote is now, and whether its journal continues ``after``; one round trip."""

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """The remote's entries, oldest first; one round trip for all slices."""

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        """A mark of what is live on a target, once it is another one than ``mark``.

        None if it is not within so many seconds. It says nothing but that something else is live.
        """

    def receive(self, given: Slice) -> Received:
        """Has the remote take a slice. A lost answer is settled by giving it again."""

    def close(self) -> None:
        """Lets go of the connection, and of what was opened for it."""
