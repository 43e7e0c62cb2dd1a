"""PyTorch Lightning: versions while a Trainer fits a model, and resuming from them."""

from mvc.frameworks.lightning.callback import MVCCallback, MVCCheckpointIO

__all__ = ["MVCCallback", "MVCCheckpointIO"]
