"""Collects the files of a commit: states (mappings of tensors) from Python, and files on disk."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mvc.adapters.opening import open_file
from mvc.adapters.state_file import StateFile
from mvc.errors import (
    DamagedData,
    MvcWarning,
    NothingToCommit,
    StateForgotten,
    WouldOverwrite,
    WrongUsage,
)
from mvc.io.files import FileIdentity
from mvc.lossy.reducer import Reducer
from mvc.model.manifest import FileEntry
from mvc.names import PATCH, attached_path, printable
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.commit.request import (
    Attachment,
    Change,
    CommitOptions,
    CommitRequest,
    FileOptions,
    check_places,
)
from mvc.repo.completeness import refuse_incomplete
from mvc.repo.config import Config
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import Head, head, tagged, tip
from mvc.repo.worktree import worktree
from mvc.repo.worktree.git_code import GitCode, git_code
from mvc.repo.worktree.status import FileChange, status
from mvc.store.store import Store


class Inputs(Struct, frozen=True):
    """The files of a commit, and the other data of the commit.

    ``produced_by``: the lossy pipeline that changes files for this version, or None. ``state``: a
    state from Python that is committed unchanged. ``production``: the files on disk that are
    replaced by their production weights after the commit. Maps the path of each of these files to
    the present identity of the file (inode, size, times).
    """

    request: CommitRequest
    changes: Sequence[Change]
    code: GitCode
    produced_by: str | None
    state: Any = None
    production: Mapping[str, FileIdentity | None] | None = None

    @property
    def attachments(self) -> dict[str, Attachment]:
        """All attachments of the version, including the patch of the code."""
        patch = {PATCH: self.code.patch} if self.code.patch else {}
        return {**self.request.attachments, **patch}

    @property
    def attached(self) -> dict[str, StateFile]:
        """Maps the paths of attachments in the version to the attachments, as files."""
        return {
            attached_path(n): StateFile.of_bytes(g) if isinstance(g, bytes) else StateFile.of(g)
            for n, g in self.attachments.items()
        }


def gather(store: Store, config: Config, request: CommitRequest) -> Inputs:
    """Finds the files of a commit, without opening them.

    Determines which of the files a lossy pipeline changes. Raises WrongUsage, and the errors of
    ``_of_files`` and ``refuse_incomplete``.
    """
    contents, read, reads = request.contents, request.files, request.reads
    changes = _of_files(store, request.paths, read, request.options) if reads else []
    named = {change.path for change in changes if change.open is not None}
    on_disk = {
        **{c.path: store.root / c.path if c.path in named else None for c in changes},
        **{path: file for path, file in contents.items() if isinstance(file, Path | None)},
    }
    whole = request.deploy is not None and not request.options.anyway
    if whole and (reads or any(on_disk.values())):
        refuse_incomplete(store, tip_of(store, request).commit, on_disk)
    states = {request.path}
    for path, content in contents.items():
        if isinstance(content, Path):
            open_ = partial(open_file, store.fs, content, path, strict=not read.opaque)
            changes.append(Change(path, open_))
        elif isinstance(content, Mapping) and path.endswith("/"):
            from mvc.repo.commit.shards import divided  # rarely needed

            files = divided(store, tip_of(store, request).commit, path, content)
            changes += [Change.of(name, file) for name, file in files.items()]
            if path == request.path:
                states = {name for name, file in files.items() if isinstance(file, Mapping)}
        else:
            changes.append(Change.of(path, content))
    check_places(changes)
    code = request.options.code or _code_now(store, config, patch=request.options.patch)
    live: Any = contents.get(request.path)
    reduced = named if reads else states if isinstance(live, Mapping) else set[str]()
    text, written = request.pipeline, read.output is not None or read.in_place
    if text is None and reduced:
        setting = str(config.get("commit.pipeline"))
        text = setting if written or Pipeline.parse(setting).forward_only else None
    is_final = not reads and all(
        isinstance(content, StateFile | FileEntry | None) for content in contents.values()
    )
    reducer = None if is_final else _reducer(request, text)
    if reducer is None:
        if written:
            raise WrongUsage("output and in_place need a lossy pipeline")
        state = live if isinstance(live, Mapping) and not reads else None
        return Inputs(request, changes, code, produced_by=request.options.produced_by, state=state)
    if not (reads or reduced):
        raise WrongUsage(
            f"a lossy pipeline reduces the state at {request.path}, but there is none",
            hint="name the state's path with path=, or commit with pipeline='lossless'",
        )
    changes = [replace(c, reducer=reducer) if c.path in reduced else c for c in changes]
    production = None
    # With a forward_only pipeline, such as ``lc``, a training continues from the exact weights in
    # the files on disk. So the files are replaced only on request.
    if reads and (written or not reducer.pipeline.forward_only):
        from mvc.repo.commit.production_files import check_output  # rarely needed

        production = {path: store.fs.stat(store.root / path) for path in sorted(named)}
        check_output(store.fs, len(production), read)
    return Inputs(request, changes, code, produced_by=text, production=production)


def tip_of(store: Store, request: CommitRequest) -> Head:
    """The version on which to commit: the version of HEAD, or of the requested branch or tag."""
    if request.options.detached:
        return Head(None, request.options.parent)
    if request.options.tag is not None:
        return Head(None, tagged(store.fresh(), request.options.tag))
    return tip(store.fresh(), request.options.branch, new=request.options.new_branch)


def _reducer(request: CommitRequest, text: str | None) -> Reducer | None:
    """An object that changes files by the lossy pipeline ``text``.

    None if the pipeline is lossless. Raises WrongUsage if the pipeline decides whether to save a
    version, because a commit always saves.
    """
    options, pipeline = request.options, Pipeline.parse(text or "lossless")
    reduces = pipeline.decisions or pipeline.lossy or pipeline.forward_only
    if options.produced_by is not None or not reduces:
        if options.exact:
            raise WrongUsage("exact needs a lossy pipeline")
        return None
    if pipeline.decisions:
        decided = {stage.text for stage in pipeline.decisions}
        words = [word.strip() for word in pipeline.text.split("|")]
        rest = " | ".join(word for word in words if word not in decided)
        origin = "" if request.pipeline else f"commit.pipeline is {text}: "
        raise WrongUsage(
            f"{origin}stage {pipeline.decisions[0].text} decides whether to save a version, but a "
            "commit always saves",
            hint="use mvc.Recorder, which decides, or remove the deciding stages from the "
            f"pipeline: {rest}",
        )
    return Reducer(pipeline, frozenset(options.exact))


class PatchMissing(MvcWarning):
    """The patch that the setting ``commit.patch`` requests is not available."""


def _code_now(store: Store, config: Config, *, patch: bool | None) -> GitCode:
    """The state of the git work tree around the repository.

    ``patch``: whether to include uncommitted changes as a patch; None: as in ``commit.patch``. If
    the patch cannot be made, raises WrongUsage, IoFailed or NotInstalled. If only the setting
    requests the patch, warns (PatchMissing) instead.
    """
    wanted = bool(config.get("commit.patch")) if patch is None else patch
    code = git_code(store.fs, store.root, patch=wanted, retry=bool(patch))
    if code.problem is not None:
        if patch:
            raise code.problem
        problem = f"the version is recorded without its patch (commit.patch): {code.problem}"
        warnings.warn(problem, PatchMissing, stacklevel=4)
    return code


# -- files on disk -----------------------------------------------------------------------


def _of_files(
    store: Store, arguments: object, files: FileOptions, options: CommitOptions
) -> list[Change]:
    """The changes of the files and folders in ``arguments``, as ``git add`` finds them.

    If a tracked path is named, and its file does not exist, the path is removed from the version.
    But if only a folder is named, states in it that were committed from Python are not removed.
    ``files.all``: includes modified and missing tracked files, as ``git commit -a``. If a named
    file has the bytes of a missing file, the missing file counts as renamed. Raises UnknownPath for
    a dead symbolic link. Raises WrongUsage if there is nothing to commit, unless
    ``options.allow_empty``.

    Opening a truncated model file raises BadModelFile, unless ``files.opaque`` is true or HEAD has
    a truncated model file at the same path.
    """
    fs, root = store.fs, store.root
    names, removed = list[str](), list[str]()
    at = tip(store.fresh(), options.branch, new=options.new_branch)
    tracked = manifests.of_commit(store, at.commit).by_path
    if files.all and at.branch != head(store.fresh()).branch:
        raise WrongUsage(
            "all works only on the current branch, because it compares files with HEAD",
            hint="name the files",
        )
    if arguments is not None:
        cwd, paths = files.cwd or fs.cwd(), paths_of(arguments)
        names, removed = worktree.expand(store, paths, cwd, tracked)
        if not names and all(fs.stat(cwd / path) is not None for path in paths):
            raise WrongUsage("no files to commit", hint="-a removes missing ones; see .mvcignore")
    elif not (files.all or options.allow_empty):
        raise WrongUsage("nothing to commit: name paths, or add -a for all tracked ones")
    changed = status(store).changes if files.all else ()
    _refuse_older(store, [change for change in changed if change.path not in names])
    names += [change.path for change in changed if change.kind == "modified"]
    removed += [c.old for c in changed if c.kind == "renamed" and c.path in names]
    missed = (c.path for c in changed if c.kind == "missing" and not c.not_written)
    removed += [path for path in missed if fs.stat(root / path, follow=False) is None]
    if files.all and not (names or removed or options.allow_empty):
        _refuse_unnamed(changed)

    def open_(name: str) -> AbstractContextManager[StateFile]:
        unless = partial(_was_opaque, store, name)
        return open_file(fs, root / name, name, strict=not files.opaque, unless=unless)

    stored = [Change(n, partial(open_, n)) for n in dict.fromkeys(names)]
    return [*stored, *(Change(n, None) for n in dict.fromkeys(removed))]


def _refuse_older(store: Store, changed: Sequence[FileChange]) -> None:
    """Raises WouldOverwrite if a file on disk is older than the state from Python in HEAD.

    A training recorded the state, but did not write the file. A commit of the outdated file would
    replace the newer state.
    """
    tracked = manifests.of_commit(store, head(store.fresh()).commit).by_path
    for change in changed:
        if change.same_as is not None and worktree.is_python_state(tracked[change.path]):
            name = printable(change.path)
            raise WouldOverwrite(
                f"{name} has the content of version {change.same_as.short}, but HEAD is newer "
                "and was recorded from Python",
                hint=f"'mvc checkout HEAD {name}' updates the file; 'mvc commit {name}' commits it",
            )


def _refuse_unnamed(changed: Sequence[FileChange]) -> None:
    """Raises NothingToCommit if a tracked file was renamed and the new name is not tracked."""
    for change in changed:
        if change.kind == "renamed":
            new, old = printable(change.path), printable(change.old)
            raise NothingToCommit(
                f"nothing to commit but {new}, which is not tracked",
                hint=f"if it is {old} under a new name: mvc commit -a {new}",
            )


def _was_opaque(store: Store, name: str) -> bool:
    """Whether HEAD has a damaged model file at this path, which was committed with ``opaque``."""
    with suppress(DamagedData, StateForgotten):
        entry = manifests.of_commit(store, head(store.fresh()).commit).by_path.get(name)
        if entry is not None and entry.format == "opaque":
            from mvc.adapters.files.suspicion import suspicion
            from mvc.repo.content.contents import StoredBytes

            return suspicion(StoredBytes(store.recovery, entry), name) is not None
    return False


def paths_of(paths: object) -> list[Path]:
    """One path or several, as a list. Raises WrongUsage for other types."""
    if isinstance(paths, str | PathLike):
        return [Path(paths)]
    if not isinstance(paths, Sequence | Set | Iterator) or isinstance(paths, bytes | bytearray):
        raise _refused(paths, "")
    listed = list(paths)
    for item in listed:
        if not isinstance(item, str | PathLike):
            raise _refused(item, f"a {type(paths).__name__} with ")
    return [Path(item) for item in listed]


def _refused(argument: object, before: str) -> WrongUsage:
    name = type(argument).__name__
    hint = "give tensors names in a mapping: {'weight': tensor}"
    if callable(getattr(argument, "state_dict", None)):
        hint = "pass its tensors: model.state_dict()"
    return WrongUsage(
        f"commit needs a mapping of tensors, or paths of files and folders, not {before}a {name}",
        hint=hint,
    )
