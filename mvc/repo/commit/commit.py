"""commit: store a version. Encodes outside any lock, then publishes under the journal's lock.

Concurrent commits all succeed: the one that publishes second gets the first as its parent, and
takes the paths it did not change from there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mvc.adapters.hashing import entry_from
from mvc.adapters.optimizers.states import FileState
from mvc.adapters.optimizers.trainings import remember
from mvc.adapters.parsed import ParsedFile
from mvc.adapters.state_file import StateFile
from mvc.errors import (
    Busy,
    DamagedData,
    MvcWarning,
    NothingToCommit,
    StateForgotten,
    UnknownPath,
    WrongUsage,
)
from mvc.ids import BlobId, CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.statement import Deployment, Signature
from mvc.names import PATCH
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS
from mvc.repo.commit.request import Attachment, Change, CommitRequest, check_request
from mvc.repo.commit.result import CommitResult, PathChange
from mvc.repo.commit.storage_policy import storage_policy
from mvc.repo.commit.units import units_of
from mvc.repo.config import Config, bytes_to_hold
from mvc.repo.content.compare import renames
from mvc.repo.content.predecessors import BaseFinder
from mvc.repo.handle import Recent
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, Head, tagged, tip
from mvc.repo.statements.live import check_deployment, recorded_as, replaced
from mvc.repo.statements.protection import refuse_protected
from mvc.repo.statements.record import publish
from mvc.repo.statements.signatures import signing
from mvc.repo.worktree.git_code import GitCode, git_code
from mvc.store.graph.plan import recovers
from mvc.store.graph.search import Graph
from mvc.store.journal.entries import Entry, RefChange, Region
from mvc.store.packs.records import MANIFEST
from mvc.store.proving import proof_of, prove_equal
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.store import Store
from mvc.store.writing.base_cache import BaseCache
from mvc.store.writing.content_writer import ContentWriter
from mvc.store.writing.full_or_delta import exactly
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.storing import Storing
from mvc.times import local_zone_minutes
from mvc.types import Progress

_HELD_OPEN = 16  # files
_TRIES = 8


def commit(
    store: Store,
    config: Config,
    recent: Recent,
    request: CommitRequest,
    progress: Progress | None = None,
) -> CommitResult:
    """Stores the changes as a new version on the current branch; durable when it returns.

    Raises as ``Repository.commit``; NothingToCommit only without ``allow_empty``.
    """
    check_request(request)
    if request.deploy is not None and request.guard is None:
        refuse_protected(config, request.deploy)
    store.now_ns()
    if request.options.code is None:
        code = code_now(store, config, patch=request.options.patch)
        request = replace(request, options=replace(request.options, code=code))
    budget = bytes_to_hold(str(config.get("python.keep_base")))
    with recent.caches.lock:
        cached = [change.path for change in request.changes if change.cached]
        recent.caches.select(cached, store.graph, budget)
        for _ in range(_TRIES):
            store.snapshot.refresh()
            try:
                return _attempt(store, config, recent, request=request, progress=progress)
            except BaseException as error:
                for cache in recent.caches.in_use.values():
                    cache.clear()
                if not isinstance(error, ConcurrentRewrite):
                    raise
    raise Busy(
        "what this commit builds on was collected again and again while it ran",
        hint="run gc less often, or with a longer grace",
    )


def _attempt(
    store: Store, config: Config, recent: Recent, request: CommitRequest, progress: Progress | None
) -> CommitResult:
    graph, caches = store.graph, recent.caches.in_use
    deploys = request.deploy is not None
    how = signing(store, request.options.sign, version=True, deployment=deploys)
    generation = min([graph.generation, *(cache.generation for cache in caches.values())])
    at = tip_of(store, request)
    parent = manifests.of_commit(store, at.commit)
    coding = Pipeline.parse(_pipeline(config, request)).coding()
    policy = storage_policy(store, config, recent, request=request, parent=parent, pipeline=coding)
    store.require()
    for cache in caches.values():
        cache.layout = policy.layout
    with store.pack_writer() as packs, closing(store.object_writer(packs, policy)) as objects:
        try:
            writer = ContentWriter(objects, progress)
            files = _store_files(store, recent, request, parent=parent, writer=writer)
            draft = _draft(store, request, files, at, objects=objects)
            if not request.options.allow_empty and draft.manifest.id == parent.id:
                reduced = request.options.produced_by is not None
                raise NothingToCommit(
                    "nothing to commit: the production weights are those that HEAD has"
                    if reduced
                    else "nothing to commit: no tracked path differs from HEAD",
                    hint=("'mvc checkout HEAD PATH -o FILE' writes them; " if reduced else "")
                    + (f"'mvc deploy HEAD {request.deploy}' deploys HEAD; " if deploys else "")
                    + "to record a version all the same, add --allow-empty",
                )
            if graph.was_rewritten(generation):
                # Checked before the lock as well, so that the check under it finds all in memory.
                check_recoverable(graph, objects, draft.manifest)

            def make(moment: int) -> Entry:
                """Runs under the journal's lock: the parent is the tip of now."""
                nonlocal draft
                now = tip_of(store, request)
                if now != draft.at:
                    draft = _draft(store, request, files, now, objects=objects)
                if graph.generation != generation:
                    check_recoverable(graph, objects, draft.manifest)
                return _entry(store, config, request, files=files, draft=draft, now=moment)

            recorded = publish(store, make, how, release=packs.close)
        except DamagedData as error:
            if graph.was_rewritten(generation):
                raise ConcurrentRewrite from error
            raise
    manifests.remember(draft.manifest.id, draft.manifest)
    entry, deployed = recorded.entry, None
    for made in entry.deployments:
        deployed = recorded_as(store.snapshot, made.target, recorded.sequence)
    if request.guard is not None:
        request.guard.committed(deployed)
    stored = sum(region.length for region in entry.regions)
    return CommitResult(
        commit=entry.commits[0],
        branch=draft.at.branch,
        deployment=deployed,
        paths=_paths(draft, files.kept),
        raw_bytes=files.raw_bytes,
        stored_bytes=stored + recorded.after.offset - recorded.offset,
        entries=files.kept,
        state=files.state,
        signed=bool(entry.of(Signature)),
        code=request.options.code or GitCode(),
    )


