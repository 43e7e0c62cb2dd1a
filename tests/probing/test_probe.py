"""What two runs of a model have in common, and what differs first and why."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import mvc
from mvc.adapters.python.arrays import contiguous, tensor_bytes, tensor_spec
from mvc.errors import UnsupportedTensor, WrongUsage
from mvc.model.hashing import blob_id

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class Mlp(nn.Module):
    """Two linear layers with a layer of the caller's between them."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.between = between
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x))))


class Residual(nn.Module):
    """What full backward hooks of torch refuse: in-place layers and sums."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.norm(self.conv(x))
        out += x
        return self.relu(out)


def residual_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 3, 1),
        Residual(),
        nn.Sequential(Residual(), nn.Conv2d(3, 3, 1), nn.Dropout(0.5, inplace=True)),
        nn.Flatten(),
        nn.Linear(192, 2),
    )


def rows(found: mvc.Probe) -> dict[str, object]:
    return {row.layer: row for row in found.rows}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", [lambda: Mlp(nn.ReLU()), lambda: nn.Linear(6, 3)])
def test_deterministic_layers_agree(model, training: bool) -> None:
    found = mvc.probe(model(), X, training=training)
    assert found.same and found.difference is None and found.causes == ()
    assert found.rows and not any(row.differs for row in found.rows)
    assert found.verdict.startswith("same: ")


def test_conv_net_agrees_and_rows_have_the_order_of_the_passes() -> None:
    found = mvc.probe(residual_net(), IMAGES, seed=3)
    assert found.same
    names = [row.layer for row in found.rows]
    assert names == [
        "0", "1.conv", "1.norm", "1.relu", "1", "2.0.conv", "2.0.norm", "2.0.relu", "2.0", "2.1",
        "2.2", "3", "4",
    ]  # fmt: skip
    assert [row.forward for row in found.rows] == list(range(13))
    assert rows(found)["4"].backward == 0 and rows(found)["0"].backward == 12
    assert [rows(found)["0"].grad_input, rows(found)["0"].grad_output] == ["", "same"]
    assert rows(found)["1.relu"].grad_input == "same"


def test_dropout_without_a_seed_is_what_differs_first() -> None:
    found = mvc.probe(Mlp(nn.Dropout(0.5)), X)
    first = found.difference
    assert (first.direction, first.part, first.call.layer) == ("forward", "output", "between")
    assert (first.call.type, first.call.forward) == ("Dropout", 1)
    assert [cause.kind for cause in found.causes] == ["randomness"]
    table = {
        name: (r.input, r.output, r.grad_input, r.grad_output) for name, r in rows(found).items()
    }
    # As in figure 6 (a) of the thesis: behind it everything, and the whole backward pass.
    assert table == {
        "first": ("same", "same", "", "differs"),
        "between": ("same", "differs", "differs", "differs"),
        "last": ("differs", "differs", "differs", "differs"),
    }
    assert found.verdict == (
        "differs first in the forward pass: the output of between (Dropout, forward index 1)"
    )
    assert mvc.probe(Mlp(nn.Dropout(0.5)), X, seed=7).same
    assert mvc.probe(Mlp(nn.Dropout(0.5)), X, training=False).same


@pytest.mark.parametrize("seed", [1, None])
def test_random_numbers_of_numpy_and_python_are_seeded_too(seed: int | None) -> None:
    import numpy as np

    class Noise(nn.Module):
        def forward(self, x):
            return x * random.random() + np.random.rand()

    found = mvc.probe(Mlp(Noise()), X, seed=seed)
    assert found.same == (seed is not None)
    assert [c.kind for c in found.causes] == ([] if seed else ["randomness"])


def test_backward_alone() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 + torch.randn_like(grad) * 1e-6

    class Layer(nn.Module):
        def forward(self, x):
            return Noisy.apply(x)

    found = mvc.probe(Mlp(Layer()), X)
    first = found.difference
    assert (first.direction, first.part, first.call.layer) == ("backward", "grad_input", "between")
    assert [cause.kind for cause in found.causes] == ["randomness"]
    assert (rows(found)["between"].output, rows(found)["between"].grad_output) == ("same", "same")
    assert rows(found)["last"].gradient == "same" and rows(found)["first"].gradient == "differs"
    assert mvc.probe(Mlp(Layer()), X, seed=0).same


def test_only_the_gradient_of_a_weight_differs() -> None:
    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad * weight, (grad * x).sum(0) + torch.rand(())

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return Weighted.apply(x, self.weight)

    found = mvc.probe(Mlp(Layer()), X)
    first = found.difference
    assert (first.direction, first.part, first.name) == ("backward", "gradient", "between.weight")
    assert rows(found)["between"].gradient == "differs"


def test_the_step_of_the_optimizer_alone() -> None:
    class Jitter(torch.optim.SGD):
        def step(self):
            super().step()
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(torch.rand(()))

    found = mvc.probe(Mlp(nn.ReLU()), X, optimizer=lambda parameters: Jitter(parameters, lr=0.1))
    assert (found.difference.part, found.difference.name) == ("step", "first.weight")
    assert [cause.kind for cause in found.causes] == ["randomness"]


def test_what_arises_between_layers_is_told() -> None:
    class Net(nn.Module):
        def __init__(self, at_the_end: bool) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
            self.at_the_end = at_the_end

        def forward(self, x):
            x = self.first(x)
            return F.dropout(self.last(x)) if self.at_the_end else self.last(F.dropout(x))

    found = mvc.probe(Net(at_the_end=False), X)
    first = found.difference
    assert (first.part, first.call.layer, first.inside) == ("input", "last", "the model")
    assert "between layers, in the forward of the model" in str(first)
    inner = mvc.probe(nn.Sequential(Net(at_the_end=False)), X).difference
    assert inner.inside == "0"
    assert "own forward" in str(mvc.probe(nn.Sequential(Net(True)), X).difference)
    last = mvc.probe(Net(at_the_end=True), X).difference
    assert (last.part, last.direction) == ("model output", "forward")


def test_random_loss() -> None:
    found = mvc.probe(Mlp(nn.ReLU()), X, loss=lambda out: (out * torch.rand(())).sum())
    assert found.difference.part == "loss"
    assert all(row.output == "same" for row in found.rows)
    target = torch.tensor([0, 1, 2, 0])
    assert mvc.probe(Mlp(nn.ReLU()), X, loss=nn.CrossEntropyLoss(), target=target).same


def _own(layer_differs) -> nn.Module:
    """A layer that no seed reaches; it differs from call to call while ``layer_differs()``."""
    calls = count()

    class Own(nn.Module):
        def forward(self, x):
            return x + 1e-3 * next(calls) if layer_differs() else x

    return Own()


def test_kernels_threads_and_unknown_causes() -> None:
    kernel = mvc.probe(Mlp(_own(lambda: not torch.are_deterministic_algorithms_enabled())), X)
    assert [cause.kind for cause in kernel.causes] == ["kernel"]
    threads = mvc.probe(Mlp(_own(lambda: torch.get_num_threads() > 1)), X, threads=2)
    assert [cause.kind for cause in threads.causes] == ["threads"]
    assert torch.get_num_threads() == 1 and not torch.are_deterministic_algorithms_enabled()
    unknown = mvc.probe(Mlp(_own(lambda: True)), X)
    assert [cause.kind for cause in unknown.causes] == ["unknown"]
    assert "state" in str(unknown.causes[0].hint)


def test_two_causes_are_both_named() -> None:
    own = _own(lambda: not torch.are_deterministic_algorithms_enabled())
    found = mvc.probe(nn.Sequential(nn.Dropout(0.5), own, nn.Linear(6, 2)), X)
    assert found.difference.call.layer == "0"
    assert [cause.kind for cause in found.causes] == ["randomness", "kernel"]


def test_operation_without_a_deterministic_kernel_is_named() -> None:
    own = _own(lambda: True)

    class Put(nn.Module):
        def forward(self, x):
            return own(x).clone().put_(torch.tensor([0]), torch.tensor([1.0]))

    found = mvc.probe(Mlp(Put()), X, training=False)
    assert [cause.kind for cause in found.causes] == ["kernel"]
    assert "between: put_" in str(found.causes[0])
    with pytest.raises(WrongUsage, match="between: put_"):
        mvc.probe(Mlp(Put()), X, training=False, deterministic=True)


def test_nothing_of_the_model_and_of_the_process_changes() -> None:
    model = residual_net()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    states, hooks = (torch.get_rng_state(), random.getstate()), _tables(model)
    mvc.probe(model, IMAGES)
    mvc.probe(model, IMAGES, seed=5, threads=2, deterministic=True)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[4].weight.grad is None
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.get_num_threads() == 1 and not torch.are_deterministic_algorithms_enabled()
    assert _tables(model) == hooks

    class Fails(nn.Module):
        def forward(self, x):
            model[1].train()
            raise ZeroDivisionError

    broken = nn.Sequential(nn.Linear(6, 6), Fails())
    hooks = _tables(broken)
    with pytest.raises(ZeroDivisionError):
        mvc.probe(broken, X, threads=2)
    assert torch.get_num_threads() == 1
    assert _tables(broken) == hooks


def _tables(model: nn.Module) -> list[dict[str, list[object]]]:
    """All that modules keep by name or number: their hooks, modules, parameters."""
    return [
        {name: list(kept.values()) for name, kept in vars(module).items() if isinstance(kept, dict)}
        for module in model.modules()
    ]


def _hashes(tensors) -> list[str]:
    return [
        blob_id(tensor_spec(t, "x"), tensor_bytes(contiguous(t))).hex()
        for t in tensors
        if t is not None
    ]


def test_gradients_are_those_of_torchs_full_backward_hooks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Tanh(), nn.Bilinear(6, 6, 4)])
            self.last = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layers[1](self.layers[0](x))
            z = self.layers[2](y, y + x)
            return self.last(z) + z

    model, x = Net(), X.clone().requires_grad_()
    run = mvc.probe(model, x).second
    seen = {}
    for name, module in model.named_modules():
        module.register_full_backward_hook(
            lambda m, gi, go, n=name: seen.__setitem__(n, (_hashes(gi), _hashes(go)))
        )
    model(x).abs().square().mean().backward()
    assert [call.layer for call in run.calls] == ["layers.0", "layers.1", "layers.2", "last"]
    for call in run.calls:
        by_place = sorted(call.grad_input, key=lambda p: p.place)
        found = [p.id.hex() for p in by_place], [p.id.hex() for p in call.grad_output]
        assert found == seen[call.layer], call.layer


def test_hooks_do_not_change_what_an_in_place_model_learns() -> None:
    model = residual_net()
    torch.manual_seed(9)
    model.train()
    model(IMAGES).square().mean().backward()
    plain = {name: _hashes([p.grad])[0] for name, p in model.named_parameters()}
    model.zero_grad()
    run = mvc.probe(model, IMAGES, seed=9).second
    assert {name: run.weights[name].gradient.hex() for name in plain} == plain
    by_name = {call.layer: call for call in run.calls}
    # The gradient of what the layer changed, before it changed it.
    assert by_name["1.relu"].grad_input != by_name["1.relu"].grad_output
    assert by_name["1.relu"].input != by_name["1.relu"].output


@dataclass
class Answer:
    logits: torch.Tensor
    extra: dict


class Odd(nn.Module):
    """Calls a layer twice, shares one, never calls one; dicts, dataclasses, keywords, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6, sparse=True)
        self.lstm = nn.LSTM(6, 6, batch_first=True)
        self.shared = self.again = nn.Linear(6, 6)
        self.unused = nn.Linear(6, 6)
        self.named = self.Named()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    class Named(nn.Module):
        def forward(self, x, *, scale, flag=True):
            return {"x": x * scale, "pair": (x, None, "text"), 3: Answer(x.sum(), {})}

    def forward(self, tokens, *, scale):
        x, (h, _) = self.lstm(self.embedding(tokens))
        found = self.named(self.again(self.shared(x)), scale=scale)
        return Answer(self.frozen(found["x"]), {"h": h, "other": found[3].logits})


