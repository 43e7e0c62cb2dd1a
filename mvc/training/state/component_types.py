"""Records the types of scheduler and scaler, and compares them when a training is resumed.

The ``state_dict`` of a scheduler does not contain the scheduler's type. Without the comparison, a
scheduler would silently load the state of a scheduler of another type.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mvc.errors import CannotResume


def type_name(obj: Any) -> str:
    """The full class name, followed in brackets by the class names of the inner schedulers."""
    name = f"{type(obj).__module__}.{type(obj).__qualname__}"
    inner = [type_name(part) for part in _inner(obj)]
    return f"{name}({', '.join(inner)})" if inner else name


def component_type(obj: Any) -> dict[str, Any] | None:
    """The type of a scheduler or scaler; None if ``obj`` is None.

    ``kind``: the type's name. ``functions``: the names of the functions of a LambdaLR. For a lambda
    or a callable object, the name is empty.
    """
    if obj is None:
        return None
    # accelerate wraps a scheduler: record the scheduler, because the wrapper has the same state
    obj = obj.scheduler if type(obj).__module__ == "accelerate.scheduler" else obj
    return {"kind": type_name(obj), "functions": _functions(obj)}


def check_type(part: str, recorded: Mapping[str, Any] | None, obj: Any) -> tuple[str, ...]:
    """Compares ``obj`` with the ``component_type`` that a version recorded.

    Returns a line for each function that has another name. Raises CannotResume if the type differs.
    ``recorded`` is None if the version did not record a type. ``part``: the name for messages.
    """
    current = component_type(obj)
    if recorded is None or current is None:
        return ()
    if recorded["kind"] != current["kind"]:
        raise CannotResume(
            f"the {part} was {recorded['kind']}, not {current['kind']}",
            hint=f"pass a {part} of the recorded type; to continue with another type, load "
            "only the weights: model.load_state_dict(repo.checkout(rev))",
        )
    return tuple(
        f"{part}: {new}, not {old}"
        for old, new in zip(recorded["functions"], current["functions"], strict=False)
        if old and new and old != new
    )


def _inner(obj: Any) -> list[Any]:
    parts = getattr(obj, "_schedulers", None)
    return list(parts) if isinstance(parts, list | tuple) else []


def _functions(obj: Any) -> list[str]:
    rules = getattr(obj, "lr_lambdas", None)
    own = [_name(rule) for rule in rules] if isinstance(rules, list | tuple) else []
    return own + [name for part in _inner(obj) for name in _functions(part)]


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name = str(getattr(function, "__qualname__", ""))
    return "" if name.endswith("<lambda>") else name
