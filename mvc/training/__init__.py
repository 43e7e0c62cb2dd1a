"""Recording versions of a running training (Recorder), and resuming a training from one (resume).

Its modules import torch. Contents of training states: ``state``. Lossy pipelines: ``lossy``.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
