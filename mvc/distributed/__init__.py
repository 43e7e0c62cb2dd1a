"""Distributed training of one model: workers communicate only if their models changed enough.

This package contains the protocols (pure state machines), the codecs of their messages, a simulator
in one process, and the runner on ``torch.distributed``. The runner stores global models as
versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.distributed.runner.participant import Participant, join

__all__ = ["Participant", "join"]

__getattr__ = face(__name__, dict.fromkeys(__all__, "mvc.distributed.runner.participant"))
