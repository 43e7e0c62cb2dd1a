"""Trainings by steps: a Recorder records the rows of each batch, and replays prove the versions.

A version is proven if a replay reproduced its weights bit for bit. The modules of this package
import torch.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
