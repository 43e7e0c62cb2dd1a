"""commit: store a version. Encodes outside any lock, then publishes under the journal's lock.

Concurrent commits all succeed: the one that publishes second gets the first as its parent, and
takes the paths it did not change from there.
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
from mvc.io.process import host_name, user_name
from mvc.limits import PIECE
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.names import printable
from mvc.repo.commit.git_version import git_commit
from mvc.repo.commit.policy import policy_of
from mvc.repo.commit.request import CommitRequest, check_request
from mvc.repo.commit.result import CommitResult, PathChange, path_change
from mvc.repo.commit.state_writer import StateWriter
from mvc.repo.context import Context, Progress
from mvc.repo.deployments import deployment_for, recorded_as
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import BRANCH, Head, head, staged_removals
from mvc.repo.times import local_zone_minutes
from mvc.store.graph.search import Graph
from mvc.store.journal.entries import Deployment, Entry, RefChange, Region
from mvc.store.packs.records import MANIFEST
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pack_writer import PackWriter

__all__ = ["commit"]


_HELD_OPEN = 16  # files
_TRIES = 8


def commit(
    context: Context, request: CommitRequest, progress: Progress | None = None
) -> CommitResult:
    """Stores the changes as a new version on the current branch; durable when it returns.

    Raises NothingToCommit if the version equals its parent, unless ``allow_empty``. Raises
    WrongUsage and the errors of names for a bad request, UnknownRevision for an unknown branch,
    SourceChanged if a file or tensor changed meanwhile, StateForgotten, Busy.
    """
    check_request(request)
    context.store.now_ns()
    for _ in range(_TRIES):
        context.store.snapshot.refresh()
        with suppress(ConcurrentRewrite):
            return _attempt(context, request, progress)
        for change in request.changes:
            if change.last is not None:
                change.last.clear()
    raise Busy(
        "what this commit builds on was collected again and again while it ran",
        hint="run gc less often, or with a longer grace",
    )


def _attempt(context: Context, request: CommitRequest, progress: Progress | None) -> CommitResult:
    text = request.pipeline or context.config.get("commit.pipeline")
    with context.store.pack_writer() as packs:
        pipeline = Pipeline.parse(text).coding()
        asked = _named(request.produced_by or text, produced=request.produced_by is not None)
        work = _Work(context, request, packs, pipeline, asked, progress)
        try:
            return work.run()
        except DamagedData as error:
            if context.store.graph.was_rewritten(work.generation):
                raise ConcurrentRewrite from error
            raise
        finally:
            work.files.writer.close()


def _named(text: str, *, produced: bool) -> str:
    """The pipeline that the commit records: a preset's name if there is one, else the text.

    A lossy pipeline is recorded only if the weights were ``produced`` by it.
    """
    pipeline = Pipeline.parse(text)
    if not produced:
        text = text if pipeline.coding() == pipeline else pipeline.coding().text
    return text if text in PRESETS else Pipeline.parse(text).text


class _Work:
    """One attempt at a commit."""

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
        self.head = self._tip()
        self.parent = manifests.of_commit(context, self.head.commit)
        policy = policy_of(context, request, self.parent, pipeline)
        self.files = StateWriter(context, packs, policy, self.parent, progress)
        self.kept: dict[str, FileEntry] = {}
        self.manifest = manifests.EMPTY
        self.regions: tuple[Region, ...] = ()

    def _tip(self) -> Head:
        """The tip that the commit is made on: of HEAD, or of the requested branch."""
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
        """Paths that ``mvc rm`` removed; they leave with the next commit on the current branch."""
        current = self.request.branch in {None, head(self.context).branch}
        return staged_removals(self.context) if current else ()

    def run(self) -> CommitResult:
        self._keep_changes()
        self._write_manifest(self.parent)
        if not self.request.allow_empty and self._unchanged(self.parent):
            raise NothingToCommit(
                "nothing to commit: no tracked path differs from HEAD",
                hint="to record a version all the same, add --allow-empty",
            )
        if self.context.store.graph.was_rewritten(self.generation):
            # Checked before the lock as well, so that the check under it finds all in memory.
            _validate(self.context.store.graph, self.files.writer, self.manifest)
        recorded = self.context.store.publish(self._entry, release=self.packs.close)
        manifests.remember(self.manifest.id, self.manifest)
        stored = sum(region.length for region in self.regions)
        stored += recorded.after.offset - recorded.offset
        entry, deployed = recorded.entry, None
        for made in entry.deployments:
            deployed = recorded_as(self.context.store.snapshot, made.target, recorded.sequence)
        return CommitResult(
            entry.commits[0],
            self.head.branch,
            deployed,
            self._paths(),
            self.files.raw_bytes,
            stored,
            self.kept,
        )

    def _keep_changes(self) -> None:
        """Stores the changed files.

        Up to 16 files stay open, so that a tensor in one file serves as the base of its copy in
        lower precision in another.
        """
        with ExitStack() as held:
            for change in self.request.changes:
                if change.open is None:
                    continue
                if len(self.request.changes) <= _HELD_OPEN:
                    parsed = held.enter_context(change.open())
                    self.kept[change.path] = self.files.keep(parsed, change.path, change.last)
                    del parsed
                    continue
                with change.open() as parsed:
                    self.kept[change.path] = self.files.keep(parsed, change.path, change.last)
                    self.files.forget(parsed)
        self.files.forget_all()

    def _merged(self, parent: Manifest) -> Manifest:
        """The parent's paths, less the removed ones, with the committed ones."""
        gone = {c.path for c in self.request.changes if c.open is None}
        gone |= set(self._removed())
        paths = {e.path: e for e in parent.entries if e.path not in gone}
        return Manifest((paths | self.kept).values())

    def _write_manifest(self, parent: Manifest) -> None:
        """Stores the version's manifest and makes everything durable."""
        self.manifest = self._merged(parent)
        writer = self.files.writer
        if not writer.holds(self.manifest.id):
            base = (bytes(parent.id), parent.encoded) if parent.entries else None
            writer.put_bytes(MANIFEST, self.manifest.id, self.manifest.encoded, base)
        writer.flush()
        self.regions = self.packs.sync()

    def _unchanged(self, parent: Manifest) -> bool:
        return self.manifest.id == parent.id

    def _entry(self) -> Entry:
        """Runs under the journal's lock: the parent is the tip of now."""
        there = self._tip()
        if there.commit != self.head.commit or there.branch != self.head.branch:
            self.head = there
            self.parent = manifests.of_commit(self.context, there.commit)
            self._write_manifest(self.parent)
        if self.generation != self.context.store.graph.generation:
            _validate(self.context.store.graph, self.files.writer, self.manifest)
        made = self._commit()
        if manifests.forgotten_ns(self.context, made.id) is not None:
            raise StateForgotten(
                f"this very version, {made.id.short}, was forgotten",
                hint="with another message or time it is another version",
            )
        snapshot, now = self.context.store.snapshot, self.context.store.now_ns()
        deployments: tuple[Deployment, ...] = ()
        if self.request.deploy is not None:
            time_ns = self.request.deploy_time_ns
            moment = now if time_ns is None else time_ns
            deployments = (deployment_for(snapshot, self.request.deploy, moment, made.id),)
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
            request.author or self._author(),
            time_ns,
            local_zone_minutes(time_ns),
            request.message,
            {name: float(value) for name, value in request.metrics.items()},
            self.asked,
            git_commit(store.fs, self.context.root),
        )

    def _author(self) -> str:
        """``user.name`` of the configuration, else the login and host name."""
        return str(self.context.config.get("user.name") or f"{user_name()}@{host_name()}")

    def _marks(self) -> tuple[bytes, ...]:
        """Hash prefixes by which ``identify`` finds the new files; the root is indexed anyway."""
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
    """Moves the branch to the new commit, or HEAD itself if it is detached."""
    name = f"heads/{at.branch}" if at.branch is not None else "HEAD"
    return RefChange(name, at.commit, new)


def _validate(graph: Graph, writer: ObjectWriter, manifest: Manifest) -> None:
    """Raises ConcurrentRewrite unless every object of the version can be recovered.

    A commit reuses stored objects and stores deltas against them. If the journal was replaced
    since the commit began, gc may have removed them.
    """
    sizes: dict[bytes, int] = {manifest.id: 0}
    for entry in manifest.entries:
        sizes.update((content.id, content.spec.nbytes) for content in entry.contents)
        if entry.skeleton is not None:
            sizes[entry.skeleton] = 0
    needed = {id_ for id_ in sizes if not writer.added(id_)} | writer.bases
    try:
        for id_ in needed:
            starts = {step.member.start for step in graph.codings(id_)}
            if starts < set(range(0, max(sizes.get(id_, 1), 1), PIECE)):
                raise ConcurrentRewrite
            for start in starts:
                graph.path(id_, start)
    except DamagedData as error:
        raise ConcurrentRewrite from error
