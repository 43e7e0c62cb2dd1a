"""Rules are found for the steps of the optimizers that are known, whatever their flags."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mvc.codecs.optim import ORDER, Prediction, choose_predictions, kinds_of
from mvc.codecs.optim.rules import fma
from tests.codecs.optim.training import Tensors, Version, hypers, steps

torch = pytest.importorskip("torch")
optim = torch.optim

OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], dict[str, float]]] = {
    # least shares of the second moments (and what takes their place) and of the weights
    "adam": (lambda p: optim.Adam(p), {"exp_avg_sq": 0.6, "param": 0.95}),
    "adam, fused": (lambda p: optim.Adam(p, fused=True), {"exp_avg_sq": 0.6, "param": 1}),
    "adam, foreach": (lambda p: optim.Adam(p, foreach=True), {"exp_avg_sq": 0.6, "param": 0.95}),
    "adam, coupled": (lambda p: optim.Adam(p, weight_decay=0.1), {"param": 0.9}),
    "adam, tensor": (lambda p: optim.Adam(p, lr=torch.tensor(0.003)), {"param": 0.9}),
    "adam, fused tensor": (
        lambda p: optim.Adam(p, lr=torch.tensor(0.003), fused=True), {"param": 1}
    ),
    "adam, no momentum": (lambda p: optim.Adam(p, betas=(0.0, 0.9)), {"exp_avg_sq": 1}),
    "adamw": (lambda p: optim.AdamW(p), {"exp_avg_sq": 0.6, "param": 0.95}),
    "adamw, fused": (lambda p: optim.AdamW(p, fused=True), {"exp_avg_sq": 0.6, "param": 1}),
    "adamw, amsgrad": (
        lambda p: optim.AdamW(p, amsgrad=True, maximize=True),
        {"max_exp_avg_sq": 1, "param": 0.95},
    ),
    "rmsprop": (lambda p: optim.RMSprop(p), {"param": 0.3}),
    "rmsprop, foreach": (lambda p: optim.RMSprop(p, foreach=True), {"param": 0.3}),
    "rmsprop, momentum": (
        lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9), {"momentum_buffer": 0.1, "param": 1}
    ),
    "sgd": (lambda p: optim.SGD(p, lr=0.01, momentum=0.9), {"param": 1}),
    "sgd, fused": (lambda p: optim.SGD(p, lr=0.01, momentum=0.9, fused=True), {"param": 1}),
    "sgd, foreach": (
        lambda p: optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.3, foreach=True), {"param": 1}
    ),
    "sgd, nesterov": (
        lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
        {"param": 0.95},
    ),
}  # fmt: skip


def chosen(old: Version, new: Version, index: int = 0, **others: Any) -> dict[str, Any]:
    kinds = kinds_of(set(new[0][index]) - {"param"}, new[2])
    return choose_predictions(
        kinds, hypers(old, new, index), old[0][index], new[0][index], **others
    )


def predicted(choice: Any, old: Tensors, new: Tensors, member: str) -> np.ndarray:
    places = [(True, member), *choice.inputs]
    base, *inputs = ((old if older else new)[name].view(np.uint8).data for older, name in places)
    made = choice.prediction
    wanted = new[member].view(np.uint8).data
    out = bytearray(len(wanted))
    made.fill(base, inputs, memoryview(out), new=wanted)
    return np.frombuffer(out, new[member].dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_predicted(name: str) -> None:
    make, least = OPTIMIZERS[name]
    for step, old, new in steps(make, (2, 3, 30)):
        found = chosen(old, new)
        assert found.keys() == new[0][0].keys()
        assert list(found) == sorted(found, key=ORDER.index)
        for member, choice in found.items():
            assert Prediction.parse(choice.prediction.text) == choice.prediction
            after = [n for older, n in choice.inputs if not older]
            assert all(ORDER.index(n) < ORDER.index(member) for n in after)
            wanted = new[0][0][member]
            same = predicted(choice, old[0][0], new[0][0], member).view("<u4") == wanted.view("<u4")
            assert np.mean(same) == pytest.approx(choice.exact)
            assert choice.exact >= least.get(member, 0), (step, member, choice)


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd, nesterov"])
def test_float64_is_predicted(name: str) -> None:
    for _, old, new in steps(OPTIMIZERS[name][0], (2, 20), dtype=torch.float64):
        found = chosen(old, new)
        assert found["param"].prediction.dtype == "float64"
        least = {"adam": 0.95, "adamw": 0.95}.get(name, 0.2)
        assert found["param"].exact >= least


def of_a_gpu(arrays: Tensors, gradient: np.ndarray, step: int) -> Tensors:
    """A step of AdamW as torch's fused kernel computes it in float32, with powers of its own."""
    single = np.float32
    lr, decay, b1, b2, eps = map(single, (1e-3, 0.01, 0.9, 0.999, 1e-8))
    square = gradient * gradient
    w = fma(-(lr * decay), arrays["param"], arrays["param"])
    m = fma(b1, arrays["exp_avg"], fma(-b1, gradient, gradient))
    v = fma(b2, arrays["exp_avg_sq"], fma(-b2, square, square))
    powers = (
        np.nextafter(b1 ** single(step), single(0)),
        np.nextafter(b2 ** single(step), single(1)),
    )
    size, root = lr / (1 - powers[0]), np.sqrt(1 - powers[1])
    return {"param": w - size * m / (np.sqrt(v) / root + eps), "exp_avg": m, "exp_avg_sq": v}


