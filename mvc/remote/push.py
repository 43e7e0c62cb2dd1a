"""Pushing: versions that a remote lacks, and its branches and tags moved to them.

Every ref moves from the value that is expected there, all of them or none. Where the remote's
branches then are is kept as ``remotes/R/NAME``, up to where this repository's own journal was
looked at in ``.mvc/remotes/R/pushed``: if that file is lost, more is looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import (
    DamagedData,
    HistoryMissing,
    RefConflict,
    StateForgotten,
    UnknownRevision,
    WeightsDropped,
)
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.names import BY_REFERENCE, BY_VALUE, DATA, DATA_SET, REMOTE, printable
from mvc.remote.door import Door, Move, Place, Received, RemoteHead, Slice, Wanted
from mvc.remote.doors import open_door
from mvc.remote.fetch import Change, RefUpdate, nearest_kept
from mvc.remote.moves import advances, leads_to, shown
from mvc.remote.places import (
    FETCHED,
    PUSHED,
    KnownPlace,
    head_of,
    keep_place,
    known_place,
    tips_of,
)
from mvc.remote.remotes import Remote
from mvc.remote.scopes import allows
from mvc.remote.slices import Sent, decode_entries, encode_entries
from mvc.repo.context import Context
from mvc.repo.live import live_now
from mvc.repo.lookup import availability, commits
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import BRANCH, TAG, branches, remote_refs, tags
from mvc.repo.lookup.refs import head as own_head
from mvc.repo.lookup.stamping import node, stamp_long
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import Recorded
from mvc.types import Bytes, Progress

if TYPE_CHECKING:
    from mvc.remote.sender import Sending

_TRIES = 4
_NOTHING = encode_entries(())


class PushOptions(Struct, frozen=True):
    """``every``: all branches and tags. ``force``: refs also move back, from where the last fetch
    or push saw them. ``delete``: refs to delete there. ``dry_run``: only say what would go.
    ``partial``: also versions whose states neither side has.
    """

    every: bool = False
    force: bool = False
    delete: tuple[str, ...] = ()
    dry_run: bool = False
    partial: bool = False


class Pushed(Struct, frozen=True):
    """``versions`` and ``operations`` that went, or would, and their ``bytes``.

    ``passed_over``: tags that are another version there. ``held``: versions that were forgotten by
    name here and are kept there for now, because something stands on them. ``outside``: versions
    without weights that can be trained again only where their data lie. ``at_home``: data sets
    whose contents stay here. ``denied``: scopes that the caller lacks there, so that tags and
    deployments which would have gone along have not. ``not_there``: targets, with the version that
    is live on them here, whose version the remote does not have: their deployments stay here.
    """

    remote: str
    updates: tuple[RefUpdate, ...]
    passed_over: tuple[str, ...] = ()
    versions: int = 0
    operations: int = 0
    bytes: int = 0
    held: tuple[CommitId, ...] = ()
    outside: tuple[CommitId, ...] = ()
    at_home: tuple[CommitId, ...] = ()
    denied: tuple[str, ...] = ()
    not_there: tuple[tuple[str, CommitId], ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether anything went."""
        return bool(self.updates or self.operations)


