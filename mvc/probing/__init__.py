"""Compares two runs of a torch model layer by layer, forward and backward.

``probe`` is public; ``record`` runs a model with hooks, ``summary`` has the recorded hashes,
``compare`` finds the first difference, ``cause`` runs the model again to explain it.
"""

from mvc.errors import need_torch

need_torch("comparing two runs of a model", "safetensors")
