"""PyTorch Lightning: versions while a Trainer fits a model, and training that goes on.

The framework is imported when one of the public names is first asked for: other folders use
modules of this one without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.frameworks.lightning.callback import MVCCallback, MVCCheckpointIO

__all__ = ["MVCCallback", "MVCCheckpointIO"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mvc.frameworks.lightning import callback

    return getattr(callback, name)
