"""A bench on its way: pairs of versions go through all pipelines, tallies are kept.

Pipelines take turns on one batch, and the best of several rounds counts, so that they
share the machine's noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mvc.codecs.pipeline import Pipeline
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count
from mvc.limits import MIB
from mvc.repo.bench.advice import Figures, Series
from mvc.repo.bench.pieces import Batch, Unit, batches
from mvc.repo.bench.rounds import Coder, Tally, Trial
from mvc.repo.bench.versions import Parent, Version, parent
from mvc.repo.context import Progress

__all__ = ["Pair", "Run"]

_ROUNDS = 3
_MORE_ROUNDS = 9  # where a round is so short that noise would be most of it
_SHORT = 16 * MIB
_TIMED = 64 * MIB  # raw bytes that speeds are measured on


@dataclass(frozen=True)
class Pair:
    """A version and the one it is coded against: a version on disk, HEAD's, or none."""

    new: Version
    old: Version | Parent | None


@dataclass
class _Seen:
    """Raw bytes looked at, in all pairs and of the newest version; seconds of the yardsticks."""

    all: int = 0
    changed: int = 0
    based: int = 0
    newest: int = 0
    newest_total: int = 0
    touched: set[tuple[str, str]] = field(default_factory=set)
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    copy: float = 0.0  # bytes a second
    hashed: float = 0.0


class Run:
    """``take`` the newest pair first; then ask for figures. ``seen.newest`` may be 0."""

    def __init__(
        self,
        fs: FileSystem,
        pipelines: Sequence[Pipeline],
        max_bytes: int,
        progress: Progress | None,
    ) -> None:
        self._fs = fs
        self.pipelines = pipelines
        self._max_bytes = max_bytes
        self._progress = progress
        self._forms = list(dict.fromkeys(p.full() for p in pipelines))
        self._deltas = {p.text: Tally() for p in pipelines}
        self._fulls = {p.text: Tally() for p in self._forms}
        self._timed = {"delta": 0, "full": 0}
        self._done = 0.0
        self.seen = _Seen()
        self.notes: list[str] = []

    def take(self, pairs: Sequence[Pair]) -> None:
        """Measures every pair. Raises DamagedData if other bytes come back than went in."""
        planned = sum(min(p.new.size, self._max_bytes) for p in pairs)
        with ThreadPoolExecutor(cpu_count(), thread_name_prefix="mvc-bench") as pool:
            coder = Coder(pool)
            for i, pair in enumerate(pairs):
                self._pair(coder, pair, planned, newest=i == 0)

    def series(self) -> Series:
        """What the versions are like, scaled from what was looked at to all of the newest."""
        seen = self.seen
        touched = sum(seen.sizes[key] for key in seen.touched)
        return Series(
            seen.newest_total,
            seen.changed / seen.all,
            touched / seen.newest,
            seen.hashed * seen.newest_total / seen.newest,
        )

    def delta(self, pipeline: Pipeline) -> Figures | None:
        """Of tensors that changed; None if none did, or nothing was there to compare with."""
        tally = self._deltas[pipeline.text]
        return _figures(tally) if tally.raw else None

    def full(self, pipeline: Pipeline) -> Figures:
        """Of the newest version, stored without bases."""
        return _figures(self._fulls[pipeline.full().text])

    def _pair(self, coder: Coder, pair: Pair, planned: int, *, newest: bool) -> None:
        totals: list[int] = []
        with self._before(pair) as before:
            for batch in batches(
                self._fs, pair.new, before, self._max_bytes, self.notes.append, totals.append
            ):
                changed = [] if before is None else [u for u in batch.units if not u.equal]
                trials = self._trials(coder, batch, changed, newest=newest)
                self._count(batch, changed)
                if newest:
                    self._yardsticks(coder, batch)
                turns = list(_in_turns(trials))
                for trial in turns:
                    trial.run()
                    self._tell(pair, batch.raw / len(turns), planned)
                for tally, trial in trials:
                    trial.add_to(tally)
        if newest:
            self.seen.newest_total = totals[0]

    @contextmanager
    def _before(self, pair: Pair) -> Iterator[Parent | None]:
        if isinstance(pair.old, Version):
            with parent(self._fs, pair.old, self.notes.append) as opened:
                yield opened
        else:
            yield pair.old

    def _trials(
        self, coder: Coder, batch: Batch, changed: Sequence[Unit], *, newest: bool
    ) -> list[tuple[Tally, Trial]]:
        trials = []
        if changed:
            rounds = self._rounds("delta", sum(len(u.new) for u in changed))
            for pipeline in self.pipelines:
                trial = Trial(coder, pipeline, changed, rounds)
                trials.append((self._deltas[pipeline.text], trial))
        if newest:
            rounds = self._rounds("full", batch.raw)
            bare = [Unit(u.key, u.spec, u.new) for u in batch.units]
            for form in self._forms:
                trials.append((self._fulls[form.text], Trial(coder, form, bare, rounds)))
        return trials

    def _rounds(self, kind: str, raw: int) -> int:
        """Several while there is something left to time; ratios take but one."""
        if self._timed[kind] >= _TIMED:
            return 1
        self._timed[kind] += raw
        return min(_MORE_ROUNDS, max(_ROUNDS, _SHORT // max(raw, 1)))

    def _yardsticks(self, coder: Coder, batch: Batch) -> None:
        seen = self.seen
        seen.newest += batch.raw
        for _ in range(_ROUNDS):
            size, seconds = coder.copy()
            seen.copy = max(seen.copy, size / seconds)
        seen.hashed += min(coder.hash(batch.units) for _ in range(_ROUNDS))
        for unit in batch.units:
            seen.sizes[unit.key[:2]] += len(unit.new)

    def _count(self, batch: Batch, changed: Sequence[Unit]) -> None:
        seen = self.seen
        seen.all += batch.raw
        seen.changed += sum(len(u.new) for u in changed)
        seen.based += sum(len(u.new) for u in changed if u.base is not None)
        seen.touched |= {u.key[:2] for u in changed}

    def _tell(self, pair: Pair, raw: float, planned: int) -> None:
        self._done += raw
        if self._progress is not None:
            done = int(self._done)
            self._progress(done, max(planned, done), Path(pair.new.label).name)


def _in_turns(trials: Sequence[tuple[Tally, Trial]]) -> Iterator[Trial]:
    """Each once, then again those that want more rounds: noise is shared."""
    for round_ in range(_MORE_ROUNDS):
        for _, trial in trials:
            if round_ < trial.rounds:
                yield trial


def _figures(tally: Tally) -> Figures:
    return Figures(
        tally.ratio,
        tally.timed / tally.encode if tally.encode else 0.0,
        tally.timed / tally.decode if tally.decode else 0.0,
        tally.chained / tally.raw if tally.raw else 0.0,
        tally.chain_stored / tally.chained if tally.chained else 0.0,
    )
