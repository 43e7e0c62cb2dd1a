"""bench: commit and check out the user's own models with every pipeline, and advise one.

Each pipeline gets a temporary repository. The versions are committed into it and checked out of
it by the product's own code, and every file that comes back is compared with the one that went
in. The temporary folder needs room for the versions twice; set TMPDIR to choose its disk.
"""

from __future__ import annotations

import filecmp
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.adapters.files.suspicion import suspicion
from mvc.adapters.hashing import hash_file
from mvc.adapters.parsed import ParsedContent, ParsedFile, ParsedTensor
from mvc.api.repository import Repository
from mvc.errors import BadModelFile, DamagedData, InvalidName, WrongUsage
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count
from mvc.limits import MIB
from mvc.model.hashing import pieces
from mvc.model.manifest import FileEntry
from mvc.model.names import printable
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS
from mvc.repo.checkout.export import export
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import Change, CommitOptions, CommitRequest
from mvc.repo.commit.storage_policy import layout_of
from mvc.repo.config import Config, load_config
from mvc.repo.content.predecessors import content_names
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context
from mvc.repo.importing.finding import Checkpoint, find_checkpoints, natural
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.worktree.worktree import tracked_name
from mvc.types import Progress

MAX_BYTES = 256 * MIB
"""Default for the tensor bytes committed of one version."""

PIPELINES = (
    PRESETS["lossless"],
    "sub | zigzag | planes | zstd:huff",
    "xor | planes | zstd:huff",
    "xor | planes | zstd:1",
    "sub | zigzag | elide | planes | zstd:1",
    "sub | zigzag | elide | planes | zstd:3",
    "sub | zigzag | elide | planes | zstd:9",
    PRESETS["vsol"],
    "planes | zstd:huff",
    PRESETS["none"],
)
"""The pipelines compared, besides the one in use."""

SECONDS = 60.0
"""What all pipelines together aim to take."""

ROUNDS = 3
"""Repetitions where there is time; the shortest time of each step counts."""

_VERSIONS = 8  # newest versions committed, at most
_IN_ALL = 4  # bytes of all versions committed, in multiples of max_bytes
_KEEPS_UP = 0.5  # share of the fastest commit speed that the advised pipeline must reach
_ALIKE = 1.01  # sizes within this factor count as equal
_UNBOUNDED = 1_000_000  # deltas
# One chain from the oldest version to the newest; _row applies the bounds of the settings.
_FREE = {"store.max_recovery": None, "store.layout": "chain:10000", "store.max_chain": 1e3}

_Place: TypeAlias = tuple[str, str, int]  # file, content, start in bytes


class Figures(Struct, frozen=True):
    """``ratio``: bytes added to the repository per raw byte, journal and headers included.

    ``commit`` and ``checkout`` are speeds in raw bytes a second, until the data is durable.
    """

    ratio: float
    commit: float
    checkout: float


class BenchRow(Struct, frozen=True):
    """One pipeline. ``full``: the oldest version; ``delta``: the later ones, None without any.

    ``interval``: versions from one stored in full to the next. ``version_bytes``: what a version
    adds on average. ``recovery``: seconds to check out the last version of a chain; ``fits``:
    that is within ``store.max_recovery``. ``slow``: it commits slower than a pipeline must.
    """

    pipeline: str
    preset: str | None
    full: Figures
    delta: Figures | None
    interval: int
    version_bytes: int
    recovery: float
    fits: bool
    slow: bool = False

    @property
    def takes_bases(self) -> bool:
        return Pipeline.parse(self.pipeline).operator != "none"

    @property
    def name(self) -> str:
        """The value for ``commit.pipeline``: the preset's name, if it has one."""
        return self.preset or self.pipeline

    @property
    def speed(self) -> float:
        return (self.delta or self.full).commit


class Advice(Struct, frozen=True):
    """``row`` is None if no pipeline keeps within ``store.max_recovery``."""

    row: BenchRow | None
    reason: str


