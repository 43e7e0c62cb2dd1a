"""Stores a repository, as the tests of this folder read it."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from mvc.limits import PACK_TARGET
from mvc.store.writing.full_or_delta import WORTH
from tests.frozen.describe import describe
from tests.oracle import reader


def keep(out: Path, make: Callable[[Path], object], *, index: bool = False) -> None:
    """Makes a repository and stores it as NAME.zip, with what is answered now as NAME.json."""
    name = make.__name__.replace("_", "-")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "repo"
        with (
            patch("mvc.store.writing.pack_writer.PACK_TARGET", PACK_TARGET),
            patch("mvc.store.writing.full_or_delta.WORTH", WORTH),
            patch.dict(os.environ),
        ):  # a maker may change them
            make(root)
        file = out / f"{name}.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            for path in sorted((root / ".mvc").rglob("*")):
                kept = path.is_file() and path.name != "lock.mdb"
                if kept and (index or "index.lmdb" not in path.parts):
                    z.writestr(path.relative_to(root).as_posix(), path.read_bytes())
        with zipfile.ZipFile(file) as z:
            z.extractall(again := Path(folder).resolve() / "again")
        found = describe(again)
        try:
            oracle = reader.Repository(again / ".mvc")
            found["second reader"] = sorted(map(bytes.hex, oracle.commits))
        except (reader.Bad, FileNotFoundError):
            found["second reader"] = "refuses"
    text = json.dumps(found, indent=1, ensure_ascii=True, sort_keys=True)
    (out / f"{name}.json").write_text(text + "\n")
