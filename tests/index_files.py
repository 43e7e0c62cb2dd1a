"""The index of a repository: its file, and how far it goes; the files that are open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mvc.api import Repository

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


def open_files() -> list[Path]:
    """Files that this process has open, once for each descriptor; on Linux."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the folder
            found.append(descriptor.readlink())
    return found


def unindexed(repo: Repository) -> int:
    """How many operations an open repository knows from the journal alone."""
    snapshot = repo.handle.store.snapshot
    return snapshot.position.sequence - snapshot.indexed.sequence
