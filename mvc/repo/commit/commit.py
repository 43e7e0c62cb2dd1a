"""commit: store a version. Encodes outside any lock, then publishes under the journal's lock.

Concurrent commits all succeed: the one that publishes second gets the first as its parent, and
takes the paths it did not change from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack, suppress
from heapq import nlargest
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from mvc.codecs.pipeline import PRESETS, Pipeline
from mvc.errors import (
    Busy,
    DamagedData,
    InvalidConfig,
    MvcError,
    NothingToCommit,
    StateForgotten,
    WrongUsage,
)
from mvc.io.files import FileSystem
from mvc.io.process import host_name, user_name
from mvc.limits import PIECE
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.commit.base_cache import BaseCache
from mvc.repo.commit.request import CommitRequest, check_request
from mvc.repo.commit.result import CommitResult, PathChange
from mvc.repo.commit.state_writer import PrecisionCopies, StateWriter
from mvc.repo.config import Config
from mvc.repo.content.compare import renames
from mvc.repo.content.hashing import pieces
from mvc.repo.context import Context
from mvc.repo.deployments import deployment_for, recorded_as
from mvc.repo.lookup import commits, manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, Head, head, staged_removals, tagged, tip
from mvc.repo.times import local_zone_minutes
from mvc.store.graph.search import Graph, Link
from mvc.store.journal.entries import Entry, RefChange, Region
from mvc.store.packs.records import MANIFEST
from mvc.store.proof import proof_of, prove_equal
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.writing.full_or_delta import Policy, exactly
from mvc.store.writing.layout import Layout
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pack_writer import PackWriter
from mvc.types import Progress

__all__ = ["check_recoverable", "commit", "layout_of"]

_HELD_OPEN = 16  # files
_TRIES = 8
_FLOATS = TensorSpec("float32", ())
_SAMPLED = 8  # blobs, the largest of a version
_UNBOUNDED = 10_000  # versions in a chain whose limit is in seconds
_MAX_GIT_REF = 4096
_MAX_GIT_PACKED = 1 << 24
_HEX = frozenset("0123456789abcdef")


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
        for cache in _caches(request):
            cache.clear()
    raise Busy(
        "what this commit builds on was collected again and again while it ran",
        hint="run gc less often, or with a longer grace",
    )


def _attempt(context: Context, request: CommitRequest, progress: Progress | None) -> CommitResult:
    with context.store.pack_writer() as packs:
        work = _Work(context, request, packs, progress)
        try:
            return work.run()
        except DamagedData as error:
            if context.store.graph.was_rewritten(work.generation):
                raise ConcurrentRewrite from error
            raise
        finally:
            work.files.writer.close()


def _caches(request: CommitRequest) -> list[BaseCache]:
    return [change.last for change in request.changes if change.last is not None]


def _recorded_pipeline(request: CommitRequest, text: str) -> str:
    """The pipeline that the commit records: a preset's name if there is one, else the text.

    A lossy pipeline is recorded only if the weights were produced by it.
    """
    pipeline = Pipeline.parse(text)
    coding = exactly(pipeline.coding())
    if request.produced_by is None and coding != pipeline:
        text = coding.text
    return text if text in PRESETS else Pipeline.parse(text).text


class _Work:
    """One attempt at a commit."""

    def __init__(
        self, context: Context, request: CommitRequest, packs: PackWriter, progress: Progress | None
    ) -> None:
        self.context = context
        self.request = request
        self.packs = packs
        text = request.pipeline or context.config.get("commit.pipeline")
        self.asked = _recorded_pipeline(request, request.produced_by or text)
        self.generation = context.store.graph.generation
        self.generation = min([self.generation, *(c.generation for c in _caches(request))])
        self.head = self._tip()
        self.parent = manifests.of_commit(context, self.head.commit)
        coding = Pipeline.parse(text).coding()
        policy = _policy(context, request, self.parent, coding)
        self.files = StateWriter(
            context, packs, policy, self.parent, progress,
            features=coding.features if request.produced_by else frozenset(),
        )  # fmt: skip
        self.kept: dict[str, FileEntry] = {}
        self.attached: dict[str, FileEntry] = {}
        self.raw_bytes = 0
        self.manifest = manifests.EMPTY
        self.removed: tuple[str, ...] = ()
        self.regions: tuple[Region, ...] = ()

    def _tip(self) -> Head:
        """The tip that the commit is made on: of HEAD, or of the requested branch or tag."""
        if self.request.tag is not None:
            return Head(None, tagged(self.context, self.request.tag))
        return tip(self.context, self.request.branch, new=self.request.new_branch)

    def _removed(self) -> tuple[str, ...]:
        """Paths that ``mvc rm`` removed; they leave with the next commit on the current branch."""
        current = self.request.branch in {None, head(self.context).branch}
        return staged_removals(self.context) if current and self.request.tag is None else ()

    def run(self) -> CommitResult:
        self._keep_changes()
        self._keep_attachments()
        self._write_manifest()
        if not self.request.allow_empty and self.manifest.id == self.parent.id:
            raise NothingToCommit(
                "nothing to commit: no tracked path differs from HEAD",
                hint="to record a version all the same, add --allow-empty",
            )
        if self.context.store.graph.was_rewritten(self.generation):
            # Checked before the lock as well, so that the check under it finds all in memory.
            check_recoverable(self.context.store.graph, self.files.writer, self.manifest)
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
            self.raw_bytes,
            stored,
            self.kept,
        )

    def _keep_changes(self) -> None:
        """Stores the changed files.

        Up to 16 files stay open, so that a tensor in one file serves as the base of its copy in
        lower precision in another.
        """
        many = len(self.request.changes) > _HELD_OPEN
        with ExitStack() as held:
            for change in self.request.changes:
                if change.open is None:
                    continue
                with ExitStack() as one:
                    parsed = (one if many else held).enter_context(change.open())
                    self.kept[change.path] = self.files.keep(parsed, change.path, change.last)
                    if many:
                        self.files.copies.forget(parsed)
                    del parsed
        self.files.copies = PrecisionCopies()
        self.raw_bytes = self.files.raw_bytes

    def _keep_attachments(self) -> None:
        if not self.request.attachments:
            return
        from mvc.repo.commit.inputs import attachments  # which loads what reads files

        for path, parsed in attachments(self.request.attachments):
            self.attached[path] = self.files.keep(parsed, path)

    def _write_manifest(self) -> None:
        """Stores the version's manifest and makes everything durable.

        It has the parent's paths, less the removed ones, with the committed ones.
        """
        parent, writer, self.removed = self.parent, self.files.writer, self._removed()
        gone = {*self.removed, *(c.path for c in self.request.changes if c.open is None)}
        whole = self.request.tag is not None  # a tag's version has what it is given, no more
        paths = {e.path: e for e in parent.entries if e.path not in gone and not whole}
        for path in self._displaced({*paths, *self.kept}):
            del paths[path]
        if self.head.commit is not None:
            kept = [entry for path, entry in paths.items() if path not in self.kept]
            check_available(self.context, self.head.commit, kept, stored=True)
        self.manifest = Manifest((paths | self.kept | self.attached).values())
        if not writer.holds(self.manifest.id):
            _prove_manifest(self.manifest)
            base = (bytes(parent.id), parent.encoded) if parent.all_entries else None
            writer.put_bytes(MANIFEST, self.manifest.id, self.manifest.encoded, base)
        writer.flush()
        self.regions = self.packs.sync()

    def _displaced(self, paths: Set[str]) -> set[str]:
        """Those of ``paths`` that are folders of committed files now, or lay in their place.

        Raises WrongUsage where no file on disk tells which of the two is meant.
        """
        fs, displaced = self.context.store.fs, set[str]()
        for file, inside in _nested(paths):
            for path, other in ((file, inside), (inside, file)):
                if path in self.kept:
                    identity = fs.stat(self.context.root / path)
                    if other in self.kept or identity is None or not identity.is_file:
                        raise WrongUsage(
                            f"{file} cannot be a file and the folder of {inside} in one version",
                            hint=f"name another path, or remove the tracked one: 'mvc rm {other}'"
                            if other not in self.kept
                            else "give one of them another path",
                        )
                    displaced.add(other)
        return displaced

    def _entry(self) -> Entry:
        """Runs under the journal's lock: the parent is the tip of now."""
        there = self._tip()
        if there != self.head or self._removed() != self.removed:
            self.head = there
            self.parent = manifests.of_commit(self.context, there.commit)
            self._write_manifest()
        if self.generation != self.context.store.graph.generation:
            check_recoverable(self.context.store.graph, self.files.writer, self.manifest)
        for needed in self.request.needs:
            commits.get(self.context, needed)
            manifests.check_kept(self.context, needed)
        made = self._commit()
        if manifests.forgotten_ns(self.context, made.id) is not None:
            raise StateForgotten(
                f"this very version, {made.id.short}, was forgotten",
                hint="with another message or time it is another version",
            )
        at, now, deployments = self.head, self.context.store.now_ns(), []
        if self.request.deploy is not None:
            moment = self.request.deploy_time_ns
            moment = now if moment is None else moment
            snapshot = self.context.store.snapshot
            deployments.append(deployment_for(snapshot, self.request.deploy, moment, made.id))
        return Entry(
            "commit",
            now,
            regions=self.regions,
            commits=(made,),
            refs=(RefChange(self._ref(), at.commit, made.id),),
            deployments=tuple(deployments),
            removed=() if self.removed else None,
            marks=self._marks(),
        )

    def _ref(self) -> str:
        """What moves to the new commit: the tag, the branch, or HEAD itself if it is detached."""
        if self.request.tag is not None:
            return TAG + self.request.tag
        return BRANCH + self.head.branch if self.head.branch else HEAD

    def _commit(self) -> Commit:
        request, store = self.request, self.context.store
        time_ns = store.now_ns() if request.time_ns is None else request.time_ns
        return Commit(
            self.manifest.id,
            self.manifest.root,
            (self.head.commit,) if self.head.commit else (),
            request.author
            or str(self.context.config.get("user.name") or f"{user_name()}@{host_name()}"),
            time_ns,
            local_zone_minutes(time_ns),
            request.message,
            {name: float(value) for name, value in request.metrics.items()},
            self.asked,
            _git_commit(store.fs, self.context.root),
            request.params,
            tuple(sorted(set(self.request.needs))),
            tuple(sorted({name.split("/")[0] for name in request.attachments})),
        )

    def _marks(self) -> tuple[bytes, ...]:
        """Hash prefixes by which ``identify`` finds the new files; the root is indexed anyway."""
        old = self.parent.by_path
        marks = {
            bytes(e.state.root if e.tensors else e.content_id)[:8]
            for path, e in self.kept.items()
            if path not in old or old[path].content_id != e.content_id
        }
        return tuple(sorted(marks - {bytes(self.manifest.root)[:8]}))

    def _paths(self) -> tuple[PathChange, ...]:
        old, found = self.parent.by_path, []
        gone = sorted(set(old) - set(self.manifest.by_path))
        added = [entry for path, entry in self.kept.items() if path not in old]
        origins = renames([old[path] for path in gone], added)
        for path, new in self.kept.items():
            kind, changed, origin = "added", len(new.tensors), origins.get(path)
            if origin is not None:
                kind, changed = "renamed", 0
            elif path in old:
                kind = "unchanged" if old[path].content_id == new.content_id else "changed"
                known = {t.key: t.id for t in old[path].tensors}
                changed = sum(known.pop(t.key, None) != t.id for t in new.tensors) + len(known)
            found.append(PathChange(path, kind, changed, len(new.tensors), origin))
        for path in (path for path in gone if path not in origins.values()):
            count = len(old[path].tensors)
            found.append(PathChange(path, "removed", count, count))
        return tuple(found)


