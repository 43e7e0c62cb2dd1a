"""Reachability: the versions that stay, and their objects.

Roots are refs, HEAD, every deployment (retracted ones too: they are evidence), and every
commit that an operation within the grace made or moved a ref from or to. A root stays with
all its ancestors. The state of a version that stays is kept unless it was forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field

from mvc.dataclasses import dataclass
from mvc.errors import DamagedData
from mvc.ids import CommitId, ManifestId
from mvc.model.commit import Commit
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context, Progress
from mvc.repo.lookup import manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.maintenance.inventory import Inventory
from mvc.store.journal.entries import Entry, RefValue
from mvc.store.journal.frames import Recorded

__all__ = ["Reachable", "closure", "names_of", "reachable", "scan"]


@dataclass
class Reachable:
    """``commits`` stay; ``states`` are those of them whose state stays as well. ``forgotten``:
    whose state does not, by name (True) or by rule.

    ``blobs`` and ``manifests`` are the objects of these states. ``given_up`` are objects that
    only forgotten states have, ``banned`` those of states forgotten by name: no copy of them
    may stay, not even as a base. ``purge``: a state was forgotten by name since the last
    collection, so bytes that no entry names must be deleted as well.
    """

    commits: dict[CommitId, Commit]
    states: set[CommitId]
    forgotten: dict[CommitId, bool]
    purge: bool
    manifests: set[ManifestId] = field(default_factory=set)
    blobs: dict[bytes, TensorSpec] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)
    banned: set[bytes] = field(default_factory=set)

    def needs(self, id_: bytes) -> bool:
        """Whether a state that stays has this object."""
        return id_ in self.blobs or id_ in self.manifests


def reachable(
    context: Context,
    found: Inventory,
    cutoff_ns: int,
    *,
    forget: Mapping[CommitId, bool] | None = None,
    progress: Progress | None = None,
) -> Reachable:
    """What is reachable if operations before ``cutoff_ns`` no longer count as roots.

    ``forget``: further states to treat as forgotten (by name: True).
    """
    known, roots, forgotten = scan(found.entries, cutoff_ns)
    last = max((i for i, r in enumerate(found.entries) if r.entry.operation == "gc"), default=0)
    fresh = {  # forgotten by name since the last collection
        each.commit for r in found.entries[last:] for each in r.entry.forgotten if each.named
    }
    for commit_id, named in (forget or {}).items():
        forgotten[commit_id] = forgotten.get(commit_id, False) or named
        fresh.update({commit_id} if named else ())
    commits = closure(known, roots)
    states = commits.keys() - forgotten.keys()
    reach = Reachable(commits, states, forgotten, bool(fresh))
    ids = {commits[each].manifest for each in states}
    stream = ManifestStream(context.store)
    specs: dict[TensorSpec, TensorSpec] = {}  # one instance of each spec
    # Manifests are read once, oldest first.
    for done, id_ in enumerate(sorted(ids, key=lambda id_: found.entry_of.get(id_, 0))):
        reach.manifests.add(id_)
        codings = [coding.step for coding in found.codings.get(id_, ())]
        for blob, spec in manifests.objects(stream.load(id_, codings)).items():
            reach.blobs[blob] = specs.setdefault(spec, spec)
        if progress is not None:
            progress(done + 1, len(ids), "versions")
    _give_up(context, found, reach, known, fresh)
    return reach


def scan(
    entries: Iterable[Recorded], cutoff_ns: int | None = None
) -> tuple[dict[CommitId, Commit], set[CommitId], dict[CommitId, bool]]:
    """All commits in the order of publication, the roots, and what was forgotten (by name: True).

    Operations from ``cutoff_ns`` on make what they name a root; None: no operation does.
    """
    known: dict[CommitId, Commit] = {}
    refs: dict[str, RefValue] = {}
    roots: set[CommitId] = set()
    forgotten: dict[CommitId, bool] = {}
    for recorded in entries:
        entry = recorded.entry
        known.update((commit.id, commit) for commit in entry.commits)
        refs.update((change.name, change.new) for change in entry.refs)
        roots.update(deployment.commit for deployment in entry.deployments)
        if cutoff_ns is not None and entry.time_ns >= cutoff_ns:
            roots.update(names_of(entry))
        for each in entry.forgotten:
            forgotten[each.commit] = forgotten.get(each.commit, False) or each.named
    roots.update(value for value in refs.values() if isinstance(value, CommitId))
    return known, roots, forgotten


def names_of(entry: Entry) -> set[CommitId]:
    """Every commit that an operation made, moved a ref from or to."""
    named = {commit.id for commit in entry.commits}
    for change in entry.refs:
        named.update(v for v in (change.old, change.new) if isinstance(v, CommitId))
    return named


def closure(known: Mapping[CommitId, Commit], roots: Iterable[CommitId]) -> dict[CommitId, Commit]:
    """Roots and all their ancestors that are in ``known``."""
    into: dict[CommitId, Commit] = {}
    waiting = list(roots)
    while waiting:
        id_ = waiting.pop()
        if id_ in into or id_ not in known:
            continue
        into[id_] = known[id_]
        waiting.extend(known[id_].parents)
    return into


def _give_up(
    context: Context,
    found: Inventory,
    reach: Reachable,
    known: Mapping[CommitId, Commit],
    fresh: set[CommitId],
) -> None:
    """Finds the objects that only forgotten states have.

    If the manifest of a state forgotten by name is gone (it was forgotten by rule first, and
    collected) or damaged, its objects may be among the phantoms: then every object that no
    version needs is banned.
    """
    for id_, named in reach.forgotten.items():
        commit, objects = known.get(id_), set[bytes]()
        if commit is not None and commit.manifest in found.codings:
            with suppress(DamagedData):
                manifest = manifests.load(context, commit.manifest)
                objects = {*manifests.objects(manifest), commit.manifest}
        if named and not objects and id_ in fresh:
            objects = set(found.codings)
        alone = {each for each in objects if not reach.needs(each)}
        reach.given_up |= alone
        reach.banned |= alone if named else set()
