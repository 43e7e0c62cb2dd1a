"""Trainings by steps: a Recorder that records the rows of each batch, and proofs by replay.

Its modules import torch.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
