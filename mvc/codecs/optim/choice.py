"""Which rule a step followed, found on a sample of every member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import Numbers
from mvc.codecs.optim.kinds import ORDER, Input, RuleCandidate, candidates
from mvc.codecs.optim.prediction import PREDICTED, Prediction

_MOST = 1 << 14  # elements on which a candidate is tried


class ChosenRule(Struct, frozen=True):
    """How a member is predicted from what it was in the older version, its base, and inputs.

    ``exact``: the share of the sample that is right to the bit.
    """

    prediction: Prediction
    inputs: tuple[Input, ...]
    exact: float


def choose_predictions(
    kinds: Sequence[str],
    hypers: Sequence[Mapping[str, object]],
    old: Mapping[str, NDArray[Any]],
    new: Mapping[str, NDArray[Any]],
) -> dict[str, ChosenRule]:
    """By member the rule that predicts it best; members that no rule predicts are absent.

    ``old`` and ``new``: the same sample of every member, "param" and those that torch's state
    names, all of one dtype. ``hypers``: values of the parameter group, with ``step``, of the new
    state and then of the older one, because a scheduler may have changed them between.
    """
    dtype = next((str(array.dtype) for array in new.values()), "")
    if dtype not in PREDICTED:
        return {}
    found: dict[str, tuple[float, ChosenRule]] = {}
    for candidate in dict.fromkeys(candidates(kinds, hypers, dtype)):
        member = candidate.member
        if member in found and found[member][1].exact == 1:
            continue
        arrays = _arrays(candidate, old, new)
        if arrays is not None:
            cost, chosen = _tried(candidate, dtype, arrays)
            if member not in found or cost < found[member][0]:
                found[member] = cost, chosen
    return {member: found[member][1] for member in ORDER if member in found}


def _arrays(
    candidate: RuleCandidate, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]
) -> list[Numbers] | None:
    """The member as it is now, its base and its inputs; None unless all are there and fit."""
    places = [(False, candidate.member), (True, candidate.member), *candidate.inputs]
    arrays = [(old if older else new).get(name) for older, name in places]
    whole = [a.reshape(-1) for a in arrays if a is not None]
    fit = {(a.dtype, a.size) for a in whole}
    if len(whole) < len(arrays) or len(fit) > 1:
        return None
    apart = -(-whole[0].size // _MOST)
    return [np.ascontiguousarray(a[::apart]) for a in whole] if apart > 1 else whole


def _tried(candidate: RuleCandidate, dtype: str, arrays: list[Numbers]) -> tuple[float, ChosenRule]:
    """What the residual costs, in bits of an element, and the choice."""
    prediction = Prediction(candidate.rule, dtype, candidate.numbers)
    wanted, base, *inputs = (np.ascontiguousarray(a).view(np.uint8).data for a in arrays)
    out = bytearray(len(wanted))
    prediction.fill(base, inputs, memoryview(out), new=wanted)
    word = f"<i{prediction.width}"
    apart = np.frombuffer(wanted, word) - np.frombuffer(out, word)
    wrong = np.count_nonzero(apart)
    size = max(apart.size, 1)
    cost = float(np.log2(1 + np.abs(apart.astype(np.float64))).sum() + wrong) / size
    exact = 1 - int(wrong) / size
    return cost, ChosenRule(prediction, candidate.inputs, exact)
