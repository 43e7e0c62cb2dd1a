"""One net, eight saves, in every format that a training writes: what mvc stores, tensors, bytes.

    python -m tests.benchmarks.bench_formats [--width 256] [--saves 8] [--only NAME...]

The net is a small decoder. Every save moves all weights a little, the last one its head alone. Each
format has a repository of its own, and all saves are committed there in turn. ``stored`` are the
bytes that the commits add below ``.mvc``, ``head step`` those of the last commit. Both stand beside
those of safetensors files with the same tensors: F32, or F16 and quantised blocks as GGUF has them.
``tensors`` are those that ``mvc ls`` lists, of all. ``same`` counts the saves whose checkout has
the bytes of every file. Formats whose library is missing are left out, which a line says. Nothing
here asserts a size.
"""

from __future__ import annotations

import argparse
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

import mvc
from mvc.errors import BadModelFile
from tests.benchmarks.measuring import bytes_below, folder, head, row

Tensors = Mapping[str, Any]
Cast = Callable[[str, Any], Any]
Write = Callable[[Path, Tensors], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--width", type=int, default=256, help="a multiple of 32")
    parser.add_argument("--saves", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    arguments = parser.parse_args()
    saves = list(training(arguments.width, arguments.saves))
    size = sum(value.nbytes for value in saves[0].values())
    head(
        f"{len(saves)} saves of {size:,} B", "files", "stored", "beside safetensors", "head step",
        "beside safetensors", "tensors", "same",
    )  # fmt: skip
    references: dict[str, Stored] = {}
    for name in arguments.only:
        form = FORMATS[name]
        missing = [module for module in form.needs if find_spec(module) is None]
        if missing:
            row(name, f"left out: {', '.join(missing)} is missing", *[""] * 6)
            continue
        if form.tensors not in references:
            references[form.tensors] = stored(_save_file, form.tensors, saves)
        beside = references[form.tensors]
        own = beside if form.write is _save_file else stored(form.write, form.tensors, saves)
        row(
            name, f"{own.files:,}", f"{own.total:,}", f"{own.total / beside.total - 1:+.1%}",
            f"{own.last:,}", f"{own.last / beside.last - 1:+.1%}",
            f"{own.tensors} of {len(saves[0])}", f"{own.same} of {len(saves)}",
        )  # fmt: skip


def training(width: int, saves: int) -> Iterator[Tensors]:
    """The states of a training whose last step moves the head alone."""
    rng = np.random.default_rng(0)
    state = {
        key: np.ones(shape, np.float32)
        if "norm" in key
        else (0.02 * rng.standard_normal(shape)).astype(np.float32)
        for key, shape in shapes(width)
    }
    yield state
    for save in range(1, saves):
        state = {
            key: value
            if save == saves - 1 and not key.startswith("head")
            else value + (1e-4 * rng.standard_normal(value.shape)).astype(np.float32)
            for key, value in state.items()
        }
        yield state


def shapes(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embedding.weight", (16 * width, width)
    for block in range(3):
        yield f"blocks.{block}.norm.weight", (width,)
        for layer in "qkvo":
            yield f"blocks.{block}.attention.{layer}.weight", (width, width)
        yield f"blocks.{block}.up.weight", (4 * width, width)
        yield f"blocks.{block}.up.bias", (4 * width,)
        yield f"blocks.{block}.down.weight", (width, 4 * width)
    yield "norm.weight", (width,)
    yield "head.weight", (30, width)
    yield "head.bias", (30,)


class Stored(NamedTuple):
    """Bytes of all files, bytes of all commits, bytes of the last commit, tensors that are seen,
    saves that come back."""

    files: int
    total: int
    last: int
    tensors: int
    same: int


def stored(write: Write, tensors: str, saves: list[Tensors]) -> Stored:
    """All ``saves``, cast to what ``tensors`` names, in a new repository."""
    cast, files, sizes, same = CASTS[tensors], 0, [], 0
    with folder() as place, mvc.Repository.init(place / "repo") as repo:
        model, hashes = repo.root / "model", {}
        model.mkdir()
        sizes.append(bytes_below(repo.root))
        for save in saves:
            write(model, {key: cast(key, value) for key, value in save.items()})
            hashes[committed(repo, model)] = hashed(model)
            sizes.append(bytes_below(repo.root))
            files += sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
        for number, commit in enumerate(hashes):
            to = place / f"out{number}"
            repo.checkout(commit, to=f"{to}/")
            same += hashed(to / "model") == hashes[commit]
        seen = sum(len(entry.tensors) for entry in repo.manifest().entries)
    return Stored(files, sizes[-1] - sizes[0], sizes[-1] - sizes[-2], seen, same)


def committed(repo: mvc.Repository, model: Path) -> mvc.CommitId:
    """With --opaque if mvc asks for it."""
    try:
        return repo.commit(model).id
    except BadModelFile:
        return repo.commit(model, files=mvc.FileOptions(opaque=True)).id


def hashed(root: Path) -> dict[str, bytes]:
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): blake2b(file.read_bytes()).digest() for file in files}


# -- the same tensors in another type ---------------------------------------------------------


def _f16(_: str, value: Any) -> Any:
    return value.astype(np.float16) if value.ndim > 1 else value


def _quantised(name: str) -> Cast:
    """Blocks of a quantised type as rows of bytes; vectors stay F32, as llama.cpp has them."""

    def cast(_: str, value: Any) -> Any:
        from gguf import GGMLQuantizationType, quants

        return quants.quantize(value, GGMLQuantizationType[name]) if value.ndim > 1 else value

    return cast


CASTS: dict[str, Cast] = {
    "F32": lambda _, value: value,
    "F16": _f16,
    "Q8_0": _quantised("Q8_0"),
    "Q4_1": _quantised("Q4_1"),
}


# -- formats ----------------------------------------------------------------------------------


def _save_file(model: Path, tensors: Tensors) -> None:
    save_file(dict(tensors), model / "model.safetensors")


def _torch(**options: Any) -> Write:
    def write(model: Path, tensors: Tensors) -> None:
        import torch

        state = {key: torch.from_numpy(value) for key, value in tensors.items()}
        torch.save(state, model / "model.pt", **options)

    return write


def _dcp(model: Path, tensors: Tensors) -> None:
    import torch
    from torch.distributed import checkpoint

    state = {key: torch.from_numpy(value) for key, value in tensors.items()}
    checkpoint.save(state, checkpoint_id=model / "checkpoint", no_dist=True)


def _onnx(**options: Any) -> Write:
    def write(model: Path, tensors: Tensors) -> None:
        import onnx
        from onnx import helper, numpy_helper

        (model / "model.onnx.data").unlink(missing_ok=True)  # onnx appends to what is there
        values = [numpy_helper.from_array(value, key) for key, value in tensors.items()]
        names = list(tensors)
        node = helper.make_node("Sum", names, ["out"])
        out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph([node], "net", [], [out], values)
        onnx.save_model(helper.make_model(graph), model / "model.onnx", **options)

    return write


def _npy(model: Path, tensors: Tensors) -> None:
    for key, value in tensors.items():
        np.save(model / f"{key}.npy", value)


def _h5(**options: Any) -> Write:
    def write(model: Path, tensors: Tensors) -> None:
        (model / "model.h5").write_bytes(_hdf5(tensors, **options))

    return write


def _hdf5(tensors: Tensors, **options: Any) -> bytes:
    import h5py

    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for key, value in tensors.items():
            file.create_dataset(key.replace(".", "/"), data=value, **options)
    return stream.getvalue()


def _keras_variables(tensors: Tensors) -> bytes:
    """As Keras 3 names them: variables of a layer by number."""
    return _hdf5({f"layers.{key}.vars.0": value for key, value in tensors.items()})


def _weights_h5(model: Path, tensors: Tensors) -> None:
    (model / "model.weights.h5").write_bytes(_keras_variables(tensors))


def _keras(model: Path, tensors: Tensors) -> None:
    with zipfile.ZipFile(model / "model.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.12.0"}')
        archive.writestr("config.json", '{"module": "keras", "class_name": "Functional"}')
        archive.writestr("model.weights.h5", _keras_variables(tensors))


def _gguf(tensors: str) -> Write:
    def write(model: Path, tensors_: Tensors) -> None:
        from gguf import GGMLQuantizationType, GGUFWriter

        writer = GGUFWriter(model / "model.gguf", "llama")
        writer.add_block_count(3)
        for key, value in tensors_.items():
            quantised = value.dtype == np.uint8
            kind = GGMLQuantizationType[tensors] if quantised else None
            writer.add_tensor(key, value, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return write


def _pickle(model: Path, tensors: Tensors) -> None:
    (model / "model.pkl").write_bytes(pickle.dumps(dict(tensors), protocol=5))


def _joblib(**options: Any) -> Write:
    def write(model: Path, tensors: Tensors) -> None:
        import joblib

        joblib.dump(dict(tensors), model / "model.joblib", **options)

    return write


def _msgpack(model: Path, tensors: Tensors) -> None:
    """As Flax writes them: extension 1 of shape, dtype and bytes; keys are nested."""
    nested: dict[str, Any] = {}
    for key, value in tensors.items():
        *folders, name = key.split(".")
        inside = nested
        for part in folders:
            inside = inside.setdefault(part, {})
        inside[name] = value
    (model / "model.msgpack").write_bytes(packed(nested))


def packed(value: Any) -> bytes:
    """MessagePack, as much of it as a state of arrays needs."""
    match value:
        case dict():
            items = (packed(key) + packed(inner) for key, inner in value.items())
            return bytes([0x80 | len(value)]) + b"".join(items)
        case tuple():
            return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
        case str():
            return bytes([0xA0 | len(value)]) + value.encode()
        case int():
            return b"\xcd" + struct.pack(">H", value)
        case bytes():
            return b"\xc6" + struct.pack(">I", len(value)) + value
    inner = packed((value.shape, value.dtype.name, value.tobytes()))
    return b"\xc9" + struct.pack(">I", len(inner)) + b"\x01" + inner


def _tar(model: Path, tensors: Tensors) -> None:
    _save_file(model, tensors)
    plain = model / "model.safetensors"
    with tarfile.open(model / "model.tar.gz", "w:gz", compresslevel=6) as archive:
        archive.add(plain, plain.name)
    plain.unlink()


class Format(NamedTuple):
    write: Write
    needs: tuple[str, ...] = ()
    tensors: str = "F32"


FORMATS = {
    "safetensors": Format(_save_file),
    "torch": Format(_torch(), ("torch",)),
    "torch, old format": Format(_torch(_use_new_zipfile_serialization=False), ("torch",)),
    "DCP folder": Format(_dcp, ("torch",)),
    "npy files": Format(_npy),
    "npz": Format(lambda model, tensors: np.savez(model / "model.npz", **tensors)),
    "npz, compressed": Format(
        lambda model, tensors: np.savez_compressed(model / "model.npz", **tensors)
    ),
    "ONNX": Format(_onnx(), ("onnx",)),
    "ONNX, external data": Format(
        _onnx(save_as_external_data=True, location="model.onnx.data", size_threshold=0), ("onnx",)
    ),
    "HDF5": Format(_h5(), ("h5py",)),
    "HDF5, chunked": Format(_h5(chunks=True), ("h5py",)),
    "HDF5, compressed": Format(_h5(compression="gzip"), ("h5py",)),
    ".weights.h5": Format(_weights_h5, ("h5py",)),
    ".keras": Format(_keras, ("h5py",)),
    "GGUF, F16": Format(_gguf("F16"), ("gguf",), "F16"),
    "GGUF, Q8_0": Format(_gguf("Q8_0"), ("gguf",), "Q8_0"),
    "GGUF, Q4_1": Format(_gguf("Q4_1"), ("gguf",), "Q4_1"),
    "pickle": Format(_pickle),
    "joblib": Format(_joblib(), ("joblib",)),
    "joblib, compressed": Format(_joblib(compress=3), ("joblib",)),
    "msgpack (Flax)": Format(_msgpack),
    "tar.gz": Format(_tar),
}


if __name__ == "__main__":
    main()
