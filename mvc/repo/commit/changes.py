"""What a commit is to take: a Python state, named files, or everything that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from mvc.adapters.parsed import ParsedFile
from mvc.adapters.python.state import from_state
from mvc.errors import WrongUsage
from mvc.repo.commit.base_cache import BaseCache
from mvc.repo.commit.request import Change
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context
from mvc.repo.lookup import staged_removals
from mvc.repo.worktree import worktree
from mvc.repo.worktree.status import status

__all__ = ["of_files", "of_state"]


def of_state(state: Mapping[str, Any], name: str, last: BaseCache | None) -> Change:
    """A mapping of tensors as the file ``name``; ``last`` is its version before, in memory."""

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
    """Files by path, folders standing for their files, and with ``everything`` every tracked
    path whose file changed or was renamed.

    A tracked path without a file stays: a version committed from Python never had one.
    The symbolic links in folders that lead nowhere are put in ``dead``.
    Raises WrongUsage if there is nothing to look at; without ``opaque`` a file that
    claims to be a model but is cut off raises BadModelFile when it is opened.
    """
    names: list[str] = []
    if paths is not None:
        names = worktree.expand(context, paths, cwd or context.store.fs.cwd(), dead)
        if not names:
            raise WrongUsage("no files to commit", hint="see .mvcignore")
    elif not everything and not staged_removals.removed(context):
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
