"""Replaces several files of a folder together, as a checkout does.

First, a *plan* is written and locked. It is a file that lists all renames (``mvc.io.plans``). Then
all new files are written under temporary names and flushed to disk. Then the temporary files are
renamed, one after another.

If the process is killed, the next mvc process calls ``finish_interrupted``. If all temporary files
are complete, this function does the remaining renames. Otherwise, it deletes the temporary files.
Of the temporary files, it opens and deletes only regular files of this user that fit the plan.
Checkouts use ``one_at_a_time``, so that two checkouts to the same path never run at the same time.

Without disk space or permission to write a plan, files are replaced without a plan. Then an
interrupted replacement cannot be completed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from msgspec import Struct

from mvc.errors import Busy, IoFailed, MvcError, ReadOnly, StorageFull, WouldOverwrite
from mvc.io.files import TEMPORARY, FileLock, FileSystem, WriteFile
from mvc.io.patience import speaking
from mvc.io.plans import MOST, Plan, PlanStep, Pointer, before, is_own_file, is_temporary

Fill = Callable[[WriteFile], None]
"""Writes the content of a file."""

LOCK_SECONDS = 60
"""Seconds for which a checkout waits for another checkout that writes to the same path."""

_PLAN = re.compile(r"[0-9a-f]{16}")
_NAMED = 10  # maximum number of files in a message
_NO_ROOM = (ReadOnly, StorageFull)


@contextmanager
def replacing(
    fs: FileSystem,
    folder: Path,
    files: Mapping[str, Fill],
    deletes: Sequence[str] = (),
    *,
    plans: Path | None,
    inside: bool = False,
    checks: Mapping[str, str],
    then: Mapping[str, str] | None = None,
    version: str = "",
) -> Iterator[list[str]]:
    """Replaces ``files`` of ``folder`` by the output of their functions, and deletes ``deletes``.

    Yields the names of the deleted files. If an error occurs before all files are written and
    flushed, nothing has changed. Symbolic links below ``folder`` are not followed. New files get
    the permissions of the old files.

    ``plans``: the folder of plans in a repository; None for no plan. ``inside``: whether ``folder``
    contains the repository. The plan stores the other arguments for ``finish_interrupted``:
    ``checks`` (texts that identify the contents of the files), ``version`` (the version that
    contains the files), and ``then`` (what the ``with`` block does after the renames).
    """
    steps = [
        PlanStep(n, f"{TEMPORARY}{os.urandom(8).hex()}", before(fs, folder / n), checks[n])
        for n in files
    ]
    steps += [PlanStep(name, "", before(fs, folder / name)) for name in deletes]
    _refuse_temporary(steps)
    if not steps:
        yield []
        return
    written = _PlanFile(fs, folder, Plan(steps, then or {}, version=version), plans, inside=inside)
    with removing_if_failed(fs) as created, written as plan:
        try:
            for parent in dict.fromkeys((folder / name).parent for name in files):
                make_folder(fs, parent, within=folder, created=created)
            with fs.flushes() as flushes:
                for step, fill in zip(steps, files.values(), strict=False):
                    place = step.place(folder)
                    fs.write_beside(place, step.temporary, fill, within=folder, flushes=flushes)
            _refuse_folded(fs, folder, [step for step in steps if step.temporary])
            plan.get_ready()
        except MvcError as error:
            if len(steps) > 1:
                raise _saying(error, "no file was replaced") from error
            raise
        yield _carry_out(fs, folder, steps)


class Finish(Struct, frozen=True):
    """What ``finish_interrupted`` needs from its caller.

    ``root``: the folder that contains the repository. ``size(version, check)``: the size of the
    file that ``check`` identifies in a version; None if the version has no such file.
    ``holds(version, check, path)``: whether the file at ``path`` has the same bytes as this file.
    ``conclude(then)``: does after all renames what ``then`` of the plan says, such as to move HEAD.
    """

    root: Path
    size: Callable[[str, str], int | None]
    holds: Callable[[str, str, Path], bool]
    conclude: Callable[[Mapping[str, str]], None]


class Finished(Struct):
    """What ``finish_interrupted`` did for one plan.

    ``replaced``: files that were replaced. ``abandoned``: files that were not replaced, although
    their temporary file existed. ``left_alone``: files with a temporary name that belong to another
    user or do not fit the plan. They were not deleted.
    """

    replaced: tuple[Path, ...] = ()
    abandoned: tuple[Path, ...] = ()
    left_alone: tuple[Path, ...] = ()


def finish_interrupted(fs: FileSystem, plans: Path, finish: Finish) -> Iterator[Finished]:
    """Completes or cancels the interrupted replacements of this user. Yields a result for each.

    A replacement is canceled if its plan was not ready, if a file has changed since the plan was
    written, or if a temporary file does not match the plan.
    """
    identity = fs.stat(plans, follow=False)
    for name in fs.list(plans) if identity is not None and identity.is_dir else ():
        path = plans / name
        if not _PLAN.fullmatch(name) or not is_own_file(fs, path):
            continue
        lock = fs.lock(path, block=False)
        if lock is not None:
            with lock:
                # After an error, the plan is deleted: it must not block all later commands.
                done = Finished()
                try:
                    done = _finish(fs, path, finish)
                except (Busy, StorageFull):
                    continue  # a later command can finish the plan
                except (MvcError, ValueError):
                    pass
                fs.unlink(path, missing_ok=True, within=plans)
                fs.sync_dir(plans, within=plans)  # else a power loss could restore the plan
            yield done


def _finish(fs: FileSystem, path: Path, finish: Finish) -> Finished:
    data = fs.read_bytes(path, MOST)
    pointer = Pointer.parse(data)
    if pointer is not None:
        return _finish_elsewhere(fs, pointer, path.name, finish)
    plan = Plan.parse(data)
    if plan is None:
        return Finished()
    # exact=2: of the old files, only size and mtime must match. If the repository is a copy, ctimes
    # and inodes differ.
    return _finish_in(fs, finish.root, plan, finish, path=path, exact=2)


def _finish_elsewhere(fs: FileSystem, pointer: Pointer, number: str, finish: Finish) -> Finished:
    """Finishes the plan in the folder that ``pointer`` names. If there is none, does nothing."""
    folder, path = Path(pointer.folder), pointer.plan(number)
    if not pointer.is_true(fs) or not is_own_file(fs, path):
        return Finished()
    lock = fs.lock(path, block=False)
    if lock is None:
        return Finished()
    with lock:
        data = fs.read_bytes(path, MOST)
        plan = Plan.parse(data)
        if data and (plan is None or plan.then):
            return Finished()  # the plan is forged: mvc writes no ``then`` into a plan elsewhere
        done = (
            Finished() if plan is None else _finish_in(fs, folder, plan, finish, path=path, exact=4)
        )
        fs.unlink(path, missing_ok=True, within=folder)
        fs.sync_dir(folder, within=folder)
        return done


def _finish_in(
    fs: FileSystem, folder: Path, plan: Plan, finish: Finish, *, path: Path, exact: int
) -> Finished:
    """Finishes ``plan``, which is the file ``path``.

    A file of ``plan`` is deleted only if the first ``exact`` values of ``PlanStep.before`` match.
    """
    deletes = [
        s
        for s in plan.steps
        if not s.temporary and s.before and before(fs, s.place(folder))[:exact] == s.before[:exact]
    ]
    writes = _waiting(fs, plan, folder)
    ours = [s for s in writes if _is_ours(fs, folder, s, plan, finish=finish)]
    complete = False
    with suppress(MvcError), speaking(f"the end of an interrupted checkout in {folder}"):
        if (
            plan.is_ready
            and ours == writes
            and all(
                before(fs, s.place(folder))[:2] == s.before[:2]
                and finish.holds(plan.version, s.check, s.written(folder))
                for s in writes
            )
        ):
            _carry_out(fs, folder, [*writes, *deletes])
            complete = True
    if complete and plan.then:
        finish.conclude(plan.then)
    left = {step.temporary: step for step in _waiting(fs, plan, folder)}
    alone = left.keys() - {step.temporary for step in ours}
    _drop(fs, folder, [s for s in left.values() if s.temporary not in alone], path)
    return Finished(
        tuple(s.place(folder) for s in writes if s.temporary not in left),
        tuple(s.place(folder) for s in left.values()),
        tuple(s.written(folder) for s in left.values() if s.temporary in alone),
    )


def _waiting(fs: FileSystem, plan: Plan, folder: Path) -> list[PlanStep]:
    """The steps whose temporary files exist."""
    writes = [step for step in plan.steps if step.temporary]
    return [s for s in writes if fs.stat(s.written(folder), follow=False) is not None]


def _is_ours(fs: FileSystem, folder: Path, step: PlanStep, plan: Plan, finish: Finish) -> bool:
    """Whether mvc may have written the temporary file of a step. Does not open the file."""
    path = step.written(folder)
    identity = fs.stat(path, follow=False)
    return (
        identity is not None
        and is_own_file(fs, path)
        and fs.realpath(path.parent) == fs.realpath(folder) / Path(step.name).parent
        and (not plan.is_ready or identity.size == finish.size(plan.version, step.check))
    )


@contextmanager
def one_at_a_time(fs: FileSystem, plans: Path, place: Path) -> Iterator[None]:
    """A lock: at any time, only one such ``with`` block runs for ``place``, in all processes.

    If the folder ``plans`` cannot be written, there is no lock. Raises Busy after a minute.
    """
    path = plans / f"{zlib.crc32(os.fsencode(place)):016x}"  # two paths may share a lock
    lock = None
    try:
        make_folder(fs, plans, within=plans.parent)
        lock = fs.lock(path, timeout=LOCK_SECONDS)
    except _NO_ROOM:
        pass
    except Busy:
        raise Busy(
            f"another checkout has been writing {place} for more than {LOCK_SECONDS} s",
            hint="wait until the other checkout has finished, then retry",
        ) from None
    try:
        yield
    finally:
        if lock is not None:
            with lock, suppress(MvcError):
                fs.unlink(path, missing_ok=True, within=plans)


@contextmanager
def removing_if_failed(fs: FileSystem) -> Iterator[list[Path]]:
    """Yields an empty list. Pass the list to ``make_folder``, which adds each new folder to it.

    If the ``with`` block raises an error, the empty folders in the list are deleted.
    """
    created: list[Path] = []
    try:
        yield created
    except BaseException:
        for folder in reversed(created):
            with suppress(MvcError):  # the folder is not empty
                fs.remove_dir(folder)
        raise


def make_folder(
    fs: FileSystem, folder: Path, *, within: Path | None = None, created: list[Path] | None = None
) -> None:
    """As ``fs.make_dirs``. If a part of the path is a file, IoFailed names this file."""
    try:
        fs.make_dirs(folder, within=within, created=created)
    except (FileExistsError, IoFailed) as error:
        for path in (folder, *folder.parents):
            identity = fs.stat(path) or fs.stat(path, follow=False)
            if identity is not None and not identity.is_dir:
                raise IoFailed(f"{path} is not a folder", hint="rename or move this file") from None
        if isinstance(error, IoFailed):
            raise
        raise IoFailed(f"{folder} exists and is not a folder") from error


class _PlanFile:
    """Writes the plan of a replacement, and locks and deletes it. Use it as a context manager.

    Other processes ignore the plan while it is locked. After the ``with`` block, the plan is
    deleted. If the block fails before ``get_ready``, the temporary files are deleted, too. If the
    block fails after ``get_ready``, the plan and the temporary files stay, and the next command
    finishes the plan.
    """

    def __init__(
        self, fs: FileSystem, folder: Path, plan: Plan, plans: Path | None, inside: bool
    ) -> None:
        self._fs, self._folder, self._plan, self._plans = fs, folder, plan, plans
        self._inside = inside
        self._files: list[tuple[Path, FileLock]] = []
        self._is_ready = False
        self._line = plan.encode()

    def __enter__(self) -> Self:
        if self._plans is None or len(self._line) > MOST // 2:
            return self
        number = os.urandom(8).hex()
        try:
            make_folder(self._fs, self._plans, within=self._plans.parent)
            pointer = None if self._inside else Pointer.to(self._fs, self._folder)
            if pointer is not None:
                self._write(self._plans / number, pointer.encode())
                self._write(pointer.plan(number), self._line)
            elif self._inside:
                self._write(self._plans / number, self._line)
        except BaseException as error:
            self._remove()
            if not isinstance(error, _NO_ROOM):
                raise
        return self

    def get_ready(self) -> None:
        """Makes the names of all temporary files durable, and marks the plan as ready.

        Does nothing if the plan has one file and no ``then``, because one rename cannot be
        interrupted.
        """
        if self._files and (len(self._plan.steps) > 1 or self._plan.then):
            path, _ = self._files[-1]
            _sync(self._fs, self._folder, self._plan.steps)
            self._append(path, Plan.ready(self._line), sync=True)
            for path, _ in self._files:
                self._fs.sync_dir(path.parent, within=path.parent)
            self._is_ready = True

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is not None and not self._is_ready:
            plan = self._files[-1][0] if self._files else None
            _drop(self._fs, self._folder, self._plan.steps, plan)
        if error is None or not self._is_ready:
            self._remove()
        self._release()

    def _write(self, path: Path, line: bytes) -> None:
        self._files.append((path, self._fs.lock(path)))
        self._append(path, line)

    def _append(self, path: Path, line: bytes, *, sync: bool = False) -> None:
        with self._fs.open_write(path, within=path.parent) as file:
            file.write(line)
            if sync:
                file.sync()

    def _remove(self) -> None:
        """Deletes the plan, then its pointer, without which no process would find the plan.

        Flushes the deletion of the plan to disk: if an old plan came back after a power loss, the
        next command would finish it and move HEAD.
        """
        for path, _ in reversed(self._files):
            with suppress(MvcError):  # the next command deletes the file
                self._fs.unlink(path, missing_ok=True, within=path.parent)
                if path == self._files[-1][0]:
                    self._fs.sync_dir(path.parent, within=path.parent)
        self._release()

    def _release(self) -> None:
        for _, lock in self._files:
            lock.release()
        self._files = []


def _refuse_temporary(steps: Sequence[PlanStep]) -> None:
    """Raises WouldOverwrite if a file of a version has the name of a plan or a temporary file.

    Otherwise, a version could contain a forged plan, and a checkout would write this plan.
    """
    for step in steps:
        if any(map(is_temporary, Path(step.name).parts)):
            raise WouldOverwrite(
                f"{step.name} has the name of a temporary file of mvc and cannot be written",
                hint="commit the file under another name, or read the file with 'mvc show'",
            )


def _file(fs: FileSystem, path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at ``path``."""
    identity = fs.stat(path, follow=False)
    return None if identity is None else (identity.device, identity.inode)


