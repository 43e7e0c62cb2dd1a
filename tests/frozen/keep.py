"""Stores a repository that a program of the time made, as the tests of this folder read it."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from describe import describe

from tests.oracle import reader


def keep(out: Path, name: str, make: Callable[[Path], object]) -> None:
    """Makes a repository and stores it as NAME.zip, with what is answered now as NAME.json."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "repo"
        make(root)
        file = out / f"{name}.zip"
        with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            for path in sorted((root / ".mvc").rglob("*")):
                if path.is_file() and "index.lmdb" not in path.parts:
                    z.writestr(path.relative_to(root).as_posix(), path.read_bytes())
        with zipfile.ZipFile(file) as z:
            z.extractall(again := Path(folder).resolve() / "again")
        found = describe(again)
        found["second reader"] = sorted(map(bytes.hex, reader.Repository(again / ".mvc").commits))
    text = json.dumps(found, indent=1, ensure_ascii=True, sort_keys=True)
    (out / f"{name}.json").write_text(text + "\n")
