"""Distributed training of one model with little communication.

Each worker trains a copy of the model. Workers send their changes only when the copies have changed
enough. Then a *global model* is computed from all copies and committed as a version. This package
has the protocols (which decide when workers send), the codecs of messages, a simulator in one
process, and the runner, which uses ``torch.distributed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.distributed.runner.participant import Participant, join

__all__ = ["Participant", "join"]

__getattr__ = face(__name__, dict.fromkeys(__all__, "mvc.distributed.runner.participant"))
