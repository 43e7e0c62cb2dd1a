"""Trainings by steps: a Recorder records which rows of the data each batch has, and replays run the
steps again.

A replay that reproduces the weights of a version bit for bit proves the version. The modules of
this package import torch.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
