"""What a commit is to take: a Python state, named files, or everything that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from mvc.adapters.parsed import ParsedFile
from mvc.adapters.python_state import from_state
from mvc.errors import WrongUsage
from mvc.repo import pending, worktree
from mvc.repo.commit import Change
from mvc.repo.context import Context
from mvc.repo.last import LastVersion
from mvc.repo.sources import open_file
from mvc.repo.status import status

__all__ = ["of_files", "of_state"]


def of_state(state: Mapping[str, Any], name: str, last: LastVersion | None) -> Change:
    """A mapping of tensors as the file ``name``; ``last`` is its version before, in memory."""

    def opened() -> AbstractContextManager[ParsedFile]:
        return nullcontext(from_state(state))

    return Change(name, opened, last)


def of_files(
    context: Context, paths: Sequence[Path] | None, everything: bool, cwd: Path | None
) -> list[Change]:
    """Files by path, folders standing for their files, and with ``everything`` every tracked
    path that changed, deleted ones included.

    Raises WrongUsage if there is nothing to look at.
    """
    names: list[str] = []
    if paths is not None:
        names = worktree.expand(context, paths, cwd or context.store.fs.cwd())
        if not names:
            raise WrongUsage("no files to commit", hint="see .mvcignore")
    elif not everything and not pending.removed(context):
        raise WrongUsage("nothing to commit: name paths, or add -a for every tracked one")
    gone: list[str] = []
    if everything:
        for change in status(context, untracked=False).changes:
            if change.kind == "modified":
                names.append(change.path)
            elif change.kind == "missing":
                gone.append(change.path)
    fs, root = context.store.fs, context.root
    kept = [Change(n, partial(open_file, fs, root / n, n)) for n in dict.fromkeys(names)]
    return [*kept, *(Change(n, None) for n in gone)]
