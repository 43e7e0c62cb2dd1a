"""commit: keep a version. Encodes outside any lock, publishes under one short lock.

Concurrent commits all succeed: whoever publishes later gets the other's commit as
its parent, and the paths it did not touch come from there.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress

from mvc.codecs.pipeline import PRESETS, Pipeline
from mvc.errors import (
    Busy,
    DamagedData,
    NothingToCommit,
    StateForgotten,
    UnknownRevision,
)
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.names import printable
from mvc.repo.commit.author import author_of
from mvc.repo.commit.git_version import git_commit
from mvc.repo.commit.policy import chain_depth, within_bound
from mvc.repo.commit.request import CommitRequest, Kept, PathChange, check_request, path_change
from mvc.repo.commit.state_writer import StateWriter
from mvc.repo.commit.validate import check_reused
from mvc.repo.context import Context, Progress
from mvc.repo.deployments import deployment_for
from mvc.repo.lookup import manifests, staged_removals
from mvc.repo.lookup.refs import BRANCH, Head, head
from mvc.repo.times import local_zone_minutes
from mvc.store.journal.entries import Deployment, Entry, RefChange, Region
from mvc.store.packs.records import MANIFEST
from mvc.store.publishing.publish import Outrun
from mvc.store.writing.choose import Policy
from mvc.store.writing.pack_writer import PackWriter

__all__ = ["commit"]


_HELD_OPEN = 16  # files
_UNBOUNDED = 10_000  # deltas in a chain where seconds bound it
_TRIES = 8


def commit(context: Context, request: CommitRequest, progress: Progress | None = None) -> Kept:
    """Keeps the changes as a new version on the current branch; durable when it returns.

    Raises NothingToCommit if the version would equal its parent and ``allow_empty`` is off.
    """
    check_request(request)
    context.store.now_ns()
    for _ in range(_TRIES):
        context.store.view.refresh()
        with suppress(Outrun):
            return _attempt(context, request, progress)
        for change in request.changes:
            if change.last is not None:
                change.last.clear()
    raise Busy(
        "what this commit builds on was collected again and again while it ran",
        hint="run gc less often, or with a longer grace",
    )


def _attempt(context: Context, request: CommitRequest, progress: Progress | None) -> Kept:
    text = request.pipeline or context.config.get("commit.pipeline")
    with context.store.pack_writer() as packs:
        pipeline = Pipeline.parse(text).coding()
        asked = _named(request.produced_by or text, produced=request.produced_by is not None)
        work = _Work(context, request, packs, pipeline, asked, progress)
        try:
            return work.run()
        except DamagedData as error:
            if context.store.graph.outrun(work.generation):
                raise Outrun from error
            raise
        finally:
            work.keeper.writer.close()


def _named(text: str, *, produced: bool) -> str:
    """How a commit says which pipeline it was made with: the whole line if it was, by its
    preset's name if it has one.
    """
    pipeline = Pipeline.parse(text)
    if not produced:
        text = text if pipeline.coding() == pipeline else pipeline.coding().text
    return text if text in PRESETS else Pipeline.parse(text).text


class _Work:
    """One commit on its way."""

    def __init__(
        self,
        context: Context,
        request: CommitRequest,
        packs: PackWriter,
        pipeline: Pipeline,
        asked: str,
        progress: Progress | None,
    ) -> None:
        self.context = context
        self.request = request
        self.packs = packs
        self.asked = asked
        kept = [change.last.generation for change in request.changes if change.last is not None]
        self.generation = min([context.store.graph.generation, *kept])
        self.head = self._there()
        self.parent = manifests.of_commit(context, self.head.commit)
        self.keeper = StateWriter(context, packs, self._policy(pipeline), self.parent, progress)
        self.kept: dict[str, FileEntry] = {}
        self.written: set[bytes] = set()
        self.manifest = manifests.EMPTY
        self.regions: tuple[Region, ...] = ()

    def _there(self) -> Head:
        """Where the commit goes: on top of HEAD, or of the branch that was named."""
        at, name = head(self.context), self.request.branch
        if name is None or name == at.branch:
            return at
        tip = self.context.store.ref(BRANCH + name)
        if not isinstance(tip, CommitId):
            raise UnknownRevision(
                f"there is no branch {printable(name[:100])}",
                hint="make it with 'mvc branch NAME'",
            )
        return Head(name, tip)

    def _removed(self) -> tuple[str, ...]:
        """What ``mvc rm`` took out of the next commit of the working folder, if this is it."""
        current = self.request.branch in {None, head(self.context).branch}
        return staged_removals.removed(self.context) if current else ()

    def _policy(self, pipeline: Pipeline) -> Policy:
        """A version is stored in full as a whole, so that reset points are whole versions."""
        get = self.context.config.get
        bound, interval = get("store.max_recovery"), int(get("store.reset_interval"))
        reset = self.request.reset_point
        if bound is not None:
            interval = _UNBOUNDED
            reset = reset or not within_bound(self.context, self.parent, float(bound))
        elif not reset:
            reset = self._depth() + 1 >= interval
        return Policy(pipeline, interval, float(get("store.max_chain")), reset)

    def _depth(self) -> int:
        depths = [c.last.depth for c in self.request.changes if c.last is not None]
        known = [depth for depth in depths if depth is not None]
        if known:
            return max(known)
        before = (self.parent.by_path.get(change.path) for change in self.request.changes)
        return chain_depth(self.context, [entry for entry in before if entry is not None])

    def run(self) -> Kept:
        self._keep_changes()
        self._write_manifest(self.parent)
        if not self.request.allow_empty and self._unchanged(self.parent):
            raise NothingToCommit(
                "nothing to commit: no tracked path differs from HEAD",
                hint="to record a version all the same, add --allow-empty",
            )
        if self.context.store.graph.outrun(self.generation):
            # Under the lock it is asked once more; by then everything about it is in memory.
            check_reused(self.context.store.graph, self.keeper.writer, self.manifest)
        recorded = self.context.store.publish(self._entry, release=self.packs.close)
        manifests.remember(self.manifest.id, self.manifest)
        stored = sum(region.length for region in self.regions)
        stored += recorded.after.offset - recorded.offset
        entry = recorded.entry
        return Kept(
            entry.commits[0],
            self.head.branch,
            entry.deployments[0] if entry.deployments else None,
            self._paths(),
            self.keeper.raw_bytes,
            stored,
            self.kept,
        )

    def _keep_changes(self) -> None:
        """A few files stay open to the end, so that copies are compared with their masters."""
        with ExitStack() as held:
            for change in self.request.changes:
                if change.open is None:
                    continue
                if len(self.request.changes) <= _HELD_OPEN:
                    parsed = held.enter_context(change.open())
                    self.kept[change.path] = self.keeper.keep(parsed, change.path, change.last)
                    del parsed
                    continue
                with change.open() as parsed:
                    self.kept[change.path] = self.keeper.keep(parsed, change.path, change.last)
                    self.keeper.forget(parsed)
        self.keeper.forget_all()

    def _merged(self, parent: Manifest) -> Manifest:
        """The parent's paths, without those taken out, with those that were kept."""
        gone = {c.path for c in self.request.changes if c.open is None}
        gone |= set(self._removed())
        paths = {e.path: e for e in parent.entries if e.path not in gone}
        return Manifest((paths | self.kept).values())

    def _write_manifest(self, parent: Manifest) -> None:
        """Stores the version's manifest and makes everything durable."""
        self.manifest = self._merged(parent)
        writer = self.keeper.writer
        if not writer.holds(self.manifest.id):
            base = (bytes(parent.id), parent.encoded) if parent.entries else None
            writer.put_bytes(MANIFEST, self.manifest.id, self.manifest.encoded, base)
        writer.flush()
        self.regions = self.packs.sync()

    def _unchanged(self, parent: Manifest) -> bool:
        return self.manifest.id == parent.id

    def _entry(self) -> Entry:
        """Runs under the journal's lock: the parent is whatever HEAD is now."""
        there = self._there()
        if there.commit != self.head.commit or there.branch != self.head.branch:
            self.head = there
            self.parent = manifests.of_commit(self.context, there.commit)
            self._write_manifest(self.parent)
        if self.generation != self.context.store.graph.generation:
            check_reused(self.context.store.graph, self.keeper.writer, self.manifest)
        made = self._commit()
        if manifests.forgotten_ns(self.context, made.id) is not None:
            raise StateForgotten(
                f"this very version, {made.id.short}, was forgotten",
                hint="with another message or time it is another version",
            )
        view, now = self.context.store.view, self.context.store.now_ns()
        deployments: tuple[Deployment, ...] = ()
        if self.request.deploy is not None:
            time_ns = self.request.deploy_time_ns
            moment = now if time_ns is None else time_ns
            deployments = (deployment_for(view, self.request.deploy, moment, made.id),)
        return Entry(
            "commit",
            now,
            regions=self.regions,
            commits=(made,),
            refs=(_moved(self.head, made.id),),
            deployments=deployments,
            removed=() if self._removed() else None,
            marks=self._marks(),
        )

    def _commit(self) -> Commit:
        request, store = self.request, self.context.store
        time_ns = store.now_ns() if request.time_ns is None else request.time_ns
        return Commit(
            self.manifest.id,
            self.manifest.root,
            (self.head.commit,) if self.head.commit else (),
            request.author or author_of(self.context),
            time_ns,
            local_zone_minutes(time_ns),
            request.message,
            {name: float(value) for name, value in request.metrics.items()},
            self.asked,
            git_commit(store.fs, self.context.root),
        )

    def _marks(self) -> tuple[bytes, ...]:
        """What ``identify`` finds a file by, where the version's root does not say it."""
        marks = {
            bytes(e.state.root if e.tensors else e.content_id)[:8]
            for path, e in self.kept.items()
            if _content(self.parent.by_path.get(path)) != e.content_id
        }
        return tuple(sorted(marks - {bytes(self.manifest.root)[:8]}))

    def _paths(self) -> tuple[PathChange, ...]:
        old = self.parent.by_path
        gone = sorted(set(old) - set(self.manifest.by_path))
        changes = [path_change(old.get(path), entry) for path, entry in self.kept.items()]
        removed = [PathChange(p, "removed", len(old[p].tensors), len(old[p].tensors)) for p in gone]
        return (*changes, *removed)


def _content(entry: FileEntry | None) -> bytes | None:
    return None if entry is None else entry.content_id


def _moved(at: Head, new: CommitId) -> RefChange:
    """HEAD's branch moves to the new commit, or HEAD itself where it is detached."""
    name = f"heads/{at.branch}" if at.branch is not None else "HEAD"
    return RefChange(name, at.commit, new)
