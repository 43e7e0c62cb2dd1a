"""What deterministic kernels cost: each layer is timed with them, and with any kernels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from mvc.probing.hooks import layers_of
from mvc.probing.run import Subject
from mvc.probing.stopwatch import Stopwatch
from mvc.probing.summary import Conditions

_OFTEN = 0.9  # of the pairs of runs
_OWN, _RUN, _ALL = 0.05, 0.01, 0.05  # of the layer's time, of the run's, of what the run is slower


class LayerCost(Struct, frozen=True):
    """What the calls of a layer take in a run, in seconds, without the layers inside it.

    Medians over the runs, (forward, backward): with ``any`` kernels and with ``deterministic``
    ones. ``slower``: the share of pairs of runs in which the deterministic one took longer.
    """

    layer: str
    type: str
    any: tuple[float, float]
    deterministic: tuple[float, float]
    slower: float

    @property
    def extra(self) -> float:
        """Seconds that deterministic kernels take longer."""
        return sum(self.deterministic) - sum(self.any)


class DeterminismCost(Struct, frozen=True):
    """What a run takes with ``any`` kernels and with ``deterministic`` ones: median seconds.

    ``layers`` are those that ran, the one that costs most first. ``pairs``: how often both ran.
    """

    any: float
    deterministic: float
    layers: tuple[LayerCost, ...]
    pairs: int

    @property
    def slow(self) -> tuple[LayerCost, ...]:
        """The layers that deterministic kernels slow down, in nearly every pair of runs."""
        least = max(_RUN * self.any, _ALL * (self.deterministic - self.any))
        return tuple(
            each
            for each in self.layers
            if each.slower >= _OFTEN and each.extra > max(_OWN * sum(each.any), least)
        )

    def __str__(self) -> str:
        times = self.deterministic / self.any if self.any else 1.0
        text = (
            f"deterministic kernels: {1000 * self.deterministic:.3g} ms a run, "
            f"{1000 * self.any:.3g} ms without ({times:.3g} times)"
        )
        names = ", ".join(f"{each.layer} ({each.type})" for each in self.slow[:3])
        more = f" and {len(self.slow) - 3} more" if len(self.slow) > 3 else ""
        return f"{text}; slower with them: {names or 'no layer'}{more}"


def cost_of(subject: Subject, conditions: Conditions, pairs: int) -> DeterminismCost:
    """Times runs in pairs. Raises NoDeterministicKernel."""
    watches: tuple[list[Stopwatch], list[Stopwatch]] = [], []
    for number in range(pairs + 1):
        for deterministic in (False, True) if number % 2 else (True, False):
            watch = subject.timed(replace(conditions, deterministic=deterministic))
            if number:  # in the first pair memory is allocated and kernels are chosen
                watches[deterministic].append(watch)
    layers = [
        _layer_cost(watches, layer, type(module).__qualname__)
        for layer, module in layers_of(subject.model).items()
        if any(watch.seconds[0][layer] for watch in watches[0])
    ]
    free, strict = (median(watch.total for watch in runs) for runs in watches)
    return DeterminismCost(
        free,
        strict,
        layers=tuple(sorted(layers, key=lambda each: -each.extra)),
        pairs=pairs,
    )


def _layer_cost(watches: Sequence[Sequence[Stopwatch]], layer: str, kind: str) -> LayerCost:
    free, strict = (
        [(watch.seconds[0][layer], watch.seconds[1][layer]) for watch in runs] for runs in watches
    )
    slower = sum(sum(b) > sum(a) for a, b in zip(free, strict, strict=True))
    return LayerCost(layer, kind, _medians(free), _medians(strict), slower=slower / len(free))


def _medians(runs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(forward for forward, _ in runs), median(backward for _, backward in runs)
