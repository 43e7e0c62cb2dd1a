"""Trainings by steps: a Recorder that notes the rows of each batch, and proofs by replaying them.

Its modules import torch.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
