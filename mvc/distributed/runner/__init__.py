"""A training in the processes of ``torch.distributed`` (layer 4).

Here: the processes and what they exchange, the coordinator's part, the object that a training
script holds, and the command that starts the processes. Not here: what is sent, and when
(``mvc.distributed.protocols``). Only this package imports ``torch.distributed``.
"""

from mvc.errors import need_torch

need_torch("taking part in a training", "safetensors")
