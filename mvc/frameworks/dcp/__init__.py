"""torch.distributed.checkpoint: saves a sharded state as one commit of whole tensors, and loads it.

This package uses only public names of torch. ``mvc.frameworks.fsspec`` reads and writes plain files
through ``mvc://``.
"""

from mvc.errors import need_torch

need_torch("torch.distributed.checkpoint")

from mvc.frameworks.dcp.reader import MvcReader  # noqa: E402
from mvc.frameworks.dcp.writer import MvcWriter  # noqa: E402

__all__ = ["MvcReader", "MvcWriter"]
