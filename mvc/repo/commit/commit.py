"""Commit: stores files as a new version.

The tensors are encoded without a lock. Then the version is recorded under the lock of the journal
(the file with all operations). If two processes commit to a branch at the same time, both commits
succeed: the second version has the first version as its parent, and inherits all paths that the
second commit does not change.
"""

from __future__ import annotations

from contextlib import closing

from mvc.errors import Busy, DamagedData, NothingToCommit
from mvc.model.statement import Signature
from mvc.repo.commit.inputs import Inputs, gather, tip_of
from mvc.repo.commit.proposal import check_recoverable, entry_of, propose, serve_first
from mvc.repo.commit.request import CommitRequest, check_request
from mvc.repo.commit.result import CommitResult, path_changes
from mvc.repo.commit.storage_policy import storage_policy
from mvc.repo.commit.write import write
from mvc.repo.config import Config, cache_bytes
from mvc.repo.handle import Recent
from mvc.repo.lookup import manifests
from mvc.repo.statements.live import recorded_as
from mvc.repo.statements.protection import refuse_protected
from mvc.repo.statements.record import publish
from mvc.repo.statements.signatures import signing
from mvc.store.journal.entries import Entry
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.store import Store

_TRIES = 8


def commit(store: Store, config: Config, recent: Recent, request: CommitRequest) -> CommitResult:
    """Stores files as a new version on a branch. The version is durable when the call returns.

    Raises the errors of ``Repository.commit``.
    """
    check_request(request)
    if request.deploy is not None and request.guard is None:
        refuse_protected(config, request.deploy)
    inputs = gather(store, config, request)
    store.now_ns()
    inputs = serve_first(store, config, inputs)
    result = _committed(store, config, recent, inputs)
    if inputs.production is not None:
        from mvc.repo.commit.production_files import write_production  # rarely needed

        write_production(store, result, inputs.production, request.files)
    return result


def _committed(store: Store, config: Config, recent: Recent, inputs: Inputs) -> CommitResult:
    """Commits. If gc deletes a version that the commit needs as a base, tries again."""
    budget = cache_bytes(str(config.get("python.keep_base")))
    with recent.caches.lock:
        cached = [change.path for change in inputs.changes if change.cached]
        recent.caches.select(cached, store.graph, budget)
        for _ in range(_TRIES):
            store.snapshot.refresh()
            try:
                return _attempt(store, config, recent, inputs)
            except BaseException as error:
                for cache in recent.caches.in_use.values():
                    cache.clear()
                if not isinstance(error, ConcurrentRewrite):
                    raise
    raise Busy(
        "gc deleted versions that this commit builds on, several times while the commit ran",
        hint="run gc less often, or with a longer grace",
    )


def _attempt(store: Store, config: Config, recent: Recent, inputs: Inputs) -> CommitResult:
    graph, caches, request = store.graph, recent.caches.in_use, inputs.request
    deploys = request.target is not None
    how = signing(store, request.options.sign, version=True, deployment=deploys)
    generation = min([graph.generation, *(cache.generation for cache in caches.values())])
    at = tip_of(store, request)
    further = request.options.parents
    parent = manifests.of_commit(store, at.commit or next(reversed(further), None))
    first = manifests.if_stored(store, further[0]) if further and not at.commit else None
    policy = storage_policy(store, config, recent, inputs=inputs, parent=parent)
    store.require()
    for cache in caches.values():
        cache.layout = policy.layout
    with store.pack_writer() as packs, closing(store.object_writer(packs, policy)) as objects:
        try:
            written = write(store, recent, inputs, parent, objects=objects)
            version = propose(store, written, at)
            if not request.options.allow_empty and version.manifest.id == parent.id:
                raise _nothing(inputs)

            def make(moment: int) -> Entry:
                """Runs under the journal's lock, so the branch cannot move meanwhile."""
                nonlocal version
                now = tip_of(store, request)
                if now != version.at:
                    version = propose(store, written, now)
                if graph.generation != generation:
                    check_recoverable(graph, objects, version.manifest)
                return entry_of(store, config, written, version, now=moment)

            recorded = publish(store, make, how, release=packs.close)
        except DamagedData as error:
            if graph.was_rewritten(generation):
                raise ConcurrentRewrite from error
            raise
    manifests.remember(version.manifest.id, version.manifest)
    entry, deployed = recorded.entry, None
    for deployment in entry.deployments:
        deployed = recorded_as(store.snapshot, deployment.target, recorded.sequence)
    if request.guard is not None:
        request.guard.committed(deployed)
    stored = sum(region.length for region in entry.regions)
    return CommitResult(
        commit=entry.commits[0],
        branch=version.at.branch,
        deployment=deployed,
        paths=path_changes(
            first if first and not version.at.commit else version.parent,
            version.manifest,
            written.entries,
        ),
        raw_bytes=written.raw_bytes,
        stored_bytes=stored + recorded.after.offset - recorded.offset,
        entries=written.entries,
        state=written.state,
        signed=bool(entry.of(Signature)),
        code=inputs.code,
    )


def _nothing(inputs: Inputs) -> NothingToCommit:
    reduced, deploy = inputs.produced_by is not None, inputs.request.target
    return NothingToCommit(
        "nothing to commit: the production weights equal those of HEAD"
        if reduced
        else "nothing to commit: no tracked path differs from HEAD",
        hint=("'mvc checkout HEAD PATH -o FILE' writes them; " if reduced else "")
        + (f"'mvc deploy HEAD {deploy}' deploys HEAD; " if deploy is not None else "")
        + "to record a version nevertheless, add --allow-empty",
    )
