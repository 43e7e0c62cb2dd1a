"""Files that are nothing in particular, and files that change under the reader."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mvc.adapters
from mvc.adapters.files.detect import opaque, parse_file
from mvc.errors import SourceChanged
from mvc.io.files import FileSystem
from tests.adapters.helpers import MemorySource, round_trip


@given(st.binary(max_size=64))
def test_any_bytes_come_back(data):
    entry = round_trip(data)
    assert entry.format == "opaque" and entry.contents[0].spec.shape == (len(data),)


def test_a_file_that_became_shorter_is_named():
    source = MemorySource(bytes(100))
    parsed = opaque(source, "net.pt")
    source.data = bytes(50)
    with pytest.raises(SourceChanged, match=r"net\.pt"):
        parsed.read(0, 0, memoryview(bytearray(100)))


def test_parsing_imports_neither_torch_nor_numpy():
    code = (
        "import sys, mvc.adapters.files.detect, mvc.adapters.files.assemble\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numpy_states_import_no_torch():
    code = (
        "import sys, numpy, mvc.adapters.python.state as p\n"
        "p.from_state({'a': numpy.ones(2)}).skeleton()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_source_file_can_run_what_it_reads():
    forbidden = {"pickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle"}
    for path in Path(mvc.adapters.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {n.split(".")[0] for n in names}, path
            called = node.func if isinstance(node, ast.Call) else None
            assert getattr(called, "id", "") not in {"eval", "exec", "__import__"}, path


def test_files_on_disk(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(6.0))
    with FileSystem().open_read(path) as file:
        parsed = parse_file(file, "array.npy")
        assert parsed.format == "npy"
        out = bytearray(16)
        parsed.read(0, 8, memoryview(out))
        assert out == np.array([1.0, 2.0]).tobytes()
        assert len(parsed.skeleton()) == 128


def test_the_start_of_a_zip_is_no_zip():
    assert parse_file(MemorySource(b"PK\x03\x04"), "x").format == "opaque"
