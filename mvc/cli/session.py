"""What every command is given: where to write, and the repository, opened when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.cli.output import Output
from mvc.errors import DamagedData
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.repo.config import Config
    from mvc.repo.context import Context, Progress
    from mvc.repo.repository import Repository

__all__ = ["Session", "load", "user_config"]


class Session:
    """One run of the program. ``verbosity``: -1 quiet, 0, 1 and more with each -v."""

    def __init__(self) -> None:
        self.out = Output()
        self.verbosity = 0
        self.debug = False
        self._told = False
        self._context: Context | None = None
        self._repository: Repository | None = None

    @property
    def verbose(self) -> bool:
        return self.verbosity > 0

    @property
    def context(self) -> Context:
        """The repository of the working folder or the nearest one above it.

        Commands that need no array use this and never import numpy.
        """
        if self._context is None:
            from mvc.repo.opening import open_context

            self._context = open_context(".", config=load)
        return self._context

    @property
    def repository(self) -> Repository:
        """The same with all its verbs; imports numpy."""
        if self._repository is None:
            from mvc.repo.repository import Repository

            self._repository = Repository(self.context)
        return self._repository

    def now_ns(self) -> int:
        return self.context.store.clock.now_ns()

    def names(self, paths: Iterable[str]) -> list[str]:
        """Tracked names of PATHs given relative to the working folder; ``.`` for all of them."""
        from mvc.repo.worktree.worktree import tracked_name

        context = self.context
        fs = context.store.fs
        return [tracked_name(context.root, path, fs.cwd(), fs=fs) or "." for path in paths]

    def from_here(self, name: str) -> str:
        """A tracked name as a path from the working folder, printable."""
        fs = self.context.store.fs
        return printable(os.path.relpath(self.context.root / name, fs.realpath(fs.cwd())))

    def tell_incomplete(self, incomplete: Sequence[DamagedData]) -> None:
        """Ends a command whose answer lacks what is lost: a warning, and exit code 4."""
        if not incomplete:
            return
        self._told = True
        self.out.warn(f"this is incomplete: {printable(incomplete[0].message)}")
        if incomplete[0].hint is not None:
            self.out.note(f"hint: {incomplete[0].hint}")
        click.get_current_context().exit(DamagedData.exit_code)

    def close(self) -> None:
        if self._context is not None:
            self._warn_of_gaps(self._context)
            self._context.store.close()
        self._context = self._repository = None

    def _warn_of_gaps(self, context: Context) -> None:
        """Whatever was shown lacks what lost entries of the journal said."""
        gaps = context.store.snapshot.gaps
        if gaps and not self._told:
            self._told = True
            lost = ", ".join(str(gap) for gap in gaps[:3]) + (", ..." if len(gaps) > 3 else "")
            self.out.warn(f"lost: {lost}; refs, history and deployments may be incomplete")

    @contextmanager
    def progress(self, verb: str, *, counted: bool = False) -> Iterator[Progress | None]:
        """A bar on stderr while the block runs; None where nobody would see it.

        It shows bytes, or ``counted``: a number of things.
        """
        from mvc.cli.progress import bar

        with bar(verb, wanted=self.verbosity >= 0, counted=counted) as callback:
            yield callback


def load(file: Path | None) -> Config:
    """The configuration with every source that the command line knows."""
    from mvc.io.files import FileSystem
    from mvc.repo.config import load_config

    return load_config(FileSystem(), file, user_config(os.environ), _settings(os.environ), {})


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are configuration: MVC_STORE_RESET_INTERVAL and the like."""
    return {k: v for k, v in environment.items() if k.startswith("MVC_")}


def user_config(environment: Mapping[str, str]) -> Path:
    """The user's own configuration file, whether it exists or not."""
    base = environment.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "mvc" / "config.yaml"
