"""Compares two runs of a torch model layer by layer, forward and backward.

``probe`` is the public function. ``run`` runs a model with hooks (``hooks``) that hash inputs,
outputs and gradients. ``summary`` has the recorded hashes. ``compare`` finds the first difference.
``cause`` runs the model again to explain the difference.
"""

from mvc.errors import need_torch

need_torch("comparing two runs of a model", "safetensors")