def test_odd_modules() -> None:
    tokens = {"tokens": torch.tensor([[1, 2, 3]]), "scale": torch.tensor(2.0)}
    found = mvc.probe(Odd(), tokens)
    assert found.same
    assert [(row.layer, row.call) for row in found.rows] == [
        ("embedding", 1), ("lstm", 1), ("shared", 1), ("shared", 2), ("named", 1), ("frozen", 1),
    ]  # fmt: skip
    calls = {call.key: call for call in found.second.calls}
    assert [p.place for p in calls["named", 1].output] == ["x", "pair.0", "3.logits"]
    assert [p.place for p in calls["named", 1].input] == ["0", "scale"]
    assert [p.place for p in calls["lstm", 1].output] == ["0", "1.0", "1.1"]
    assert sorted({p.place for p in calls["named", 1].grad_input}) == ["0"]
    assert found.second.weights["embedding.weight"].gradient is not None
    assert found.second.weights["unused.weight"].gradient is None
    assert mvc.probe(Odd(), tokens, training=False).same
    assert "shared #2" in repr(found)


def test_models_without_gradients_without_weights_and_in_checkpoints() -> None:
    frozen = Mlp(nn.Dropout(0.5)).requires_grad_(False)
    found = mvc.probe(frozen, X, seed=1)
    assert found.same and all(row.grad_output == "" for row in found.rows)
    assert mvc.probe(nn.Sequential(nn.Flatten(), nn.Softmax(1)), X).same

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Mlp(nn.Dropout(0.5))

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    assert mvc.probe(Saving(), X, seed=1).same
    found = mvc.probe(Saving(), X)
    assert found.difference.call.layer == "block.between"


