"""Nothing runs from data: bombs are built by hand and must stay inert; mvc has no means to run."""

from __future__ import annotations

import ast
import contextlib
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import InvalidPipeline, MvcError
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS, STAGES
from tests.hostile.bounded import bounded

FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve",
    "pickletools", "code", "codeop", "runpy", "ctypes", "cffi",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "save"),
    ("yaml", "unsafe_load"), ("yaml", "full_load"), ("yaml", "Loader"), ("yaml", "UnsafeLoader"),
    ("yaml", "FullLoader"), ("os", "system"), ("os", "popen"), ("importlib", "import_module"),
    ("metadata", "entry_points"),
}  # fmt: skip
WRITERS = {("pickle", "dumps")}
"""What only writes: files in a form that a framework's own loader asks for."""

PACKAGE = Path(mvc.__file__).parent


def violations(tree: ast.AST) -> list[str]:
    """What a module could run data with."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                written = all((node.module, a.name) in WRITERS for a in node.names)
                names += [] if written else [node.module]
            found += [n for n in names if n.split(".")[0] in FORBIDDEN_MODULES]
            found += [n for n in names if n == "subprocess"]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] if node.func.id in FORBIDDEN_CALLS else []
            keywords = {k.arg: k.value for k in node.keywords}
            shell = keywords.get("shell")
            found += ["shell=True"] if isinstance(shell, ast.Constant) and shell.value else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = (node.value.id, node.attr)
            found += [".".join(pair)] if pair in FORBIDDEN_ATTRIBUTES else []
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append("allow_pickle")
        if isinstance(node, ast.keyword) and node.arg == "shell":
            found.append("shell")
    return found


ALLOWED = {
    ("faces.py", "__import__"),  # modules of mvc, which its own source names
    ("cli/program.py", "importlib.import_module"),
    ("adapters/files/hdf5.py", "subprocess"),  # mvc's own module, of which an answer is data
    ("frameworks/common/data.py", "torch.save"),
    ("io/ssh_keygen.py", "subprocess"),  # the user's ssh-keygen; what is signed is on its stdin
    ("cli/pager.py", "subprocess"),  # the program that the user's environment names
    ("repo/hook.py", "subprocess"),  # the command of the user's own settings
    ("repo/worktree/git_code.py", "subprocess"),  # git, without what a repository would have it run
    ("distributed/runner/child.py", "subprocess"),  # processes of a training: the user's script
    ("distributed/runner/script.py", "runpy"),  # that script, named on the command line
    (
        "remote/transports/ssh.py",
        "subprocess",
    ),  # the user's ssh; host and path are arguments of no shell
    ("server/listening.py", "ctypes"),  # mallopt(3), which Python does not have
    ("io/process.py", "ctypes"),  # prctl(2), which Python does not have
    ("models/definitions.py", "eval"),  # expressions without calls, of the user's own file
    ("models/definitions.py", "compile"),  # likewise
    ("recipes/replay.py", "torch.save"),
    ("recipes/replay.py", "subprocess"),  # mvc's own worker, once the user trusts the code
    ("models/stored_code.py", "importlib.import_module"),  # likewise
    ("recipes/worker.py", "torch.load"),  # with weights_only=True, of what replay.py wrote
    ("recipes/worker.py", "torch.save"),
}


def test_the_package_has_no_means_to_run_data() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 100
    bad = [
        (str(path.relative_to(PACKAGE)), what)
        for path in modules
        for what in violations(ast.parse(path.read_text()))
    ]
    assert [b for b in bad if b not in ALLOWED] == []


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "eval('1')", "exec('')", "import marshal",
     "import shelve", "torch.load(f)", "np.load(f, allow_pickle=True)", "os.system('x')",
     "yaml.unsafe_load(f)", "run(x, shell=True)", "import subprocess", "__import__('x')"],
)  # fmt: skip
def test_the_check_sees(source: str) -> None:
    assert violations(ast.parse(source))


def pickle_bomb(marker: Path) -> bytes:
    """``os.system("touch MARKER")``, as opcodes."""
    command = f"touch {marker}".encode()
    return b"\x80\x02cos\nsystem\n" + b"X" + struct.pack("<I", len(command)) + command + b"\x85R."


def torch_zip(pickle: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", bytes(16))
    return out.getvalue()


def npy_of_objects(pickle: bytes) -> bytes:
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    head += b" " * (117 - len(head)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + pickle


def npz(pickle: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.npy", npy_of_objects(pickle))
        plain = io.BytesIO()
        np.save(plain, np.ones(3))
        archive.writestr("b.npy", plain.getvalue())
    return out.getvalue()


BOMBS = {
    "bomb.pt": torch_zip,
    "bomb.pkl": lambda p: p,
    "legacy.pt": lambda p: p,
    "bomb.npy": npy_of_objects,
    "bomb.npz": npz,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_bomb_is_kept_and_never_runs(tmp_path: Path, name: str) -> None:
    marker, root = tmp_path / "marker", tmp_path / "repo"
    data = BOMBS[name](pickle_bomb(marker))
    with Repository.init(root) as repo:
        file = root / name
        file.write_bytes(data)
        id_ = str(repo.commit([file]).id)
        repo.status()
        repo.identify(file)
        assert repo.storage.fsck(full=True).problems == ()
        with contextlib.suppress(MvcError):
            repo.checkout(id_)
        repo.diff(id_)
        repo.checkout(id_, to=tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == data
    assert not marker.exists()


NAMED = [
    "pickle", "pickles", "numcodecs.pickles", "mvc.cli.main", "os.system", "import:os", "gzip",
    "zstd:/etc/passwd", "zstd:1;rm", "sub | __import__", "planes:all:x", "zstd:-1", "zstd:23",
    "raw:1", "", "|", "sub || raw",
]  # fmt: skip


@pytest.mark.parametrize("text", NAMED)
def test_a_codec_outside_the_closed_table(text: str) -> None:
    with pytest.raises(InvalidPipeline):
        Pipeline.parse(text)


def test_the_tables_are_closed() -> None:
    assert set(STAGES) == {
        "every", "drift", "topk", "topk-all", "sub", "xor", "lsb", "guard", "dsed", "zigzag",
        "elide", "planes", "blocks", "sparse", "grid", "steps", "gaps", "lattice",
        "zstd", "zlib", "bz2", "lzma", "brotli", "raw",
        "expq", "promote", "uniform", "huffman", "packed", "ans",
    }  # fmt: skip
    assert all(Pipeline.parse(text) for text in PRESETS.values())


def nested(depth: int) -> bytes:
    """Tuples that each hold the one before twice: 2**depth leaves, if somebody unfolds them."""
    return b"\x80\x02K\x01" + b"\x85" + b"2\x86" * depth + b"."


def read_file(path: str) -> None:
    from mvc.adapters.files.detect import parse_file
    from mvc.io.files import FileSystem

    with FileSystem().open_read(Path(path)) as source:
        parse_file(source, path)


@pytest.mark.parametrize(
    "pickle",
    [nested(1000), b"\x80\x02" + b"]" * 900_000 + b"a" * 899_999 + b".",
     b"\x80\x02" + b"(" * 900_000 + b".", b"\x80\x02" + b"K\x01q\x00" + b"h\x00" * 1_000_000 + b".",
     b"\x80\x02\x8b\xff\xff\xff\x7f", b"\x80\x02\x8e" + b"\xff" * 8, b"\x80\x02X\xff\xff\xff\xff.",
     b"\x80\x02I" + b"9" * 100_000 + b"\n.", b"\x80\x02]q\x002" + b"(h\x00h\x00e" * 20_000 + b"."],
    ids=["laughs", "deep lists", "marks", "copies", "long", "bytes", "text", "digits", "itself"],
)  # fmt: skip
def test_pickles_that_would_unfold(tmp_path: Path, pickle: bytes) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(torch_zip(pickle))
    bounded("tests.hostile.test_no_execution:read_file", path).within(512, 20)
