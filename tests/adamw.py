"""States of a model and its optimizer, as AdamW of torch makes them on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

State = dict[str, Any]
_RATE, _BETAS, _EPS, _DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2


def training(step: int, width: int = 48) -> State:
    """A model and its optimizer's state after so many steps of AdamW, as torch keeps them.

    ``width``: of its matrix, which has 64 rows.
    """
    trained = _trained.setdefault(width, [])
    while len(trained) <= step:
        trained.append(_stepped(trained[-1] if trained else _first(width)))
    model, moments, number = trained[step]
    state = {
        i: {"step": np.float32(number), "exp_avg": moments[name][0], "exp_avg_sq": moments[name][1]}
        for i, name in enumerate(model)
    }
    group = {
        "lr": _RATE, "betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY, "amsgrad": False,
        "maximize": False, "foreach": None, "capturable": False, "differentiable": False,
        "fused": None, "decoupled_weight_decay": True, "params": list(range(len(model))),
    }  # fmt: skip
    return {"model": dict(model), "optimizer": {"state": state, "param_groups": [group]}}


_Array = NDArray[np.float32]
_Trained = tuple[dict[str, _Array], dict[str, tuple[_Array, _Array]], int]


def _first(width: int) -> _Trained:
    rng = np.random.default_rng(6)
    shapes = {"w": (64, width), "b": (width,)}
    model = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    return model, {n: (w * 0, w * 0) for n, w in model.items()}, 0


def _stepped(before: _Trained) -> _Trained:
    """One step on a quadratic bowl with noise; every operation in float32, as torch on a CPU."""
    model, moments, number = before[0], before[1], before[2] + 1
    rng = np.random.default_rng(number)
    f, (b1, b2) = np.float32, _BETAS
    weights, states = {}, {}
    for name, old in model.items():
        g = (old * f(0.1) + rng.standard_normal(old.shape) * 0.01).astype(np.float32)
        m, v = moments[name]
        m = m + f(1 - b1) * (g - m)
        v = v * f(b2) + f(1 - b2) * g * g
        denominator = np.sqrt(v) / f((1 - b2**number) ** 0.5) + f(_EPS)
        w = old * f(1 - _RATE * _DECAY)
        w = w + f(-_RATE / (1 - b1**number)) * (m / denominator)
        weights[name] = w.astype(np.float32)
        states[name] = m, v
    return weights, states, number


_trained: dict[int, list[_Trained]] = {}
