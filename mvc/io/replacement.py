"""Replaces several files of a folder together (layer 1).

All files are written, flushed and checked under temporary names before the first is renamed. Only
the renames come one after the other. A *plan* names the temporary files from the beginning, and is
locked while its process lives. What a killed process leaves is decided by the next one that calls
``finish_interrupted``: if all files were ready, it does the remaining renames; if not, it deletes
the temporary files.

A plan is two lines: the folder and the steps as JSON, and, once every file is ready, ``ready`` with
the CRC-32 of the first line.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mvc.dataclasses import dataclass
from mvc.errors import IoFailed, MvcError, WouldOverwrite
from mvc.io.files import TEMPORARY, FileIdentity, FileLock, FileSystem, WriteFile

__all__ = ["Fill", "finish_interrupted", "replace_together"]

Fill = Callable[[WriteFile], None]
"""Writes the content of a file."""

_PLAN = re.compile(r"[0-9a-f]{16}")
_TEMPORARY = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}")
_MOST = 1 << 28  # bytes of a plan
_NAMED = 10  # files in a message


@dataclass(frozen=True, slots=True)
class _Step:
    """One file. ``temporary`` is renamed to ``name``; if it is empty, ``name`` is deleted.

    ``before`` is what stood at ``name``: size, mtime and ctime in ns, inode; empty for nothing.
    """

    name: str
    temporary: str
    before: tuple[int, ...]

    def place(self, folder: Path) -> Path:
        return folder / self.name

    def written(self, folder: Path) -> Path:
        return self.place(folder).with_name(self.temporary)


def replace_together(
    fs: FileSystem,
    folder: Path,
    files: Mapping[str, Fill],
    deletes: Sequence[str] = (),
    *,
    plans: Path | None,
    inside: bool = False,
) -> None:
    """Replaces ``files`` of ``folder`` by what each of them is filled with, and deletes others.

    If anything fails before all of them are written and flushed, nothing has changed. ``plans`` is
    the folder of plans, in a repository; without it nobody completes what a killed process left.
    ``inside``: the plan does not name ``folder``, so it stays valid if both are moved. No symbolic
    link below ``folder`` is followed. Files that are replaced hand on their permissions.
    """
    steps = [_Step(n, f"{TEMPORARY}{os.urandom(8).hex()}", _before(fs, folder / n)) for n in files]
    steps += [_Step(name, "", _before(fs, folder / name)) for name in deletes]
    if not steps:
        return
    plan = None if plans is None else _Plan.begin(fs, plans, "" if inside else str(folder), steps)
    try:
        try:
            for step, fill in zip(steps, files.values(), strict=False):
                fs.make_dirs(step.place(folder).parent, within=folder)
                fs.write_beside(step.place(folder), step.temporary, fill, within=folder)
            _refuse_folded(fs, folder, [step for step in steps if step.temporary])
            if plan is not None and len(steps) > 1:
                _sync(fs, folder, steps)
                plan.ready()
        except BaseException as error:
            _drop(fs, folder, steps)
            if plan is not None:
                plan.end()
            if isinstance(error, MvcError) and len(steps) > 1:
                raise _saying(error, "no file was replaced") from error
            raise
        try:
            _carry_out(fs, folder, steps)
        except MvcError:
            if plan is None or len(steps) == 1:  # else the next command does what is left, once
                _drop(fs, folder, steps)
                if plan is not None:
                    plan.end()
            raise
        if plan is not None:
            plan.end()
    finally:
        if plan is not None:
            plan.lock.release()


def finish_interrupted(fs: FileSystem, plans: Path, root: Path) -> list[Path]:
    """Completes or takes back what killed processes left; returns the files it replaced.

    ``root`` is the folder of plans that name none. A file that has changed since the plan was made
    is not replaced: then the remaining steps of its plan are dropped.
    """
    identity = fs.stat(plans, follow=False)
    if identity is None or not identity.is_dir:
        return []
    done = []
    for name in fs.list(plans):
        lock = fs.lock(plans / name, block=False) if _PLAN.fullmatch(name) else None
        if lock is not None:
            with lock:
                # What cannot be finished must not hold up the next command, and every one after.
                with suppress(MvcError, ValueError):
                    done += _finish(fs, plans / name, root)
                fs.unlink(plans / name, missing_ok=True, within=plans)
    return done


def _finish(fs: FileSystem, path: Path, root: Path) -> list[Path]:
    found = _parse(fs.read_bytes(path, _MOST))
    if found is None:
        return []
    named, steps, ready = found
    folder = Path(named) if named else root
    if fs.stat(folder) is None:
        return []
    left = [
        s for s in steps if not s.temporary or fs.stat(s.written(folder), follow=False) is not None
    ]
    # A deletion outside of the repository's folder must fit in every detail: a plan may be forged.
    exact = 4 if named else 2
    deletes = [
        s
        for s in left
        if not s.temporary and s.before and _before(fs, s.place(folder))[:exact] == s.before[:exact]
    ]
    writes = [s for s in left if s.temporary]
    if not ready or any(_before(fs, s.place(folder))[:2] != s.before[:2] for s in writes):
        _drop(fs, folder, writes)
        return []
    try:
        _carry_out(fs, folder, [*writes, *deletes])
    except MvcError:
        _drop(fs, folder, writes)
        raise
    return [s.place(folder) for s in writes]


class _Plan:
    """The plan of a running replacement; other processes leave it alone while it is locked."""

    def __init__(self, fs: FileSystem, path: Path, lock: FileLock, line: bytes) -> None:
        self._fs, self._path, self._line = fs, path, line
        self.lock = lock

    @classmethod
    def begin(cls, fs: FileSystem, plans: Path, folder: str, steps: Sequence[_Step]) -> _Plan:
        try:
            fs.make_dirs(plans, within=plans.parent)  # its name must be durable, too
        except FileExistsError:
            raise IoFailed(f"{plans} is not a folder", hint="move away what stands there") from None
        listed = [[step.name, step.temporary, *step.before] for step in steps]
        line = json.dumps({"folder": folder, "steps": listed}).encode() + b"\n"
        path = plans / os.urandom(8).hex()
        plan = cls(fs, path, fs.lock(path), line)
        try:
            with fs.open_write(path, within=plans) as file:
                file.write(line)
        except BaseException:
            plan.end()
            plan.lock.release()
            raise
        return plan

    def ready(self) -> None:
        """Every temporary file is complete and durable."""
        with self._fs.open_write(self._path, within=self._path.parent) as file:
            file.write(_ready(self._line))
            file.sync()
        self._fs.sync_dir(self._path.parent, within=self._path.parent)

    def end(self) -> None:
        """Nothing is left to do. A failure is ignored: the plan then finds nothing to do."""
        with suppress(MvcError):
            self._fs.unlink(self._path, missing_ok=True, within=self._path.parent)


def _ready(line: bytes) -> bytes:
    return b"ready %08x\n" % zlib.crc32(line)


def _parse(data: bytes) -> tuple[str, list[_Step], bool] | None:
    """Folder, steps, and whether all files are ready; None for what is no plan."""
    line, end, rest = data.partition(b"\n")
    try:
        found = json.loads(line)
        folder = found["folder"]
        steps = [_Step(name, temporary, tuple(rest)) for name, temporary, *rest in found["steps"]]
        sound = all(map(_is_sound, steps)) and (folder == "" or Path(folder).is_absolute())
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (folder, steps, rest == _ready(line + end)) if sound else None


def _is_sound(step: _Step) -> bool:
    """Whether a step stays inside of its folder and out of a repository's own."""
    parts = Path(step.name).parts
    inside = bool(parts) and parts[0] != "/" and not {"..", ".mvc"} & {p.lower() for p in parts}
    temporary = step.temporary == "" or _TEMPORARY.fullmatch(step.temporary) is not None
    return inside and temporary and len(step.before) in {0, 4}