class PatchMissing(MvcWarning):
    """The patch that the setting ``commit.patch`` asks for could not be had."""


def code_now(store: Store, config: Config, *, patch: bool | None = None) -> GitCode:
    """The git work tree around the repository; its patch as the settings say, if None.

    Raises WrongUsage, IoFailed or NotInstalled for a patch that ``patch`` asks for and that cannot
    be had; where only the settings ask for it, this is a warning (PatchMissing).
    """
    fs, wanted = store.fs, bool(config.get("commit.patch"))
    asked = wanted if patch is None else patch
    code = git_code(fs, store.root, patch=asked, again=bool(patch))
    if code.problem is None:
        return code
    if patch:
        raise code.problem
    said = f"the version is recorded without its patch (commit.patch): {code.problem.message}"
    warnings.warn(said, PatchMissing, stacklevel=4)
    return code


def tip_of(store: Store, request: CommitRequest) -> Head:
    """The tip that the commit is made on: of HEAD, or of the requested branch or tag."""
    if request.options.detached:
        return Head(None, request.options.parent)
    if request.options.tag is not None:
        return Head(None, tagged(store, request.options.tag))
    return tip(store, request.options.branch, new=request.options.new_branch)


def _pipeline(config: Config, request: CommitRequest) -> str:
    return request.pipeline or str(config.get("commit.pipeline"))


def _recorded_pipeline(config: Config, request: CommitRequest) -> str:
    """The pipeline that the commit records: a preset's name if there is one, else the text.

    A lossy pipeline is recorded only if the weights were produced by it.
    """
    text = request.options.produced_by or _pipeline(config, request)
    pipeline = Pipeline.parse(text)
    coding = exactly(pipeline.coding())
    if request.options.produced_by is None and coding != pipeline:
        text = coding.text
    return text if text in PRESETS else Pipeline.parse(text).text


# -- the files -----------------------------------------------------------------------


