"""Fetching: versions that a remote has and this repository lacks, and where its refs are now.

Branches of a remote R are kept as ``remotes/R/NAME``. Its tags become tags here, unless there is
another one of the name. Up to where R's journal was read stands in ``.mvc/remotes/R/place``; if
that file is lost, more is read again.
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
from mvc.remote.statements import by_name, here_again, without
from mvc.remote.transfer import (
    NOTHING,
    Change,
    RefUpdate,
    Tally,
    Transferred,
    carry,
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
"""Slices in a row of which nothing is new, after which a remote sends no more of use; or several
that take longer than ``waiting.WORK``: their bytes look useful to a connection.
"""
_NAMED = 10_000  # versions that are kept though a remote has forgotten them, as they are remembered


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
    """Brings what is new in a remote; durable on return.

    ``states`` says whose states come along, ``prune`` deletes refs of branches that are gone there,
    ``nodes`` brings what nodes report there.
    Raises HistoryMissing for a remote that was rewound or exchanged, RemoteUnreachable,
    RemoteRefused, and the errors of the store.
    """
    if not remote.name:
        raise WrongUsage(
            "what is fetched needs the name of a remote", hint=f"mvc remote add NAME {remote.url}"
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
    """As ``fetch``, through a transport that was asked ``before``; ``wanted`` says which states."""
    head, known = before.head, before.fetched
    check_same(remote, known, head)
    told = before.reports if wanted.reports else known
    work = _Fetch(store, config, remote, before, progress=progress)
    place = Place(0, b"") if told is None else told.place
    buried, after = by_name(store.snapshot), place if place.sequence else None
    if known is not None:
        work.kept.update(dict.fromkeys(map(CommitId, known.kept)))
    if told is not None and {*told.passed} - {*remote.disbelieved}:  # it is believed by now
        after = None
    if after != head.place or not _is_whole(store, head):
        snapshot = store.fresh()
        have = remote_refs(snapshot, remote.name) or [*branches(snapshot), *tags(snapshot)]
        has = frozenset(ref.commit for ref in have)
        wanted = replace(wanted, after=after, have=has, without=buried)
        carry(transport.send, work.take, wanted, (), tally=work.tally)
        if after is not None and not _is_whole(store, head):
            carry(transport.send, work.take, replace(wanted, after=None), (), tally=work.tally)
    for id_ in _live_without(store) if isinstance(wanted.states, int) else ():
        with suppress(StateForgotten, UnknownRevision, WeightsDropped):  # lacked there as well
            work.bring(transport, (id_,))
    updates = [*_updates(store, remote, head, prune=prune)]
    if updates:
        moves = tuple(Move(each.local, each.old, each.new) for each in updates)
        work.receive(Slice(NOTHING, 0, (), moves))
    now = work.known(work.tally.place or head.place)
    if now != known:
        keep_place(store, remote, FETCHED, now)
    if wanted.reports and now != told:
        keep_place(store, remote, REPORTS, now)
    if before.pushed is not None and before.pushed.there != now.place:
        keep_place(store, remote, PUSHED, replace(before.pushed, there=now.place))
    tally = work.tally
    forgotten = by_name(store.fresh()) - buried - tally.versions if tally.operations else ()
    return replace(
        tally.total(updates),
        forgotten=tuple(id_ for id_ in sorted(forgotten) if store.snapshot.has_commit(id_)),
        kept=tuple(map(CommitId, now.kept)),
    )


def fetch_states(
    store: Store,
    config: Config,
    remote: Remote,
    versions: Sequence[CommitId],
    *,
    progress: Progress | None = None,
) -> Transferred:
    """Brings the states, or the weights, of versions that are here without; durable on return.

    Raises StateForgotten for one that the remote lacks as well, or that was forgotten by name.
    """
    asked = tuple(dict.fromkeys(versions))
    marked = here_again(store.fresh(), asked, asked=True)

    def lacks(id_: CommitId) -> bool:
        absent = availability.forgotten(store, id_) is not None
        return absent or (id_ not in marked and availability.dropped(store, id_) is not None)

    lacking = tuple(filter(lacks, asked))
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
                f"{remote.name or remote.url} lacks it as well: {error.message}",
                hint="another repository may have it: 'mvc remote' lists those that are known",
            ) from error
    return replace(work.tally.total(), versions=sum(not lacks(id_) for id_ in lacking))


def _live_without(store: Store) -> list[CommitId]:
    """The versions that are live on targets, and here without their states, which may come back."""
    with suppress(DamagedData):  # what is live may be lost
        gone = (availability.forgotten(store, id_) for id_ in live_now(store))
        return [each.commit for each in gone if each is not None and not each.named]
    return []


# -- refs --------------------------------------------------------------------------------------


def _updates(store: Store, remote: Remote, head: RemoteHead, *, prune: bool) -> Iterator[RefUpdate]:
    """How refs here change, once all versions are here."""
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
            here = old if isinstance(old, CommitId) else None
            yield RefUpdate(name, local, here, new, change=change)
    for each in remote_refs(store.fresh(), remote.name) if prune else ():
        short = each.name.partition("/")[2]
        if not {BRANCH + short, TAG + short} & head.refs.keys():
            yield RefUpdate(BRANCH + short, REMOTE + each.name, each.commit, None, change="deleted")


def _is_free(store: Store, tag: str, new: CommitId) -> bool:
    """Whether a tag of a remote may be one here: nothing else has its name, or it moves on."""
    short, at = tag.removeprefix(TAG), store.snapshot.ref(tag)
    if store.snapshot.ref(BRANCH + short) is not None or store.snapshot.ref(HEAD) == short:
        return False
    return not isinstance(at, CommitId) or _has_moved_on(store, tag, new, at)


def _has_moved_on(store: Store, name: str, new: CommitId, old: CommitId) -> bool:
    """Whether the tag of a data set is at a later version of it."""
    return advances(name) and leads_to(store.snapshot, new, old, {})


def _is_whole(store: Store, head: RemoteHead) -> bool:
    """Whether all that the refs of a remote lead to is here."""
    return all(map(store.snapshot.has_commit, tips_of(head.refs)))


# -- versions ----------------------------------------------------------------------------------


class _Fetch:
    """Takes slices in. ``kept``: versions of which it is not believed that they are forgotten."""

    def __init__(
        self, store: Store, config: Config, remote: Remote, before: Known,
        *, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._store, self._config, self._remote = store, config, remote
        self._identity, self.tally = before.head.identity, Tally(remote, progress)
        self.kept: dict[CommitId, None] = {}
        self._in_vain, self._news_s = 0, time.monotonic()

    def known(self, place: Place) -> KnownPlace:
        """What is remembered of the remote, if it was read up to ``place``."""
        store, remote = self._store, self._remote
        here = (
            id_ for id_ in self.kept if not remote.tombstones and store.snapshot.has_commit(id_)
        )
        whole = (bytes(id_) for id_ in here if availability.forgotten(store, id_) is None)
        kept = tuple(islice(whole, _NAMED))
        return KnownPlace(self._identity, place, passed=remote.disbelieved, kept=kept)

    def take(self, given: Slice) -> Received:
        store, tally, entries = self._store, self.tally, decode_entries(given.head)
        if self._remote.disbelieved:
            entries = tuple(map(self._believed, entries))
        lacks = {id_ for id_ in versions_in(entries) if not store.snapshot.has_commit(id_)}
        head, records = encode_entries(entries), tally.records(given.records)
        got = self.receive(replace(given, head=head, records=records))
        if got.missing:
            return got
        tally.held.update(dict.fromkeys(got.held))
        tally.entries(head, entries, lacks)
        self._check_news(is_new=got.begun > 0)
        if given.place is not None:
            tally.place = given.place
            keep_place(store, self._remote, FETCHED, self.known(given.place))
        return got

    def bring(self, transport: Transport, versions: tuple[CommitId, ...]) -> None:
        """Brings the states of versions that are here without."""
        have = frozenset(availability.nearest_kept(self._store, versions))
        wanted = Wanted(again=versions, have=have, without=by_name(self._store.snapshot))
        carry(transport.send, self.take, wanted, (), tally=self.tally)
        self.tally.versions.update(versions)

    def receive(self, given: Slice) -> Received:
        from mvc.remote.receiving.receiver import (
            receive,  # a push and an idle fetch need none of it
        )

        return receive(self._store, self._config, given, local=True)

    def _believed(self, sent: Sent) -> Sent:
        """What was sent, without what is not believed of this remote."""
        said, remote = sent.said, self._remote
        if not remote.tombstones:
            stones = (each for each in said if isinstance(each, Tombstone))
            self.kept.update((CommitId(each.subject), None) for each in stones)
        gone = {each.id for each in said if remote.disbelieves(each)}
        return replace(sent, statements=tuple(each.encoded for each in without(said, gone)))

    def _check_news(self, *, is_new: bool) -> None:
        now = time.monotonic()
        self._in_vain, self._news_s = (0, now) if is_new else (self._in_vain + 1, self._news_s)
        is_late = self._in_vain > 1 and now - self._news_s > patience.WORK
        if self._in_vain > IN_VAIN or is_late:
            raise RemoteRefused(
                f"{self.tally.remote} sends slices without end, and nothing new",
                hint="ask its owner whether this is 'mvc serve'",
            )
