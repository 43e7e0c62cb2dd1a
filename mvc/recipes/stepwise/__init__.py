"""Records trainings step by step, and runs recorded steps again (a replay).

During a training, a Recorder commits versions, and records which rows of the data set each batch
has. A replay trains a version again and compares the resulting weights with the version's weights,
bit for bit. The modules of this package import torch.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
