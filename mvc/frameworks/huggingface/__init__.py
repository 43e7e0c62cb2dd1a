"""The Trainer of Hugging Face transformers: versions of its steps, and training that goes on."""

from mvc.frameworks.huggingface.callback import MVCCallback

__all__ = ["MVCCallback"]