def _nested(paths: Set[str]) -> Iterator[tuple[str, str]]:
    """Each path that is also a folder of another one, with that one."""
    for path in sorted(paths):
        for folder in map(str, PurePosixPath(path).parents):
            if folder in paths:
                yield folder, path


def _prove_manifest(manifest: Manifest) -> None:
    """Raises EncodingFailed unless readers find in its bytes what it says."""
    with proof_of("what the version holds"):
        read = Manifest.decode(manifest.encoded)
        prove_equal(read.all_entries, manifest.all_entries)
        prove_equal(Manifest.id_of(manifest.encoded), manifest.id)


def check_recoverable(graph: Graph, writer: ObjectWriter, manifest: Manifest) -> None:
    """Raises ConcurrentRewrite unless all of a version is added by ``writer`` or recoverable.

    A commit reuses stored objects and stores deltas against them. If the journal was replaced
    since the commit began, gc may have removed them.
    """
    sizes: dict[bytes, int] = {manifest.id: 0}
    for entry in manifest.all_entries:
        sizes |= {content.id: content.spec.nbytes for content in entry.contents}
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


# -- reset points --------------------------------------------------------------------


def layout_of(config: Config, bound: float | None = None) -> Layout:
    """The layout of the settings; without an interval where recovery times are bounded.

    ``bound``: seconds, in place of ``store.max_recovery``.
    """
    text = str(config.get("store.layout"))
    if bound is not None or config.get("store.max_recovery") is not None:
        return replace(Layout.parse(text), interval=_UNBOUNDED)
    interval = config.get("store.reset_interval")
    return Layout.parse(text, None if interval is None else int(interval))


