"""Records versions of a running training (Recorder), and resumes a training from a version
(resume).

The modules of this package import torch. The content of a training state is defined in ``state``.
Lossy pipelines, which change the recorded weights slightly, are in ``mvc.lossy``.
"""

from mvc.errors import need_torch

need_torch("recording, resuming or loading a model")
