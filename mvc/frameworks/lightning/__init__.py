"""PyTorch Lightning: versions while a Trainer fits a model, and training that goes on."""

from mvc.frameworks.lightning.callback import MVCCallback, MVCCheckpointIO

__all__ = ["MVCCallback", "MVCCheckpointIO"]
