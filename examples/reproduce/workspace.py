"""The folder of a run: results that are measured once, what stays open, reports."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from mvc.errors import BadModelFile, UnknownPath

__all__ = [
    *("Progress", "Workspace", "bytes_in", "compact", "digest", "empty_folder", "lock"),
    *("machine", "named", "read_json", "write"),
]

T = TypeVar("T", bound=AbstractContextManager[Any])

Progress = Callable[[str, int, int], object]
"""Of what, how much is done, of how much."""

_MAX_JSON = 16 << 20


def named(progress: Progress, name: str) -> Progress:
    """The same progress with a name before what is done."""
    return lambda what, done, total: progress(f"{name}: {what}", done, total)


class Workspace(AbstractContextManager["Workspace"]):
    """A folder with ``results/`` and ``tables/``. Close it, or use it as a context manager."""

    def __init__(self, folder: Path, progress: Progress = lambda *_: None) -> None:
        self.folder, self.progress = folder, progress
        self._stack = ExitStack()
        self._opened: dict[Path, Any] = {}

    def once(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The result of this name; measured, and kept as JSON, if there is none yet.

        A second process that asks for it waits. Raises BadModelFile for a file that is no result.
        """
        file = self.folder / "results" / f"{name}.json"
        with lock(file.with_suffix(".lock")):
            if not file.exists():
                write(file, json.dumps(measure(), indent=1).encode())
            return self._result(file)

    def grown(
        self, name: str, more: Callable[[dict[str, Any]], Mapping[str, Any] | None]
    ) -> dict[str, Any]:
        """A result that ``more`` makes larger until it gives None; each step is kept."""
        file = self.folder / "results" / f"{name}.json"
        with lock(file.with_suffix(".lock")):
            result = self._result(file) if file.exists() else {}
            while (larger := more(result)) is not None:
                result = dict(larger)
                write(file, json.dumps(result, indent=1).encode())
            return result

    def empty(self, name: str) -> AbstractContextManager[Path]:
        """A new folder next to the results, gone at the end."""
        return empty_folder(self.folder / "results" / f"{name}.repository")

    def opened(self, folder: Path, opens: Callable[[Path], T]) -> T:
        """What was opened in a folder, the same one until the workspace is closed."""
        if folder not in self._opened:
            self._opened[folder] = self._stack.enter_context(opens(folder))
        return cast(T, self._opened[folder])

    def publish(self, name: str, data: bytes) -> Path:
        """Writes a table or a picture."""
        return write(self.folder / "tables" / name, data)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def _result(file: Path) -> dict[str, Any]:
        result = read_json(file)
        if not isinstance(result, dict) or not result:
            raise BadModelFile(f"{file} is no result", hint="delete it: it is made again")
        return result


def read_json(file: Path) -> Any:
    """The value of a JSON file; None if it has none. Raises UnknownPath."""
    if not file.exists():
        raise UnknownPath(f"there is no {file}", hint="name a JSON file of a folder tables/")
    try:
        return json.loads(file.read_bytes()) if file.stat().st_size <= _MAX_JSON else None
    except (ValueError, RecursionError):
        return None


def write(file: Path, data: bytes) -> Path:
    """Writes a file in one step, its folders included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_bytes(data)
    return part.replace(file)


@contextmanager
def lock(file: Path) -> Iterator[None]:
    """Nobody else is inside; another process waits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def digest(value: object, length: int) -> str:
    """A name for plain values: equal values, equal name."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def compact(report: Mapping[str, Any]) -> bytes:
    """A report as JSON; rows of numbers are one line each."""
    text = json.dumps(report, indent=1, allow_nan=False)
    return re.sub(r"\[[^][{}\"]*\]", lambda row: " ".join(row[0].split()), text).encode()


def machine() -> str:
    """What a run ran on."""
    import torch

    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    return f"torch {torch.__version__}, its threads: {threads}, processors: {cores}"


def bytes_in(folder: Path) -> int:
    """Total length in bytes of all files below a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


@contextmanager
def empty_folder(folder: Path) -> Iterator[Path]:
    """A new folder in place of whatever was there, deleted at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