class _Files(Struct, frozen=True):
    """The files that were stored, by path; ``raw_bytes`` were read of ``kept``.

    ``state``: what was made of the state that was to be reduced.
    """

    kept: Mapping[str, FileEntry]
    attached: Mapping[str, FileEntry]
    raw_bytes: int
    state: Any


def _store_files(
    store: Store, recent: Recent, request: CommitRequest, parent: Manifest, writer: ContentWriter
) -> _Files:
    """Stores the changed files, and what the version carries beside them.

    Up to 16 files are open together, so that a tensor in one file serves as the base of its copy
    in lower precision in another, and weights are stored with their optimizer's states.
    """
    kept, attached, finder = dict[str, FileEntry](), {}, BaseFinder(parent)
    changes = [change for change in request.changes if change.open is not None]
    reduced = [change.path for change in changes if change.reducer is not None]
    loss, production = request.metrics.get("loss"), None
    with ExitStack() as held:
        files: Mapping[str, Storing] = {}
        states: Mapping[str, FileState] = {}
        if len(request.changes) <= _HELD_OPEN:
            files = {
                c.path: _opened(
                    store, recent, c, writer=writer, finder=finder, loss=loss, until=held
                )
                for c in changes
            }
            states = _store_units(store, recent, parent, writer, files=files)
        for change in changes:
            with ExitStack() as one:
                file = files.get(change.path) or _opened(
                    store, recent, change, writer=writer, finder=finder, loss=loss, until=one
                )
                kept[change.path] = _store(writer, finder, file)
                if change.reducer and change.cached:
                    production = StateFile(file.file).nested()
                del file
    for change in request.changes:
        if change.stored is not None:
            if not availability.is_stored(store, change.stored):
                raise StateForgotten(f"the content of {change.path} is not stored here")
            kept[change.path] = replace(change.stored, path=change.path)
    if reduced:
        _refuse_unknown(request.options.exact, [kept[path] for path in reduced])
    for path, state in states.items():
        remember(recent.trainings.states, (path, kept[path].content_id), state)
    raw_bytes = writer.raw_bytes
    if given := _attachments(request):
        from mvc.repo.commit.inputs import attachments  # which loads what reads files

        for path, given_file in attachments(given):
            attached[path] = store_file(writer, finder, given_file.parsed, path)
            writer.forget(given_file.parsed)
    return _Files(kept, attached, raw_bytes, production)


def _refuse_unknown(exact: Sequence[str], entries: Sequence[FileEntry]) -> None:
    """Raises UnknownPath for a name in ``exact`` that is no tensor of these files."""
    if unknown := set(exact) - {tensor.key for entry in entries for tensor in entry.tensors}:
        raise UnknownPath(
            f"there is no tensor {min(unknown)} to be kept exactly", hint="'mvc ls' lists the names"
        )


def _opened(
    store: Store,
    recent: Recent,
    change: Change,
    writer: ContentWriter,
    finder: BaseFinder,
    *,
    loss: float | None,
    until: ExitStack,
) -> Storing:
    """A file that is to be stored, reduced if it is to be, open until ``until`` ends."""
    assert change.open is not None
    given = until.enter_context(change.open())
    last = recent.caches.in_use.get(change.path)
    if change.reducer is not None:
        from mvc.repo.commit.reduced_file import reduced  # few commits need it

        old = finder.parent.by_path.get(change.path)
        given = reduced(store, change.reducer, given, old, held=_in_memory(old, last), loss=loss)
    parsed = given.parsed
    until.callback(writer.forget, parsed)
    return Storing(parsed, change.path, finder.origins(change.path, parsed, last), last)


def _in_memory(entry: FileEntry | None, last: BaseCache | None) -> dict[BlobId, memoryview]:
    """The tensors of a stored file that ``last`` has in memory."""
    if entry is None or last is None:
        return {}
    found = {t.id: last.content(t.key, t.id, t.spec) for t in entry.tensors}
    return {id_: data for id_, data in found.items() if data is not None}


def _store_units(
    store: Store,
    recent: Recent,
    parent: Manifest,
    writer: ContentWriter,
    files: Mapping[str, Storing],
) -> Mapping[str, FileState]:
    """Stores what an optimizer's step made of ``parent``; returns what ``files`` hold of one."""
    found = units_of(store, recent, {path: file.file for path, file in files.items()}, parent)
    if found.units:
        writer.put_units(found.units, files, parent)
    return found.states