def _before(fs: FileSystem, path: Path) -> tuple[int, ...]:
    found: FileIdentity | None = fs.stat(path, follow=False)
    return () if found is None else (found.size, found.mtime_ns, found.ctime_ns, found.inode)


def _refuse_folded(fs: FileSystem, folder: Path, steps: Sequence[_Step]) -> None:
    """Raises WouldOverwrite if two names that differ in case are one file on this file system."""
    known: dict[str, _Step] = {}
    for step in steps:
        other = known.setdefault(step.name.casefold(), step)
        path = step.written(folder)
        if other is not step and fs.stat(path.with_name(path.name.upper())) is not None:
            raise WouldOverwrite(
                f"{step.name} and {other.name} are one name on this file system",
                hint="check them out one at a time with -o, or where case is told apart",
            )


def _carry_out(fs: FileSystem, folder: Path, steps: Sequence[_Step]) -> None:
    """Renames and deletes; durable on return. The error of a failure says what was done."""
    done = 0
    try:
        for step in steps:
            if step.temporary:
                fs.replace(step.written(folder), step.place(folder), within=folder)
            else:
                fs.unlink(step.place(folder), missing_ok=True, within=folder)
            done += 1
        _sync(fs, folder, steps)
    except MvcError as error:
        if len(steps) == 1:
            raise
        text = f"done: {_listed(steps[:done])}; not done: {_listed(steps[done:])}"
        raise _saying(error, text) from error


def _listed(steps: Sequence[_Step]) -> str:
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    return (", ".join(step.name for step in steps[:_NAMED]) or "nothing") + more


def _saying(error: MvcError, text: str) -> MvcError:
    return type(error)(f"{error.message}; {text}", hint=error.hint)


def _sync(fs: FileSystem, folder: Path, steps: Sequence[_Step]) -> None:
    for parent in sorted({step.place(folder).parent for step in steps}):
        fs.sync_dir(parent, within=folder)


def _drop(fs: FileSystem, folder: Path, steps: Sequence[_Step]) -> None:
    """Deletes the temporary files; one that cannot be deleted stays."""
    for step in steps:
        if step.temporary:
            with suppress(IoFailed):
                fs.unlink(step.written(folder), missing_ok=True, within=folder)
