"""Finds why two runs differ: runs the model again with one thing changed after the other.

A change that removes the first difference, or after which it comes later, is a likely cause.
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
_SHOWN = 3  # names of weights
_NO_KERNEL = "replace the operation, or run it on another device"
_MANY_THREADS = 64
_STATE = "look for a layer that keeps state between calls, reads a clock or has its own generator"


class Cause(Struct, frozen=True):
    """A likely cause. ``kind``: inputs, target, weights, randomness, seed, threads, kernel,
    environment or unknown. ``hint`` says what to do.
    """

    kind: str
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.text


Trial = tuple[dict[str, Any], Cause]
"""What is changed of the conditions, in addition to the trials before, and what it means if that
helps."""

_TRIALS: tuple[tuple[Callable[[Conditions], bool], dict[str, Any], Cause], ...] = (
    (
        lambda conditions: conditions.seed is None,
        {"seed": _SEED},
        Cause(
            "randomness",
            f"random numbers without a seed: two runs with seed {_SEED} agree there",
            "seed all generators before the run: torch.manual_seed, numpy, random",
        ),
    ),
    (
        lambda conditions: not conditions.deterministic,
        {"deterministic": True},
        Cause(
            "kernel",
            "a kernel that is not deterministic: with deterministic ones two runs agree there",
            "call torch.use_deterministic_algorithms(True)",
        ),
    ),
    (
        lambda conditions: conditions.threads > 1,
        {"threads": 1},
        Cause(
            "threads",
            "the order in which threads finish: with one thread two runs agree there",
            "call torch.set_num_threads(1)",
        ),
    ),
)
"""Trials for two runs of one process, with the conditions to which each applies."""


def causes(
    subject: Subject,
    first: Summary,
    second: Summary,
    difference: FirstDifference,
    *,
    stored: bool,
) -> tuple[Cause, ...]:
    """Why ``second``, a run of ``subject``, differs from ``first``.

    ``stored``: the first run is from a file, so only the second can be made again. Otherwise both
    are of this process, one after the other.
    """
    if not stored:
        selection = LayerSelection(second.only)
        return tuple(_of_a_pair(subject, second.conditions, selection, difference))
    given = tuple(_of_what_was_given(first, second))
    return given or tuple(_of_a_file(subject, first, second, difference))


def _of_what_was_given(first: Summary, second: Summary) -> Iterator[Cause]:
    """Different inputs and weights, which explain all that follows."""
    seed = first.conditions.seed
    other = seed is not None and seed != second.conditions.seed
    for kind, a, b in (
        ("inputs", first.inputs, second.inputs),
        ("target", first.target, second.target),
    ):
        if [(p.place, p.id) for p in a] != [(p.place, p.id) for p in b]:
            hint = "make them from a seed of their own, or load them from a file"
            hint = f"use seed {seed}, as there" if other else hint
            verb = "differ" if kind == "inputs" else "differs"
            yield Cause(kind, f"the {kind} of the two runs {verb}", hint)
    before = [{name: w.before for name, w in run.weights.items()} for run in (first, second)]
    names = [n for n in (before[0] | before[1]) if before[0].get(n) != before[1].get(n)]
    if names:
        shown = listed([*map(printable, names)], _SHOWN)
        hint = "load the same version in both, or make both with the same seed"
        hint = f"use seed {seed}, as there" if other else hint
        yield Cause("weights", f"the weights differ before the run: {shown}", hint)


def _of_a_pair(
    subject: Subject, conditions: Conditions, selection: LayerSelection, difference: FirstDifference
) -> Iterator[Cause]:
    """Why two runs of this process differ, whose weights and inputs are equal."""
    trials = [(change, cause) for applies, change, cause in _TRIALS if applies(conditions)]
    found, left = _tried(subject, conditions, trials, selection, difference=difference)
    yield from found
    if left is not None:
        text = "not found: two runs also differ with a seed, deterministic kernels and one thread"
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
    """The trials that help, and the difference that is left after all of them; None if none is.

    ``first`` is compared with a run of each trial, or else two such runs with each other.
    """
    found: list[Cause] = []
    for change, cause in trials:
        conditions = replace(conditions, **change)
        try:
            one = first or subject.run(conditions, selection)
            now = compare(one, subject.run(conditions, selection))[1]
        except NoDeterministicKernel as error:
            return [*found, Cause("kernel", error.text, _NO_KERNEL)], None
        if now is None or now.order > difference.order:
            found.append(cause)
        if now is None:
            return found, None
        difference = now
    return found, difference


def _of_a_file(
    subject: Subject, first: Summary, second: Summary, difference: FirstDifference
) -> Iterator[Cause]:
    """Why a run here differs from one of a file, with equal weights and inputs."""
    selection = LayerSelection(second.only)
    trials = _towards(first.conditions, second.conditions)
    found, left = _tried(
        subject, second.conditions, trials, selection, difference=difference, first=first
    )
    yield from found
    if left is None:
        return
    again = compare(second, subject.run(second.conditions, selection))[1]
    if again is not None:
        yield from _of_a_pair(subject, second.conditions, selection, again)
        return
    there, here = first.conditions.threads, second.conditions.threads
    pairs = [
        *([("threads", str(there), str(here))] if there > _most_threads() else ()),
        *(
            (name, str(first.environment.get(name)), str(second.environment.get(name)))
            for name in {**first.environment, **second.environment}
        ),
    ]
    apart = [f"{name}: {a} there, {b} here" for name, a, b in pairs if a != b]
    if apart:
        text = f"another environment: {printable('; '.join(apart))}"
        yield Cause("environment", text, "use the same versions, and the same kind of processor")
    else:
        text = "not found: runs agree here, and environment, weights and inputs are those there"
        yield Cause("unknown", text, _STATE)


def _most_threads() -> int:
    """More are not started because a file says so: the system may end the process for it."""
    return max(_MANY_THREADS, 4 * cpu_count())


def _towards(there: Conditions, here: Conditions) -> Iterator[Trial]:
    """The conditions of the other run, taken over one after the other."""
    if there.seed is not None and there.seed != here.seed:
        mine = "no seed" if here.seed is None else f"seed {here.seed}"
        text = f"the seed: {there.seed} there, {mine} here"
        yield {"seed": there.seed}, Cause("seed", text, f"use seed {there.seed}")
    if there.threads != here.threads and there.threads <= _most_threads():
        text = f"the number of threads: {there.threads} there, {here.threads} here"
        hint = f"call torch.set_num_threads({there.threads}) in both"
        yield {"threads": there.threads}, Cause("threads", text, hint)
    if there.deterministic != here.deterministic:
        where = "there" if there.deterministic else "here"
        text = f"the kernels: only deterministic ones {where}"
        hint = "call torch.use_deterministic_algorithms(True) in both"
        yield {"deterministic": there.deterministic}, Cause("kernel", text, hint)
