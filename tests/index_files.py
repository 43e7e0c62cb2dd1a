"""Where the index of a repository lies, for tests that look at its file or replace it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["index_file", "put_index"]

_NAME = "0123456789abcdef"


def index_file(root: Path) -> Path:
    """The LMDB file of the environment that counts; one that is absent where there is none."""
    folder = root / ".mvc/index.lmdb"
    current = folder / "current"
    name = current.read_text().strip() if current.exists() else _NAME
    return folder / name / "data.mdb"


def put_index(root: Path, data: bytes) -> None:
    """Makes ``data`` the LMDB file, in a place of its own where there is none."""
    path = index_file(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.parent.joinpath("current").write_text(f"{path.parent.name}\n")
    path.write_bytes(data)