@pytest.mark.filterwarnings("ignore")
def test_scripted_modules_are_compared_as_a_whole() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)))
    found = mvc.probe(scripted, X)
    assert found.rows == ()
    assert found.difference.part == "model output" and repr(found)
    assert mvc.probe(scripted, X, seed=1).same
    inside = mvc.probe(nn.Sequential(scripted, nn.Linear(6, 2)), X)
    assert [row.layer for row in inside.rows] == ["1"]


def test_bits_and_not_values_are_compared() -> None:
    class Const(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, x):
            return x * 0 + self.value if self.value else torch.full_like(x, self.value)

    nan = mvc.probe(nn.Sequential(Const(float("nan"))), X, training=False)
    assert nan.same and mvc.probe(nn.Sequential(Const(float("nan"))), X).same
    zero = mvc.probe(nn.Sequential(Const(0.0)), X, training=False)
    minus = mvc.probe(nn.Sequential(Const(-0.0)), X, training=False, against=zero)
    assert minus.difference.part == "output"
    dtypes = mvc.probe(nn.Flatten(), torch.zeros(2, 3), training=False)
    other = mvc.probe(nn.Flatten(), torch.zeros(2, 3).int(), training=False, against=dtypes)
    assert [cause.kind for cause in other.causes] == ["inputs"]


