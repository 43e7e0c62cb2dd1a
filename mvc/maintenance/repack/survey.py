"""The versions of a repository: their blobs, and which version descends from which."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from mvc.ids import CommitId, ManifestId
from mvc.maintenance.graph import StorageGraph
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.content.predecessors import BaseFinder, content_names
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.types import Progress


class Version(Struct, frozen=True):
    """``blobs``: its contents by id, each with its line: the path and name it is found under.

    ``sequence``: the operation that published it. It has so many ``files`` of ``nbytes`` in all.
    """

    commit: CommitId
    sequence: int
    manifest: ManifestId
    parent: int | None
    blobs: Mapping[bytes, str]
    files: int
    nbytes: int


class Survey(Struct):
    """Versions in the order of publication; parents before children.

    ``specs``: of their blobs. ``numbers``: the place of each version. ``first``: by blob the place
    of the first version that has it.
    """

    context: Context
    found: StorageGraph
    versions: list[Version] = field(default_factory=list)
    specs: dict[bytes, TensorSpec] = field(default_factory=dict)
    numbers: dict[CommitId, int] = field(default_factory=dict)
    first: dict[bytes, int] = field(default_factory=dict)
    _generations: list[int] = field(default_factory=list)

    def size(self, id_: bytes) -> int:
        return self.specs[id_].nbytes

    def new_in(self, a: int, b: int) -> list[bytes]:
        """The blobs of version b that version a does not have."""
        there = self.versions[a].blobs
        return [id_ for id_ in self.versions[b].blobs if id_ not in there]

    def bases(self, a: int, b: int) -> dict[bytes, bytes]:
        """For blobs that b has and a lacks, the blob of a that is the base of a delta."""
        new = set(self.new_in(a, b))
        if not new:
            return {}
        finder = BaseFinder(self.manifest(a))
        found: dict[bytes, bytes] = {}
        for entry in self.manifest(b).all_entries:
            names = content_names(entry.contents, entry.tensors)
            for name, content in zip(names, entry.contents, strict=True):
                base = finder.find(entry.path, name, content.spec)
                if base is not None and content.id in new and base.id in self.versions[a].blobs:
                    found.setdefault(content.id, base.id)
        return found

    def manifest(self, i: int) -> Manifest:
        return manifests.load(self.context, self.versions[i].manifest)

    def generation(self, i: int) -> int:
        """How many ancestors a version has."""
        for j in range(len(self._generations), i + 1):
            parent = self.versions[j].parent
            self._generations.append(0 if parent is None else self._generations[parent] + 1)
        return self._generations[i]

    def distance(self, older: bytes, newer: bytes) -> int | None:
        """How many generations before the first version of a blob another one was last there."""
        at, generations = self.versions[self.first[newer]].parent, 1
        while at is not None and older not in self.versions[at].blobs:
            # No version before the first one that has the blob can have it.
            at = self.versions[at].parent if at > self.first[older] else None
            generations += 1
        return None if at is None else generations

    def ancestor(self, i: int, steps: int) -> int | None:
        """The version ``steps`` generations back; None before the first."""
        at: int | None = i
        for _ in range(steps):
            if at is None:
                return None
            at = self.versions[at].parent
        return at


def survey(context: Context, found: StorageGraph, progress: Progress | None = None) -> Survey:
    """Reads every manifest. Forgotten states and given up weights are left out."""
    made, stream = Survey(context, found), ManifestStream(context.store)
    gone = found.history.forgotten
    given_up = found.history.given_up(found.history.numbers.keys() - gone.keys())
    commits: dict[CommitId, Commit] = {}
    numbers: dict[CommitId, int] = {}
    for recorded in found.entries:
        for commit in recorded.entry.commits:
            commits[commit.id] = commit
            numbers.setdefault(commit.id, recorded.sequence)
    for id_, commit in commits.items():
        if id_ in gone or id_ in made.numbers:
            continue
        parent = _nearest(commit, commits, made.numbers)
        blobs: dict[bytes, str] = {}
        steps = [coding.step for coding in found.codings.get(commit.manifest, ())]
        entries = stream.load(commit.manifest, steps).all_entries
        for entry in entries:
            if entry.path in given_up.get(commit.manifest, ()):
                continue
            names = content_names(entry.contents, entry.tensors)
            for name, content in zip(names, entry.contents, strict=True):
                blobs.setdefault(content.id, f"{entry.path}\0{name}")
                made.specs[content.id] = content.spec
        made.numbers[id_] = len(made.versions)
        for blob in blobs:
            made.first.setdefault(blob, len(made.versions))
        number = None if parent is None else made.numbers[parent]
        nbytes = sum(entry.size for entry in entries)
        made.versions.append(
            Version(
                commit=id_,
                sequence=numbers[id_],
                manifest=commit.manifest,
                parent=number,
                blobs=blobs,
                files=len(entries),
                nbytes=nbytes,
            )
        )
        if progress is not None:
            progress(len(made.versions), len(commits), "versions")
    return made


def _nearest(
    commit: Commit, commits: Mapping[CommitId, Commit], there: Mapping[CommitId, int]
) -> CommitId | None:
    """The nearest ancestor along first parents that still has its state."""
    at: Commit | None = commit
    while at is not None and at.parents:
        if at.parents[0] in there:
            return at.parents[0]
        at = commits.get(at.parents[0])
    return None
