"""Training one model at several sites that talk only when the model has moved.

Here: the protocols (pure state machines), the codecs of what they send, the simulator in one
process, and the runner on ``torch.distributed``. Not here: how versions are stored (``repo``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.distributed.runner.participant import Participant, join

__all__ = ["Participant", "join"]

__getattr__ = face(__name__, dict.fromkeys(__all__, "mvc.distributed.runner.participant"))
