"""Keras 3 on the torch backend: versions while ``fit`` runs, and training that goes on."""

from mvc.frameworks.keras.callback import MVCCallback, load

__all__ = ["MVCCallback", "load"]
