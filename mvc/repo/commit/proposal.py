"""Builds the version that a commit adds to a branch, and the journal entry for the version.

The journal is the file that records all operations of a repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import StateForgotten, WrongUsage
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.statement import Deployment
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS
from mvc.repo.commit.inputs import Inputs, tip_of
from mvc.repo.commit.write import Written
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, Head
from mvc.repo.statements.live import check_deployment, replaced
from mvc.store.graph.plan import recovers
from mvc.store.graph.search import Graph
from mvc.store.journal.entries import Entry, RefChange, Region
from mvc.store.packs.records import MANIFEST
from mvc.store.proving import proof_of, prove_equal
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.store import Store
from mvc.store.writing.full_or_delta import exactly
from mvc.store.writing.object_writer import ObjectWriter
from mvc.times import local_zone_minutes


class Proposal(Struct, frozen=True):
    """A version that is stored, but not yet recorded in the journal.

    ``at``: the branch or detached HEAD to which the version is added. ``manifest``: the list of the
    version's files. ``parent``: the manifest of the parent. ``regions``: the ranges of the packs
    (files with the data of tensors) that contain new data of the version.
    """

    at: Head
    parent: Manifest
    manifest: Manifest
    regions: tuple[Region, ...]


def propose(store: Store, written: Written, at: Head) -> Proposal:
    """Stores the version's manifest and makes all data of the version durable.

    The manifest has the committed paths, and the parent's paths that the commit does not remove.
    """
    objects, parent = written.objects, manifests.of_commit(store, at.commit)
    manifest = _manifest(
        store, written.inputs, at, entries=written.entries, attached=written.attached
    )
    if not objects.holds(manifest.id):
        with proof_of("the version's manifest"):
            prove_equal(Manifest.decode(manifest.encoded).all_entries, manifest.all_entries)
            prove_equal(Manifest.id_of(manifest.encoded), manifest.id)
        store.require(manifest.features)
        base = (bytes(parent.id), parent.encoded) if parent.all_entries else None
        objects.put_bytes(MANIFEST, manifest.id, manifest.encoded, base)
    return Proposal(at, parent, manifest, regions=objects.sync())


def _manifest(
    store: Store,
    inputs: Inputs,
    at: Head,
    *,
    entries: Mapping[str, FileEntry],
    attached: Mapping[str, FileEntry],
) -> Manifest:
    """The manifest of the version that is added to ``at``. ``entries``: the changed files."""
    parent = manifests.of_commit(store, at.commit)
    removed = {change.path for change in inputs.changes if change.path not in entries}
    # A version under a tag has only the committed files.
    whole = inputs.request.options.tag is not None
    paths = {e.path: e for e in parent.entries if e.path not in removed and not whole}
    for path in displaced(store, {*paths, *entries}, entries.keys()):
        del paths[path]
    if at.commit is not None:
        reused = [entry for path, entry in paths.items() if path not in entries]
        availability.check_available(store, at.commit, reused, stored=True)
    return Manifest({**paths, **entries, **attached}.values())


def serve_first(store: Store, config: Config, inputs: Inputs) -> Inputs:
    """Calls ``CommitOptions.before`` before the version is stored.

    The arguments are the id that the version will have, and the present time. If another process
    commits to the branch first, the stored version has another id.
    """
    request, at, entries = inputs.request, tip_of(store, inputs.request), dict[str, FileEntry]()
    serve = request.options.before
    if serve is None:
        return inputs
    if any(change.reducer or change.stored for change in inputs.changes):
        raise WrongUsage(
            "before= needs a state that is stored unchanged",
            hint="reduce the state first, or serve the result of commit",
        )
    for change in inputs.changes:
        if change.open is not None:
            with change.open() as file:
                entries[change.path] = replace(file.entry, path=change.path)
    attached = {path: replace(file.entry, path=path) for path, file in inputs.attached.items()}
    now = store.now_ns()
    request = replace(request, time_ns=now if request.time_ns is None else request.time_ns)
    manifest = _manifest(store, inputs, at, entries=entries, attached=attached)
    if not request.options.allow_empty and manifest.id == manifests.of_commit(store, at.commit).id:
        return inputs
    draft = _commit(store, config, replace(inputs, request=request), at, manifest=manifest, now=now)
    now = store.now_ns()
    serve(draft.id, now)
    return replace(inputs, request=replace(request, deploy_time_ns=now))


def displaced(store: Store, paths: Set[str], committed: Set[str]) -> set[str]:
    """The ``paths`` that the ``committed`` paths replace, because a name is a file or a folder.

    A committed file ``a`` replaces all files in a folder ``a``. A committed file ``a/b`` replaces a
    file ``a``. Raises WrongUsage if ``a`` and ``a/b`` are both committed, or if the committed path
    is not a file on disk.
    """
    fs, displaced = store.fs, set[str]()
    for file, inside in nested(paths):
        for path, other in ((file, inside), (inside, file)):
            if path in committed:
                identity = fs.stat(store.root / path)
                if other in committed or identity is None or not identity.is_file:
                    if other == inside and inside not in committed:
                        raise WrongUsage(
                            f"{file} cannot be a file: the version has a folder of this name, "
                            f"with {inside}",
                            hint=f"write a sharded state with path='{file}/', which ends in /",
                        )
                    raise WrongUsage(
                        f"{file} cannot be a file and the folder of {inside} in one version",
                        hint=f"name another path, or remove the tracked one: 'mvc commit {other}'"
                        if other not in committed
                        else "give one of them another path",
                    )
                displaced.add(other)
    return displaced


def nested(paths: Set[str]) -> Iterator[tuple[str, str]]:
    """Pairs (file, path): the path is inside a folder with the name of the file."""
    return (
        (folder, path)
        for path in sorted(paths)
        for folder in map(str, PurePosixPath(path).parents)
        if folder in paths
    )


def check_recoverable(graph: Graph, objects: ObjectWriter, manifest: Manifest) -> None:
    """Raises ConcurrentRewrite if stored data that the new version needs cannot be recovered.

    A commit reuses the stored data of unchanged files, and deltas need the stored data of their
    bases. A gc that ran during the commit may have deleted such data.
    """
    sizes: dict[bytes, int] = {manifest.id: 0}
    for entry in manifest.all_entries:
        sizes |= {content.id: content.spec.nbytes for content in entry.contents}
        if entry.skeleton is not None:
            sizes[entry.skeleton] = 0
    needed = {id_ for id_ in sizes if not objects.added(id_)} | objects.bases
    if not all(recovers(graph, id_, sizes.get(id_, 1)) for id_ in needed):
        raise ConcurrentRewrite


def entry_of(
    store: Store, config: Config, written: Written, proposal: Proposal, *, now: int
) -> Entry:
    """The journal entry that records the version at the time ``now``.

    The caller must have the journal's lock until the entry is written.
    """
    request, at = written.inputs.request, proposal.at
    commit = _commit(store, config, written.inputs, at, manifest=proposal.manifest, now=now)
    statements: tuple[Deployment, ...] = ()
    guard, target = request.guard, request.target
    if target is not None and (guard is None or guard.allows()):
        moment = now if request.deploy_time_ns is None else request.deploy_time_ns
        check_deployment(target, moment)
        deployment = Deployment(
            subject=commit.id,
            author=config.author,
            target=target,
            time_ns=moment,
            replaces=replaced(store.snapshot, target, now, moment),
        )
        statements = (deployment,)
    tag = request.options.tag
    name = BRANCH + at.branch if at.branch else HEAD
    ref = RefChange(name if tag is None else TAG + tag, at.commit, commit.id)
    return Entry(
        "commit",
        now,
        regions=proposal.regions,
        commits=(commit,),
        refs=() if request.options.detached else (ref,),
        marks=_marks(proposal, written.entries),
        statements=statements,
    )


def _commit(
    store: Store, config: Config, inputs: Inputs, at: Head, *, manifest: Manifest, now: int
) -> Commit:
    """The commit of a version.

    Raises UnknownRevision if a parent, or a version in ``CommitOptions.needs``, is unknown. Raises
    StateForgotten if the version, or a version in ``needs``, was forgotten.
    """
    request, head = inputs.request, at.commit
    for parent in request.options.parents:
        commits.get(store.snapshot, parent)
    for needed in request.options.needs:
        commits.get(store.snapshot, needed)
        availability.check_stored(store, needed)
    time_ns = now if request.time_ns is None else request.time_ns
    commit = Commit(
        manifest=manifest.id,
        root=manifest.root,
        parents=tuple(dict.fromkeys((*((head,) if head else ()), *request.options.parents))),
        author=request.options.author or config.author,
        time_ns=time_ns,
        zone_minutes=local_zone_minutes(time_ns),
        message=request.message,
        metrics={name: float(value) for name, value in request.metrics.items()},
        pipeline=_recorded_pipeline(config, inputs),
        code=inputs.code.commit,
        run=request.options.run,
        dirty=inputs.code.dirty,
        params=request.params,
        needs=tuple(sorted(set(request.options.needs))),
        attached=tuple(sorted({name.split("/")[0] for name in inputs.attachments})),
    )
    if availability.forgotten(store, commit.id) is not None:
        raise StateForgotten(
            f"this exact version, {commit.id.short}, was forgotten",
            hint="change the message or the time to make a new version",
        )
    return commit


def _recorded_pipeline(config: Config, inputs: Inputs) -> str:
    """The pipeline that the commit records: the name of a preset, or the text of a pipeline.

    A lossy pipeline is recorded only if the weights are the result of this pipeline.
    """
    text = inputs.produced_by or inputs.request.pipeline or str(config.get("commit.pipeline"))
    pipeline = Pipeline.parse(text)
    coding = exactly(pipeline.coding())
    if inputs.produced_by is None and coding != pipeline:
        text = coding.text
    return text if text in PRESETS else Pipeline.parse(text).text


def _marks(proposal: Proposal, entries: Mapping[str, FileEntry]) -> tuple[bytes, ...]:
    """The first 8 bytes of the Merkle root of each changed file.

    ``identify`` finds the version of a file by these bytes. The Merkle root of the whole version is
    omitted, because the index has this root anyway.
    """
    old = proposal.parent.by_path
    marks = {
        bytes(e.state_id)[:8]
        for path, e in entries.items()
        if path not in old or old[path].content_id != e.content_id
    }
    return tuple(sorted(marks - {bytes(proposal.manifest.root)[:8]}))
