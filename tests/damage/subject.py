"""A repository in memory of which everything is known, and what a damaged one may answer.

What it holds was read by the independent reader (tests/oracle), not by mvc.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.ids import CommitId, ManifestId
from mvc.io.clock import Clock
from mvc.maintenance.fsck.versions import named_blobs
from mvc.maintenance.report import FsckReport
from mvc.model.manifest import FileEntry
from mvc.model.tensor import TensorSpec
from mvc.repo.content.contents import write_file
from mvc.repo.lookup import manifests
from mvc.store.journal.frames import Gap, Recorded
from mvc.store.packs.records import Member
from mvc.store.recovery.recover import Recovery, Request
from mvc.store.store import Store
from mvc.testing import fresh_process, open_quietly
from mvc.testing.process import InThisThread
from tests.damage.decoded import decoded_once
from tests.damage.memory import MemoryFS
from tests.oracle import reader

__all__ = ["Span", "Subject", "Verdict", "Wrong", "file_of"]


class Wrong(AssertionError):
    """Damage that nobody noticed, or an answer that must not be given."""


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of a file and what they are: ``format``, ``journal``, ``pack``
    (a pack's first bytes), ``header`` or ``payload`` of a record in an entry."""

    path: Path
    start: int
    end: int
    kind: str
    recorded: Recorded | None = None
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """``refused``: it did not open, which says why. ``lost``: versions that no checkout
    gives, without those of lost journal entries whose ids nothing names any more; ``named``:
    those that fsck says are lost; every other one came back right."""

    refused: MvcError | None
    report: FsckReport | None
    lost: frozenset[CommitId]
    named: frozenset[CommitId]

    @property
    def found(self) -> bool:
        """Whether opening refuses, or fsck reports damage."""
        return self.report is None or not self.report.sound

    @property
    def noted(self) -> bool:
        """Whether at least a note of fsck speaks of it: an interrupted or unfinished write."""
        return self.found or bool(self.report and self.report.notes)


