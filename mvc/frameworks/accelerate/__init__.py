"""Accelerate: what ``accelerator.save_state`` saves becomes a version as well.

The framework is imported when one of the public names is first asked for: other folders use
modules of this one without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.frameworks.accelerate.recording import Attached, attach

__all__ = ["Attached", "attach"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mvc.frameworks.accelerate import recording

    return getattr(recording, name)
