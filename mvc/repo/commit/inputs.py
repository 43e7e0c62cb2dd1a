"""Turns what a caller gives ``Repository.commit`` into changes: a Python state, or files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from functools import partial
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

from mvc.adapters.opening import open_file
from mvc.adapters.state_file import StateFile
from mvc.errors import DamagedData, NothingToCommit, StateForgotten, WouldOverwrite, WrongUsage
from mvc.model.manifest import FileEntry
from mvc.names import attached_path, check_path, printable
from mvc.repo.commit.request import Attachment, Change, CommitOptions, FileContent, FileOptions
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head, tip
from mvc.repo.worktree import worktree
from mvc.repo.worktree.status import FileChange, status
from mvc.store.store import Store


def states_by_path(
    state: object, path: str, states: Mapping[str, FileContent | None] | None
) -> dict[str, FileContent | None]:
    """``states``, and ``state`` if it is a mapping: of files by path, or the state at ``path``.

    Raises InvalidName, WrongUsage.
    """
    first: Mapping[str, Any] = {}
    if isinstance(state, Mapping):
        files = any(isinstance(each, StateFile | FileEntry) for each in state.values())
        first = state if files else {path: state}
    if twice := first.keys() & (states or {}):
        raise WrongUsage(f"{min(twice)} is named twice")
    return {check_path(name): each for name, each in {**first, **(states or {})}.items()}


def refuse_empty(states: Mapping[str, FileContent | None]) -> None:
    """Raises WrongUsage if one of the states by path is empty."""
    for path, state in states.items():
        if isinstance(state, Mapping) and not state:
            raise WrongUsage(
                f"the state at {path} is empty, and would take the place of what may be "
                "stored there",
                hint="if that is meant, pass options=mvc.CommitOptions(allow_empty=True)",
            )


def attachments(
    given: Mapping[str, Attachment],
) -> Iterator[tuple[str, StateFile]]:
    """What a version carries beside its files, by path: bytes, or mappings of tensors."""
    for name, value in given.items():
        file = StateFile.of_bytes(value) if isinstance(value, bytes) else StateFile.of(value)
        yield attached_path(name), file


def of_files(
    store: Store, given: object, files: FileOptions, options: CommitOptions
) -> list[Change]:
    """The files at the paths ``given``; a folder means its content.

    A tracked path that is named, or lies in a folder that is named, leaves the version if it has no
    file; a state that Python recorded in such a folder stays. ``files.all`` adds each tracked path
    whose file was modified, takes out each at whose place is nothing, and takes a file among those
    named that has the bytes of a missing one as its new name; other files that are not tracked may
    be copies, and the missing one stays tracked. Raises WrongUsage if no path is named and none
    leaves, unless ``options.allow_empty``, and UnknownPath for a symbolic link that leads nowhere.
    A truncated model file raises BadModelFile when it is opened, unless ``files.opaque``, or unless
    HEAD has one at its path: then ``opaque`` was chosen before.
    """
    fs, root = store.fs, store.root
    names, folders, missing = list[str](), set[str](), set[str]()
    at = tip(store, options.branch, new=options.new_branch).commit
    tracked = manifests.of_commit(store, at).by_path
    if given is not None:
        cwd = files.cwd or fs.cwd()
        names = worktree.expand(
            store, paths_of(given), cwd, folders, tracked=tracked, missing=missing
        )
        if not names and not missing:
            raise WrongUsage("no files to commit", hint="-a takes out missing ones; see .mvcignore")
    elif not (files.all or options.allow_empty):
        raise WrongUsage("nothing to commit: name paths, or add -a for every tracked one")
    present, gone = _tracked_inside(store, folders | missing, tracked)
    gone += missing & tracked.keys()  # a state that Python recorded, too
    changed = status(store).changes if files.all else ()
    _refuse_older(store, [change for change in changed if change.path not in names])
    names += [change.path for change in changed if change.kind == "modified"]
    gone += [c.old for c in changed if c.kind == "renamed" and c.path in names]
    missed = (c.path for c in changed if c.kind == "missing" and not c.not_written)
    gone += [path for path in missed if fs.stat(root / path, follow=False) is None]
    if files.all and not (names or gone or options.allow_empty):
        refuse_unnamed(changed)

    def open_(name: str) -> AbstractContextManager[StateFile]:
        unless = partial(_was_kept_opaque, store, name)
        return open_file(fs, root / name, name, strict=not files.opaque, unless=unless)

    kept = [Change(n, partial(open_, n)) for n in dict.fromkeys([*names, *present])]
    return [*kept, *(Change(n, None) for n in dict.fromkeys(gone))]


def _tracked_inside(
    store: Store, folders: Set[str], tracked: Mapping[str, FileEntry]
) -> tuple[list[str], list[str]]:
    """Tracked files in ``folders`` that are on disk, ignored or not, and those that are gone."""
    present, gone = list[str](), list[str]()
    for path, entry in tracked.items() if folders else ():
        if folders.isdisjoint({"", *map(str, PurePosixPath(path).parents)}):
            continue
        identity = store.fs.stat(store.root / path)
        if identity is not None and identity.is_file:
            present.append(path)
        elif not worktree.is_python_state(entry):
            gone.append(path)
    return present, gone


def _refuse_older(store: Store, changed: Sequence[FileChange]) -> None:
    """Raises WouldOverwrite if a file of an older version would replace a state from Python.

    The training that recorded the state did not write the file.
    """
    tracked = manifests.of_commit(store, head(store).commit).by_path
    for change in changed:
        if change.same_as is not None and worktree.is_python_state(tracked[change.path]):
            name = printable(change.path)
            raise WouldOverwrite(
                f"{name} is as in version {change.same_as.short}, older than HEAD, which was "
                "recorded from Python",
                hint=f"'mvc checkout HEAD {name}' updates the file; 'mvc commit {name}' records it",
            )


def refuse_unnamed(changed: Sequence[FileChange]) -> None:
    """Raises NothingToCommit with the way to record a new name, where that is all there is."""
    for change in changed:
        if change.kind == "renamed":
            new, old = printable(change.path), printable(change.old)
            raise NothingToCommit(
                f"nothing to commit but {new}, which is not tracked",
                hint=f"if it is {old} under a new name: mvc commit -a {new}",
            )


def _was_kept_opaque(store: Store, name: str) -> bool:
    """Whether HEAD holds a file at this path that only ``opaque`` could have let in."""
    with suppress(DamagedData, StateForgotten):
        entry = manifests.of_commit(store, head(store).commit).by_path.get(name)
        if entry is not None and entry.format == "opaque":
            from mvc.adapters.files.suspicion import suspicion
            from mvc.repo.content.contents import StoredBytes

            return suspicion(StoredBytes(store.recovery, entry), name) is not None
    return False


def paths_of(given: object) -> list[Path]:
    """One path or several, as a list. Raises WrongUsage for anything else."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if not isinstance(given, Sequence | Set | Iterator) or isinstance(given, bytes | bytearray):
        raise _refused(given, "")
    listed = list(given)
    for item in listed:
        if not isinstance(item, str | PathLike):
            raise _refused(item, f"a {type(given).__name__} with ")
    return [Path(item) for item in listed]


def _refused(given: object, before: str) -> WrongUsage:
    name = type(given).__name__
    hint = "name a tensor by a mapping: {'weight': tensor}"
    if callable(getattr(given, "state_dict", None)):
        hint = "pass its tensors: model.state_dict()"
    return WrongUsage(
        f"commit takes a mapping of tensors, or paths of files and folders, not {before}a {name}",
        hint=hint,
    )