def _policy(
    context: Context, request: CommitRequest, parent: Manifest, pipeline: Pipeline
) -> Policy:
    """Whether a commit on ``parent`` is stored in full (a reset point) or as deltas.

    With ``store.max_recovery`` (MDTT; VSOL §3.2.8), or that of the request, no version may take
    longer to recover. A chain's tail has a reset point on one side only, so a new version is
    stored in full as soon as the delta that the layout wants would pass the bound, for all blobs
    together; where all take the same time, R' versions on
    (``repack.solve.layouts.open_interval``). Without it, every ``store.reset_interval``-th
    version is a reset point. With ``store.storage_weight`` one is, too, where the chain has cost as
    much as it.
    """
    get, bound = context.config.get, request.max_recovery
    layout, reset = layout_of(context.config, bound), request.reset_point
    if bound is None:
        bound = get("store.max_recovery")
    if bound is not None:
        reset = reset or not _within_bound(context, parent, pipeline, float(bound), layout)
    weight, saving, chains = get("store.storage_weight"), 0.0, list[tuple[Link, ...]]()
    if not reset and (bound is None or weight is not None):
        chains = list(_chains(context, request, parent))
    if bound is None:
        sequence = context.store.graph.next_sequence
        reset = reset or any(layout.ends(chain, sequence) for chain in chains)
    if weight is not None:
        saving = _seconds(context, pipeline, PIECE) * 1e9 / (PIECE * weight)
        reset = reset or _is_paid(context, chains, pipeline, layout, float(weight))
    return Policy(exactly(pipeline), layout, float(get("store.max_chain")), reset, saving)