def push(
    context: Context,
    remote: Remote,
    refs: Sequence[str] = (),
    options: PushOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Sends branches and tags, by default the current branch, with what they need; durable there.

    Tags, data sets, deployments and annotations of the versions that are there then go along.
    Raises RefConflict for what is not fast-forward or has moved there, UnknownRevision,
    StateForgotten for a version whose state neither side has, WeightsDropped for weights that
    nobody there could make again, RemoteUnreachable, RemoteRefused, and the errors of both stores;
    then no ref has moved.
    """
    chosen = options or PushOptions()
    context.fresh()
    with closing(open_door(remote, context)) as door:
        import_module("mvc.remote.sender")  # while the other end of ssh starts
        head = head_of(door, context, remote)
        if not chosen.dry_run:
            stamp_long(context.store)
        plan = _Plan(context, remote, head, chosen)
        updates = plan.updates(refs)
        work = _Push(context, remote, door, head=head, progress=progress)
        tips = [update.new for update in updates if update.new is not None]
        wanted = work.wanted([*tips, *plan.standing(refs)])
        work.plan(wanted, partial=chosen.partial)
        updates += plan.data_sets(updates, work.needed(wanted))
        moves = [
            Move(u.name, u.old, u.new, force=chosen.force and u.change == "forced") for u in updates
        ]
        if chosen.dry_run:
            work.count(wanted)
        else:
            work.run(wanted, moves)
            work.note(updates)
        return Pushed(
            remote.name or remote.url, tuple(updates), plan.passed_over, work.versions,
            operations=work.operations, bytes=work.bytes, held=tuple(work.held),
            outside=work.outside, at_home=work.at_home,
            denied=(*plan.denied, *sorted(work.denied)), not_there=plan.not_there(updates, refs),
        )  # fmt: skip


def push_states(
    context: Context,
    remote: Remote,
    versions: Sequence[CommitId],
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Sends the states of versions that the remote has without them; durable there on return.

    Raises StateForgotten for a state that is not here, UnknownRevision for a version that is not
    there.
    """
    context.fresh()
    with closing(open_door(remote, context)) as door:
        import_module("mvc.remote.sender")  # while the other end of ssh starts
        head = head_of(door, context, remote)
        work = _Push(context, remote, door, head=head, progress=progress)
        for id_ in versions:
            availability.check_kept(context, id_)
        again = work.lacking(tuple(dict.fromkeys(versions)))
        if again:
            work.run(Wanted(again=again, have=frozenset(nearest_kept(context, again))), ())
        return Pushed(
            remote.name or remote.url, (), versions=len(again), operations=work.operations,
            bytes=work.bytes,
        )  # fmt: skip


# -- which refs move ---------------------------------------------------------------------------


class _Plan:
    def __init__(
        self, context: Context, remote: Remote, head: RemoteHead, options: PushOptions
    ) -> None:
        self._context, self._remote = context, remote
        self._theirs, self._options, self._scopes = head.refs, options, head.scopes
        self.passed_over: tuple[str, ...] = ()
        self.denied: tuple[str, ...] = ()

    def updates(self, refs: Sequence[str]) -> list[RefUpdate]:
        """The refs that are to move. Raises RefConflict if one of them must not."""
        found, refused = list[RefUpdate](), list[tuple[RefUpdate, str]]()
        for name in self._deleted():
            found.append(self._update(name, None))
        for name, new in self._named(refs).items():
            if self._theirs.get(name) == new:
                continue
            update = self._update(name, new)
            if (reason := self._refused(update)) is not None:
                refused.append((update, reason))
            found.append(update)
        for update in found:
            if self._options.force or update.new is None:
                self._check_seen(update)
        if refused:
            raise self._rejected(refused)
        return [*found, *self._tags_along(found, refs)]

    def standing(self, refs: Sequence[str]) -> list[CommitId]:
        """The tips that are named, also those that are there already."""
        return list(self._named(refs).values())

    def _named(self, refs: Sequence[str]) -> dict[str, CommitId]:
        """Full names of what is to be pushed, and where they are here."""
        context = self._context
        if self._options.every:
            found = {BRANCH + ref.name: ref.commit for ref in branches(context)}
            return found | {TAG + ref.name: ref.commit for ref in tags(context)}
        if refs:
            return dict(self._find(name) for name in refs)
        if self._options.delete:
            return {}
        at = own_head(context)
        if at.branch is None:
            raise RefConflict("HEAD is on no branch", hint="name the branch or tag to push")
        if at.commit is None:
            raise UnknownRevision(
                f"nothing was committed on {at.branch} yet", hint="make a version with 'mvc commit'"
            )
        return {BRANCH + at.branch: at.commit}

    def _find(self, name: str) -> tuple[str, CommitId]:
        for full in (BRANCH + name, TAG + name, name):
            value = self._context.store.ref(full)
            if isinstance(value, CommitId) and full.startswith((BRANCH, TAG)):
                return full, value
        raise UnknownRevision(
            f"there is no branch or tag {printable(name[:100])}",
            hint="'mvc branch' and 'mvc tag' list them; "
            f"'mvc branch {printable(name[:100])} REV' makes one",
        )

    def _deleted(self) -> Iterator[str]:
        for name in self._options.delete:
            full = next((f for f in (BRANCH + name, TAG + name) if f in self._theirs), None)
            if full is None:
                raise UnknownRevision(
                    f"{self._remote.name} has no branch or tag {printable(name[:100])}",
                    hint=f"'mvc ls-remote {self._remote.name}' lists what it has",
                )
            yield full

    def _update(self, name: str, new: CommitId | None) -> RefUpdate:
        old = self._theirs.get(name)
        there = old if isinstance(old, CommitId) else None
        change: Change = "new" if there is None else "deleted" if new is None else "forward"
        if there is not None and new is not None and not self._advances(name, there, new):
            change = "forced"
        return RefUpdate(name, self._tracking(name), there, new, change=change)

    def _advances(self, name: str, old: CommitId, new: CommitId) -> bool:
        return advances(name) and leads_to(self._context, new, old, {})

    def _refused(self, update: RefUpdate) -> str | None:
        """Why a ref must not move, in git's words; None if it may."""
        if update.change != "forced" or self._options.force:
            return None
        if not advances(update.name):
            return "already exists"
        known = update.old is not None and self._context.store.has_commit(update.old)
        return "non-fast-forward" if known else "fetch first"

    def _check_seen(self, update: RefUpdate) -> None:
        """Raises RefConflict for a ref that somebody has moved since it was last seen."""
        seen = self._context.store.ref(update.local)
        if update.change in {"forced", "deleted"} and seen != update.old:
            at = "nowhere" if update.old is None else update.old.short
            raise RefConflict(
                f"{shown(update.name)} is not where the last fetch saw it: it is at {at} "
                "(stale info)",
                hint=f"'mvc fetch {self._remote.name}' and look at it, then push again",
            )

    def _rejected(self, refused: Sequence[tuple[RefUpdate, str]]) -> RefConflict:
        words = ", ".join(f"{shown(update.name)} ({reason})" for update, reason in refused)
        if any(reason == "already exists" for _, reason in refused):
            hint = "choose another name, or push it with --force"
        else:
            to = self._remote.typed
            hint = (
                f"'mvc pull{to}' brings what is there; then push again"
                if all(self._is_behind(update) for update, _ in refused)
                else "mvc merges no weights: 'mvc switch -c NAME', then "
                f"'mvc push{to}' gives your versions a branch of their own"
            )
        return RefConflict(f"{self._remote.name} rejects {words}; nothing was pushed", hint=hint)

    def _is_behind(self, update: RefUpdate) -> bool:
        """Whether a branch that must not move has nothing that the remote lacks."""
        store, theirs = self._context.store, update.old
        if theirs is None or not store.has_commit(theirs):
            seen = store.ref(update.local)
            theirs = seen if isinstance(seen, CommitId) else None
        if theirs is None or update.new is None:
            return False
        return leads_to(self._context, theirs, update.new, {})

    def _tags_along(self, updates: Sequence[RefUpdate], refs: Sequence[str]) -> list[RefUpdate]:
        """Tags of what is there then, unless another version has the name there."""
        context, named = self._context, {update.name for update in updates}
        tips = [update.new for update in updates if update.new is not None]
        below = Ancestors(context.store.snapshot, [*tips, *self.standing(refs)])
        found, others, denied = list[RefUpdate](), list[str](), list[str]()
        for ref in tags(context):
            name = TAG + ref.name
            theirs = self._theirs.get(name)
            if name in named or theirs == ref.commit or ref.commit not in below:
                continue
            update = self._update(name, ref.commit)
            if update.change == "forced":
                others.append(ref.name)
            elif allows(self._scopes, "push", name):
                found.append(update)
            else:
                denied.append(f"push:{name}")
        self.passed_over, self.denied = tuple(others), tuple(denied)
        return found

    def not_there(
        self, updates: Sequence[RefUpdate], refs: Sequence[str]
    ) -> tuple[tuple[str, CommitId], ...]:
        """Targets whose live version no ref of the remote leads to, with that version."""
        store = self._context.store
        tips = [update.new for update in updates if update.new is not None]
        tips += [v for v in self._theirs.values() if isinstance(v, CommitId)]
        known = filter(store.has_commit, [*tips, *self.standing(refs)])
        there = Ancestors(store.snapshot, known)
        return tuple(
            (target, id_)
            for id_, targets in live_now(self._context).items()
            for target in targets
            if id_ not in there
        )

    def data_sets(
        self, updates: Sequence[RefUpdate], needed: Collection[CommitId]
    ) -> list[RefUpdate]:
        """The tags of data sets that go along because a version needs them."""
        named, found = {update.name for update in updates}, list[RefUpdate]()
        for ref in tags(self._context):
            name = TAG + ref.name
            if ref.commit not in needed or name in named or not ref.name.startswith(DATA):
                continue
            update = self._update(name, ref.commit)
            if update.change in {"new", "forward"} and update.old != ref.commit:
                found.append(update)
        return found

    def _tracking(self, name: str) -> str:
        """The ref here that says where it is there: for a tag the tag itself."""
        short = name.removeprefix(BRANCH).removeprefix(TAG)
        tracked = f"{REMOTE}{self._remote.name}/{short}"
        if name.startswith(BRANCH) or self._context.store.ref(tracked) is not None:
            return tracked
        return name


# -- what goes ---------------------------------------------------------------------------------


class _Push:
    """Sends slices and counts what goes."""

    def __init__(
        self,
        context: Context,
        remote: Remote,
        door: Door,
        *,
        head: RemoteHead,
        progress: Progress | None,
    ) -> None:
        self._context, self._remote, self._door = context, remote, door
        self._head, self._progress = head, progress
        self._without: Container[CommitId] = frozenset() if remote.data else _ByValue(context)
        self.outside: tuple[CommitId, ...] = ()
        self.at_home: tuple[CommitId, ...] = ()
        self._sent: set[CommitId] = set()
        self._last: Slice | None = None
        self.bytes = self.versions = self.operations = 0
        self.held: dict[CommitId, None] = {}
        self.denied = frozenset[str]()
        self._refused = frozenset[CommitId]()
        self._end, self._alone = head.place, True  # whether nobody else has written there

    def wanted(self, tips: Iterable[CommitId]) -> Wanted:
        """What the remote lacks of these versions, and is not told yet, as far as it is known."""
        context, remote = self._context, self._remote
        store, known = context.store, known_place(context, remote, PUSHED)
        seen = [ref.commit for ref in remote_refs(context, remote.name)] if remote.name else []
        theirs = dict.fromkeys([*tips_of(self._head.refs), *self._head.unnamed, *seen])
        have = [id_ for id_ in theirs if store.has_commit(id_)]
        versions = tuple(dict.fromkeys([*tips, *have]))
        if known is None or known.identity != self._head.identity:
            return Wanted(versions=versions, have=frozenset(have))
        due = known.untold(context, have)  # others have brought these since
        return Wanted(known.place, versions=versions, have=frozenset(have), due=tuple(due))

    def lacking(self, versions: tuple[CommitId, ...]) -> tuple[CommitId, ...]:
        """Those whose states the remote lacks: it is offered all of them without a record."""
        sent = [Sent(again=(bytes(id_),)) for id_ in versions]
        missing = set(self._door.receive(Slice(encode_entries(sent), 0, ())).missing)
        by_manifest = {commits.get(self._context, id_).manifest: id_ for id_ in versions}
        if missing <= by_manifest.keys():
            return tuple(by_manifest[id_] for id_ in by_manifest if id_ in missing)
        return versions

    def plan(self, wanted: Wanted, *, partial: bool) -> None:
        """Looks at what goes without something.

        Raises StateForgotten for a version whose state neither side has, unless ``partial``, and
        WeightsDropped for one without weights where what makes them again stays here.
        """
        snapshot = self._context.store.snapshot
        is_whole = self._remote.data and not (snapshot.forgetting() or snapshot.weights())
        if is_whole or not wanted.versions:
            return
        sending = self._sending(wanted)
        self.at_home = tuple(c.id for c in sending.versions if c.id in self._without)
        outside = []
        for each in sending.lacks():
            id_, short = each.commit.id, each.commit.id.short
            if each.absent.why == "rule" and id_ not in self._without and not partial:
                raise StateForgotten(
                    f"the state of version {short} is neither here nor at {self._shown}",
                    hint=f"'mvc fetch REMOTE {short}' brings it from where it is; --partial "
                    "pushes the version without it",
                )
            if each.absent.why == "dropped" and each.needs:
                raise WeightsDropped(
                    f"the weights of version {short} were given up, and {each.needs[0].short}, "
                    f"from which they are trained again, does not go to {self._shown}",
                    hint=f"'mvc repack --add {short} --trust-code' stores them again first",
                )
            if each.absent.why == "dropped" and any(map(self._is_reference, each.commit.needs)):
                outside.append(id_)
        self.outside = tuple(sorted(outside))

    def _sending(self, wanted: Wanted) -> Sending:
        from mvc.remote.sender import Sending

        return Sending(self._context, wanted, self._without)

    def needed(self, wanted: Wanted) -> set[CommitId]:
        """The versions that travel because others need them."""
        if not wanted.versions or not any(t.name.startswith(DATA) for t in tags(self._context)):
            return set()
        sending = self._sending(wanted)
        return {needed for commit in sending.versions for needed in commit.needs}

    @property
    def _shown(self) -> str:
        return self._remote.name or self._remote.url

    def _is_reference(self, id_: CommitId) -> bool:
        return commits.get(self._context, id_).params.get(DATA_SET) == BY_REFERENCE

    def _slices(self, wanted: Wanted) -> Iterator[Slice]:
        """Without what goes along and the remote would refuse."""
        if not wanted.versions and not wanted.again:
            return
        from mvc.remote.sender import send

        for each in send(self._context, wanted, without=self._without):
            yield self._allowed(each)

    def _allowed(self, given: Slice) -> Slice:
        """The slice without deployments that were made here and that the remote would refuse.

        What came from elsewhere is known there already, or is refused by name.
        """
        scopes, own = self._head.scopes, node(self._context.store.snapshot)
        entries = list[Sent]()
        for sent in decode_entries(given.head) if scopes else ():
            made = () if sent.truths is None else sent.truths.deployments
            out = [d for d in made if d.node == own and not allows(scopes, "deploy", d.target)]
            self.denied |= {f"deploy:{each.target}" for each in out}
            if sent.truths is not None and out:
                kept = replace(sent.truths, deployments=tuple(d for d in made if d not in out))
                sent = replace(sent, truths=kept or None)
            if sent != Sent():
                entries.append(sent)
        return replace(given, head=encode_entries(entries)) if self.denied else given

    def count(self, wanted: Wanted) -> None:
        """Counts what would go."""
        for each in self._slices(wanted):
            self._counted(each)
            self.bytes += each.size

    def run(self, wanted: Wanted, moves: Sequence[Move]) -> None:
        """Sends all of it; the refs move with the last slice."""
        for _ in range(_TRIES):
            try:
                missing = self._send_all(wanted, moves)
            except HistoryMissing:
                if not wanted.have:
                    raise
                wanted = replace(wanted, after=None, have=frozenset())
                continue
            if not missing:
                return
            if set(missing) <= set(wanted.objects):
                break
            wanted = replace(
                wanted,
                have=wanted.have | self._sent,
                objects=tuple(dict.fromkeys([*wanted.objects, *missing])),
                without=wanted.without | self._refused,
            )
        raise DamagedData(
            f"{self._remote.name} lacks what the versions build on, whatever is sent",
            hint=f"'mvc fsck' here and 'mvc fsck --remote {self._remote.name}' say what it is",
        )

    def _send_all(self, wanted: Wanted, moves: Sequence[Move]) -> tuple[bytes, ...]:
        """The objects that the remote misses; none if all is there."""
        waiting = tuple(moves)
        for each in self._slices(wanted):
            self._last = each
            is_last = each.place is not None and not each.place.seen
            if each.head == _NOTHING and not (is_last and waiting):
                continue
            if (got := self._give(replace(each, moves=waiting if is_last else ()))).missing:
                return got.missing
            waiting = () if is_last else waiting
        return self._give(Slice(_NOTHING, 0, (), waiting)).missing if waiting else ()

    def _give(self, given: Slice) -> Received:
        before = self.bytes
        got = self._door.receive(replace(given, records=self._passing(given.records)))
        if got.missing:
            self.bytes, self._refused = before, got.without
            return got
        self.held.update(dict.fromkeys(got.held))
        self._alone &= (got.begun or got.place.sequence) == self._end.sequence
        self._end = got.place
        self._counted(given)
        return got

    def _counted(self, given: Slice) -> None:
        entries = decode_entries(given.head)
        self.bytes += len(given.head) if entries else 0
        self.operations += len(entries)
        fresh = {Commit.decode(data).id for each in entries for data in each.commits}
        self.versions += len(fresh - self._sent)
        self._sent |= fresh

    def _passing(self, records: Iterable[Bytes]) -> Iterator[Bytes]:
        for part in records:
            yield part
            self.bytes += len(part)
            if self._progress is not None:
                self._progress(self.bytes, 0, self._remote.name)

    def note(self, updates: Sequence[RefUpdate]) -> None:
        """Keeps where the remote's refs are now, and up to where either journal is dealt with."""
        context, remote, head = self._context, self._remote, self._head
        if not remote.name:
            return
        noted = _note_refs(context, remote, updates)
        if not self.denied and self._last is not None and (place := self._last.place) is not None:
            if noted is not None and noted.sequence == place.sequence:
                place = Place(noted.after.sequence, noted.after.chain)
            now = {**head.refs, **{each.name: each.new for each in updates}}
            known = KnownPlace(head.identity, place).after(place, tips_of(now))
            keep_place(context, remote, PUSHED, known)
        read = known_place(context, remote, FETCHED)
        was_read = head.place.sequence == 1 if read is None else read.place == head.place
        if self._alone and was_read:  # what was written there since is from here
            keep_place(context, remote, FETCHED, KnownPlace(head.identity, self._end))


class _ByValue:
    """The versions of data sets that hold their files."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __contains__(self, id_: object) -> bool:
        assert isinstance(id_, CommitId)
        return commits.get(self._context, id_).params.get(DATA_SET) == BY_VALUE


def _note_refs(context: Context, remote: Remote, updates: Sequence[RefUpdate]) -> Recorded | None:
    """Records where the remote's branches are now; None if that is known."""

    def make() -> Entry:
        return Entry("push", context.store.clock.now_ns(), remote.name, refs=changes())

    def changes() -> tuple[RefChange, ...]:
        ref, own = context.store.ref, [u for u in updates if u.local.startswith(REMOTE)]
        return tuple(RefChange(u.local, ref(u.local), u.new) for u in own if ref(u.local) != u.new)

    return context.store.publish(make) if changes() else None
