"""Trainings as the files and states that hold them, and what is true of their tensors."""

import io
from types import SimpleNamespace

import torch

from mvc.adapters.files.detect import parse_file
from mvc.adapters.parsed import MemorySource
from mvc.adapters.python.state import from_state
from mvc.training.state.parts import TrainingParts


def network():
    """Parameters of equal shapes beside each other, and buffers of the shapes of parameters."""
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 16),
        torch.nn.Linear(16, 8),
    )


def move(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()


def saved(value):
    """A file of torch.save, parsed."""
    out = io.BytesIO()
    torch.save(value, out)
    return parse_file(MemorySource(out.getvalue()), "x.pt")


def plain(model, optimizer):
    return {"m": from_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})}


def checkpoint(model, optimizer):
    state = {"optimizer": optimizer.state_dict(), "epoch": 3, "model": model.state_dict()}
    return {"last.pt": saved(state)}


def lightning(model, optimizer):
    state = {
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": SimpleNamespace(width=3),  # no plain data
        "callbacks": {"best": {"score": torch.tensor(0.5)}},
    }
    return {"last.ckpt": saved(state)}


def two_files(model, optimizer):
    """As transformers writes them; tensors of a safetensors file lie in the order of names."""
    from safetensors.torch import save

    weights = parse_file(MemorySource(save(model.state_dict())), "model.safetensors")
    assert weights.format == "safetensors"
    return {"c/optimizer.pt": saved(optimizer.state_dict()), "c/model.safetensors": weights}


def recorded(model, optimizer):
    parts = TrainingParts(model, optimizer)
    number = max(int(values.get("step", 0)) for values in optimizer.state.values())
    return {
        "model.safetensors": from_state(parts.model_state()),
        "model.training.safetensors": from_state(parts.training_state(number, None)),
    }


FORMS = [plain, checkpoint, lightning, two_files, recorded]


def bytes_at(files, place) -> bytes:
    file = files[place.path]
    out = bytearray(file.contents[place.content].spec.nbytes)
    file.read(place.content, 0, memoryview(out))
    return bytes(out)


def paired(files, units, optimizer) -> int:
    """How many units have the right weights; asserts that every state is some parameter's."""
    states = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    data = parameter.detach().numpy().tobytes()
                    states[name, value.numpy().tobytes()] = data
    right = 0
    for unit in units:
        for name, place in unit.members.items():
            if name != "param":
                weights = states[name, bytes_at(files, place)]
        right += "param" in unit.members and bytes_at(files, unit.members["param"]) == weights
    return right