def _seconds(context: Context, pipeline: Pipeline, nbytes: int) -> float:
    """Seconds to decode a delta of a tensor of so many bytes."""
    timing = context.store.timing
    return timing.decoding([(nbytes, timing.coding(pipeline, nbytes, _FLOATS))])


def _is_paid(
    context: Context,
    chains: Iterable[tuple[Link, ...]],
    pipeline: Pipeline,
    layout: Layout,
    weight: float,
) -> bool:
    """Whether full records now save as many seconds of decoding as they are worth.

    Counted is one recovery of every version since the chains began, the next one included. If
    versions go on as they did, the interval that follows is the one of the lowest price.
    """
    sequence, saved, full = context.store.graph.next_sequence, 0.0, 0
    for chain in chains:
        if chain and chain[-1].depth:
            seconds = _seconds(context, pipeline, chain[-1].nbytes)
            saved += seconds * layout.saved(chain, sequence)
            full += chain[0].stored
    return full > 0 and saved * 1e9 >= weight * full


def _chains(
    context: Context, request: CommitRequest, parent: Manifest
) -> Iterable[tuple[Link, ...]]:
    """The chains of the paths that the commit changes; those of other paths do not grow.

    All that are known in memory; if none is, those of the largest blobs.
    """
    if known := [chain for cache in _caches(request) for chain in cache.chains()]:
        return known
    paths = {change.path for change in request.changes}
    entries = (entry for entry in parent.entries if entry.path in paths)
    contents = {c.id: c.spec.nbytes for entry in entries for c in entry.contents}
    found = []
    for id_ in nlargest(_SAMPLED, contents, key=contents.__getitem__):
        with suppress(DamagedData):  # a damaged blob is no base of a new delta
            found.append(context.store.graph.chain(id_))
    return found


