"""The oracle: short, of nothing of mvc; and what it reads as strict as the document wants it."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.oracle import grid, optim, reader, steps
from tests.oracle.holding import commit_files, commit_states, rng, series
from tests.oracle.reader import Cursor

ALLOWED = {"numpy", "zstandard", "blake3", "brotli", *sys.stdlib_module_names}
LINES = 420


def test_the_reader_is_short_and_imports_nothing_of_mvc():
    texts = [
        Path(part.__file__).read_text(encoding="utf-8") for part in (reader, grid, optim, steps)
    ]
    assert len(texts[0].splitlines()) <= LINES
    assert max(len(line) for text in texts for line in text.splitlines()) <= 100
    imported = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level
            own = [alias.name for alias in node.names] == ["grid", "optim", "steps"]
            imported |= set() if own else {str(node.module).split(".")[0]}
    assert imported <= ALLOWED
    assert not {"importlib", "subprocess", "runpy"} & imported


def test_the_reader_loads_without_mvc():
    code = (
        "import runpy, sys; sys.modules['mvc'] = None; sys.path.append(sys.argv[2]);"
        "found = runpy.run_path(sys.argv[1]);"
        "assert 'Repository' in found and not [m for m in sys.modules if m.startswith('mvc.')]"
    )
    root = str(
        Path(__file__).parents[2]
    )  # the reader's other parts are tests.oracle.grid and .steps
    subprocess.run([sys.executable, "-I", "-c", code, reader.__file__, root], check=True)


def test_what_mvc_writes_is_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the reader passes over: lengths of chunks, headers of frames, marks, the end of all."""
    seen: dict[str, int] = {}

    def ended(name: str) -> None:
        decode = getattr(Cursor, name)

        def strict(self: Cursor, *args: Any) -> Any:
            found = decode(self, *args)
            assert self.at == len(self.data), f"bytes follow a {name} payload"
            seen[name] = seen.get(name, 0) + 1
            return found

        monkeypatch.setattr(Cursor, name, strict)

    def chunked(self: Cursor, size: int, coding: str, *base: Any) -> Any:
        c = Cursor(self.data)
        head = c.take(1)[0]
        assert 6 <= head >> 2 <= 40
        count = -(-size >> (head >> 2))
        ends = [c.get("uint") for _ in range(count - 1)]
        starts.clear()
        found = single(self, size, coding, *base)
        assert [b - a for a, b in pairwise(starts)] == ends
        assert not starts or starts[0] == c.at
        seen["chunks"] = max(seen.get("chunks", 0), len(starts))
        return found

    def begun(self: Cursor, *args: Any) -> Any:
        starts.append(self.at)
        return chunk(self, *args)

    def framed(self: Cursor, dictionary: bytes = b"") -> bytes:
        at = self.at
        parameters = zstandard.get_frame_parameters(self.get("bytes"))
        self.at = at
        found = frame(self, dictionary)
        assert parameters.content_size == len(found) and parameters.window_size <= 8 << 20
        assert not parameters.has_checksum and not parameters.dict_id
        seen["frames"] = seen.get("frames", 0) + 1
        return found

    def whole(self: Cursor, kind: str, outer: Any = None) -> Any:
        found = get(self, kind, outer)
        if kind in ("entry", "made", "version,*file"):
            assert self.at == len(self.data), f"bytes follow the fields of {kind}"
            seen[kind] = seen.get(kind, 0) + 1
        return found

    starts: list[int] = []
    single, chunk, frame, get = Cursor.single, Cursor.chunk, Cursor.frame, Cursor.get
    monkeypatch.setattr(Cursor, "get", whole)
    monkeypatch.setattr(Cursor, "single", chunked)
    monkeypatch.setattr(Cursor, "chunk", begun)
    monkeypatch.setattr(Cursor, "frame", framed)
    for name in ("single", "group", "patch"):
        ended(name)
    for pipeline in ("lossless", "vsol"):
        commit_states(tmp_path / pipeline, *series(3), *series(2, (900, 700)), pipeline=pipeline)
    data = rng().bytes(200_000)
    commit_files(tmp_path / "files", {"f": data}, {"f": data[:999] + b"inserted" + data[999:]})
    assert seen["chunks"] > 1
    assert {"single", "group", "patch", "frames", "entry", "made", "version,*file"} <= seen.keys()
