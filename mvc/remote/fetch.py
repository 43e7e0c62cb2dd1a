"""Fetches from a remote: copies versions that this repository lacks, and updates tracking refs.

The branch NAME of a remote R becomes the tracking ref ``remotes/R/NAME``. A tag of R becomes a
local tag if no local branch and no other local tag has the same name. A fetch reads the journal
(the log of all operations) of R. The file ``.mvc/remotes/R/place`` records how far the journal was
read, so the next fetch reads only new operations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice

from msgspec.structs import replace

from mvc.errors import (
    DamagedData,
    RemoteRefused,
    StateForgotten,
    UnknownRevision,
    WeightsDropped,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.model.statement import Tombstone
from mvc.names import REMOTE
from mvc.remote.places import (
    FETCHED,
    PUSHED,
    REPORTS,
    Known,
    KnownPlace,
    ask,
    check_same,
    keep_place,
    tips_of,
)
from mvc.remote.refs import advances, leads_to
from mvc.remote.remotes import Remote, states_of
from mvc.remote.slices import Sent, decode_entries, encode_entries
from mvc.remote.statements import purged_versions, to_restore, without
from mvc.remote.transfer import (
    NOTHING,
    Change,
    RefUpdate,
    Tally,
    Transferred,
    transfer,
    versions_in,
)
from mvc.remote.transport import Move, Place, Received, RemoteHead, Slice, Transport, Wanted
from mvc.remote.transports import waiting as patience
from mvc.remote.transports.opening import open_transport
from mvc.repo.config import Config
from mvc.repo.lookup import availability
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, branches, remote_refs, tags
from mvc.repo.statements.live import live_now
from mvc.store.store import Store
from mvc.types import Progress

IN_VAIN = 10_000
"""Maximum number of consecutive slices (parts of a transfer) without new data.

