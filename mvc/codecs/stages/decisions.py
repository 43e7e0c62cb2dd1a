"""Decisions whether a version is saved at all. They change nothing and leave no trace in storage.

A decision is a value here: it needs the running training and its data, so whoever drives a
training carries it out. Sources: thesis §3.2.1 and §3.2.5 (by iteration, and by error-rate
decay, DSED); drift detection on the incoming data is the thesis's future work.
"""

from __future__ import annotations

from decimal import Decimal

from mvc.codecs.stages.base import Kind, Stage, number, plain, read_options, whole
from mvc.errors import InvalidPipeline

DETECTORS = ("adwin", "page-hinkley")
_MOST = 1_000_000_000 - 1


class _Before(Stage, frozen=True):
    """Decides on what is known before there are new weights."""

    takes = frozenset({Kind.TENSOR, Kind.PAIR})
    needs = "to stand first"
    decides = True


class Every(_Before, frozen=True):
    """Saves ``save`` versions, skips ``skip``, and so on."""

    save: int
    skip: int
    usage = "every:SAVE/SKIP"
    about = "decision: saves SAVE versions, then skips SKIP"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, slash, second = parameter.partition("/")
        if not slash:
            raise InvalidPipeline(
                f"stage {name} needs SAVE/SKIP, not {parameter!r}", hint="such as every:1/2"
            )
        save = whole(name, "SAVE", first.strip(), 1, _MOST)
        skip = whole(name, "SKIP", second.strip(), 0, _MOST)
        return cls(f"{name}:{save}/{skip}", save, skip)


class Drift(_Before, frozen=True):
    """Saves when ``detector`` finds that the incoming data has changed."""

    detector: str
    usage = "drift:adwin|page-hinkley"
    about = "decision: saves when the incoming data drifts (needs the extra drift)"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if parameter not in DETECTORS:
            raise InvalidPipeline(
                f"stage {name} knows no detector {parameter!r}",
                hint=f"use {' or '.join(f'{name}:{d}' for d in DETECTORS)}",
            )
        return cls(f"{name}:{parameter}", parameter)


class Dsed(Stage, frozen=True):
    """Skips a version while the deployed one is good enough: error-rate decay.

    ``bound`` is a share of accuracy (0.01 is one per cent). ``last_only``: judge the new
    version by the newest batch alone.
    """

    bound: Decimal
    last_only: bool
    usage = "dsed:E[,last]"
    about = "decision: skips while the deployed version is within E of the new one's accuracy"
    takes = frozenset({Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET, Kind.STEPS})
    needs = "a delta (sub, xor or steps) before it, and the coding after it"
    decides = True

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, (), ("last",))
        bound = number(name, "E", first, "0", "1")
        last = "last" in options
        return cls(f"{name}:{plain(bound)}{',last' if last else ''}", bound, last)
