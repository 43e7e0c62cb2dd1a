"""Saves and loads states with torch.distributed.checkpoint.

``MvcWriter`` saves a sharded state as one commit of whole tensors. ``MvcReader`` loads the state.
This package uses only public names of torch.
"""

from mvc.errors import need_torch

need_torch("torch.distributed.checkpoint")

from mvc.frameworks.dcp.reader import MvcReader  # noqa: E402
from mvc.frameworks.dcp.writer import MvcWriter  # noqa: E402

__all__ = ["MvcReader", "MvcWriter"]
