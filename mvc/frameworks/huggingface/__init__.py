"""The Trainer of Hugging Face transformers: versions of its steps, and resuming from them."""

from mvc.errors import need_torch

need_torch("the Trainer")

from mvc.frameworks.huggingface.callback import MVCCallback  # noqa: E402

__all__ = ["MVCCallback"]
