"""What a long history costs: docs/performance.md, "Long histories".

    python -m tests.benchmarks.bench_histories [--versions 100000] [--root DIR]

Makes a repository of so many versions, and one of a tenth, and measures the commands that read
all of it, each a process of its own; then each query in a repository that was just opened, by the
entries that it reads and by processor time. Versions are written with the store's own codecs
straight into a pack and the journal, which takes half a millisecond each and not five. What is
built is kept under ``--root`` and used again. The unit of the column "x journal" is one pass over
the journal's entries in the same run: the least that each of these commands has to do. Nothing
here asserts a time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

import mvc
from mvc.codecs.patch import encode_patch
from mvc.codecs.payload import pack_chunks
from mvc.errors import NoDeployment
from mvc.ids import BlobId, CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.limits import CHUNK
from mvc.model.commit import Commit
from mvc.model.hashing import blob_id
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.statement import Deployment
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.statements.live import Deployed, of_commit, succession
from mvc.store.journal import reader
from mvc.store.journal.entries import Entry, RefChange, Region
from mvc.store.journal.frames import Position, encode_entry
from mvc.store.journal.reader import JournalReader
from mvc.store.packs.reader import PACK_HEADER, pack_path
from mvc.store.packs.records import (
    BASE_BYTES,
    BLOB,
    MANIFEST,
    Coding,
    Member,
    encode_header,
    patch_extra,
    payload_check,
)
from tests.benchmarks.measuring import Cost, first, folder, head, process, row
from tests.benchmarks.measuring import mvc as command

_STEP, _RESET = 4, 64  # as ``store.layout: skip:4`` and ``store.reset_interval`` lay a history out
_SECOND = 1_000_000_000
_PIPELINE = Pipeline.parse("sub | zigzag | elide | planes | zstd:huff").coding()
_PATCH = Coding("patch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--versions", type=int, default=100_000)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="words of the rows to measure")
    options = parser.parse_args()
    with folder(options.root) as root:
        few = build(root / f"histories-{options.versions // 10}", options.versions // 10)
        many = build(root / f"histories-{options.versions}", options.versions)
        _measure(few, many, options)
        _measure_queries(few, many, options)


# -- a repository of many versions ---------------------------------------------------------


def build(path: Path, versions: int) -> Path:
    """A repository of ``versions`` versions of four tensors of 512 bytes, all deployed but 1 %.

    That 1 % lies on a branch in the middle, which is deleted in the end.
    """
    if path.exists():
        return path
    making = path.with_name(f"making-{path.name}")
    shutil.rmtree(making, ignore_errors=True)
    begun = time.perf_counter()
    with mvc.Repository.init(making, clock=_LongAgo()) as repo:
        state = first()
        made = repo.commit(state, message="batch 0", deploy="prod")
        template = repo.manifest(made.id)
    journal = JournalReader(FileSystem(), making / ".mvc")
    last = list(journal.scan())[-1]
    journal.close()
    _Writer(making / ".mvc", template, last.entry, last.after, state).write(versions)
    making.rename(path)
    print(f"{versions:,} versions made in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return path


class _LongAgo(Clock):
    """Begins so early that the last version is not in the future."""

    def now_ns(self) -> int:
        return 1_700_000_000 * _SECOND


@dataclass(frozen=True)
class _Version:
    """``parts``: the contents' ids and bytes, in the order of the file."""

    commit: CommitId
    manifest: Manifest
    parts: tuple[tuple[BlobId, bytes], ...]


class _Line:
    """A branch: its versions by number, as far back as a delta may reach."""

    def __init__(self, name: str, versions: dict[int, _Version]) -> None:
        self.name = name
        self.versions = dict(versions)
        self.tip = max(versions)

    def base(self) -> _Version | None:
        """What the next version is coded against; None where it is stored in full."""
        number = self.tip + 1
        if number % _RESET == 0:
            return None
        step = 1
        while number % (step * _STEP) == 0:
            step *= _STEP
        return self.versions[number - step]

    def add(self, version: _Version) -> None:
        self.tip += 1
        self.versions[self.tip] = version
        self.versions.pop(self.tip - _RESET, None)


