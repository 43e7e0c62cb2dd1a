"""Turns what a caller gives ``Repository.commit`` into changes: a Python state, or files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from mvc.adapters.parsed import ParsedFile
from mvc.adapters.python.state import from_state
from mvc.errors import WrongUsage
from mvc.repo.commit.base_cache import BaseCache
from mvc.repo.commit.request import Change
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context
from mvc.repo.lookup.refs import staged_removals
from mvc.repo.worktree import worktree
from mvc.repo.worktree.status import status

__all__ = ["of_files", "of_state", "paths_of"]


def of_state(state: Mapping[str, Any], name: str, last: BaseCache | None) -> Change:
    """A mapping of tensors as the path ``name``; ``last`` holds the path's previous version."""

    def opened() -> AbstractContextManager[ParsedFile]:
        return nullcontext(from_state(state))

    return Change(name, opened, last)


def of_files(
    context: Context,
    paths: Sequence[Path] | None,
    everything: bool,
    cwd: Path | None,
    opaque: bool = False,
    dead: set[str] | None = None,
) -> list[Change]:
    """The files at ``paths``; a folder means the files in it.

    ``everything`` adds each tracked path whose file was modified or renamed. A tracked path
    without a file stays tracked, because a state committed from Python has no file. Symbolic
    links in folders that lead nowhere are added to ``dead``. Raises WrongUsage if no path is
    named and none is removed. A truncated model file raises BadModelFile when it is opened,
    unless ``opaque``.
    """
    names: list[str] = []
    if paths is not None:
        names = worktree.expand(context, paths, cwd or context.store.fs.cwd(), dead)
        if not names:
            raise WrongUsage("no files to commit", hint="see .mvcignore")
    elif not everything and not staged_removals(context):
        raise WrongUsage("nothing to commit: name paths, or add -a for every tracked one")
    gone: list[str] = []
    if everything:
        for change in status(context).changes:
            if change.kind in {"modified", "renamed"}:
                names.append(change.path)
            if change.kind == "renamed":
                gone.append(change.old)
    fs, root = context.store.fs, context.root
    kept = [
        Change(n, partial(open_file, fs, root / n, n, strict=not opaque))
        for n in dict.fromkeys(names)
    ]
    return [*kept, *(Change(n, None) for n in gone)]


def paths_of(given: object) -> list[Path]:
    """One path or several, as a list. Raises WrongUsage for anything else."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if not isinstance(given, Sequence | Set | Iterator) or isinstance(given, bytes | bytearray):
        raise _refused(given, "")
    listed = []
    for item in given:
        if not isinstance(item, str | PathLike):
            raise _refused(item, f"a {type(given).__name__} with ")
        listed.append(Path(item))
    return listed


def _refused(given: object, before: str) -> WrongUsage:
    name = type(given).__name__
    hint = "name a tensor by a mapping: {'weight': tensor}"
    if callable(getattr(given, "state_dict", None)):
        hint = "pass its tensors: model.state_dict()"
    return WrongUsage(
        f"commit takes a mapping of tensors, or paths of files and folders, not {before}a {name}",
        hint=hint,
    )
