"""The files of a commit: Python states, files on disk, and what a lossy pipeline does to them."""

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
from mvc.repo.config import Config
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import Head, head, tagged, tip
from mvc.repo.whole import refuse_incomplete
from mvc.repo.worktree import worktree
from mvc.repo.worktree.git_code import GitCode, git_code
from mvc.repo.worktree.status import FileChange, status
from mvc.store.store import Store


class Inputs(Struct, frozen=True):
    """The files of a commit and what else it records.

    ``produced_by`` is the lossy pipeline that makes some of them; ``state`` a state that is
    committed as it is. ``production``: the files on disk whose production weights are written
    afterwards, as they are now.
    """

    request: CommitRequest
    changes: Sequence[Change]
    code: GitCode
    produced_by: str | None
    state: Any = None
    production: Mapping[str, FileIdentity | None] | None = None

    @property
    def attachments(self) -> dict[str, Attachment]:
        """What the version carries beside its files, the patch of the code with it."""
        patch = {PATCH: self.code.patch} if self.code.patch else {}
        return {**self.request.attachments, **patch}

    @property
    def attached(self) -> dict[str, StateFile]:
        """The same as files, by the paths that they have in the version."""
        return {
            attached_path(n): StateFile.of_bytes(g) if isinstance(g, bytes) else StateFile.of(g)
            for n, g in self.attachments.items()
        }


def gather(store: Store, config: Config, request: CommitRequest) -> Inputs:
    """Finds the files of a commit, and what reduces which of them; a file is opened later.

    Raises WrongUsage, and as ``of_files`` and ``refuse_incomplete``.
    """
    given, read, reads = request.given, request.files, request.reads
    changes = _of_files(store, request.paths, read, request.options) if reads else []
    named = {change.path for change in changes if change.open is not None}
    on_disk = {
        **{c.path: store.root / c.path if c.path in named else None for c in changes},
        **{path: each for path, each in given.items() if isinstance(each, Path | None)},
    }
    whole = request.deploy is not None and not request.options.anyway
    if whole and (reads or any(on_disk.values())):
        refuse_incomplete(store, tip_of(store, request).commit, on_disk)
    states = {request.path}
    for path, each in given.items():
        if isinstance(each, Path):
            open_ = partial(open_file, store.fs, each, path, strict=not read.opaque)
            changes.append(Change(path, open_))
        elif isinstance(each, Mapping) and path.endswith("/"):
            from mvc.repo.commit.shards import divided  # rarely needed

            files = divided(store, tip_of(store, request).commit, path, each)
            changes += [Change.of(name, file) for name, file in files.items()]
            if path == request.path:
                states = {name for name, file in files.items() if isinstance(file, Mapping)}
        else:
            changes.append(Change.of(path, each))
    check_places(changes)
    code = request.options.code or _code_now(store, config, patch=request.options.patch)
    live: Any = given.get(request.path)
    reduced = named if reads else states if isinstance(live, Mapping) else set[str]()
    text, written = request.pipeline, read.output is not None or read.in_place
    if text is None and reduced:
        setting = str(config.get("commit.pipeline"))
        text = setting if written or Pipeline.parse(setting).forward_only else None
    made = not reads and all(isinstance(e, StateFile | FileEntry | None) for e in given.values())
    reducer = None if made else _reducer(request, text)
    if reducer is None:
        if written:
            raise WrongUsage("output and in_place are for lossy pipelines")
        state = live if isinstance(live, Mapping) and not reads else None
        return Inputs(request, changes, code, produced_by=request.options.produced_by, state=state)
    if not (reads or reduced):
        raise WrongUsage(
            f"a lossy pipeline reduces the state at {request.path}, which is not given",
            hint="name its path with path=, or commit with pipeline='lossless'",
        )
    changes = [replace(c, reducer=reducer) if c.path in reduced else c for c in changes]
    production = None
    # Training goes on from its own weights: an approximation is only written on request.
    if reads and (written or not reducer.pipeline.forward_only):
        from mvc.repo.commit.production_files import check_output  # rarely needed

        production = {path: store.fs.stat(store.root / path) for path in sorted(named)}
        check_output(store.fs, len(production), read)
    return Inputs(request, changes, code, produced_by=text, production=production)


def tip_of(store: Store, request: CommitRequest) -> Head:
    """The tip that the commit is made on: of HEAD, or of the requested branch or tag."""
    if request.options.detached:
        return Head(None, request.options.parent)
    if request.options.tag is not None:
        return Head(None, tagged(store.fresh(), request.options.tag))
    return tip(store.fresh(), request.options.branch, new=request.options.new_branch)