def test_fused_kernels_of_gpus_are_known() -> None:
    rng = np.random.default_rng(0)
    state = {name: np.zeros(5_000, "f4") for name in ("exp_avg", "exp_avg_sq")}
    state["param"] = rng.normal(size=5_000).astype("f4")
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "fused": True,
             "amsgrad": False, "decoupled_weight_decay": True}  # fmt: skip
    for step in range(1, 31):
        old, state = state, of_a_gpu(state, rng.normal(size=5_000).astype("f4"), step)
        found = choose_predictions(["adam"], [{**group, "step": float(step)}], old, state)
        if step > 1:
            assert found["param"].exact == 1
            assert found["exp_avg_sq"].prediction.rule == "square.5"
    assert found["exp_avg_sq"].exact > 0.8


def test_a_scheduler_changes_the_values_between_two_steps() -> None:
    def cycle(optimizer: Any) -> Any:
        return optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=50)

    for _, old, new in steps(lambda p: optim.AdamW(p, fused=True), (2, 20), schedule=cycle):
        assert new[2]["lr"] != old[2]["lr"]
        assert chosen(old, new)["param"].exact == 1


def test_moments_are_predicted_without_their_weights() -> None:
    *_, (_, old, new) = steps(lambda p: optim.Adam(p), (20,))
    for tensors in (old[0][0], new[0][0]):
        del tensors["param"]
    assert chosen(old, new).keys() == {"exp_avg", "exp_avg_sq"}


WILD = (None, "0.1", True, math.nan, math.inf, -1.0, 0, 1, 0.5, 2**64 - 1, 1e308, 5e-324, (), (2,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_wild_values_of_a_group_are_survived(name: str) -> None:
    *_, (_, old, new) = steps(OPTIMIZERS[name][0], (2,))
    rng = np.random.default_rng(5)
    kinds = kinds_of(set(new[0][0]) - {"param"}, new[2])
    names = [*new[2], *new[1][0]]
    for _ in range(60):
        wild = [dict(h) for h in hypers(old, new)]
        for values in wild:
            for key in rng.choice(names, 2):
                values[key] = WILD[rng.integers(len(WILD))]
                if key == "betas":
                    values[key] = tuple(WILD[rng.integers(len(WILD))] for _ in range(2))
        for choice in choose_predictions(kinds, wild, old[0][0], new[0][0]).values():
            assert Prediction.parse(choice.prediction.text) == choice.prediction


def test_wild_gradients_are_predicted_too() -> None:
    def wild(grad: Any) -> None:
        flat = grad.view(-1)
        flat[:6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42])

    for name in ("adam", "sgd", "rmsprop"):
        for _, old, new in steps(OPTIMIZERS[name][0], (2, 9), gradient=wild):
            for member, choice in chosen(old, new, 1).items():
                predicted(choice, old[0][1], new[0][1], member)


@pytest.mark.parametrize(
    ("states", "group", "kinds"),
    [
        ({"exp_avg", "exp_avg_sq", "step"}, optim.AdamW, ("adam",)),
        ({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, optim.Adam, ("adam",)),
        ({"exp_avg", "exp_avg_sq"}, optim.RAdam, ()),
        ({"exp_avg", "exp_avg_sq", "mu_product"}, optim.NAdam, ()),
        ({"exp_avg", "exp_inf"}, optim.Adamax, ()),
        ({"square_avg", "grad_avg"}, optim.RMSprop, ()),
        ({"momentum_buffer"}, optim.SGD, ("sgd",)),
        ({"square_avg", "acc_delta"}, optim.Adadelta, ()),
        ({"exp_avg", "exp_avg_sq", "other"}, optim.Adam, ()),
        (set(), optim.SGD, ()),
    ],
)
def test_optimizers_are_known_by_their_states(states: set[str], group: Any, kinds: Any) -> None:
    optimizer = group([torch.nn.Parameter(torch.zeros(3))])
    assert kinds_of(states, optimizer.param_groups[0]) == kinds
