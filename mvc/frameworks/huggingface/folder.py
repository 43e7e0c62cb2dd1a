"""The files that ``from_pretrained`` reads next to the weights: configuration and tokenizer.

What is written is what ``save_pretrained`` writes without the weights. The model that trains, and
its configuration, stay as they are.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
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
    saves: dict[str, Callable[[str], object]] = {
        "configuration": partial(_save_configuration, model)
    }
    if model.can_generate() and model.generation_config is not None:
        saves["generation configuration"] = model.generation_config.save_pretrained
    if callable(save := getattr(processing, "save_pretrained", None)):
        saves["tokenizer"] = save
    with tempfile.TemporaryDirectory(prefix="mvc-pretrained-") as folder:
        for what, save in saves.items():
            try:
                save(folder)
            except Exception as error:  # of transformers: a recording ends no training
                warnings.warn(f"mvc: the {what} is not kept: {error}", stacklevel=2)
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
