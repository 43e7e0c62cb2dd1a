"""Training one model at several sites that talk only when the model has moved.

Here: the protocols (pure state machines), the codecs of what they send, the simulator in one
process, and the runner on ``torch.distributed``. Not here: how versions are stored (``repo``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.distributed.runner.participant import Participant, join

__all__ = ["Participant", "join"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # torch is imported only then
        from importlib import import_module

        from mvc.errors import need_torch

        need_torch("taking part in a training", "safetensors")
        return getattr(import_module("mvc.distributed.runner.participant"), name)
    raise AttributeError(f"module 'mvc.distributed' has no attribute {name!r}")