@dataclass
class Subject:
    """Opened sound; ``fs.files`` is then damaged and put right again by ``mend``.

    ``versions``: every commit's files; ``objects``: every object's bytes; ``specs``: what
    blobs are; ``spans``: every byte of format, journal and packs, in this order.
    """

    root: Path
    fs: MemoryFS = field(init=False)
    sound: dict[Path, bytes] = field(init=False)
    versions: dict[CommitId, dict[str, bytes]] = field(init=False)
    objects: dict[bytes, bytes] = field(init=False)
    specs: dict[bytes, TensorSpec] = field(default_factory=dict)
    users: dict[bytes, set[CommitId]] = field(default_factory=dict)
    entries: list[Recorded] = field(init=False)
    spans: list[Span] = field(init=False)
    least: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.fs = MemoryFS(self.root / ".mvc")
        self.sound = {path: bytes(data) for path, data in self.fs.files.items()}
        oracle = reader.Repository(self.root / ".mvc")
        self.versions = {CommitId(id_): oracle.checkout(id_) for id_ in oracle.commits}
        parts: dict[bytes, dict[int, bytes]] = {}
        for id_, start in filter(None, oracle.pieces):
            parts.setdefault(id_, {})[start] = oracle.pieces[id_, start]
        self.objects = {id_: b"".join(p[at] for at in sorted(p)) for id_, p in parts.items()}
        store = self.store()
        self.entries = list(store.snapshot.entries())
        for id_ in self.versions:
            for entry in self._manifest(store, ManifestId(oracle.commits[id_].manifest)):
                for blob, spec, _ in named_blobs(entry):
                    self.specs[blob] = spec
                    self.users.setdefault(blob, set()).add(id_)
            self.users.setdefault(oracle.commits[id_].manifest, set()).add(id_)
        self.least = min(self.specs, key=lambda id_: self.specs[id_].nbytes)
        self.spans = self._spans(store)
        self._begins = [0]
        for span in self.spans:
            self._begins.append(self._begins[-1] + span.end - span.start)
        store.close()

    def store(self) -> Store:
        """Opens what the files are now; raises MvcError."""
        return Store(self.fs, Clock(), self.root / ".mvc", pool=InThisThread())

    def _manifest(self, store: Store, id_: ManifestId) -> tuple[FileEntry, ...]:
        return manifests.Manifest.decode(store.recovery.manifest(id_)).entries

    def _spans(self, store: Store) -> list[Span]:
        folder = self.root / ".mvc"
        spans = [
            Span(folder / "format", 0, len(self.sound[folder / "format"]), "format"),
            Span(folder / "journal", 0, len(self.sound[folder / "journal"]), "journal"),
        ]
        packs = [Span(p, 0, 8, "pack") for p in self.sound if p.parent.name == "packs"]
        for recorded in self.entries:
            for pack, at, header in store.snapshot.records(recorded.offset):
                path = folder / "packs" / f"{pack:08d}.pack"
                body = at + header.body_at
                packs.append(Span(path, at, body, "header", recorded, header.members))
                if header.group:
                    end = body + header.body_size
                    packs.append(Span(path, body, end, "payload", recorded, header.members))
                    continue
                for m in header.members:
                    start = body + m.at
                    packs.append(Span(path, start, start + m.stored, "payload", recorded, (m,)))
        packs = [s for s in packs if s.start < s.end]
        return spans + sorted(packs, key=lambda s: (s.path, s.start))

    # -- bits ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes that are known: all of format, journal and packs."""
        return self._begins[-1]

    def place(self, byte: int) -> tuple[Span, int]:
        """The span and the offset in its file of the byte with this number, from 0."""
        i = bisect_right(self._begins, byte) - 1
        return self.spans[i], self.spans[i].start + byte - self._begins[i]

    @contextmanager
    def flipped(self, bit: int) -> Iterator[None]:
        """With one bit (its number over all files) flipped."""
        span, at = self.place(bit // 8)
        data = bytearray(self.sound[span.path])
        data[at] ^= 1 << bit % 8
        self.fs.files = {**self.sound, span.path: bytes(data)}
        try:
            yield
        finally:
            self.mend()

    def mend(self) -> None:
        """Every file as it was."""
        self.fs.files = dict(self.sound)

    # -- asking ----------------------------------------------------------------------------

    def everything(self, *, full: bool = False) -> Verdict:
        """Opens anew, runs fsck, checks out every file of every version; Wrong if the
        journal then reads otherwise or bytes differ. Errors that are not mvc's pass."""
        with decoded_once():
            return self._everything(full)

    def _everything(self, full: bool) -> Verdict:
        fresh_process()
        try:
            repo = open_quietly(self.root, fs=self.fs)
        except MvcError as error:
            return Verdict(error, None, frozenset(self.versions), frozenset())
        with repo:
            gone = self._lost_with_entries(repo)
            report = repo.storage.fsck(full=full)
            if gone is not None and not any(
                problem.kind == "journal" for problem in report.problems
            ):
                raise Wrong("fsck does not see it: entries of the journal are lost")
            fresh_process()
            files: dict[tuple[str, bytes], bytes] = {}
            lost = frozenset(id_ for id_ in self.versions if not self._comes_back(repo, id_, files))
        named = named_lost(report)
        if gone is not None and not gone <= lost:
            raise Wrong("a version came back whose entry is lost")
        return Verdict(None, report, lost - ((gone or frozenset()) - named), named)

    def _lost_with_entries(self, repo: Repository) -> frozenset[CommitId] | None:
        """The versions of entries that opening says are lost, None if none is; Wrong if the
        others read otherwise."""
        view = repo.handle.store.fresh()
        gaps: list[Gap] = []
        found = [(r.offset, r.sequence, r.entry) for r in view.entries(lost=gaps.append)]
        if not (gaps := [*gaps, *view.gaps]):
            if found != [(r.offset, r.sequence, r.entry) for r in self.entries]:
                raise Wrong("it opens, and the journal reads otherwise")
            return None
        missing = [r for r in self.entries if r.sequence not in {n for _, n, _ in found}]
        left = [(r.sequence, r.entry) for r in self.entries if r not in missing]
        if left != [(sequence, entry) for _, sequence, entry in found]:
            raise Wrong("it opens, and what is left of the journal reads otherwise")
        if not all(any(r.sequence in gap.numbers for gap in gaps) for r in missing):
            raise Wrong("it opens, and does not know that entries are lost")
        return frozenset(commit.id for r in missing for commit in r.entry.commits)

    def _comes_back(
        self, repo: Repository, id_: CommitId, written: dict[tuple[str, bytes], bytes]
    ) -> bool:
        """Whether a version's files come back; Wrong if one has other bytes.

        ``written``: files that came back already; versions share them.
        """
        expected = self.versions[id_]
        files = {}
        try:
            for entry in manifests.of_commit(repo.handle.store, id_).entries:
                key = entry.path, entry.content_id
                if key not in written:
                    written[key] = file_of(repo, entry)
                files[entry.path] = written[key]
        except MvcError:
            return False
        if files != expected:
            raise Wrong(f"version {id_.short} came back with other bytes")
        return True

    def object_comes_back(self, recovery: Recovery, id_: bytes) -> bool:
        """Whether an object is recovered as checkout does it; Wrong if it has other bytes."""
        try:
            if (spec := self.specs.get(id_)) is None:
                found: bytes | bytearray = recovery.manifest(id_)
            else:
                found, beside = bytearray(spec.nbytes), bytearray(self.specs[self.least].nbytes)
                # Two at once, as of a model: the first try then decodes unchecked payloads.
                wanted = [
                    Request(id_, spec, memoryview(found)),
                    Request(self.least, self.specs[self.least], memoryview(beside)),
                ]
                recovery.fill(wanted)
        except MvcError:
            return False
        if found != self.objects[id_]:
            raise Wrong(f"object {id_.hex()[:10]} came back with other bytes")
        return True


def file_of(repo: Repository, entry: FileEntry) -> bytes:
    """A file as checkout writes it, in memory."""
    out = bytearray(entry.size)

    def write_at(at: int, data: bytes) -> None:
        out[at : at + len(data)] = data

    write_file(repo.handle.store.recovery, entry, write_at)
    return bytes(out)


def named_lost(report: FsckReport) -> frozenset[CommitId]:
    """The versions of which fsck says that something of them cannot be recovered."""
    gone = [
        p
        for p in report.problems
        if p.kind in {"lost", "manifest", "content"}
        or (p.kind == "payload" and p.message.endswith("no other record can recover it"))
    ]
    named = frozenset(version for problem in gone for version in problem.versions)
    if named != frozenset(report.lost):
        raise Wrong(f"fsck's problems name {named}, its summary {report.lost}")
    return named
