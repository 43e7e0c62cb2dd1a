"""The files that ``from_pretrained`` reads next to the weights: configuration and tokenizer.

What is written is what ``save_pretrained`` writes without the weights. The model that trains, and
its configuration, stay as they are.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save


def files_beside(model: Any, processing: Any) -> dict[str, bytes]:
    """The files by name; none for a model that is not transformers' own.

    ``processing`` is the tokenizer or processor of the training, or None.
    """
    if not isinstance(model, PreTrainedModel):
        return {}
    with tempfile.TemporaryDirectory(prefix="mvc-pretrained-") as folder:
        _save_configuration(model, folder)
        if callable(save := getattr(processing, "save_pretrained", None)):
            save(folder)
        root = Path(folder)
        found = sorted(path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def _save_configuration(model: PreTrainedModel, folder: str) -> None:
    config: Any = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    config.dtype = str(model.dtype).removeprefix("torch.")
    if model.is_remote_code():
        custom_object_save(model, folder, config=config)
    config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