A fetch fails if the remote sends more such slices, or such slices for longer than ``waiting.WORK``
seconds. The time limits of connections do not stop such a remote, because data arrive.
"""
_NAMED = 10_000  # maximum number of versions in ``KnownPlace.retained``


def fetch(
    store: Store,
    config: Config,
    remote: Remote,
    *,
    states: str | None = None,
    prune: bool = False,
    nodes: bool = False,
    progress: Progress | None = None,
) -> Transferred:
    """Copies new versions, refs and statements from a remote. The data are durable on return.

    A statement is a deployment, an annotation or a purge. ``states``: which states to fetch.
    ``prune``: delete tracking refs of branches that the remote deleted. ``nodes``: whether to fetch
    reports of nodes (machines that serve a model). Raises HistoryMissing if the remote was rolled
    back or replaced; RemoteUnreachable; RemoteRefused; and the errors of the store.
    """
    if not remote.name:
        raise WrongUsage(
            "fetch needs a named remote, not a URL", hint=f"mvc remote add NAME {remote.url}"
        )
    kinds = states_of(states or remote.states)
    with closing(open_transport(remote, store, config)) as transport:
        return fetch_from(
            store, config, remote, transport, before=ask(transport, store, remote),
            wanted=Wanted(states=kinds, reports=nodes or remote.nodes),
            prune=prune, progress=progress,
        )  # fmt: skip


def fetch_from(
    store: Store,
    config: Config,
    remote: Remote,
    transport: Transport,
    before: Known,
    *,
    wanted: Wanted,
    prune: bool = False,
    progress: Progress | None = None,
) -> Transferred:
    """As ``fetch``, through an open transport. ``before``: the result of ``ask``."""
    head, known = before.head, before.fetched
    check_same(remote, known, head)
    read = before.reports if wanted.reports else known
    work = _Fetch(store, config, remote, before, progress=progress)
    place = Place(0, b"") if read is None else read.place
    purged, after = purged_versions(store.snapshot), place if place.sequence else None
    if known is not None:
        work.retained.update(dict.fromkeys(map(CommitId, known.retained)))
    if read is not None and {*read.passed} - {
        *remote.disbelieved
    }:  # earlier fetches skipped statements that are accepted now: read the whole journal
        after = None
    if after != head.place or not _is_whole(store, head):
        snapshot = store.fresh()
        have = remote_refs(snapshot, remote.name) or [*branches(snapshot), *tags(snapshot)]
        has = frozenset(ref.commit for ref in have)
        wanted = replace(wanted, after=after, have=has, without=purged)
        transfer(transport.send, work.apply, wanted, (), tally=work.tally)
        if after is not None and not _is_whole(store, head):
            transfer(transport.send, work.apply, replace(wanted, after=None), (), tally=work.tally)
    for id_ in _live_without_state(store) if isinstance(wanted.states, int) else ():
        # If the remote lacks the state, the fetch continues without it.
        with suppress(StateForgotten, UnknownRevision, WeightsDropped):
            work.bring(transport, (id_,))
    updates = [*_updates(store, remote, head, prune=prune)]
    if updates:
        moves = tuple(Move(update.local, update.old, update.new) for update in updates)
        work.receive(Slice(NOTHING, 0, (), moves))
    now = work.known(work.tally.place or head.place)
    if now != known:
        keep_place(store, remote, FETCHED, now)
    if wanted.reports and now != read:
        keep_place(store, remote, REPORTS, now)
    if before.pushed is not None and before.pushed.end != now.place:
        keep_place(store, remote, PUSHED, replace(before.pushed, end=now.place))
    tally = work.tally
    forgotten = purged_versions(store.fresh()) - purged - tally.versions if tally.operations else ()
    return replace(
        tally.total(updates),
        forgotten=tuple(id_ for id_ in sorted(forgotten) if store.snapshot.has_commit(id_)),
        kept=tuple(map(CommitId, now.retained)),
    )


def fetch_states(
    store: Store,
    config: Config,
    remote: Remote,
    versions: Sequence[CommitId],
    *,
    progress: Progress | None = None,
) -> Transferred:
    """Fetches absent states and dropped weights of local versions, durably.

    Raises StateForgotten for a state that is purged, or that the remote lacks, too.
    """
    requested = tuple(dict.fromkeys(versions))
    marked = to_restore(store.fresh(), requested, is_local_request=True)

    def lacks(id_: CommitId) -> bool:
        absent = availability.forgotten(store, id_) is not None
        return absent or (id_ not in marked and availability.dropped(store, id_) is not None)

    lacking = tuple(filter(lacks, requested))
    if not lacking:
        return Transferred(remote.name, ())
    with closing(open_transport(remote, store, config)) as transport:
        before = ask(transport, store, remote)
        check_same(remote, before.fetched, before.head)
        work = _Fetch(store, config, remote, before, progress=progress)
        try:
            work.bring(transport, lacking)
        except StateForgotten as error:
            raise StateForgotten(
                f"{remote.name or remote.url} lacks the state, too: {error.message}",
                hint="another repository may have it: 'mvc remote' lists the remotes",
            ) from error
    return replace(work.tally.total(), versions=sum(not lacks(id_) for id_ in lacking))


def _live_without_state(store: Store) -> list[CommitId]:
    """Live versions whose states are absent here and not purged."""
    with suppress(DamagedData):  # entries with deployments may be damaged
        absent = (availability.forgotten(store, id_) for id_ in live_now(store))
        return [mark.commit for mark in absent if mark is not None and not mark.named]
    return []


# -- refs --------------------------------------------------------------------------------------


def _updates(store: Store, remote: Remote, head: RemoteHead, *, prune: bool) -> Iterator[RefUpdate]:
    """The changes to make to local tags and tracking refs, so that they match the remote's refs.

    Call this function after the versions are received.
    """
    own = f"{REMOTE}{remote.name}/"
    for name, new in sorted(head.refs.items()):
        if not isinstance(new, CommitId) or name == HEAD:
            continue
        local = own + name.removeprefix(BRANCH).removeprefix(TAG)
        change: Change = "new"
        if name.startswith(TAG):
            at = store.snapshot.ref(name)
            if isinstance(at, CommitId) and (at == new or _has_moved_on(store, name, at, new)):
                continue
            if _is_free(store, name, new):
                local = name
            else:
                change = "kept"
        old = store.snapshot.ref(local)
        if isinstance(old, CommitId) and old != new and change == "new":
            change = "forward" if leads_to(store.snapshot, new, old, {}) else "forced"
        if old != new:
            existing = old if isinstance(old, CommitId) else None
            yield RefUpdate(name, local, existing, new, change=change)
    for ref in remote_refs(store.fresh(), remote.name) if prune else ():
        short = ref.name.partition("/")[2]
        if not {BRANCH + short, TAG + short} & head.refs.keys():
            yield RefUpdate(BRANCH + short, REMOTE + ref.name, ref.commit, None, change="deleted")


def _is_free(store: Store, tag: str, new: CommitId) -> bool:
    """Whether a remote's tag, which names the version ``new``, may become a local tag.

    True if no local branch or tag has the name. If a local tag has the name, true only for the tag
    of a data set, if ``new`` is the version of the local tag or a later version.
    """
    short, at = tag.removeprefix(TAG), store.snapshot.ref(tag)
    if store.snapshot.ref(BRANCH + short) is not None or store.snapshot.ref(HEAD) == short:
        return False
    return not isinstance(at, CommitId) or _has_moved_on(store, tag, new, at)


def _has_moved_on(store: Store, name: str, new: CommitId, old: CommitId) -> bool:
    """Whether ``name`` is the tag of a data set, and ``new`` is ``old`` or a later version."""
    return advances(name) and leads_to(store.snapshot, new, old, {})


def _is_whole(store: Store, head: RemoteHead) -> bool:
    """Whether this repository has every version that the remote's refs name."""
    return all(map(store.snapshot.has_commit, tips_of(head.refs)))