class _Writer:
    """Appends versions to the journal of a repository of one version, and to a pack of its own."""

    def __init__(
        self, folder: Path, template: Manifest, entry: Entry, at: Position, state: dict
    ) -> None:
        self._folder = folder
        self._template = template
        self._entry = entry
        self._at = at
        self._random = np.random.default_rng(1)
        (file,) = template.entries
        names = {tensor.content: tensor.key for tensor in file.tensors}
        self._values = [state[names[i]] for i in range(len(file.contents))]
        data = tuple((c.id, v.tobytes()) for c, v in zip(file.contents, self._values, strict=True))
        self._main = _Line("main", {0: _Version(entry.commits[0].id, template, data)})
        self._pack = 2
        self._place = len(PACK_HEADER)
        self._live, self._deployed = entry.statements[0].id, at.sequence - 1

    def write(self, versions: int) -> None:
        aside = range(versions // 2, versions // 2 + max(1, versions // 100))
        side = self._main
        with (
            pack_path(self._folder / "packs", self._pack).open("xb") as pack,
            (self._folder / "journal").open("ab") as journal,
        ):
            pack.write(PACK_HEADER)
            for i in range(1, versions):
                if i == aside.start:
                    side = _Line("side", self._main.versions)
                journal.write(self._version(pack, side if i in aside else self._main, i))
            tip = side.versions[side.tip].commit
            change = RefChange("heads/side", tip, None)
            journal.write(self._publish(Entry("branch", self._time(versions), refs=(change,))))

    def _time(self, i: int) -> int:
        return self._entry.time_ns + i * _SECOND

    def _publish(self, entry: Entry) -> bytes:
        data, self._at = encode_entry(entry, self._at)
        return data

    def _version(self, pack, line: _Line, i: int) -> bytes:
        parent, base = line.versions[line.tip], line.base()
        self._values = [
            v + (1e-4 * self._random.standard_normal(v.shape)).astype(np.float32)
            for v in self._values
        ]
        (file,) = self._template.entries
        parts = tuple(
            (blob_id(c.spec, v.tobytes()), v.tobytes())
            for c, v in zip(file.contents, self._values, strict=True)
        )
        manifest = Manifest([_named(file, [id_ for id_, _ in parts])])
        region = self._record(pack, manifest, parts, base)
        known = self._entry.commits[0]
        commit = Commit(
            manifest.id, manifest.root, (parent.commit,), known.author, self._time(i),
            known.zone_minutes, f"batch {i}", {}, known.pipeline, known.code,
        )  # fmt: skip
        statements: tuple[Deployment, ...] = ()
        previous: tuple[int | None, ...] = ()
        if line is self._main:
            at = self._time(i)
            live = Deployment(
                subject=commit.id, author=known.author, node=bytes(16), recorded_ns=at,
                hybrid_ns=at, target="prod", time_ns=at, replaces=self._live,
            )  # fmt: skip
            statements, previous = (live,), (self._deployed,)
            self._live, self._deployed = live.id, self._at.sequence
        old = None if line is not self._main and line.tip == self._main.tip else parent.commit
        change = RefChange(f"heads/{line.name}", old, commit.id)
        line.add(_Version(commit.id, manifest, parts))
        return self._publish(
            replace(
                self._entry, time_ns=self._time(i), regions=(region,), commits=(commit,),
                refs=(change,), statements=statements, previous=previous, marks=(),
            )
        )  # fmt: skip

    def _record(
        self, pack, manifest: Manifest, parts: tuple[tuple[BlobId, bytes], ...],
        base: _Version | None,
    ) -> Region:  # fmt: skip
        members, body = [], []
        at = 0

        def add(kind: int, id_: bytes, nbytes: int, text: str, under: bytes, data: bytes) -> None:
            nonlocal at
            check, size = payload_check([data]), len(data)
            name = under[:BASE_BYTES]
            members.append(Member(kind, id_, 0, nbytes, Coding(text), name, at, size, check))
            body.append(data)
            at += size

        pipeline = _PIPELINE.full() if base is None else _PIPELINE
        for i, (id_, data) in enumerate(parts):
            under, old = (b"", None) if base is None else base.parts[i]
            against = None if old is None else memoryview(old)
            chunk = pipeline.encode_chunk(memoryview(data), against, 4)
            payload = b"".join(pack_chunks([chunk], 4, CHUNK))
            add(BLOB, id_, len(data), pipeline.text, under, payload)
        old = b"" if base is None else base.manifest.encoded
        changes = encode_patch(
            memoryview(manifest.encoded), memoryview(old), patch_extra(members, MANIFEST)
        )
        name = b"" if base is None else base.manifest.id
        add(MANIFEST, manifest.id, len(manifest.encoded), _PATCH.text, name, changes)
        head = encode_header(members, group=False, body_size=at)
        region = Region(self._pack, self._place, len(head) + at)
        pack.write(b"".join([head, *body]))
        self._place += region.length
        return region


def _named(file: FileEntry, ids: list[BlobId]) -> FileEntry:
    """The file with other contents."""
    contents = tuple(replace(c, id=id_) for c, id_ in zip(file.contents, ids, strict=True))
    tensors = tuple(replace(t, id=ids[t.content]) for t in file.tensors)
    return replace(file, contents=contents, tensors=tensors)


# -- measuring -----------------------------------------------------------------------------


_JOURNAL = """
import sys
from mvc.store.journal.reader import JournalReader
from mvc.io.files import FileSystem
from pathlib import Path
assert sum(1 for _ in JournalReader(FileSystem(), Path(sys.argv[1])).scan())
"""


def _measure(few: Path, many: Path, options: argparse.Namespace) -> None:
    out = many.parent / "out.safetensors"

    def lost(root: Path) -> Cost:
        shutil.rmtree(root / ".mvc" / "index.lmdb", ignore_errors=True)
        return command(root, "log", "-n", "1")

    def look_back(root: Path) -> Cost:
        versions = options.versions if root is many else options.versions // 10
        return command(root, "checkout", "--at", _middle(root, versions), "-o", str(out), "-f")

    rows = {
        "one pass over the journal": lambda root: process("-c", _JOURNAL, str(root / ".mvc")),
        "a lost index made again (`mvc log -n 1`)": lost,
        "`mvc stats`": lambda root: command(root, "stats"),
        "`mvc gc -n`": lambda root: command(root, "gc", "-n"),
        "`mvc gc -n --grace 36000d`": lambda root: command(root, "gc", "-n", "--grace", "36000d"),
        "`mvc log -n 5`": lambda root: command(root, "log", "-n", "5"),
        "`mvc checkout --at T -o FILE`": look_back,
    }
    rows = {k: v for k, v in rows.items() if not options.only or any(w in k for w in options.only)}
    head(f"{options.versions:,} versions", "time", "processor", "x journal", "peak memory",
         f"processor, {options.versions // 10:,} versions", "x")  # fmt: skip
    unit: float | None = None
    for name, measure in rows.items():
        small, large = measure(few), measure(many)
        unit = unit or large.processor
        row(
            name, f"{large.wall:.1f} s", f"{large.processor:.1f} s",
            f"{large.processor / unit:.1f}", f"{large.peak:.0f} MB", f"{small.processor:.2f} s",
            f"{large.processor / small.processor:.1f}",
        )  # fmt: skip


_Query = Callable[[mvc.Repository], object]


def _queries(newest: mvc.Commit, versions: int, path: str) -> dict[str, _Query]:
    """``newest``: the version that the ``versions`` lead to. All were deployed a second apart."""
    middle = newest.time_ns - versions // 2 * _SECOND
    before = newest.time_ns - 2 * versions * _SECOND
    step = 5 * _SECOND

    def never(repo: mvc.Repository) -> None:
        with suppress(NoDeployment):
            repo.live("prod", at=before)

    def look_back(repo: mvc.Repository) -> list[Deployed]:
        line = succession(repo.handle.store.fresh(), "prod", newest.time_ns + step)
        return list(islice(line, 2))

    return {
        "`live(T)`": lambda repo: repo.live("prod"),
        "`live(T, at=)` in the middle": lambda repo: repo.live("prod", at=middle),
        "`live(T, at=)` before the first": never,
        "`live_between`, five versions": lambda repo: repo.live_between(middle, middle + step),
        "what `rollback` goes back to": look_back,
        "`log(limit=1)`": lambda repo: repo.log(limit=1)[0],
        "`log` of a path, one": lambda repo: repo.log(
            options=mvc.LogOptions(paths=[path]), limit=1
        )[0],
        "`log` until the middle, one": lambda repo: repo.log(
            options=mvc.LogOptions(until=middle), limit=1
        )[0],
        "`log` since the last five, all": lambda repo: list(
            repo.log(options=mvc.LogOptions(since=newest.time_ns - step))
        ),
        "`iter_versions` of the last five": lambda repo: list(
            repo.iter_versions(target="prod", since=newest.time_ns - step)
        ),
        "a version and its changes": lambda repo: repo.log(
            options=mvc.LogOptions(changes=True), limit=1
        )[0],
        "`version` by 12 digits": lambda repo: repo.version(newest.id.hex()[:12]),
        "`find(main@{T})`": lambda repo: repo.find(f"main@{{{middle}}}"),
        "`identify`": lambda repo: repo.identify(repo.manifest(newest.id).entries[0]),
        "`annotations`": lambda repo: repo.annotations(),
        "`targets`": lambda repo: repo.targets(),
        "deployments of a version": lambda repo: of_commit(repo.handle.store.fresh(), newest.id),
        "`operations(1)`": lambda repo: list(repo.operations(1)),
        "`remotes.unsent`": lambda repo: repo.remotes.unsent(),
        "`status`": lambda repo: repo.status(),
        "`deployments(T)`": lambda repo: repo.deployments("prod"),
    }


def _measure_queries(few: Path, many: Path, options: argparse.Namespace) -> None:
    costs: list[dict[str, tuple[int, float]]] = []
    for root, versions in (few, options.versions // 10), (many, options.versions):
        with mvc.Repository.open(root) as repo:
            repo.handle.store.snapshot.index_tail(force=True)
            repo.remotes.add("origin", root.parent / "nowhere", force=True)
            newest, path = repo.version(), repo.manifest().entries[0].path
        queries = _queries(newest, versions, path)
        wanted = {k for k in queries if not options.only or any(w in k for w in options.only)}
        costs.append({k: _cost(root, v) for k, v in queries.items() if k in wanted})
    head("query", "entries read", "processor", f"entries, {options.versions // 10:,} versions",
         "processor", "x")  # fmt: skip
    for name, (entries, spent) in costs[1].items():
        fewer, less = costs[0][name]
        row(name, str(entries), f"{spent * 1e3:.1f} ms", str(fewer), f"{less * 1e3:.1f} ms",
            f"{spent / less:.1f}")  # fmt: skip


def _cost(root: Path, ask: _Query) -> tuple[int, float]:
    """Entries of the journal that a query reads, and processor seconds, the least of five."""
    times = []
    for _ in range(5):
        with (
            mvc.Repository.open(root) as repo,
            patch.object(reader, "read_entry", wraps=reader.read_entry) as read,
        ):
            begun = time.process_time()
            ask(repo)
            times.append(time.process_time() - begun)
    return read.call_count, min(times)


def _middle(root: Path, versions: int) -> str:
    """The time of a version in the middle of the history."""
    with mvc.Repository.open(root) as repo:
        newest = next(iter(repo.log(limit=1))).commit.time_ns
    return str(newest - versions // 2 * _SECOND)


if __name__ == "__main__":
    main()
