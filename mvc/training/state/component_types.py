"""Types of schedulers and scalers, which their states do not name.

A scheduler silently loads the state of another type, and continues with a mixture of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mvc.errors import CannotResume


def type_name(obj: Any) -> str:
    """The full name of the class; then, in brackets, those of the schedulers that it is made of."""
    name = f"{type(obj).__module__}.{type(obj).__qualname__}"
    inner = [type_name(part) for part in _inner(obj)]
    return f"{name}({', '.join(inner)})" if inner else name


def component_type(obj: Any) -> dict[str, Any] | None:
    """``kind``: the type's name; ``functions``: those of a LambdaLR by name. None for None.

    A function without a name (a lambda, an object) is the empty text.
    """
    if obj is None:
        return None
    obj = _inside(obj)
    return {"kind": type_name(obj), "functions": _functions(obj)}


def check_type(part: str, kept: Mapping[str, Any] | None, obj: Any) -> tuple[str, ...]:
    """Compares an object with the ``component_type`` of the version.

    Returns a line for each function that differs, for ``Resumed.differs``. Raises CannotResume
    for another type. ``kept`` is None if the version has no such part or is an older one.
    """
    here = component_type(obj)
    if kept is None or here is None:
        return ()
    if kept["kind"] != here["kind"]:
        raise CannotResume(
            f"the {part} was {kept['kind']}, not {here['kind']}",
            hint=f"pass a {part} of the kind that was recorded; to go on with another one take "
            "the weights alone: model.load_state_dict(repo.checkout(rev))",
        )
    return tuple(
        f"{part}: {new}, not {old}"
        for old, new in zip(kept["functions"], here["functions"], strict=False)
        if old and new and old != new
    )


def _inside(obj: Any) -> Any:
    """The scheduler inside accelerate's wrapper, which has the same state."""
    return obj.scheduler if type(obj).__module__ == "accelerate.scheduler" else obj


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
