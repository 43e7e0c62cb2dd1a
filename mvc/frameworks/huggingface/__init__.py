"""The Trainer of Hugging Face transformers: versions of its steps, and training that goes on.

The framework is imported when one of the public names is first asked for: other folders use
modules of this one without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.frameworks.huggingface.callback import MVCCallback

__all__ = ["MVCCallback"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mvc.frameworks.huggingface import callback

    return getattr(callback, name)
