"""Half and false model files are refused, and numbers of files that no memory has."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import mvc
from mvc.adapters.files.detect import why_opaque
from mvc.adapters.parsed import MemorySource
from mvc.errors import BadModelFile
from tests.adapters.gguf_files import gguf
from tests.adapters.onnx_files import model, tensor

WEIGHTS = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _legacy(protocol: int = 2) -> bytes:
    out = io.BytesIO()
    torch.save(
        {"w": torch.tensor(WEIGHTS), "n": {"b": torch.ones(5)}},
        out,
        _use_new_zipfile_serialization=False,
        pickle_protocol=protocol,
    )
    return out.getvalue()


def _hdf5() -> bytes:
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["w"] = WEIGHTS
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        info = tarfile.TarInfo("w")
        info.size = WEIGHTS.nbytes
        file.addfile(info, io.BytesIO(WEIGHTS.tobytes()))
    return out.getvalue()


WHOLE: dict[str, Callable[[], bytes]] = {
    "big-endian.npy": lambda: _npy(WEIGHTS.astype(">f4")),
    "objects.npy": lambda: _npy(np.array([None, "a"], object)),
    "records.npy": lambda: _npy(np.zeros(9, [("a", "<f4", (2,)), ("b", "<U3")])),
    "fortran.npy": lambda: _npy(np.asfortranarray(WEIGHTS)),
    "old.pt": _legacy,
    "old4.pt": lambda: _legacy(4),
    "m.gguf": lambda: gguf([("w", "F32", (40, 40), WEIGHTS.tobytes())]),
    "m.h5": _hdf5,
    "m.pth.tar": _tar,
    "m.msgpack": lambda: msgspec.msgpack.encode({"w": WEIGHTS.tobytes(), "n": [1, -5, 0.5, None]}),
    "m.onnx": lambda: model(tensor("w", WEIGHTS)),
}


READ = {"old.pt": "torch", "old4.pt": "torch", "m.gguf": "gguf", "m.onnx": "onnx", "m.h5": "hdf5"}
"""Formats of those of which the tensors are known."""


@pytest.mark.parametrize("name", WHOLE)
def test_only_the_whole_of_a_file_goes_live(tmp_path: Path, name: str) -> None:
    data = WHOLE[name]()
    with mvc.Repository.init(tmp_path) as repo:
        for share in (0.3, 0.5, 0.6):
            (tmp_path / name).write_bytes(data[: int(len(data) * share)])
            with pytest.raises(BadModelFile, match=r"truncated|not a valid ONNX file"):
                repo.commit(tmp_path / name, deploy="prod")
        (tmp_path / name).write_bytes(data)
        found = repo.commit(tmp_path / name, deploy="prod").entries[name].format
        assert found == READ.get(name, "opaque")


STUBS = {
    "git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 437955512\n",
    "HTML": b"\n<!DOCTYPE html><html><body>404</body></html>",
    "XML": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    "JSON": b'{"error": "Repository not found"}',
    "message": b"404: Not Found",
    "empty": b"",
}


@pytest.mark.parametrize("kind", STUBS)
def test_a_stub_under_the_name_of_a_model_is_refused_by_what_it_is(
    tmp_path: Path, kind: str
) -> None:
    word = {"git-lfs": "pointer of git-lfs", "empty": "empty"}.get(kind, "a server's answer")
    torch_names, others = ("pt", "bin", "pth.tar"), ("npz", "npy", "safetensors", "msgpack")
    names = (*torch_names, *others, "onnx", "gguf", "h5", "keras", "tflite")
    with mvc.Repository.init(tmp_path) as repo:
        for path in (tmp_path / f"model.{suffix}" for suffix in names):
            path.write_bytes(STUBS[kind])
            with pytest.raises(BadModelFile, match=word):
                repo.commit(path, deploy="prod")
            repo.commit(path, files=mvc.FileOptions(opaque=True))


def _zip64(offset: int, size: int, flags: int) -> bytes:
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, flags, 0, 0, 0, 0, 4, 4, 1, 0) + b"aabcd"
    extra = struct.pack("<HHQQQ", 1, 24, size, size, offset)
    entry = struct.pack(
        "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, flags, 0, 0, 0, 0,
        0xFFFFFFFF, 0xFFFFFFFF, 1, len(extra), 0, 0, 0, 0, 0xFFFFFFFF,
    ) + b"a" + extra  # fmt: skip
    return (
        local + entry + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local), 0)
    )


def _safetensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(8)


OFFSETS = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,%s]}}'
COMPLEX = {"version": 1, "state": {"dict": {"a": {"complex": [10**400, 0]}}}}
NUMBERS = {
    **{text: _safetensors(OFFSETS % text.encode()) for text in ("1e999", "-1e999", "NaN", "1e30")},
    "complex": _safetensors(json.dumps({"__metadata__": {"mvc": json.dumps(COMPLEX)}}).encode()),
    **{f"zip {n:x}": _zip64(n, 4, 0) for n in (2**63 - 1, 2**63, 2**64 - 1)},
    **{f"zip size {n:x}": _zip64(0, n, 8) for n in (2**63 - 1, 2**63, 2**64 - 1)},
    "gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 2**64 - 1),
    "msgpack": b"\xdf\xff\xff\xff\xff",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_no_file_has_are_no_internal_error(tmp_path: Path, name: str) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for suffix in ("bin", "safetensors", "pt", "gguf", "msgpack"):
            path = tmp_path / f"{name.replace(' ', '-')}.{suffix}"
            path.write_bytes(NUMBERS[name])
            try:
                repo.commit(path)
            except BadModelFile:
                repo.commit(path, files=mvc.FileOptions(opaque=True))


@pytest.mark.parametrize("key", ["", "\u202ex", "y" * 1025, "a\nb"])
def test_the_name_of_a_tensor_is_the_reason_why_a_file_is_opaque(key: str) -> None:
    header = {key: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    why, hint = why_opaque(MemorySource(_safetensors(json.dumps(header).encode())), "a.safetensors")
    assert "name" in why and "rename" in hint