# -- versions ----------------------------------------------------------------------------------


class _Fetch:
    """Stores the slices that a remote sends.

    ``retained``: versions that are purged at the remote, but not in this repository.
    """

    def __init__(
        self, store: Store, config: Config, remote: Remote, before: Known,
        *, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._store, self._config, self._remote = store, config, remote
        self._identity, self.tally = before.head.identity, Tally(remote, progress)
        self.retained: dict[CommitId, None] = {}
        self._in_vain, self._news_s = 0, time.monotonic()

    def known(self, place: Place) -> KnownPlace:
        """What to record about the remote if its journal was read up to ``place``."""
        store, remote = self._store, self._remote
        present = (
            id_ for id_ in self.retained if not remote.tombstones and store.snapshot.has_commit(id_)
        )
        whole = (bytes(id_) for id_ in present if availability.forgotten(store, id_) is None)
        retained = tuple(islice(whole, _NAMED))
        return KnownPlace(self._identity, place, passed=remote.disbelieved, retained=retained)

    def apply(self, incoming: Slice) -> Received:
        store, tally, entries = self._store, self.tally, decode_entries(incoming.head)
        if self._remote.disbelieved:
            entries = tuple(map(self._accepted, entries))
        lacks = {id_ for id_ in versions_in(entries) if not store.snapshot.has_commit(id_)}
        head, records = encode_entries(entries), tally.records(incoming.records)
        got = self.receive(replace(incoming, head=head, records=records))
        if got.missing:
            return got
        tally.retained.update(dict.fromkeys(got.retained))
        tally.entries(head, entries, lacks)
        self._check_news(is_new=got.begun > 0)
        if incoming.place is not None:
            tally.place = incoming.place
            keep_place(store, self._remote, FETCHED, self.known(incoming.place))
        return got

    def bring(self, transport: Transport, versions: tuple[CommitId, ...]) -> None:
        """Fetches the absent states of local versions."""
        have = frozenset(availability.nearest_stored(self._store, versions))
        wanted = Wanted(restore=versions, have=have, without=purged_versions(self._store.snapshot))
        transfer(transport.send, self.apply, wanted, (), tally=self.tally)
        self.tally.versions.update(versions)

    def receive(self, incoming: Slice) -> Received:
        from mvc.remote.receiving.receiver import receive  # a slow import, not always needed

        return receive(self._store, self._config, incoming, local=True)

    def _accepted(self, sent: Sent) -> Sent:
        """``sent`` without the statements that fetches from this remote ignore.

        If tombstones (statements that purge a version) are ignored, adds their versions to
        ``retained``.
        """
        statements, remote = sent.decoded, self._remote
        if not remote.tombstones:
            stones = (statement for statement in statements if isinstance(statement, Tombstone))
            self.retained.update((CommitId(stone.subject), None) for stone in stones)
        ignored = {statement.id for statement in statements if remote.disbelieves(statement)}
        return replace(sent, statements=tuple(row.encoded for row in without(statements, ignored)))

    def _check_news(self, *, is_new: bool) -> None:
        now = time.monotonic()
        self._in_vain, self._news_s = (0, now) if is_new else (self._in_vain + 1, self._news_s)
        is_late = self._in_vain > 1 and now - self._news_s > patience.WORK
        if self._in_vain > IN_VAIN or is_late:
            raise RemoteRefused(
                f"{self.tally.remote} keeps sending data, but nothing new",
                hint="check that the URL belongs to an mvc server",
            )