def _refuse_folded(fs: FileSystem, folder: Path, steps: Sequence[PlanStep]) -> None:
    """Raises WouldOverwrite if the file system ignores case and two names differ only in case."""
    known: dict[str, PlanStep] = {}
    for step in steps:
        other = known.setdefault(step.name.casefold(), step)
        if other is step:
            continue
        path = step.written(folder)
        if fs.stat(path.with_name(path.name.upper())) is not None:
            raise WouldOverwrite(
                f"{step.name} and {other.name} are the same file: this file system ignores case",
                hint="check out one file at a time with -o, or all on a case-sensitive file system",
            )


def _carry_out(fs: FileSystem, folder: Path, steps: Sequence[PlanStep]) -> list[str]:
    """Renames and deletes files, durably. Returns the names of the deleted files.

    If the file system ignores case, a file to delete may be a file that was just written, because
    the names differ only in case. This file is not deleted. The message of an error lists the
    finished steps.
    """
    done, deleted, written = 0, [], set()
    try:
        for step in steps:
            place = step.place(folder)
            if step.temporary:
                fs.replace(place.with_name(step.temporary), place, within=folder)
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


def _listed(steps: Sequence[PlanStep]) -> str:
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    return (", ".join(step.name for step in steps[:_NAMED]) or "nothing") + more


def _saying(error: MvcError, text: str) -> MvcError:
    return type(error)(f"{error.message}; {text}", hint=error.hint)


def _sync(fs: FileSystem, folder: Path, steps: Sequence[PlanStep]) -> None:
    for parent in sorted({step.name.rpartition("/")[0] for step in steps}):
        fs.sync_dir(folder / parent, within=folder)


def _drop(fs: FileSystem, folder: Path, steps: Sequence[PlanStep], plan: Path | None) -> None:
    """Deletes the temporary files of a canceled replacement.

    First removes the last byte of the file ``plan``, so that the plan does not count as ready. In a
    ready plan, a missing temporary file means that the file was renamed.
    """
    if plan is not None and steps:
        with suppress(MvcError), fs.open_write(plan, within=plan.parent) as file:
            file.truncate(file.size() - 1)
            file.sync()
    for step in steps:
        if step.temporary:
            with suppress(IoFailed):
                fs.unlink(step.written(folder), missing_ok=True, within=folder)
