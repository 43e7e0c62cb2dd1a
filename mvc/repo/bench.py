"""bench: commit and check out the user's own models with every pipeline, and advise one.

Each pipeline gets a temporary repository. The versions are committed into it and checked out of
it by the product's own code, and every file that comes back is compared with the one that went
in. The temporary folder needs room for the versions twice; set TMPDIR to choose its disk.
"""

from __future__ import annotations

import filecmp
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from mvc.adapters.files.suspect import suspicion
from mvc.adapters.parsed import ParsedContent, ParsedFile, ParsedTensor
from mvc.codecs.pipeline import PRESETS, Pipeline
from mvc.errors import BadModelFile, DamagedData, InvalidName, WrongUsage
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.io.handles import ReadFile
from mvc.io.process import cpu_count
from mvc.limits import MIB, PIECE
from mvc.model.manifest import Manifest
from mvc.model.names import printable
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.checkout.checkout import export
from mvc.repo.commit.commit import commit
from mvc.repo.commit.policy import layout_of
from mvc.repo.commit.request import Change, CommitRequest
from mvc.repo.config import Config, load_config
from mvc.repo.content.bases import content_names
from mvc.repo.content.hashing import pieces
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context, Progress
from mvc.repo.importing.checkpoints import find_checkpoints
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.opening import open_context
from mvc.repo.stats import stats
from mvc.repo.worktree.worktree import tracked_name
from mvc.store.store import create

__all__ = ["MAX_BYTES", "PIPELINES", "Advice", "Figures", "Measured", "Row", "advise", "bench"]

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

_VERSIONS = 8  # newest versions committed, at most
_IN_ALL = 4  # bytes of all versions committed, in multiples of max_bytes
_SECONDS = 60.0  # what all pipelines together aim to take
_ROUNDS = 3  # repetitions where there is time; the shortest time of each step counts
_KEEPS_UP = 0.5  # share of the fastest commit speed that the advised pipeline must reach
_ALIKE = 1.01  # sizes within this factor count as equal
_UNBOUNDED = 1_000_000  # deltas


@dataclass(frozen=True, slots=True)
class Figures:
    """``ratio``: bytes added to the repository per raw byte, journal and headers included.

    ``commit`` and ``checkout`` are speeds in raw bytes a second, until the data is durable.
    """

    ratio: float
    commit: float
    checkout: float


@dataclass(frozen=True, slots=True)
class Row:
    """One pipeline. ``full``: the oldest version; ``delta``: the later ones, None without any.

    ``interval``: versions from one stored in full to the next. ``version_bytes``: what a version
    adds on average. ``recovery``: seconds to check out the last version of a chain; ``fits``:
    that is within ``store.max_recovery``.
    """

    pipeline: str
    preset: str | None
    full: Figures
    delta: Figures | None
    interval: int
    version_bytes: float
    recovery: float
    fits: bool

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


@dataclass(frozen=True, slots=True)
class Advice:
    """``row`` is None if no pipeline keeps within ``store.max_recovery``.

    ``least_speed``: the commit speed in bytes a second that a pipeline must reach.
    """

    row: Row | None
    reason: str
    least_speed: float


@dataclass(frozen=True)
class Measured:
    """``rows`` are in the order of ``PIPELINES``. Every version came back exactly.

    ``versions``: how many were named; ``compared``: committed pairs of consecutive ones.
    ``raw_bytes``: tensor bytes of the newest; ``sampled``: those of them that were committed.
    ``changed``: mean share of bytes in tensors that changed, None without pairs.
    """

    rows: tuple[Row, ...]
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


@dataclass(frozen=True)
class _Version:
    """Files that make one version, by the names they are committed under. ``size``: bytes."""

    label: str
    files: Mapping[str, Path]
    size: int


