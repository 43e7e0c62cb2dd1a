"""torch.distributed.checkpoint: a sharded state becomes one commit of whole tensors, and back.

Only public names of torch. Plain files through ``mvc://``: ``mvc.frameworks.fsspec``.
"""

from mvc.frameworks.dcp.reader import MvcReader
from mvc.frameworks.dcp.writer import MvcWriter

__all__ = ["MvcReader", "MvcWriter"]
