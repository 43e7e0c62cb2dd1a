"""Trainings by steps: a Recorder that records the rows of each batch, and replays that prove it.

A version is proven if a replay reproduced its weights bit for bit. The modules import torch.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
