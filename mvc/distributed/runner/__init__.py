"""Trains one model in several processes, which exchange messages through ``torch.distributed``.

``launch`` starts the processes of a training. ``script`` runs the training script in each process,
and the script uses the object in ``participant``. The process of rank 0 is the ``coordinator``.
``mvc.distributed.protocols`` decides which messages to send. In mvc, only this package creates
process groups.
"""

from mvc.errors import need_torch

need_torch("taking part in a training", "safetensors")