def _within_bound(
    context: Context, parent: Manifest, pipeline: Pipeline, bound: float, layout: Layout
) -> bool:
    """Whether a child that differs from ``parent`` everywhere may be stored as deltas.

    ``bound`` is in seconds. Raises InvalidConfig if a version stored in full exceeds it.
    """
    if not parent.entries:
        return True
    timing, graph = context.store.timing, context.store.graph
    files, nbytes = len(parent.entries), sum(entry.size for entry in parent.entries)
    full, walks, new = [], [], []
    for content in (content for entry in parent.entries for content in entry.contents):
        spec = content.spec
        for start, length in pieces(spec):
            steps = graph.path(content.id, start).steps
            if not pipeline.forward_only:
                base = layout.base(graph.chain(content.id, start), graph.next_sequence)
                steps = steps[: base.depth + 1]
            walks.append((length, spec, steps))
            new.append(timing.coding(pipeline, length, spec))
            full.append((length, timing.coding(exactly(pipeline).full(), length, spec)))
    least = timing.version(full, files, nbytes)
    if least > bound:
        raise InvalidConfig(
            f"max_recovery is {bound:g} s, but restoring a version that is stored in full "
            f"takes {least:.2g} s here: {timing.version((), files, nbytes):.2g} s to open the "
            f"repository and write, {timing.decoding(full):.2g} s to decode",
            hint="raise it ('mvc config store.max_recovery', or what this commit was given), or "
            "choose a pipeline that decodes faster",
        )
    under = timing.works(walks)
    chained = [(size, seconds + more) for (size, seconds), more in zip(under, new, strict=True)]
    return timing.version(chained, files, nbytes) <= bound


# -- the git commit of the working folder --------------------------------------------


def _git_commit(fs: FileSystem, folder: Path) -> str:
    """The commit of git's HEAD in ``folder`` or above it; empty if there is none.

    git is not run. The result is empty if its files cannot be read.
    """
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            identity = fs.stat(git)
            if identity is None:
                continue
            if identity.is_file:  # a linked work tree or a submodule
                line = _line(fs, git)
                git = (place / line.removeprefix("gitdir: ")).resolve()
            return _git_head(fs, git)
    except (MvcError, OSError, ValueError):
        return ""
    return ""


def _git_head(fs: FileSystem, git: Path) -> str:
    head = _line(fs, git / "HEAD")
    if not head.startswith("ref: "):
        return _checked(head)
    name = head.removeprefix("ref: ")
    common = git
    if fs.stat(git / "commondir") is not None:
        common = (git / _line(fs, git / "commondir")).resolve()
    for folder in (git, common):
        if fs.stat(folder / name) is not None:
            return _checked(_line(fs, folder / name))
    if fs.stat(common / "packed-refs") is None:
        return ""
    for line in fs.read_bytes(common / "packed-refs", _MAX_GIT_PACKED).decode().split("\n"):
        if line.endswith(" " + name):
            return _checked(line.split(" ", 1)[0])
    return ""


def _line(fs: FileSystem, path: Path) -> str:
    return fs.read_bytes(path, _MAX_GIT_REF).decode().strip()


def _checked(text: str) -> str:
    return text if len(text) in {40, 64} and set(text) <= _HEX else ""