def bench(
    paths: Sequence[Path],
    *,
    context: Context | None = None,
    config: Config | None = None,
    fs: FileSystem | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Measured:
    """Measures every pipeline on consecutive versions, or on one file and its version at HEAD.

    ``paths`` are files, each a version, or folders of them. The settings are those of
    ``context``, or ``config``. Raises UnknownPath; WrongUsage for folders without models;
    BadModelFile if there are no bytes to measure; DamagedData if other bytes come back.
    """
    if max_bytes < 1:
        raise WrongUsage("at least one byte of a version has to be looked at")
    files = context.store.fs if context is not None else fs or FileSystem()
    settings = context.config if context is not None else config
    settings = settings or load_config(files, None, None, {}, {})
    found = _find_versions(files, paths)
    versions = [version for version in found if version.size]
    if not versions:
        raise BadModelFile(f"{printable(found[-1].label)} is empty: there is nothing to measure")
    notes = [f"{printable(v.label)} is empty and left out" for v in found if not v.size]
    with TemporaryDirectory(prefix="mvc-bench-") as folder:
        each = min(max_bytes, versions[-1].size)
        chosen = versions[-max(2, min(_VERSIONS, _IN_ALL * max_bytes // each)) :]
        if len(versions) == 1 and context is not None:
            chosen = [*_from_head(context, versions[0], Path(folder) / "head"), *versions]
        in_use = Pipeline.parse(settings.get("commit.pipeline")).coding()
        pipelines = list(dict.fromkeys([*map(Pipeline.parse, PIPELINES), in_use]))
        run = _Run(files, Path(folder), chosen, max_bytes, settings, pipelines)
        run.look()
        run.measure(progress)
    rows = tuple(_row(trial, run, settings) for trial in run.trials)
    compared = len(run.versions) - 1
    return Measured(
        rows,
        advise(rows, in_use.text),
        in_use.text,
        versions[-1].label,
        run.versions[-2].label if compared else None,
        len(versions),
        compared,
        run.total,
        run.sizes[-1],
        run.changed,
        cpu_count(),
        layout_of(settings).interval,
        settings.get("store.max_recovery"),
        (*notes, *run.notes, *_on_bases(run)),
    )


def advise(rows: Sequence[Row], in_use: str) -> Advice:
    """The smallest store whose commits keep up and whose recovery keeps within the bound.

    Of sizes within a per cent of the smallest, the pipeline in use is chosen, else the first.
    Pipelines without deltas are left out if no delta was measured.
    """
    least = _KEEPS_UP * max((row.speed for row in rows if row.takes_bases), default=0.0)
    fitting = [row for row in rows if row.fits and (row.takes_bases or row.delta)]
    if not fitting:
        why = "no pipeline recovers even a full version within store.max_recovery"
        return Advice(None, why, least)
    keeping_up = [row for row in fitting if row.speed >= least] or fitting
    smallest = min(row.version_bytes for row in keeping_up)
    alike = [row for row in keeping_up if row.version_bytes <= _ALIKE * smallest]
    chosen = next((row for row in alike if row.pipeline == in_use), alike[0])
    why = "the smallest store of those that commit at least half as fast as the fastest with deltas"
    if any(not row.fits for row in rows):
        why += " and recover within store.max_recovery"
    return Advice(chosen, why, least)


@dataclass
class _Trial:
    """One pipeline: bytes added and seconds taken by each version, oldest first."""

    pipeline: Pipeline
    stored: list[int] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    checkouts: list[float] = field(default_factory=list)
    deltas: int = 0  # bytes of all deltas


class _Run:
    """Commits the versions with every pipeline. Call ``look``, then ``measure``."""

    def __init__(
        self, fs: FileSystem, folder: Path, versions: Sequence[_Version], max_bytes: int,
        config: Config, pipelines: Sequence[Pipeline],
    ) -> None:  # fmt: skip
        self.versions = list(versions)
        self.trials = [_Trial(pipeline) for pipeline in pipelines]
        self.total = 0  # tensor bytes of the newest version
        self.sizes: list[int] = []  # tensor bytes committed of each version
        self.changed: float | None = None  # mean share of bytes from one version to the next
        self.touched = 0.0  # share of bytes from the oldest version to the newest
        self.notes: list[str] = []
        self._fs, self._folder, self._max_bytes = fs, folder, max_bytes
        self._sample: set[_Place] | None = None  # None: everything
        # One chain from the oldest version to the newest; _row applies the settings' bounds.
        free = {"store.max_recovery": None, "store.layout": "chain:10000", "store.max_chain": 1e3}
        self._config = Config({**config.values, **{k: (v, "flag") for k, v in free.items()}})

    def look(self) -> None:
        """Chooses the sample, bounds the number of versions by time, and reads them once."""
        newest = self.versions[-1]
        places: list[tuple[_Place, int]] = []
        for name, path in newest.files.items():
            with open_file(self._fs, path, printable(str(path))) as parsed:
                names = content_names(parsed.contents, parsed.tensors)
                for key, content in zip(names, parsed.contents, strict=True):
                    cuts = pieces(content.spec)
                    places += [((name, key, start), length) for start, length in cuts if length]
        self.total = sum(length for _, length in places)
        if not self.total:
            raise BadModelFile(f"{printable(newest.label)} holds no tensors: nothing to measure")
        if self.total > self._max_bytes:
            self._sample = _spread(places, self._max_bytes / self.total)
        began = time.perf_counter()
        self._commit_all(_Trial(self.trials[0].pipeline), [newest])
        seconds = (time.perf_counter() - began) * len(self.trials)
        kept = max(2, min(len(self.versions), int(_SECONDS / seconds)))
        if kept < len(self.versions):
            self.versions = self.versions[-kept:]
            self.notes.append(f"only the newest {kept} versions are committed, to save time")
        buffer = memoryview(bytearray(PIECE))
        for version in self.versions:
            self.sizes.append(0)
            for name, path in version.files.items():
                with self._open(name, path) as parsed:
                    for i, content in enumerate(parsed.contents):
                        for start, length in pieces(content.spec):
                            parsed.read(i, start, buffer[:length])
                            self.sizes[-1] += length
                    self._note_opaque(version, path, parsed)

    def measure(self, progress: Progress | None) -> None:
        """Fills the trials. The pipelines take turns, so that they share the machine's noise."""
        rounds, done, each = _ROUNDS, 0, sum(self.sizes)
        began = time.perf_counter()
        for turn in range(_ROUNDS):
            for trial in self.trials if turn < rounds else ():
                again = _Trial(trial.pipeline)
                self._commit_all(again, self.versions)
                old = trial if turn else again
                trial.stored, trial.deltas = again.stored, again.deltas
                trial.commits = list(map(min, old.commits, again.commits))
                trial.checkouts = list(map(min, old.checkouts, again.checkouts))
                if not done:
                    seconds = (time.perf_counter() - began) * len(self.trials)
                    rounds = max(1, min(_ROUNDS, int(_SECONDS / seconds)))
                done += each
                if progress is not None:
                    progress(done, each * rounds * len(self.trials), trial.pipeline.text)

    def _commit_all(self, trial: _Trial, versions: Sequence[_Version]) -> None:
        """Commits versions into a new repository and checks each of them out."""
        with TemporaryDirectory(dir=self._folder) as folder:
            root, out = Path(folder) / "repo", Path(folder) / "out"
            self._fs.make_dir(root)
            create(self._fs, Clock(), root, "main", b"")
            ids: list[CommitId] = []
            before: set[str] = set()
            for version in versions:
                changes = [Change(n, partial(self._open, n, p)) for n, p in version.files.items()]
                changes += [Change(name, None) for name in before - version.files.keys()]
                before = set(version.files)
                request = CommitRequest(changes, pipeline=trial.pipeline.text, allow_empty=True)
                with self._repository(root) as context:
                    began = time.perf_counter()
                    kept = commit(context, request)
                    trial.commits.append(time.perf_counter() - began)
                ids.append(kept.id)
                trial.stored.append(kept.stored_bytes)
            for version, id_ in zip(versions, ids, strict=True):
                with self._repository(root) as context:
                    began = time.perf_counter()
                    export(context, id_, ["."], out, force=True)
                    trial.checkouts.append(time.perf_counter() - began)
                self._compare(trial, version, out)
            with self._repository(root) as context:
                trial.deltas = stats(context).bytes["delta"]
                if len(ids) > 1 and self.changed is None:
                    found = [manifests.of_commit(context, id_) for id_ in ids]
                    shares = [_share(old, new) for old, new in pairwise(found)]
                    self.changed = sum(shares) / len(shares)
                    self.touched = _share(found[0], found[-1])

    @contextmanager
    def _repository(self, root: Path) -> Iterator[Context]:
        """Opened for each step, as by a process of its own."""
        context = open_context(root, discover=False, config=lambda _: self._config, fs=self._fs)
        with closing(context.store):
            yield context

    @contextmanager
    def _open(self, name: str, path: Path) -> Iterator[ParsedFile]:
        with open_file(self._fs, path, printable(str(path))) as parsed:
            yield parsed if self._sample is None else _Sample(parsed, name, self._sample)

    def _compare(self, trial: _Trial, version: _Version, out: Path) -> None:
        """Raises DamagedData unless the files in ``out`` are exactly what was committed."""
        for name, path in version.files.items():
            back = out if len(version.files) == 1 and out.is_file() else out / name
            if self._sample is None:
                same = filecmp.cmp(path, back, shallow=False)
            else:
                with self._open(name, path) as parsed, self._fs.open_read(back) as file:
                    same = all(map(partial(_same, parsed, file), range(len(parsed.contents))))
            if not same:
                text = f"{trial.pipeline.text} does not give back {printable(version.label)}"
                raise DamagedData(text)

    def _note_opaque(self, version: _Version, path: Path, parsed: ParsedFile) -> None:
        """Says which versions are no models; files beside a model need not be."""
        if parsed.format != "opaque" or parsed.tensors or len(version.files) > 1:
            return
        with self._fs.open_read(path) as file:
            why = suspicion(file, path.name)
        because = f" ({why})" if why else ""
        text = f"{printable(str(path))} is no model file that mvc can read{because}"
        self.notes.append(f"{text}: measured as raw bytes")


_Place: TypeAlias = tuple[str, str, int]  # file, content, start in bytes


class _Sample(ParsedFile):
    """Pieces of a file's contents, each as a content of its own."""

    def __init__(self, parsed: ParsedFile, name: str, sample: set[_Place]) -> None:
        named = {tensor.content for tensor in parsed.tensors}
        contents: list[ParsedContent] = []
        tensors: list[ParsedTensor] = []
        self._parsed, self._parts, self.size = parsed, list[tuple[int, int]](), 0
        for i, key in enumerate(content_names(parsed.contents, parsed.tensors)):
            spec = parsed.contents[i].spec
            for start, length in pieces(spec):
                if (name, key, start) not in sample:
                    continue
                cut = spec
                if length < spec.nbytes:
                    cut = TensorSpec(spec.dtype, (length // DTYPES[spec.dtype].itemsize,))
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


def _same(parsed: ParsedFile, file: ReadFile, i: int) -> bool:
    content = parsed.contents[i]
    data = memoryview(bytearray(content.spec.nbytes))  # a sample's contents are at most a slab
    parsed.read(i, 0, data)
    return file.read(content.offset, len(data)) == data


def _spread(places: Sequence[tuple[_Place, int]], share: float) -> set[_Place]:
    """Pieces spread evenly over about ``share`` of the bytes (error diffusion); at least one."""
    chosen, seen, taken = set(), 0, 0
    for place, length in places:
        seen += length
        if taken + length / 2 <= seen * share:
            chosen.add(place)
            taken += length
    return chosen or {places[len(places) // 2][0]}


def _share(old: Manifest, new: Manifest) -> float:
    """Share of the newer version's bytes in contents that the older one does not have."""
    known = {content.id for entry in old.entries for content in entry.contents}
    contents = [content for entry in new.entries for content in entry.contents]
    changed = sum(c.spec.nbytes for c in contents if c.id not in known)
    return changed / max(1, sum(c.spec.nbytes for c in contents))


def _row(trial: _Trial, run: _Run, settings: Config) -> Row:
    """Figures of one pipeline, and what a long history under the settings would cost."""
    count, last, sizes = len(run.versions) - 1, run.sizes[-1], run.sizes
    scale = run.total / last  # from the sample to the whole version
    seconds = trial.checkouts[0] * scale
    bound = settings.get("store.max_recovery")
    fits = bound is None or seconds <= bound
    full = Figures(
        trial.stored[0] / sizes[0], sizes[0] / trial.commits[0], sizes[0] / trial.checkouts[0]
    )
    delta = None
    stored, interval = full.ratio * run.total, 1
    if count and run.changed:
        raw = sum(sizes[1:])
        delta = Figures(
            sum(trial.stored[1:]) / raw,
            raw / sum(trial.commits[1:]),
            raw / sum(trial.checkouts[1:]),
        )
        if trial.deltas:
            step = max(0.0, trial.checkouts[-1] - trial.checkouts[0]) * scale / count
            layout = layout_of(settings)
            deltas = layout.deepest
            if bound is not None:
                deltas = int(max(0.0, bound - seconds) / step) if step else _UNBOUNDED
            deltas = min(deltas, int(settings.get("store.max_chain") / delta.ratio))
            interval = min(layout.interval, layout.reach(deltas))
            stored = (
                (delta.ratio * (interval - 1) + full.ratio * run.touched) * run.total / interval
            )
            seconds += deltas * step
        else:
            stored = delta.ratio * run.total
    text = trial.pipeline.text
    preset = next((n for n in PRESETS if Pipeline.parse(n) == trial.pipeline), None)
    return Row(text, preset, full, delta, interval, stored, seconds, fits)


def _on_bases(run: _Run) -> list[str]:
    """Why there are no deltas, if there are none."""
    if len(run.versions) == 1:
        return [
            "one version and nothing to compare it with, so only full versions are measured; "
            "name two consecutive versions, or a tracked file that has changed since HEAD"
        ]
    if not run.changed:
        label = printable(run.versions[-1].label)
        same = (
            f"{label} is as at HEAD"
            if run.versions[0].label == "HEAD"
            else "the versions have the same tensors"
        )
        return [f"{same}, so only full versions are measured"]
    if not any(trial.deltas for trial in run.trials):
        return ["no delta between the versions saves a tenth, so every version is stored in full"]
    return []


def _find_versions(fs: FileSystem, sources: Sequence[Path]) -> list[_Version]:
    """Versions in the order given; those of a folder by name, numbers by value."""
    found: list[_Version] = []
    for source in sources:
        inside = find_checkpoints(fs, [source], "mtime", "model")  # one name for all versions
        if not inside:
            raise WrongUsage(
                f"no model files in {printable(str(source))}",
                hint="name files, or a folder of them",
            )
        inside.sort(key=lambda checkpoint: _by_number(checkpoint.source.name))
        found += [_Version(str(c.source), c.files, c.size) for c in inside]
    return found


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name) if p]


def _from_head(context: Context, version: _Version, folder: Path) -> list[_Version]:
    """HEAD's files that the version's files are tracked as, written to ``folder``."""
    fs, there = context.store.fs, head(context).commit
    by_path = manifests.of_commit(context, there).by_path
    files: dict[str, Path] = {}
    for name, place in version.files.items():
        with suppress(InvalidName):
            tracked = tracked_name(context.root, place, fs.cwd(), fs=fs)
            if there is not None and tracked in by_path:
                fs.make_dirs((folder / name).parent)
                export(context, there, [tracked], folder / name)
                files[name] = folder / name
    return [_Version("HEAD", files, 0)] if files else []
