"""Keras 3 on the torch backend: versions during ``fit``, and resuming from them."""

from mvc.frameworks.keras.callback import MVCCallback, load

__all__ = ["MVCCallback", "load"]
