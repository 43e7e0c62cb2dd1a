"""Compares two runs of a torch model layer by layer, forward and backward.

``probe`` is public; ``record`` runs a model with hooks, ``summary`` is what a run leaves,
``compare`` finds the first difference, ``cause`` runs the model again to explain it.
"""

from mvc.errors import need_torch

need_torch("comparing two runs of a model", "safetensors")
