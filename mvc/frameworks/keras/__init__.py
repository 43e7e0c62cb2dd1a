"""Keras 3 on the torch backend: versions while ``fit`` runs, and training that goes on.

The framework is imported when one of the public names is first asked for: other folders use
modules of this one without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.frameworks.keras.callback import MVCCallback, load

__all__ = ["MVCCallback", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mvc.frameworks.keras import callback

    return getattr(callback, name)
