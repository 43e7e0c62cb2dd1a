"""The index of a repository: its files, and how far it goes; the files that are open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mvc.api import Repository


def index_file(root: Path) -> Path:
    """The file that says what is indexed; absent where there is no index."""
    return root / ".mvc/index/current"


def index_runs(root: Path) -> list[Path]:
    """The files of the runs."""
    return sorted((root / ".mvc/index").glob("*.run"))


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
