"""Fetching: versions that a remote has and this repository lacks, and where its refs are now.

Branches of a remote R are kept as ``remotes/R/NAME``. Its tags become tags here, unless there is
another one of the name. Up to where R's journal was read stands in ``.mvc/remotes/R/place``; if
that file is lost, more is read again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from msgspec.structs import replace

from mvc.errors import DamagedData, HistoryMissing, RemoteRefused, StateForgotten, WrongUsage
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
    begins,
    check_same,
    keep_place,
    tips_of,
)
from mvc.remote.refs import advances, leads_to
from mvc.remote.remotes import Remote, states_of
from mvc.remote.slices import Sent, decode_entries, encode_entries
from mvc.remote.statements import by_name, here_again, told, without
from mvc.remote.transfer import (
    NOTHING,
    Change,
    RefUpdate,
    Tally,
    Transferred,
    until_complete,
    versions_in,
    with_missing,
)
from mvc.remote.transport import Move, Place, Received, RemoteHead, Slice, Transport, Wanted
from mvc.remote.transports import waiting as patience
from mvc.remote.transports.opening import open_transport
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, branches, remote_refs, tags
from mvc.store.store import Store
from mvc.types import Progress

IN_VAIN = 10_000
"""Slices in a row of which nothing is new, after which a remote sends no more of use; or several
that take longer than ``waiting.WORK``: their bytes look useful to a connection.
"""
_NAMED = 10_000  # versions that are kept though a remote has forgotten them, as they are remembered
_NEAR = 64  # versions back in which a state is looked for that a delta may start from


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
    planned = [*_planned(store, remote, head), *(_gone(store, remote, head) if prune else ())]
    work = _Fetch(store, config, remote, transport, before=before, progress=progress)
    place = Place(0, b"") if told is None else told.place
    buried, after = by_name(store.snapshot), place if place.sequence else None
    if known is not None:
        work.kept.update(dict.fromkeys(map(CommitId, known.kept)))
    if told is not None and {*told.passed} - {*remote.disbelieved}:  # it is believed by now
        after = None
    if after != head.place or not _all_here(store, planned):
        snapshot = store.fresh()
        have = remote_refs(snapshot, remote.name) or [*branches(snapshot), *tags(snapshot)]
        work.run(
            replace(
                wanted,
                after=after,
                have=frozenset(ref.commit for ref in have),
                without=buried,
            ),
            [update for update in planned if not _waits(update)],
        )
    updates = [done for each in planned if (done := _settled(store, remote, each)) is not None]
    work.move(updates)
    now = work.known(work.place or head.place)
    if now != known:
        keep_place(store, remote, FETCHED, now)
    if wanted.reports and now != told:
        keep_place(store, remote, REPORTS, now)
    _note_told(store, remote, before, work)
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
    snapshot = store.fresh()
    asked = tuple(dict.fromkeys(versions))
    marked = here_again(store.snapshot, asked, asked=True)

    def lacks(id_: CommitId) -> bool:
        absent = availability.forgotten(store, id_) is not None
        return absent or (id_ not in marked and availability.dropped(store, id_) is not None)

    lacking = tuple(filter(lacks, asked))
    if not lacking:
        return Transferred(remote.name, ())
    with closing(open_transport(remote, store, config)) as transport:
        before = ask(transport, store, remote)
        check_same(remote, before.fetched, before.head)
        work = _Fetch(store, config, remote, transport, before=before, progress=progress)
        have = frozenset(nearest_kept(store, lacking))
        try:
            work.run(Wanted(again=lacking, have=have, without=by_name(snapshot)), ())
        except StateForgotten as error:
            raise StateForgotten(
                f"{remote.name or remote.url} lacks it as well: {error.message}",
                hint="another repository may have it: 'mvc remote' lists those that are known",
            ) from error
    return replace(work.tally.total(), versions=sum(not lacks(id_) for id_ in lacking))


def nearest_kept(store: Store, versions: Iterable[CommitId]) -> set[CommitId]:
    """By first parents the nearest ancestor of each whose state is here; not all have one."""
    found = set()
    for id_ in versions:
        parents = commits.get(store.snapshot, id_).parents
        for _ in range(_NEAR):
            if not parents:
                break
            if availability.forgotten(store, parents[0]) is None:
                found.add(parents[0])
                break
            parents = commits.get(store.snapshot, parents[0]).parents
    return found


def _note_told(store: Store, remote: Remote, before: Known, work: _Fetch) -> None:
    """Has the next push pass over what this fetch recorded, if all else was pushed ``before``."""
    known, head = before.pushed, before.head
    if known is None or known.place != before.own:
        return
    tips = [id_ for id_ in tips_of(head.refs) if store.snapshot.has_commit(id_)]
    if work.tally.versions.issuperset(known.untold(store, tips)):
        known = replace(known, tips=tuple(map(bytes, tips)))
    place, snapshot = known.place, store.fresh()
    for recorded in snapshot.entries(begins(snapshot, place)):
        if recorded.sequence not in work.own and told(snapshot, recorded):
            break  # another process recorded it meanwhile
        place = Place(recorded.after.sequence, recorded.after.chain)
    known = replace(known, place=place, there=work.place or head.place)
    if known != before.pushed:
        keep_place(store, remote, PUSHED, known)


# -- refs --------------------------------------------------------------------------------------


def _planned(store: Store, remote: Remote, head: RemoteHead) -> Iterator[RefUpdate]:
    """What is another here than there; how it differs is known once all versions are here."""
    ref, own = store.snapshot.ref, f"{REMOTE}{remote.name}/"
    for name, new in sorted(head.refs.items()):
        if not isinstance(new, CommitId) or name == HEAD:
            continue
        local = own + name.removeprefix(BRANCH).removeprefix(TAG)
        change: Change = "new"
        if name.startswith(TAG):
            if ref(name) == new:
                continue
            local, change = (name, "new") if _is_free(store, name) else (local, "kept")
        here = ref(local)
        if here != new:
            old = here if isinstance(here, CommitId) else None
            yield RefUpdate(name, local, old, new, change=change)


def _is_free(store: Store, tag: str) -> bool:
    """Whether a tag of a remote may be one here: nothing else has its name, or it may move on."""
    ref, short = store.snapshot.ref, tag.removeprefix(TAG)
    if ref(BRANCH + short) is not None or ref(HEAD) == short:
        return False
    return ref(tag) is None or advances(tag)


def _waits(update: RefUpdate) -> bool:
    """Whether it depends on the versions whether the ref moves: the tag of a data set, here too."""
    return update.local == update.name and update.old is not None


def _gone(store: Store, remote: Remote, head: RemoteHead) -> Iterator[RefUpdate]:
    for each in remote_refs(store.fresh(), remote.name):
        short = each.name.partition("/")[2]
        if not {BRANCH + short, TAG + short} & head.refs.keys():
            yield RefUpdate(BRANCH + short, REMOTE + each.name, each.commit, None, change="deleted")


def _all_here(store: Store, updates: Iterable[RefUpdate]) -> bool:
    return all(update.new is None or store.snapshot.has_commit(update.new) for update in updates)


def _settled(store: Store, remote: Remote, update: RefUpdate) -> RefUpdate | None:
    """How a ref changes, now that all versions are here; None if it does not."""
    old, new = update.old, update.new
    if update.change != "new" or old is None or new is None:
        return update
    if leads_to(store.snapshot, new, old, {}):
        return replace(update, change="forward")
    if not _waits(update):
        return replace(update, change="forced")
    if leads_to(store.snapshot, old, new, {}):
        return None  # the data set has moved on here
    local = f"{REMOTE}{remote.name}/{update.name.removeprefix(TAG)}"
    here = store.snapshot.ref(local)
    if here == new:
        return None
    old = here if isinstance(here, CommitId) else None
    return replace(update, local=local, old=old, change="kept")


# -- versions ----------------------------------------------------------------------------------


class _Fetch:
    """Takes slices in. ``place``: up to where the remote was read. ``own``: numbers of the entries
    that this fetch recorded.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        remote: Remote,
        transport: Transport,
        before: Known,
        *,
        progress: Progress | None,
    ) -> None:
        self._store, self._config, self._remote, self._transport = store, config, remote, transport
        self._identity = before.head.identity
        self.own = set[int]()
        self.tally = Tally(remote, progress)
        self.place: Place | None = None
        self.kept: dict[CommitId, None] = {}

    def known(self, place: Place) -> KnownPlace:
        """What is remembered of the remote, if it was read up to ``place``."""
        store, remote = self._store, self._remote
        here = (
            id_ for id_ in self.kept if not remote.tombstones and store.snapshot.has_commit(id_)
        )
        whole = (bytes(id_) for id_ in here if availability.forgotten(store, id_) is None)
        kept = tuple(islice(whole, _NAMED))
        return KnownPlace(self._identity, place, passed=remote.disbelieved, kept=kept)

    def run(self, wanted: Wanted, updates: Sequence[RefUpdate]) -> None:
        """Takes what is wanted, and moves each ref with the first slice that leads to it."""
        failed = DamagedData(
            f"{self._remote.name} does not send what its versions build on",
            hint=f"'mvc fsck --remote {self._remote.name}' checks it",
        )
        until_complete(wanted, lambda asked: self._take_all(asked, updates), failed)

    def _take_all(self, wanted: Wanted, updates: Sequence[RefUpdate]) -> Wanted | None:
        """What to want next if something is missing here; None if all came."""
        waiting, in_vain, news = list(updates), 0, time.monotonic()
        with closing(self._transport.send(wanted)) as slices:
            for each in slices:
                entries = decode_entries(each.head)
                if self._remote.disbelieved:
                    entries = tuple(map(self._believed, entries))
                    each = replace(each, head=encode_entries(entries))
                lacks = {
                    id_ for id_ in versions_in(entries) if not self._store.snapshot.has_commit(id_)
                }
                ready = [u for u in waiting if u.new in lacks or _all_here(self._store, [u])]
                records = self.tally.records(each.records)
                given = replace(each, records=records, moves=_moves(ready))
                try:
                    got = self._receive(given)
                except HistoryMissing:
                    if wanted.after is None:
                        raise
                    return replace(wanted, after=None)
                if got.missing:
                    then = replace(wanted, after=self.place or wanted.after)
                    return with_missing(wanted, got, then)
                self.tally.held.update(dict.fromkeys(got.held))
                self.tally.entries(each.head, entries, lacks)
                now = time.monotonic()
                in_vain, news = (0, now) if got.begun else (in_vain + 1, news)
                if in_vain > IN_VAIN or (in_vain > 1 and now - news > patience.WORK):
                    raise RemoteRefused(
                        f"{self.tally.remote} sends slices without end, and nothing new",
                        hint="ask its owner whether this is 'mvc serve'",
                    )
                waiting = [u for u in waiting if u not in ready]
                self._keep(each.place)
        is_whole = wanted.after is None or _all_here(self._store, updates)
        return None if is_whole else replace(wanted, after=None)

    def move(self, updates: Sequence[RefUpdate]) -> None:
        left = [u for u in updates if self._store.snapshot.ref(u.local) != u.new]
        if left:
            self._receive(Slice(NOTHING, 0, (), _moves(left)))

    def _receive(self, given: Slice) -> Received:
        from mvc.remote.receiving.receiver import (
            receive,  # a push and an idle fetch need none of it
        )

        got = receive(self._store, self._config, given, local=True)
        if got.begun:
            self.own.update(range(got.begun, got.place.sequence))
        return got

    def _believed(self, sent: Sent) -> Sent:
        """What was sent, without what is not believed of this remote."""
        said, remote = sent.said, self._remote
        if not remote.tombstones:
            stones = (each for each in said if isinstance(each, Tombstone))
            self.kept.update((CommitId(each.subject), None) for each in stones)
        gone = {each.id for each in said if remote.disbelieves(each)}
        return replace(sent, statements=tuple(each.encoded for each in without(said, gone)))

    def _keep(self, place: Place | None) -> None:
        if place is not None:
            self.place = place
            keep_place(self._store, self._remote, FETCHED, self.known(place))


def _moves(updates: Iterable[RefUpdate]) -> tuple[Move, ...]:
    return tuple(Move(each.local, each.old, each.new) for each in updates)
