"""Versions out of a running training (Recorder), and a training set back to one (resume).

Its modules import torch. What training states hold: ``state``. Lossy pipelines: ``lossy``.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
