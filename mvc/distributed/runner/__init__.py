"""Training in the processes of ``torch.distributed``.

This package has the processes and their exchanges, the coordinator's part, the object for training
scripts, and the command that starts the processes. The protocols are in
``mvc.distributed.protocols``. In mvc, only this package creates process groups.
"""

from mvc.errors import need_torch

need_torch("taking part in a training", "safetensors")