def _attachments(request: CommitRequest) -> dict[str, Attachment]:
    """What the version carries beside its files, the patch of the code with it."""
    code = request.options.code
    patch = {} if code is None or not code.patch else {PATCH: code.patch}
    return {**request.attachments, **patch}


def store_file(
    writer: ContentWriter, finder: BaseFinder, parsed: ParsedFile, path: str
) -> FileEntry:
    """Chooses a base for each content of a file, and stores it."""
    return _store(writer, finder, Storing(parsed, path, finder.origins(path, parsed)))


def _store(writer: ContentWriter, finder: BaseFinder, file: Storing) -> FileEntry:
    ids, skeleton = writer.put(file), file.file.skeleton()
    entry = entry_from(file.file, file.path, ids, skeleton)
    if entry.skeleton is not None:
        writer.put_skeleton(entry.skeleton, skeleton, finder.parent.by_path.get(file.path))
    return entry


# -- the version ---------------------------------------------------------------------


class _Draft(Struct, frozen=True):
    """The version on top of ``at``, whose manifest is ``parent``; durable in ``regions``."""

    at: Head
    parent: Manifest
    manifest: Manifest
    regions: tuple[Region, ...]


def _draft(
    store: Store, request: CommitRequest, files: _Files, at: Head, *, objects: ObjectWriter
) -> _Draft:
    """Stores the version's manifest and makes everything durable.

    It has the parent's paths, less the removed ones, with the committed ones.
    """
    parent = manifests.of_commit(store, at.commit)
    gone = {change.path for change in request.changes if change.path not in files.kept}
    whole = request.options.tag is not None  # a tag's version has what it is given, no more
    paths = {e.path: e for e in parent.entries if e.path not in gone and not whole}
    for path in displaced(store, {*paths, *files.kept}, files.kept.keys()):
        del paths[path]
    if at.commit is not None:
        reused = [entry for path, entry in paths.items() if path not in files.kept]
        availability.check_available(store, at.commit, reused, stored=True)
    manifest = Manifest((paths | dict(files.kept) | dict(files.attached)).values())
    if not objects.holds(manifest.id):
        _prove_manifest(manifest)
        store.require(manifest.features)
        base = (bytes(parent.id), parent.encoded) if parent.all_entries else None
        objects.put_bytes(MANIFEST, manifest.id, manifest.encoded, base)
    return _Draft(at, parent, manifest, regions=objects.sync())


def displaced(store: Store, paths: Set[str], committed: Set[str]) -> set[str]:
    """Those of ``paths`` that are folders of ``committed`` files now, or lay in their place.

    Raises WrongUsage where no file on disk tells which of the two is meant.
    """
    fs, displaced = store.fs, set[str]()
    for file, inside in _nested(paths):
        for path, other in ((file, inside), (inside, file)):
            if path in committed:
                identity = fs.stat(store.root / path)
                if other in committed or identity is None or not identity.is_file:
                    raise WrongUsage(
                        f"{file} cannot be a file and the folder of {inside} in one version",
                        hint=f"name another path, or take the tracked one out: 'mvc commit {other}'"
                        if other not in committed
                        else "give one of them another path",
                    )
                displaced.add(other)
    return displaced


def _nested(paths: Set[str]) -> Iterator[tuple[str, str]]:
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


def check_recoverable(graph: Graph, objects: ObjectWriter, manifest: Manifest) -> None:
    """Raises ConcurrentRewrite unless all of a version is added by ``objects`` or recoverable.

    A commit reuses stored objects and stores deltas against them. If the journal was replaced
    since the commit began, gc may have removed them.
    """
    sizes: dict[bytes, int] = {manifest.id: 0}
    for entry in manifest.all_entries:
        sizes |= {content.id: content.spec.nbytes for content in entry.contents}
        if entry.skeleton is not None:
            sizes[entry.skeleton] = 0
    needed = {id_ for id_ in sizes if not objects.added(id_)} | objects.bases
    if not all(recovers(graph, id_, sizes.get(id_, 1)) for id_ in needed):
        raise ConcurrentRewrite


