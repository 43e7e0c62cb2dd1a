"""Cut-off and foreign model files are told from files that are merely of another kind."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from mvc.adapters.files.suspicion import suspicion
from mvc.io.files import FileSystem


def ask(tmp_path, name: str, data: bytes) -> str | None:
    path = tmp_path / name
    path.write_bytes(data)
    with FileSystem().open_read(path) as file:
        return suspicion(file, name)


def zipped() -> bytes:
    out = io.BytesIO()
    torch.save({"w": torch.ones(1000)}, out)
    return out.getvalue()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_cut_off(tmp_path, share):
    arrays = {"w": np.ones(1000, np.float32)}
    whole = save(arrays)
    assert "truncated" in ask(tmp_path, "a.safetensors", whole[: int(len(whole) * share) + 9])
    torch_file = zipped()
    assert "truncated" in ask(tmp_path, "a.pt", torch_file[: int(len(torch_file) * share) + 9])


def test_foreign(tmp_path):
    assert ask(tmp_path, "a.safetensors", b"hello world, this is text")
    assert ask(tmp_path, "a.safetensors", b"")
    assert ask(tmp_path, "a.pt", b"<html>404</html>")
    assert ask(tmp_path, "a.npy", b"not numpy")


def test_nothing_claimed(tmp_path):
    legacy = io.BytesIO()
    torch.save({"w": torch.ones(4)}, legacy, _use_new_zipfile_serialization=False)
    assert ask(tmp_path, "a.pt", legacy.getvalue()) is None
    assert ask(tmp_path, "config.json", b'{"a": 1}') is None
    assert ask(tmp_path, "tokenizer.bin", b"anything") is None
    assert ask(tmp_path, "a.pt", zipped()) is None
