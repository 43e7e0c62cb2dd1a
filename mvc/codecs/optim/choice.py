"""Finds the formulas by which an optimizer's step changed a parameter and its optimizer states.

The formula of Adam, for example, predicts the new parameter from the old parameter and the moments.
mvc then stores only the difference between the prediction and the new values. A *rule* is such a
formula. *Members* are the parameter and its states. Rules are tried on samples of the members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import Numbers
from mvc.codecs.optim.kinds import ORDER, Input, RuleCandidate, candidates
from mvc.codecs.optim.prediction import PREDICTED, Prediction

_MOST = 1 << 14  # limit of elements on which a rule is tried


class ChosenRule(Struct, frozen=True):
    """The best rule for a member. It predicts the member from its older version and ``inputs``.

    ``exact``: the share of the sampled elements of which all bits are predicted.
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
    """The rule that predicts each member best. Members that no rule predicts are left out.

    ``old``, ``new``: map names to samples of the older and newer members, all of one dtype. Every
    sample has the same elements. The names are "param" and the names in the state of torch's
    optimizer. ``hypers``: ``step`` and the values of the parameter group (such as ``lr``) in the
    new version, then in the older version.
    """
    dtype = next((str(array.dtype) for array in new.values()), "")
    if dtype not in PREDICTED:
        return {}
    best: dict[str, tuple[float, ChosenRule]] = {}
    for candidate in dict.fromkeys(candidates(kinds, hypers, dtype)):
        member = candidate.member
        if member in best and best[member][1].exact == 1:
            continue
        arrays = _arrays(candidate, old, new)
        if arrays is not None:
            cost, chosen = _tried(candidate, dtype, arrays)
            if member not in best or cost < best[member][0]:
                best[member] = cost, chosen
    return {member: best[member][1] for member in ORDER if member in best}


def _arrays(
    candidate: RuleCandidate, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]
) -> list[Numbers] | None:
    """Samples of the member's new values, old values and inputs.

    None if one of these is missing, or if their sizes or dtypes differ.
    """
    places = [(False, candidate.member), (True, candidate.member), *candidate.inputs]
    arrays = [(old if older else new).get(name) for older, name in places]
    whole = [a.reshape(-1) for a in arrays if a is not None]
    fit = {(a.dtype, a.size) for a in whole}
    if len(whole) < len(arrays) or len(fit) > 1:
        return None
    apart = -(-whole[0].size // _MOST)
    return [np.ascontiguousarray(a[::apart]) for a in whole] if apart > 1 else whole


def _tried(candidate: RuleCandidate, dtype: str, arrays: list[Numbers]) -> tuple[float, ChosenRule]:
    """Tries a rule. Returns the size of its errors in bits per element, and the rule."""
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