class Measured(Struct, frozen=True):
    """``rows`` are in the order of ``PIPELINES``. Every version came back exactly.

    ``versions``: how many were named; ``compared``: committed pairs of consecutive ones.
    ``raw_bytes``: tensor bytes of the newest; ``sampled``: those of them that were committed.
    ``changed``: mean share of bytes in tensors that changed, None without pairs.
    """

    rows: tuple[BenchRow, ...]
    advice: Advice
    in_use: str
    newest: str
    base: str | None
    versions: int
    compared: int
    raw_bytes: int
    sampled: int
    changed: float | None
    threads: int
    reset_interval: int
    max_recovery: float | None
    notes: tuple[str, ...]
    exact: bool = True  # other bytes raise DamagedData

    @property
    def recommended(self) -> str | None:
        """The value for ``commit.pipeline`` that is advised."""
        return None if self.advice.row is None else self.advice.row.name


def bench(
    paths: Sequence[Path],
    *,
    repository: Repository | None = None,
    config: Config | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Measured:
    """Measures every pipeline on consecutive versions, or on one file and its version at HEAD.

    ``paths`` are files, each a version, or folders of them. The settings are those of
    ``repository``, or ``config``. Raises UnknownPath; WrongUsage for folders without models;
    BadModelFile if there are no bytes to measure; DamagedData if other bytes come back.
    """
    if max_bytes < 1:
        raise WrongUsage("at least one byte of a version has to be looked at")
    context = None if repository is None else repository.context
    fs = context.store.fs if context is not None else FileSystem()
    settings = context.config if context is not None else config
    settings = settings or load_config(fs, repo_file=None, user_file=None, environment={}, flags={})
    found = _find_versions(fs, paths)
    versions = [version for version in found if version.size]
    if not versions:
        raise BadModelFile(f"{_label(found[-1])} is empty: there is nothing to measure")
    in_use = Pipeline.parse(settings.get("commit.pipeline")).coding()
    trials = [_BenchTrial(p) for p in dict.fromkeys([*map(Pipeline.parse, PIPELINES), in_use])]
    with TemporaryDirectory(prefix="mvc-bench-") as folder:
        each = min(max_bytes, versions[-1].size)
        chosen = versions[-max(2, min(_VERSIONS, _IN_ALL * max_bytes // each)) :]
        if len(versions) == 1 and context is not None:
            chosen = [*_from_head(context, versions[0], Path(folder) / "head"), *versions]
        free = Config({**settings.values, **{k: (v, "flag") for k, v in _FREE.items()}})
        series = _Series(fs, Path(folder), config=free, versions=chosen, max_bytes=max_bytes)
        series.look(trials)
        series.measure(trials, progress)
    rows = [_row(trial, series, settings) for trial in trials]
    least = _least_speed(rows)
    rows = [replace(row, slow=row.speed < least) for row in rows]
    compared = len(series.versions) - 1
    empty = [f"{_label(v)} is empty and left out" for v in found if not v.size]
    return Measured(
        rows=tuple(rows),
        advice=advise(rows, in_use.text),
        in_use=in_use.text,
        newest=str(versions[-1].source),
        base=str(series.versions[-2].source) if compared else None,
        versions=len(versions),
        compared=compared,
        raw_bytes=series.total,
        sampled=series.sizes[-1],
        changed=series.changed,
        threads=cpu_count(),
        reset_interval=layout_of(settings).interval,
        max_recovery=settings.get("store.max_recovery"),
        notes=(*empty, *series.notes, *_without_deltas(series, trials)),
    )


def _least_speed(rows: Sequence[BenchRow]) -> float:
    return _KEEPS_UP * max((row.speed for row in rows if row.takes_bases), default=0.0)


def advise(rows: Sequence[BenchRow], in_use: str) -> Advice:
    """The smallest store whose commits keep up and whose recovery keeps within the bound.

    Of sizes within a per cent of the smallest, the pipeline in use is chosen, else the first.
    Pipelines without deltas are left out if no delta was measured.
    """
    least = _least_speed(rows)
    fitting = [row for row in rows if row.fits and (row.takes_bases or row.delta)]
    if not fitting:
        why = "no pipeline recovers even a full version within store.max_recovery"
        return Advice(None, why)
    keeping_up = [row for row in fitting if row.speed >= least] or fitting
    smallest = min(row.version_bytes for row in keeping_up)
    alike = [row for row in keeping_up if row.version_bytes <= _ALIKE * smallest]
    chosen = next((row for row in alike if row.pipeline == in_use), alike[0])
    why = "the smallest store of those that commit at least half as fast as the fastest with deltas"
    if any(not row.fits for row in rows):
        why += " and recover within store.max_recovery"
    return Advice(chosen, why)


class _BenchTrial(Struct):
    """One pipeline: bytes added and seconds taken by each version, oldest first."""

    pipeline: Pipeline
    stored: list[int] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    checkouts: list[float] = field(default_factory=list)
    deltas: int = 0  # bytes of all deltas


class _Series:
    """The versions that every pipeline commits, oldest first; of each the same sample."""

    def __init__(
        self, fs: FileSystem, folder: Path, config: Config, versions: Sequence[Checkpoint],
        max_bytes: int,
    ) -> None:  # fmt: skip
        """Chooses the sample. Raises BadModelFile if the newest version has no tensor bytes."""
        self.versions = list(versions)
        self.sizes: list[int] = []  # tensor bytes committed of each version
        self.changed: float | None = None  # mean share of bytes from one version to the next
        self.touched = 0.0  # share of bytes from the oldest version to the newest
        self.notes: list[str] = []
        self._fs, self._folder, self._config = fs, folder, config
        self._sample: set[_Place] | None = None  # None: everything
        places: list[tuple[_Place, int]] = []
        for name, path in versions[-1].files.items():
            with self._open(name, path) as parsed:
                places += [(place, length) for place, _, length in _pieces(parsed, name) if length]
        self.total = sum(length for _, length in places)  # tensor bytes of the newest version
        if not self.total:
            raise BadModelFile(f"{_label(versions[-1])} holds no tensors: nothing to measure")
        if self.total > max_bytes:
            self._sample = _spread(places, max_bytes / self.total)

    def look(self, trials: Sequence[_BenchTrial]) -> None:
        """Bounds the number of versions by time, and reads each of them once."""
        began = time.perf_counter()
        self._run(trials[0].pipeline, self.versions[-1:])
        seconds = (time.perf_counter() - began) * len(trials)
        kept = max(2, min(len(self.versions), int(SECONDS / seconds)))
        if kept < len(self.versions):
            self.versions = self.versions[-kept:]
            self.notes.append(f"only the newest {kept} versions are committed, to save time")
        entries = [
            [self._look_at(version, name) for name in version.files] for version in self.versions
        ]
        self.sizes = [sum(c.spec.nbytes for e in files for c in e.contents) for files in entries]
        if len(entries) > 1:
            shares = [_share(old, new) for old, new in pairwise(entries)]
            self.changed = sum(shares) / len(shares)
            self.touched = _share(entries[0], entries[-1])

    def _look_at(self, version: Checkpoint, name: str) -> FileEntry:
        """Reads a file; notes if it is no model (files beside a model need not be)."""
        path = version.files[name]
        with self._open(name, path) as parsed:
            entry = hash_file(parsed, name)
        if parsed.format == "opaque" and not parsed.tensors and len(version.files) == 1:
            with self._fs.open_read(path) as file:
                why = suspicion(file, path.name)
            because = f" ({why})" if why else ""
            text = f"{printable(str(path))} is no model file that mvc can read{because}"
            self.notes.append(f"{text}: measured as raw bytes")
        return entry

    def measure(self, trials: Sequence[_BenchTrial], progress: Progress | None) -> None:
        """Fills the trials. The pipelines take turns, so that they share the machine's noise."""
        turn, rounds, done, each = 0, ROUNDS, 0, sum(self.sizes)
        began = time.perf_counter()
        while turn < rounds:
            for trial in trials:
                again = self._run(trial.pipeline, self.versions)
                trial.stored, trial.deltas = again.stored, again.deltas
                trial.commits = list(map(min, trial.commits or again.commits, again.commits))
                trial.checkouts = list(
                    map(min, trial.checkouts or again.checkouts, again.checkouts)
                )
                if not done:
                    seconds = (time.perf_counter() - began) * len(trials)
                    rounds = max(1, min(ROUNDS, int(SECONDS / seconds)))
                done += each
                if progress is not None:
                    progress(done, each * rounds * len(trials), trial.pipeline.text)
            turn += 1

    def _run(self, pipeline: Pipeline, versions: Sequence[Checkpoint]) -> _BenchTrial:
        """Commits versions into a new repository and checks each of them out.

        The repository is opened for each step, as by a process of its own. Raises DamagedData
        unless the files that come back are exactly those that were committed.
        """
        trial = _BenchTrial(pipeline)
        with TemporaryDirectory(dir=self._folder) as folder:
            root, out = Path(folder) / "repo", Path(folder) / "out"
            opened = partial(Repository.open, root, config=lambda _: self._config, fs=self._fs)
            Repository.init(root, config=lambda _: self._config, fs=self._fs).close()
            ids, before = [], set[str]()
            for version in versions:
                changes = [Change(n, partial(self._open, n, p)) for n, p in version.files.items()]
                changes += [Change(name, None) for name in before - version.files.keys()]
                before = set(version.files)
                options = CommitOptions(allow_empty=True, sign=False)
                request = CommitRequest(changes, pipeline=pipeline.text, options=options)
                with opened() as repository:
                    began = time.perf_counter()
                    done = commit(repository.context, request)
                    trial.commits.append(time.perf_counter() - began)
                ids.append(done.id)
                trial.stored.append(done.stored_bytes)
            for version, id_ in zip(versions, ids, strict=True):
                with opened() as repository:
                    began = time.perf_counter()
                    export(repository.context, id_, ["."], out, as_folder=True, force=True)
                    trial.checkouts.append(time.perf_counter() - began)
                for name, path in version.files.items():
                    if not self._same(name, path, out / name):
                        raise DamagedData(f"{pipeline.text} does not give back {_label(version)}")
            with opened() as repository:
                trial.deltas = repository.storage.stats().bytes["delta"]
        return trial

    @contextmanager
    def _open(self, name: str, path: Path) -> Iterator[ParsedFile]:
        with open_file(self._fs, path, printable(str(path))) as parsed:
            yield parsed if self._sample is None else _Sample(parsed, name, self._sample)

    def _same(self, name: str, path: Path, back: Path) -> bool:
        if self._sample is None:
            return filecmp.cmp(path, back, shallow=False)
        with self._open(name, path) as parsed, self._fs.open_read(back) as file:
            for i, content in enumerate(parsed.contents):
                data = memoryview(bytearray(content.spec.nbytes))  # of one piece
                parsed.read(i, 0, data)
                if file.read(content.offset, len(data)) != data:
                    return False
        return True


class _Sample(ParsedFile):
    """Pieces of a file's contents, each as a content of its own."""

    def __init__(self, parsed: ParsedFile, name: str, sample: set[_Place]) -> None:
        named = {tensor.content for tensor in parsed.tensors}
        contents: list[ParsedContent] = []
        tensors: list[ParsedTensor] = []
        self._parsed, self._parts, self.size = parsed, list[tuple[int, int]](), 0
        for place, i, length in _pieces(parsed, name):
            if place not in sample:
                continue
            _, key, start = place
            cut = parsed.contents[i].spec
            if length < cut.nbytes:
                cut = TensorSpec(cut.dtype, (length // DTYPES[cut.dtype].itemsize,))
            if i in named:
                tensors.append(ParsedTensor(f"{key}@{start}", cut, len(contents)))
            contents.append(ParsedContent(self.size, cut))
            self._parts.append((i, start))
            self.size += length
        self.format, self.checks = "opaque", ()
        self.contents, self.tensors = tuple(contents), tuple(tensors)

    def read(self, content: int, start: int, out: memoryview) -> None:
        i, first = self._parts[content]
        self._parsed.read(i, first + start, out)

    def skeleton(self) -> bytes:
        return b""


def _pieces(parsed: ParsedFile, name: str) -> Iterator[tuple[_Place, int, int]]:
    """The place of every piece of a file, the number of its content, its length in bytes."""
    for i, key in enumerate(content_names(parsed.contents, parsed.tensors)):
        for start, length in pieces(parsed.contents[i].spec):
            yield (name, key, start), i, length


def _spread(places: Sequence[tuple[_Place, int]], share: float) -> set[_Place]:
    """Pieces spread evenly over about ``share`` of the bytes (error diffusion); at least one."""
    chosen, seen, taken = set(), 0, 0
    for place, length in places:
        seen += length
        if taken + length / 2 <= seen * share:
            chosen.add(place)
            taken += length
    return chosen or {places[len(places) // 2][0]}


def _share(old: Sequence[FileEntry], new: Sequence[FileEntry]) -> float:
    """Share of the newer version's bytes in contents that the older one does not have."""
    known = {content.id for entry in old for content in entry.contents}
    sizes = [(c.spec.nbytes, c.id in known) for entry in new for c in entry.contents]
    return sum(size for size, had in sizes if not had) / max(1, sum(size for size, _ in sizes))


def _row(trial: _BenchTrial, series: _Series, settings: Config) -> BenchRow:
    """Figures of one pipeline, and what a long history under the settings would cost."""
    sizes, total = series.sizes, series.total
    scale = total / sizes[-1]  # from the sample to the whole version
    seconds, last = trial.checkouts[0] * scale, trial.checkouts[-1] * scale
    bound = settings.get("store.max_recovery")
    fits = bound is None or seconds <= bound
    full = _figures(trial, sizes, slice(1))
    delta = _figures(trial, sizes, slice(1, None)) if series.changed else None
    version_bytes, interval = full.ratio * total, 1
    if delta is not None and not trial.deltas:
        version_bytes = delta.ratio * total
    elif delta is not None:
        step = max(0.0, last - seconds) / (len(sizes) - 1)
        layout = layout_of(settings)
        deltas = layout.deepest
        if bound is not None:
            deltas = int(max(0.0, bound - seconds) / step) if step else _UNBOUNDED
        deltas = min(deltas, int(settings.get("store.max_chain") / delta.ratio))
        interval = min(layout.interval, layout.reach(deltas))
        chain = delta.ratio * (interval - 1) + full.ratio * series.touched
        version_bytes, seconds = chain * total / interval, seconds + deltas * step
    text = trial.pipeline.text
    preset = next((n for n in PRESETS if Pipeline.parse(n) == trial.pipeline), None)
    return BenchRow(
        pipeline=text,
        preset=preset,
        full=full,
        delta=delta,
        interval=interval,
        version_bytes=round(version_bytes),
        recovery=seconds,
        fits=fits,
    )


def _figures(trial: _BenchTrial, sizes: Sequence[int], part: slice) -> Figures:
    raw, stored = sum(sizes[part]), sum(trial.stored[part])
    return Figures(stored / raw, raw / sum(trial.commits[part]), raw / sum(trial.checkouts[part]))


def _without_deltas(series: _Series, trials: Sequence[_BenchTrial]) -> list[str]:
    if series.changed is None:
        return [
            "one version and nothing to compare it with, so only full versions are measured; "
            "name two consecutive versions, or a tracked file that has changed since HEAD"
        ]
    if not series.changed:
        same = "the versions have the same tensors"
        if _label(series.versions[0]) == "HEAD":
            same = f"{_label(series.versions[-1])} is as at HEAD"
        return [f"{same}, so only full versions are measured"]
    if not any(trial.deltas for trial in trials):
        return ["no delta between the versions saves a tenth, so every version is stored in full"]
    return []


def _label(version: Checkpoint) -> str:
    return printable(str(version.source))


def _find_versions(fs: FileSystem, sources: Sequence[Path]) -> list[Checkpoint]:
    """Versions in the order given; those of a folder by name, numbers by value."""
    found: list[Checkpoint] = []
    for source in sources:
        inside = find_checkpoints(fs, [source], "model")  # one name for all versions
        if not inside:
            raise WrongUsage(
                f"no model files in {printable(str(source))}",
                hint="name files, or a folder of them",
            )
        found += sorted(inside, key=lambda checkpoint: natural(checkpoint.source.name))
    return found


def _from_head(context: Context, version: Checkpoint, folder: Path) -> list[Checkpoint]:
    """HEAD's files that the version's files are tracked as, written to ``folder``."""
    fs, there = context.store.fs, head(context).commit
    by_path = manifests.of_commit(context, there).by_path
    files: dict[str, Path] = {}
    for name, place in version.files.items():
        with suppress(InvalidName):
            tracked = tracked_name(context.root, place, fs.cwd(), fs=fs)
            if there is not None and tracked in by_path:
                fs.make_dirs((folder / name).parent)
                export(context, there, [tracked], folder / name, as_folder=False)
                files[name] = folder / name
    return [Checkpoint(Path("HEAD"), 0, files, 0)] if files else []