def _entry(
    store: Store,
    config: Config,
    request: CommitRequest,
    files: _Files,
    draft: _Draft,
    *,
    now: int,
) -> Entry:
    """What publishes the version at the moment ``now``; valid only under the journal's lock."""
    for needed in request.options.needs:
        commits.get(store.snapshot, needed)
        availability.check_kept(store, needed)
    made = _commit(config, request, draft, now)
    if availability.forgotten_ns(store, made.id) is not None:
        raise StateForgotten(
            f"this very version, {made.id.short}, was forgotten",
            hint="with another message or time it is another version",
        )
    guard, snapshot = request.guard, store.snapshot
    statements: tuple[Deployment, ...] = ()
    if (target := request.deploy) is not None and (guard is None or guard.allows(now)):
        moment = now if request.deploy_time_ns is None else request.deploy_time_ns
        check_deployment(target, moment)
        deployment = Deployment(
            subject=made.id,
            author=config.author,
            target=target,
            time_ns=moment,
            replaces=replaced(snapshot, target, now, moment),
        )
        statements = (deployment,)
    return Entry(
        "commit",
        now,
        regions=draft.regions,
        commits=(made,),
        refs=_refs(request, draft.at, made.id),
        marks=_marks(draft, files.kept),
        statements=statements,
    )


def _refs(request: CommitRequest, at: Head, made: CommitId) -> tuple[RefChange, ...]:
    """What moves to the new commit: the tag, the branch, or HEAD itself if it is detached."""
    if request.options.detached:
        return ()
    name = BRANCH + at.branch if at.branch else HEAD
    return (
        RefChange(
            name if request.options.tag is None else TAG + request.options.tag, at.commit, made
        ),
    )


def _commit(config: Config, request: CommitRequest, draft: _Draft, now: int) -> Commit:
    head, code = draft.at.commit, request.options.code or GitCode()
    time_ns = now if request.time_ns is None else request.time_ns
    return Commit(
        manifest=draft.manifest.id,
        root=draft.manifest.root,
        parents=(head,) if head else (),
        author=request.options.author or config.author,
        time_ns=time_ns,
        zone_minutes=local_zone_minutes(time_ns),
        message=request.message,
        metrics={name: float(value) for name, value in request.metrics.items()},
        pipeline=_recorded_pipeline(config, request),
        code=code.commit,
        run=request.options.run,
        dirty=code.dirty,
        params=request.params,
        needs=tuple(sorted(set(request.options.needs))),
        attached=tuple(sorted({name.split("/")[0] for name in _attachments(request)})),
    )


def _marks(draft: _Draft, kept: Mapping[str, FileEntry]) -> tuple[bytes, ...]:
    """Hash prefixes by which ``identify`` finds the new files; the root is indexed anyway."""
    old = draft.parent.by_path
    marks = {
        bytes(e.state_id)[:8]
        for path, e in kept.items()
        if path not in old or old[path].content_id != e.content_id
    }
    return tuple(sorted(marks - {bytes(draft.manifest.root)[:8]}))


def _paths(draft: _Draft, kept: Mapping[str, FileEntry]) -> tuple[PathChange, ...]:
    old, found = draft.parent.by_path, []
    gone = sorted(set(old) - set(draft.manifest.by_path))
    added = [entry for path, entry in kept.items() if path not in old]
    origins = renames([old[path] for path in gone], added)
    for path, new in kept.items():
        kind, changed, origin = "added", len(new.tensors), origins.get(path)
        if origin is not None:
            kind, changed = "renamed", 0
        elif path in old:
            kind = "unchanged" if old[path].content_id == new.content_id else "changed"
            known = {t.key: t.id for t in old[path].tensors}
            changed = sum(known.pop(t.key, None) != t.id for t in new.tensors) + len(known)
        found.append(PathChange(path, kind, changed, len(new.tensors), renamed_from=origin))
    for path in (path for path in gone if path not in origins.values()):
        count = len(old[path].tensors)
        found.append(PathChange(path, "removed", count, count))
    return tuple(found)
