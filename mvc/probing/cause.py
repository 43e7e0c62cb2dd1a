"""Finds why two runs of a model give different results.

Runs the model again, each time with one more condition changed, such as the seed or the number of
threads. If the first difference between the results then disappears, or comes later in the run, the
changed condition is a likely cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mvc.probing.compare import FirstDifference, compare
from mvc.probing.run import NoDeterministicKernel, Subject
from mvc.probing.summary import Conditions, LayerSelection, Summary
from mvc.system import cpu_count
from mvc.text import listed, printable

_SEED = 0
_SHOWN = 3  # names of weights in a message
_NO_KERNEL = "replace the operation, or run it on another device"
_MANY_THREADS = 64
_STATE = "search for a layer that keeps state between calls, reads a clock or has its own generator"


class Cause(Struct, frozen=True):
    """A likely cause of a difference. ``kind``: inputs, target, weights, randomness, seed,
    threads, kernel, environment or unknown. ``hint``: what the user can do.
    """

    kind: str
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.text


Trial = tuple[dict[str, Any], Cause]
"""The conditions that a trial changes, and the cause to report if the change helps.

The changes of earlier trials stay in effect.
"""

_TRIALS: tuple[tuple[Callable[[Conditions], bool], dict[str, Any], Cause], ...] = (
    (
        lambda conditions: conditions.seed is None,
        {"seed": _SEED},
        Cause(
            "randomness",
            f"random numbers without a seed: two runs with seed {_SEED} agree at this point",
            "seed all generators before the run: torch.manual_seed, numpy, random",
        ),
    ),
    (
        lambda conditions: not conditions.deterministic,
        {"deterministic": True},
        Cause(
            "kernel",
            "a kernel that is not deterministic: with deterministic kernels two runs agree at this "
            "point",
            "call torch.use_deterministic_algorithms(True)",
        ),
    ),
    (
        lambda conditions: conditions.threads > 1,
        {"threads": 1},
        Cause(
            "threads",
            "the order in which threads finish: with one thread two runs agree at this point",
            "call torch.set_num_threads(1)",
        ),
    ),
)
"""Trials for two runs of one process. The function says whether the trial is useful under given
conditions.
"""


def causes(
    subject: Subject,
    first: Summary,
    second: Summary,
    difference: FirstDifference,
    *,
    stored: bool,
) -> tuple[Cause, ...]:
    """Why ``second``, a run of ``subject``, differs from ``first``.

    ``stored``: whether ``first`` is a saved run, which cannot be repeated here. Otherwise
    ``subject`` has just made both runs.
    """
    if not stored:
        selection = LayerSelection(second.only)
        return tuple(_of_a_pair(subject, second.conditions, selection, difference))
    different = tuple(_of_inputs(first, second))
    return different or tuple(_of_a_file(subject, first, second, difference))


def _of_inputs(first: Summary, second: Summary) -> Iterator[Cause]:
    """Yields inputs, target and weights if they differ. Then ``causes`` makes no trials."""
    seed = first.conditions.seed
    other = seed is not None and seed != second.conditions.seed
    for kind, a, b in (
        ("inputs", first.inputs, second.inputs),
        ("target", first.target, second.target),
    ):
        if [(p.place, p.id) for p in a] != [(p.place, p.id) for p in b]:
            hint = "create the data from a separate seed, or load the data from a file"
            hint = f"use seed {seed}, like the other run" if other else hint
            verb = "differ" if kind == "inputs" else "differs"
            yield Cause(kind, f"the {kind} of the two runs {verb}", hint)
    before = [{name: w.before for name, w in run.weights.items()} for run in (first, second)]
    names = [n for n in (before[0] | before[1]) if before[0].get(n) != before[1].get(n)]
    if names:
        shown = listed([*map(printable, names)], _SHOWN)
        hint = "load the same version in both runs, or create both models with the same seed"
        hint = f"use seed {seed}, like the other run" if other else hint
        yield Cause("weights", f"the weights differ before the run: {shown}", hint)


def _of_a_pair(
    subject: Subject, conditions: Conditions, selection: LayerSelection, difference: FirstDifference
) -> Iterator[Cause]:
    """Why two runs of this process differ although weights and inputs are equal."""
    trials = [(change, cause) for applies, change, cause in _TRIALS if applies(conditions)]
    causes_, remaining = _tried(subject, conditions, trials, selection, difference=difference)
    yield from causes_
    if remaining is not None:
        text = "not found: two runs differ even with a seed, deterministic kernels and one thread"
        yield Cause("unknown", text, _STATE)


def _tried(
    subject: Subject,
    conditions: Conditions,
    trials: Iterable[Trial],
    selection: LayerSelection,
    *,
    difference: FirstDifference,
    first: Summary | None = None,
) -> tuple[list[Cause], FirstDifference | None]:
    """Makes the trials one after another. A trial helps if it removes the first difference, or if
    the first difference then comes later.

    Returns the causes of the trials that help, and the first difference that remains after all
    trials (None if none remains, or if a trial finds no deterministic kernel). ``first``: the run
    with which the run of each trial is compared. If it is None, each trial compares two new runs.
    """
    causes_: list[Cause] = []
    for change, cause in trials:
        conditions = replace(conditions, **change)
        try:
            reference = first or subject.run(conditions, selection)
            current = compare(reference, subject.run(conditions, selection))[1]
        except NoDeterministicKernel as error:
            return [*causes_, Cause("kernel", error.text, _NO_KERNEL)], None
        if current is None or current.order > difference.order:
            causes_.append(cause)
        if current is None:
            return causes_, None
        difference = current
    return causes_, difference


def _of_a_file(
    subject: Subject, first: Summary, second: Summary, difference: FirstDifference
) -> Iterator[Cause]:
    """Why ``second`` differs from ``first``, the run in a file, although weights and inputs are
    equal.
    """
    selection = LayerSelection(second.only)
    trials = _towards(first.conditions, second.conditions)
    causes_, remaining = _tried(
        subject, second.conditions, trials, selection, difference=difference, first=first
    )
    yield from causes_
    if remaining is None:
        return
    repeated = compare(second, subject.run(second.conditions, selection))[1]
    if repeated is not None:
        yield from _of_a_pair(subject, second.conditions, selection, repeated)
        return
    other, own = first.conditions.threads, second.conditions.threads
    pairs = [
        *([("threads", str(other), str(own))] if other > _most_threads() else ()),
        *(
            (name, str(first.environment.get(name)), str(second.environment.get(name)))
            for name in {**first.environment, **second.environment}
        ),
    ]
    differing = [f"{name}: {a} there, {b} here" for name, a, b in pairs if a != b]
    if differing:
        text = f"another environment: {printable('; '.join(differing))}"
        yield Cause("environment", text, "use the same versions, and the same kind of CPU")
    else:
        text = (
            "not found: runs here agree, and environment, weights and inputs are those of the "
            "other run"
        )
        yield Cause("unknown", text, _STATE)


def _most_threads() -> int:
    """The maximum number of threads in a trial. With more threads, the system may end the
    process.
    """
    return max(_MANY_THREADS, 4 * cpu_count())


def _towards(other: Conditions, own: Conditions) -> Iterator[Trial]:
    """Trials that replace the conditions ``own`` by ``other``, one condition at a time."""
    if other.seed is not None and other.seed != own.seed:
        own_seed = "no seed" if own.seed is None else f"seed {own.seed}"
        text = f"the seed: {other.seed} there, {own_seed} here"
        yield {"seed": other.seed}, Cause("seed", text, f"use seed {other.seed}")
    if other.threads != own.threads and other.threads <= _most_threads():
        text = f"the number of threads: {other.threads} there, {own.threads} here"
        hint = f"call torch.set_num_threads({other.threads}) in both runs"
        yield {"threads": other.threads}, Cause("threads", text, hint)
    if other.deterministic != own.deterministic:
        place = "there" if other.deterministic else "here"
        text = f"the kernels: only deterministic kernels {place}"
        hint = "call torch.use_deterministic_algorithms(True) in both runs"
        yield {"deterministic": other.deterministic}, Cause("kernel", text, hint)
