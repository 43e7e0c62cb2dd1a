"""Records versions of a running training (Recorder), and resumes a training from a version
(resume).

The modules of this package import torch. ``mvc.training.state`` defines what a training state
contains, such as the state of the optimizer.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