def _reducer(request: CommitRequest, text: str | None) -> Reducer | None:
    """What reduces weights as the pipeline ``text`` says; None if that only codes.

    Raises WrongUsage if the pipeline has a save decision: a commit always saves.
    """
    options, pipeline = request.options, Pipeline.parse(text or "lossless")
    makes = pipeline.decisions or pipeline.lossy or pipeline.forward_only
    if options.produced_by is not None or not makes:
        if options.exact:
            raise WrongUsage("exact is for lossy pipelines")
        return None
    if pipeline.decisions:
        decided = {each.text for each in pipeline.decisions}
        words = [word.strip() for word in pipeline.text.split("|")]
        rest = " | ".join(word for word in words if word not in decided)
        origin = "" if request.pipeline else f"commit.pipeline is {text}: "
        raise WrongUsage(
            f"{origin}stage {pipeline.decisions[0].text} decides whether a version is saved, and a "
            "commit always saves",
            hint=f"use mvc.Recorder, which decides, or leave out stage and bound: {rest}",
        )
    return Reducer(pipeline, frozenset(options.exact))


class PatchMissing(MvcWarning):
    """The patch that the setting ``commit.patch`` asks for could not be had."""


def _code_now(store: Store, config: Config, *, patch: bool | None) -> GitCode:
    """The git work tree around the repository; its patch as the settings say, if None.

    Raises WrongUsage, IoFailed or NotInstalled for a patch that ``patch`` asks for and that cannot
    be had; where only the settings ask for it, this is a warning (PatchMissing).
    """
    asked = bool(config.get("commit.patch")) if patch is None else patch
    code = git_code(store.fs, store.root, patch=asked, again=bool(patch))
    if code.problem is not None:
        if patch:
            raise code.problem
        said = f"the version is recorded without its patch (commit.patch): {code.problem.message}"
        warnings.warn(said, PatchMissing, stacklevel=4)
    return code


# -- files on disk -----------------------------------------------------------------------


def _of_files(
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
    names, gone = list[str](), list[str]()
    at = tip(store.fresh(), options.branch, new=options.new_branch)
    tracked = manifests.of_commit(store, at.commit).by_path
    if files.all and at.branch != head(store.fresh()).branch:
        raise WrongUsage(
            "all is for the current branch: it compares files with HEAD", hint="name the files"
        )
    if given is not None:
        cwd, paths = files.cwd or fs.cwd(), paths_of(given)
        names, gone = worktree.expand(store, paths, cwd, tracked)
        if not names and all(fs.stat(cwd / path) is not None for path in paths):
            raise WrongUsage("no files to commit", hint="-a takes out missing ones; see .mvcignore")
    elif not (files.all or options.allow_empty):
        raise WrongUsage("nothing to commit: name paths, or add -a for every tracked one")
    changed = status(store).changes if files.all else ()
    _refuse_older(store, [change for change in changed if change.path not in names])
    names += [change.path for change in changed if change.kind == "modified"]
    gone += [c.old for c in changed if c.kind == "renamed" and c.path in names]
    missed = (c.path for c in changed if c.kind == "missing" and not c.not_written)
    gone += [path for path in missed if fs.stat(root / path, follow=False) is None]
    if files.all and not (names or gone or options.allow_empty):
        _refuse_unnamed(changed)

    def open_(name: str) -> AbstractContextManager[StateFile]:
        unless = partial(_was_kept_opaque, store, name)
        return open_file(fs, root / name, name, strict=not files.opaque, unless=unless)

    kept = [Change(n, partial(open_, n)) for n in dict.fromkeys(names)]
    return [*kept, *(Change(n, None) for n in dict.fromkeys(gone))]


def _refuse_older(store: Store, changed: Sequence[FileChange]) -> None:
    """Raises WouldOverwrite if a file of an older version would replace a state from Python.

    The training that recorded the state did not write the file.
    """
    tracked = manifests.of_commit(store, head(store.fresh()).commit).by_path
    for change in changed:
        if change.same_as is not None and worktree.is_python_state(tracked[change.path]):
            name = printable(change.path)
            raise WouldOverwrite(
                f"{name} is as in version {change.same_as.short}, older than HEAD, which was "
                "recorded from Python",
                hint=f"'mvc checkout HEAD {name}' updates the file; 'mvc commit {name}' records it",
            )


def _refuse_unnamed(changed: Sequence[FileChange]) -> None:
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
        entry = manifests.of_commit(store, head(store.fresh()).commit).by_path.get(name)
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
