"""Converts optimizer states to states with parameter names, and loads such states.

In torch's ``optimizer.state_dict()``, parameters have numbers, in the order in which they were
passed to the optimizer. If a program changes this order, torch loads moments into the wrong
parameters. With names, the order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mvc.errors import CannotResume, UnsupportedTensor

_WEIGHTS = "model.load_state_dict(repo.checkout(rev))"
_GROUPS = "create the optimizer with the recorded parameters and groups"
_ROUNDING = 1.01  # tolerance for rounding, so that exact moments are not changed
_OWN = {"params", "param_names"}  # entries of a group that are not stored: the names replace them


def optimizer_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state, with parameter names as keys. The tensors are not copied.

    ``kind``: the optimizer's type. ``state``: maps each parameter's name to its state. ``other``:
    state that belongs to no parameter. ``groups``: names and settings of each group. Raises
    UnsupportedTensor for a parameter that the model does not have.
    """
    packed = optimizer.state_dict()
    names = _names(model, optimizer, packed)
    state = packed["state"]
    return {
        "kind": _kind(optimizer),
        "state": {names[n]: values for n, values in state.items() if n in names},
        "other": {key: values for key, values in state.items() if key not in names},
        "groups": [
            {
                "names": [names[n] for n in group["params"]],
                "values": {key: v for key, v in group.items() if key not in _OWN},
            }
            for group in packed["param_groups"]
        ],
    }


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _other_kind(optimizer: torch.optim.Optimizer) -> str:
    if isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        return "this optimizer wraps another one: pass its .optimizer"
    return "create an optimizer of the recorded type; to load only the weights, use " + _WEIGHTS


def _names(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, packed: Mapping[str, Any]
) -> dict[int, str]:
    """Maps torch's number of each parameter to the parameter's name in the model. If a tied
    parameter has several names, the first name.
    """
    known: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known.setdefault(id(parameter), name)
    names = {}
    for g, i, tensor, number in _parameters(optimizer, packed):
        if id(tensor) not in known:
            raise UnsupportedTensor(
                f"parameter {i} of the optimizer's group {g} is not in the model",
                hint="pass the module that contains every parameter of the optimizer",
            )
        names[number] = known[id(tensor)]
    return names


def _parameters(
    optimizer: torch.optim.Optimizer, packed: Mapping[str, Any]
) -> Iterator[tuple[int, int, torch.Tensor, int]]:
    """Yields (group, position in the group, parameter, torch's number) for every parameter."""
    pairs = zip(optimizer.param_groups, packed["param_groups"], strict=True)
    for g, (group, short) in enumerate(pairs):
        both = zip(group["params"], short["params"], strict=True)
        yield from ((g, i, parameter, number) for i, (parameter, number) in enumerate(both))


def bound_moments(recorded: Any) -> None:
    """Increases Adam's second moments v that are too small for the first moments m.

    A lossy pipeline approximates m and v separately. If it makes a v zero but not the m, Adam's
    next step is m / eps, which is huge. With constant betas, exact moments satisfy m * m <= c * v,
    where c follows from the betas (Cauchy-Schwarz). So v is increased to m * m / c.
    """
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("groups"), list):
        return
    for group in recorded["groups"]:
        betas = group["values"].get("betas")
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            continue
        first, second = map(float, betas)
        if not 0 <= first * first < second < 1:
            continue
        most = (1 - first) ** 2 / ((1 - second) * (1 - first * first / second))
        for name in group["names"]:
            values = recorded["state"].get(name, {})
            if not {"exp_avg", "exp_avg_sq"} <= values.keys():
                continue
            first_moment = values["exp_avg"]
            # float16 cannot represent the square of a number above 256.
            wide = first_moment.to(torch.promote_types(first_moment.dtype, torch.float32))
            least = wide.square() / (most * _ROUNDING)
            for key in ("exp_avg_sq", "max_exp_avg_sq"):
                if key in values:
                    values[key] = torch.maximum(values[key], least.to(values[key].dtype))


class Placement:
    """Loads a stored state into an optimizer.

    The constructor checks whether the state fits the optimizer. ``apply`` changes the optimizer.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, recorded: Mapping[str, Any]
    ) -> None:
        """Raises CannotResume if the state does not fit the optimizer."""
        self._optimizer = optimizer
        if recorded["kind"] != _kind(optimizer):
            raise CannotResume(
                f"the recorded optimizer is {recorded['kind']}, this one is {_kind(optimizer)}",
                hint=_other_kind(optimizer),
            )
        self._packed = optimizer.state_dict()
        self._names = _names(model, optimizer, self._packed)
        # A tied parameter has several names: map each name to the name used by ``_names``.
        ids = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
        first = {ids[name]: name for name in self._names.values()}
        current = {name: first.get(ids[name], name) for name in ids}
        groups = {
            frozenset(current.get(name, name) for name in group["names"]): group["values"]
            for group in recorded["groups"]
        }
        self._state = {
            current.get(name, name): values for name, values in recorded["state"].items()
        }
        self._other = recorded["other"]
        self._values = [
            self._group(groups, group["params"], i)
            for i, group in enumerate(self._packed["param_groups"])
        ]
        if len(groups) != len(self._values):
            raise CannotResume(
                f"the recorded optimizer had {len(groups)} groups of parameters, "
                f"this one has {len(self._values)}",
                hint=_GROUPS,
            )

    def _group(
        self, groups: Mapping[frozenset[str], Any], numbers: list[int], position: int
    ) -> Any:
        names = frozenset(self._names[n] for n in numbers)
        if names in groups:
            return groups[names]
        strange = names.difference(*groups)
        reason = (
            f"{min(strange)} is in no recorded group" if strange else "the grouping has changed"
        )
        raise CannotResume(
            f"group {position} of the optimizer has other parameters: {reason}", hint=_GROUPS
        )

    def apply(self) -> None:
        """Loads the state. ``load_state_dict`` converts some tensors to the dtype of the parameter:
        these tensors get their stored dtype.
        """
        numbers = {name: number for number, name in self._names.items()}
        state = {numbers[name]: values for name, values in self._state.items() if name in numbers}
        groups = [
            {**values, **{key: own[key] for key in _OWN if key in own}}
            for own, values in zip(self._packed["param_groups"], self._values, strict=True)
        ]
        self._optimizer.load_state_dict({"state": {**state, **self._other}, "param_groups": groups})
        for _, _, parameter, number in _parameters(self._optimizer, self._packed):
            for key, value in state.get(number, {}).items():
                loaded = self._optimizer.state[parameter][key]
                if isinstance(value, torch.Tensor) and value.dtype != loaded.dtype:
                    self._optimizer.state[parameter][key] = value.to(loaded.device)
