"""numpy arrays with the dtypes of ml_dtypes; and where torch is not installed, no other tensors."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mvc.api.repository import Repository
from tests.cli.program import python

EXTENSIONS = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
              "float8_e8m0fnu"]  # fmt: skip


def numbers(name: str, shape: tuple[int, ...] = (3, 4)) -> np.ndarray:
    """Every bit pattern is one number of its own."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    count = int(np.prod(shape)) * dtype.itemsize
    return np.arange(count, dtype=np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(), (0, 2), (3, 4)])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_arrays_of_ml_dtypes_come_back(repo: Repository, name: str, shape: tuple[int, ...]) -> None:
    given = numbers(name, shape)
    repo.commit({"w": given, "some": [given[::-1] if shape else given[()]]})
    back = repo.checkout()
    assert type(back["w"]) is np.ndarray and back["w"].dtype == given.dtype
    assert back["w"].shape == shape and back["w"].tobytes() == given.tobytes()
    other = back["some"][0]
    assert type(other) is (np.ndarray if shape else given.dtype.type)
    assert other.tobytes() == (given[::-1] if shape else given).tobytes()


def test_other_extensions_are_refused_by_name(repo: Repository) -> None:
    with pytest.raises(Exception, match=r"w is a numpy array of dtype .* which cannot be stored"):
        repo.commit({"w": np.zeros(3, ml_dtypes.int4)})


# -- without torch -------------------------------------------------------------------------

CODES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "U8": 1,
         "BOOL": 1, "C64": 8}  # fmt: skip


def write_file(path: Path, codes: dict[str, int]) -> None:
    """A safetensors file with two elements of each dtype."""
    header, data = {}, b""
    for code, size in codes.items():
        part = bytes(i % 2 for i in range(2 * size))
        header[code] = {"dtype": code, "shape": [2], "data_offsets": [len(data), len(data + part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def without_torch(repo: Repository, script: str) -> list[str]:
    """The lines that a script prints, in a process that cannot import torch."""
    done = python(
        "import sys; sys.modules['torch'] = None\n"
        "import mvc, numpy\n"
        f"repo = mvc.Repository.open({str(repo.root)!r})\n{script}"
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_tensors_of_files_are_arrays_without_torch(repo: Repository) -> None:
    write_file(repo.root / "model.safetensors", CODES)
    first = repo.commit(repo.root / "model.safetensors").commit
    lines = without_torch(
        repo,
        "state = repo.checkout()\n"
        "for name, value in state.items():\n"
        "    print(name, type(value).__name__, value.dtype, value.tobytes().hex())\n"
        "print(mvc.root_of(state).hex())\n",
    )
    assert [line.split()[:3] for line in lines[:-1]] == [
        [code, "ndarray", str(np.dtype(getattr(ml_dtypes, name, None) or name))]
        for code, name in zip(
            CODES,
            ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64",
             "uint8", "bool", "complex64"],
            strict=True,
        )
    ]  # fmt: skip
    data = (repo.root / "model.safetensors").read_bytes()
    assert "".join(line.split()[3] for line in lines[:-1]) in data.hex()
    assert lines[-1] == first.root.hex()


def test_what_needs_torch_says_so_in_one_line(repo: Repository) -> None:
    write_file(repo.root / "model.safetensors", {"C32": 4})
    repo.commit(repo.root / "model.safetensors")
    calls = {
        "recording, resuming or loading a model": "mvc.Recorder",
        "comparing two runs of a model": "mvc.probe",
        "recording how a model is built": "mvc.describe_model(object())",
        "taking part in a training": "mvc.distributed.join",
        "recording a training": "mvc.record(repo, None, service=print)",
        "a tensor of the dtype complex32": "repo.checkout()",
        "torch.distributed.checkpoint": "import mvc.frameworks.dcp",
    }
    lines = without_torch(
        repo,
        "import mvc.distributed\n"
        f"for call in {list(calls.values())!r}:\n"
        "    try:\n        exec(call)\n        print('nothing')\n"
        "    except mvc.MvcError as error:\n        print(error.kind, error)\n",
    )
    assert lines == [
        f"not-installed {what} needs torch: pip install 'mvc-weights[torch]'" for what in calls
    ]