def test_other_layers_are_called() -> None:
    branches = count()

    class Net(Mlp):
        def forward(self, x):
            x = self.first(x)
            return self.last(self.between(x) if next(branches) % 2 else x)

    found = mvc.probe(Net(nn.ReLU()), X, training=False)
    assert found.difference.part == "calls"
    assert "continues with last" in str(found.difference) and "between (ReLU" in str(
        found.difference
    )
    assert rows(found)["between"].output == "one run only"


def test_only_some_layers_with_distances() -> None:
    found = mvc.probe(Mlp(nn.Dropout(0.5)), X, only=["betw*", "2"])
    assert [row.layer for row in found.rows] == ["between", "last"]
    distance = rows(found)["between"].distances["output"]
    assert distance.max_abs > 0
    assert found.difference.distance == distance
    assert "differs " in repr(found) and f"{distance.max_abs:.4g}" in repr(found)
    assert [r.layer for r in mvc.probe(Mlp(nn.ReLU()), X, only=["0-1"]).rows] == [
        "first",
        "between",
    ]
    assert [r.layer for r in mvc.probe(nn.Sequential(Mlp(nn.ReLU()), nn.ReLU()), X,
                                       only=["[1]"]).rows] == ["1"]  # fmt: skip
    with pytest.raises(WrongUsage, match="no layer that runs has the name none"):
        mvc.probe(Mlp(nn.ReLU()), X, only=["none"])
    with pytest.raises(WrongUsage, match="only is a text"):
        mvc.probe(Mlp(nn.ReLU()), X, only="first")


def test_functions_make_the_model() -> None:
    found = mvc.probe(lambda: (Mlp(nn.Dropout(0.5)), X), seed=1)
    assert found.same
    assert mvc.probe(lambda: Mlp(nn.Dropout(0.5)), X, seed=1, against=found).same
    other = mvc.probe(lambda: Mlp(nn.Dropout(0.5)), X, seed=2, against=found)
    assert [cause.kind for cause in other.causes] == ["weights"]
    assert "first.weight, first.bias" in str(other.causes[0])
    assert other.causes[0].hint == "use seed 1, like the other run"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3, "inputs": X}, "the model is of type int"),
        ({"model": dict, "inputs": X}, "the model is of type dict"),
        ({"model": nn.Flatten()}, "no inputs were given for the model"),
        ({"model": nn.LazyLinear(3), "inputs": X}, "weight has no values yet"),
        ({"model": nn.Flatten(), "inputs": X, "seed": -1}, "seed is -1"),
        ({"model": nn.Flatten(), "inputs": X, "threads": 0}, "threads is 0"),
        ({"model": nn.Flatten(), "inputs": X, "against": 3}, "against is of type int"),
        ({"model": nn.Linear(6, 2), "inputs": X, "loss": lambda out: out}, r"shape \(4, 2\)"),
        ({"model": nn.Linear(6, 2), "inputs": X, "loss": lambda out: 3.0}, "the loss must be"),
        ({"model": nn.Flatten(), "inputs": X, "target": X}, "target needs a loss"),
    ],
)
def test_wrong_usage(arguments, message: str) -> None:
    with pytest.raises(WrongUsage, match=message):
        mvc.probe(**arguments)


def test_tensors_without_comparable_bits_are_refused_by_layer() -> None:
    class Csr(nn.Module):
        def forward(self, x):
            return x.to_sparse_csr()

    with pytest.raises(UnsupportedTensor, match=r"^0 is a sparse tensor.*compared bit by bit"):
        mvc.probe(nn.Sequential(Csr()), X, training=False)


def test_texts_and_tables() -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(30)), nn.Dropout(0.5))
    found = mvc.probe(model, X)
    assert "... 20 of 31 rows" in repr(found)
    assert "30     Dropout" in repr(found)
    assert "bwd" not in repr(mvc.probe(model, X, training=False))
    assert repr(found.second) == "<Summary of a run in training mode: 31 calls of layers>"
