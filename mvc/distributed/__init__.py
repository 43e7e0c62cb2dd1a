"""Distributed training of one model at several sites that communicate only when it has moved.

This package has the protocols (pure state machines), the codecs of their messages, a simulator in
one process, and the runner on ``torch.distributed``. Versions are stored by ``repo``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.distributed.runner.participant import Participant, join

__all__ = ["Participant", "join"]

__getattr__ = face(__name__, dict.fromkeys(__all__, "mvc.distributed.runner.participant"))
