"""Replaces several files of a folder together (layer 1).

All files are written, flushed and checked under temporary names before the first is renamed. Only
the renames come one after the other. A *plan* names the temporary files from the beginning, and is
locked while its process lives. What a killed process leaves is decided by the next one that calls
``finish_interrupted``: if all files were ready, and are what the plan says, it does the remaining
renames; if not, it deletes the temporary files.

A plan is two lines: the folder, the steps and the checks as JSON, and, once every file is ready,
``ready`` with the CRC-32 of the first line. An empty plan keeps replacements in one place apart.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from msgspec import Struct

from mvc.errors import Busy, IoFailed, MvcError, WouldOverwrite
from mvc.io.files import TEMPORARY, FileIdentity, FileLock, FileSystem, WriteFile

__all__ = ["Fill", "finish_interrupted", "make_folder", "one_at_a_time", "replace_together"]

Fill = Callable[[WriteFile], None]
"""Writes the content of a file."""

_PLAN = re.compile(r"[0-9a-f]{16}")
_TEMPORARY = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}")
_MOST = 1 << 28  # bytes of a plan
_NAMED = 10  # files in a message
_LOCK_SECONDS = 60


class _Step(Struct, frozen=True):
    """One file. ``temporary`` is renamed to ``name``; if it is empty, ``name`` is deleted.

    ``before`` is what stood at ``name``: size, mtime and ctime in ns, inode; empty for nothing.
    ``check`` tells the content of ``temporary`` from any other.
    """

    name: str
    temporary: str
    before: tuple[int, ...]
    check: str = ""

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
    checks: Mapping[str, str],
) -> list[str]:
    """Replaces ``files`` of ``folder`` by what each of them is filled with, and deletes others.

    If anything fails before all of them are written and flushed, nothing has changed. ``plans`` is
    the folder of plans, in a repository; without it nobody completes what a killed process left.
    ``checks`` tell the contents of the files, for ``finish_interrupted``. ``inside``: the plan does
    not name ``folder``, so it stays valid if both are moved. No symbolic link below ``folder`` is
    followed. Files that are replaced hand on their permissions. Returns which of ``deletes`` are
    gone: one that is another name of a file just written stays.
    """
    steps = [
        _Step(n, f"{TEMPORARY}{os.urandom(8).hex()}", _before(fs, folder / n), checks[n])
        for n in files
    ]
    steps += [_Step(name, "", _before(fs, folder / name)) for name in deletes]
    if not steps:
        return []
    with _Plan(fs, folder, steps, plans, "" if inside else str(folder)) as plan:
        try:
            for step, fill in zip(steps, files.values(), strict=False):
                make_folder(fs, step.place(folder).parent, within=folder)
                fs.write_beside(step.place(folder), step.temporary, fill, within=folder)
            _refuse_folded(fs, folder, [step for step in steps if step.temporary])
            plan.get_ready()
        except MvcError as error:
            if len(steps) > 1:
                raise _saying(error, "no file was replaced") from error
            raise
        return _carry_out(fs, folder, steps)


def finish_interrupted(
    fs: FileSystem, plans: Path, root: Path, check: Callable[[Path, str], str]
) -> tuple[list[Path], list[Path]]:
    """Completes or takes back what killed processes left.

    Returns the files that it replaced, and those that it did not replace although a temporary file
    was there. ``root`` is the folder of plans that name none. ``check`` gives the check of the file
    at a path, under its final name. If a file has changed since the plan was made, or a temporary
    file is not what the plan says, the remaining steps of the plan are dropped.
    """
    replaced: list[Path] = []
    given_up: list[Path] = []
    identity = fs.stat(plans, follow=False)
    for name in fs.list(plans) if identity is not None and identity.is_dir else ():
        lock = fs.lock(plans / name, block=False) if _PLAN.fullmatch(name) else None
        if lock is not None:
            with lock:
                # What cannot be finished must not hold up the next command, and every one after.
                with suppress(MvcError, ValueError):
                    done, left = _finish(fs, plans / name, root, check)
                    replaced += done
                    given_up += left
                fs.unlink(plans / name, missing_ok=True, within=plans)
    return replaced, given_up


def _finish(
    fs: FileSystem, path: Path, root: Path, check: Callable[[Path, str], str]
) -> tuple[list[Path], list[Path]]:
    found = _parse(fs.read_bytes(path, _MOST))
    if found is None:
        return [], []
    named, steps, ready = found
    folder = Path(named) if named else root
    if fs.stat(folder) is None:
        return [], []
    # A deletion outside of the repository's folder must fit in every detail: a plan may be forged.
    exact = 4 if named else 2
    deletes = [
        s
        for s in steps
        if not s.temporary and s.before and _before(fs, s.place(folder))[:exact] == s.before[:exact]
    ]
    writes = _waiting(fs, folder, steps)
    with suppress(MvcError):
        if ready and all(
            _before(fs, s.place(folder))[:2] == s.before[:2]
            and check(s.written(folder), s.name) == s.check
            for s in writes
        ):
            _carry_out(fs, folder, [*writes, *deletes])
    left = _waiting(fs, folder, writes)
    _drop(fs, folder, left)
    return [s.place(folder) for s in writes if s not in left], [s.place(folder) for s in left]


def _waiting(fs: FileSystem, folder: Path, steps: Sequence[_Step]) -> list[_Step]:
    """The steps whose temporary files are there."""
    writes = [step for step in steps if step.temporary]
    return [s for s in writes if fs.stat(s.written(folder), follow=False) is not None]


@contextmanager
def one_at_a_time(fs: FileSystem, plans: Path, place: Path) -> Iterator[None]:
    """Keeps other blocks with these plans and the same file or folder ``place`` waiting.

    Raises Busy after a minute.
    """
    make_folder(fs, plans, within=plans.parent)
    path = plans / f"{zlib.crc32(os.fsencode(place)):016x}"  # two places of one name only wait
    try:
        lock = fs.lock(path, timeout=_LOCK_SECONDS)
    except Busy:
        raise Busy(
            f"another checkout has been writing {place} for more than {_LOCK_SECONDS} s",
            hint="wait until it is done, then run it again",
        ) from None
    with lock:
        try:
            yield
        finally:
            with suppress(MvcError):
                fs.unlink(path, missing_ok=True, within=plans)


def make_folder(fs: FileSystem, folder: Path, *, within: Path | None = None) -> None:
    """As ``fs.make_dirs``, but IoFailed names what stands in the place of a folder."""
    try:
        fs.make_dirs(folder, within=within)
    except (FileExistsError, IoFailed) as error:
        for place in (folder, *folder.parents):
            there = fs.stat(place) or fs.stat(place, follow=False)
            if there is not None and not there.is_dir:
                raise IoFailed(
                    f"{place} is not a folder", hint="move away what stands there"
                ) from None
        if isinstance(error, IoFailed):
            raise
        raise IoFailed(f"{folder} is taken by something else") from error


class _Plan:
    """The plan of a running replacement; other processes leave it alone while it is locked.

    At the end of its block it is deleted, and what is left of the temporary files, unless all
    files were ready: then the next command does what is left, once.
    """

    def __init__(
        self, fs: FileSystem, folder: Path, steps: Sequence[_Step], plans: Path | None, named: str
    ) -> None:
        self._fs, self._folder, self._steps = fs, folder, steps
        self._path = None if plans is None else plans / os.urandom(8).hex()
        self._lock: FileLock | None = None
        self._is_ready = False
        listed = [[step.name, step.temporary, *step.before] for step in steps]
        found = {"folder": named, "steps": listed, "checks": [step.check for step in steps]}
        self._line = json.dumps(found).encode() + b"\n"

    def __enter__(self) -> Self:
        if self._path is not None:
            make_folder(self._fs, self._path.parent, within=self._path.parent.parent)
            self._lock = self._fs.lock(self._path)
            try:
                self._append(self._line)
            except BaseException as error:
                self.__exit__(type(error), error)
                raise
        return self

    def get_ready(self) -> None:
        """Every temporary file is complete; makes that durable. A single file needs none of it."""
        if self._path is not None and len(self._steps) > 1:
            _sync(self._fs, self._folder, self._steps)
            self._append(_ready(self._line), sync=True)
            self._fs.sync_dir(self._path.parent, within=self._path.parent)
            self._is_ready = True

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None or not self._is_ready:
            if error is not None:
                _drop(self._fs, self._folder, self._steps)
            if self._path is not None:
                with suppress(MvcError):  # a plan that stays finds nothing to do
                    self._fs.unlink(self._path, missing_ok=True, within=self._path.parent)
        if self._lock is not None:
            self._lock.release()

    def _append(self, line: bytes, *, sync: bool = False) -> None:
        assert self._path is not None
        with self._fs.open_write(self._path, within=self._path.parent) as file:
            file.write(line)
            if sync:
                file.sync()


def _ready(line: bytes) -> bytes:
    return b"ready %08x\n" % zlib.crc32(line)


def _parse(data: bytes) -> tuple[str, list[_Step], bool] | None:
    """Folder, steps, and whether all files are ready; None for what is no plan."""
    line, end, rest = data.partition(b"\n")
    try:
        found = json.loads(line)
        folder = found["folder"]
        checks = found.get("checks") or [""] * len(found["steps"])  # earlier versions wrote none
        steps = [
            _Step(name, temporary, tuple(before), check)
            for (name, temporary, *before), check in zip(found["steps"], checks, strict=True)
        ]
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


def _file(fs: FileSystem, path: Path) -> tuple[int, int] | None:
    """Which file stands at ``path``, whatever its name."""
    found = fs.stat(path, follow=False)
    return None if found is None else (found.device, found.inode)


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


def _carry_out(fs: FileSystem, folder: Path, steps: Sequence[_Step]) -> list[str]:
    """Renames, then deletes; durable on return. The error of a failure says what was done.

    Returns the names that it deleted. Where case is not told apart, a name to delete may be that of
    a file just written.
    """
    done, deleted, written = 0, [], set()
    try:
        for step in steps:
            place = step.place(folder)
            if step.temporary:
                fs.replace(step.written(folder), place, within=folder)
                written.add(_file(fs, place))
            elif _file(fs, place) not in written:
                fs.unlink(place, missing_ok=True, within=folder)
                deleted.append(step.name)
            done += 1
        _sync(fs, folder, steps)
        return deleted
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
