"""What every command is given: it prints, and opens the repository at the first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.api import Config, settings
from mvc.cli.output import Output
from mvc.errors import DamagedData, MvcError, NotARepository, WouldOverwrite, WrongUsage
from mvc.system import Clock, FileSystem
from mvc.text import format_time, listed, one_line, printable

if TYPE_CHECKING:
    from mvc.api import Interrupted, Repository
    from mvc.ids import CommitId, Digest

_ACCESS = ("token_file", "ca_file", "program", "endpoint", "region")
"""Options of a remote that say how to reach it."""


class Session(Output):
    """One run of the program. ``verbosity``: -1 quiet, 0, 1 and more with each -v.

    ``as_json``: the command prints one JSON object. ``arguments``: what was typed behind ``mvc``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fs = FileSystem()
        self.verbosity = 0
        self.debug = False
        self.as_json = False
        self.no_pager = False
        self.arguments: Sequence[str] = ()
        self._opened: Repository | None = None

    @property
    def verbose(self) -> bool:
        return self.verbosity > 0

    @property
    def repo(self) -> Repository:
        """The repository of the working folder or the nearest one above it."""
        if self._opened is None:
            from mvc.api import Repository

            self._opened = Repository.open(".", config=load)
            self._warn_of_interrupted(self._opened.interrupted)
        return self._opened

    @contextmanager
    def visiting(self, remote: str | None, *, nodes: bool = False) -> Iterator[None]:
        """While the block runs, ``repo`` is a private copy of a remote, or of one at a URL.

        With ``nodes`` it has what nodes report there. None: the repository here.
        """
        if remote is None:
            yield
            return
        from mvc.api import visit

        url, options = remote, dict[str, str | bool]()
        if not {"/", ":"} & set(remote):
            with suppress(NotARepository):
                found = self.repo.remotes.find(remote)
                url, options = found.url, {name: getattr(found, name) for name in _ACCESS}
        with (
            self.progress("receiving") as progress,
            visit(url, nodes=nodes, config=load, progress=progress, **options) as visited,
            self.working_on(visited),
        ):
            yield

    def at_remote(
        self, name: str | None, act: Callable[[], int | None], *, changes: bool
    ) -> int | None:
        """Runs ``act`` on the repository of a remote, None for the one here; returns its exit code.

        One in a folder is worked on as with ``mvc -C``; behind ssh the same command runs there.
        ``changes``: whether it changes anything.
        """
        if name is None:
            return act()
        remotes = self.repo.remotes
        if (folder := remotes.folder(name)) is not None:
            self.close()
            with chdir(folder):
                return act()
        if remotes.find(name).kind.runs_commands:
            return remotes.run(name, self._without_remote())

        def on(repository: Repository) -> int | None:
            with self.working_on(repository):
                return act()

        return remotes.maintain(name, on, changes=changes)

    def _without_remote(self) -> list[str]:
        """The command as it was typed, without what came before its name and ``--remote``."""
        name = click.get_current_context().info_name or ""
        given = iter(self.arguments[list(self.arguments).index(name) :])
        found = []
        for each in given:
            if each == "--remote":
                next(given, None)
            elif not each.startswith("--remote="):
                found.append(each)
        return found

    def moment_or_rev(
        self, words: tuple[str, ...], at: str | None, target: str | None
    ) -> tuple[str | None, tuple[str, ...]]:
        """The revision that is named, or was live then, and the words after it; None for neither.

        ``at`` and ``target`` are the options AT and TARGET.
        """
        if at is None and target is None:
            return (words[0], words[1:]) if words else (None, ())
        self.repo.find(at=at, target=target)  # says what is wrong where no target is named
        live = self.repo.live(target or self.repo.targets()[0], at=at)
        since = format_time(live.since_ns)
        self.note(f"{live.commit.short} was live on {live.target} from {since}")
        return str(live.commit), words

    def _warn_of_interrupted(self, found: Interrupted) -> None:
        """Says which checkouts of processes that were killed the opening has ended, and how."""
        replaced, given_up, alone = (
            listed([printable(str(path)) for path in paths], 3)
            for paths in (found.replaced, found.given_up, found.left_alone)
        )
        done = [f"{replaced} replaced" if replaced else "", "HEAD moved" * found.moved_head]
        if any(done):
            self.warn(f"completed a checkout that was interrupted: {'; '.join(filter(None, done))}")
        if given_up:
            more = f"; left alone, because it is not what mvc wrote: {alone}" if alone else ""
            self.warn(
                f"gave up a checkout that was interrupted: {given_up} not replaced{more}; "
                "see 'mvc status'"
            )

    def answered(self, schema: str, payload: object, *, one_line: bool = False) -> bool:
        """Prints ``payload`` if the command answers with JSON; returns whether it does."""
        if self.as_json:
            self.json(schema, payload, one_line=one_line)
        return self.as_json

    @property
    def config_file(self) -> Path:
        return self.repo.root / ".mvc" / "config.yaml"

    def now_ns(self) -> int:
        """The clock's time, even one that cannot be recorded."""
        return Clock().now_ns()

    def id_text(self, id_: Digest) -> str:
        """An id's first ten digits; with -v all of them."""
        return str(id_) if self.verbose else id_.short

    def title(self, id_: CommitId) -> str:
        return one_line(self.repo.version(id_).message)

    def named(self, id_: CommitId) -> str:
        """``1a2b3c4d5e, nightly``."""
        return ", ".join(filter(None, (id_.short, self.title(id_))))

    def names(self, paths: Iterable[str]) -> list[str]:
        """Tracked names of PATHs given relative to the working folder; ``.`` for all of them."""
        return [self.repo.tracked_name(path) or "." for path in paths]

    def tracks(self, path: str) -> bool:
        """Whether HEAD has a file of this PATH, or files in a folder of it."""
        with suppress(MvcError):  # a name that no path can have, or no version yet
            (name,) = self.names([path])
            tracked = self.repo.manifest().by_path
            return name == "." or any(f"{each}/".startswith(f"{name}/") for each in tracked)
        return False

    def from_here(self, name: str) -> str:
        """A tracked name, or a folder's with ``/`` at its end, as a printable path from here."""
        here = self.fs.realpath(self.fs.cwd())
        path = os.path.relpath(self.repo.root / name, here)
        return printable(path + "/" if name.endswith("/") else path)

    def check_output(self, output: str | Path, *, force: bool | None) -> None:
        """Raises WouldOverwrite if the file exists, unless ``force``; None: no option says so.

        Raises WrongUsage inside .mvc, and for the name of a folder.
        """
        from mvc.files import refuse_slash, refuse_store

        refuse_slash(output)
        path = Path(output)
        if path == Path():
            raise WrongUsage("the output is empty", hint="name a file")
        refuse_store(self.fs, path)
        if self.fs.stat(path) is not None and not force:
            name = printable(str(path))
            hint = "name another file" if force is None else "add -f to replace it"
            raise WouldOverwrite(f"{name} exists already", hint=hint)

    def exit_code(self, code: int | None) -> int:
        """The command's ``code``; that of damage, with a warning, if the answer is incomplete."""
        if not self.incomplete:
            return code or 0
        self.warn(f"this is incomplete: {self.incomplete[0].message}")
        if self.incomplete[0].hint is not None:
            self.note(f"hint: {self.incomplete[0].hint}")
        return DamagedData.exit_code

    def close(self) -> None:
        """Closes the repository; warns if lost journal entries may be missing in the answer."""
        repository, self._opened = self._opened, None
        if repository is not None:
            gaps = repository.gaps
            if gaps and not self.incomplete:
                lost = ", ".join(str(gap) for gap in gaps[:3]) + (", ..." if len(gaps) > 3 else "")
                self.warn(f"lost: {lost}; refs, history and deployments may be incomplete")
            repository.close()
        self.end_page()

    @contextmanager
    def working_on(self, repository: Repository) -> Iterator[None]:
        """Has the block work on this repository, which is open already, in place of its own."""
        own, self._opened = self._opened, repository
        try:
            yield
        finally:
            self._opened = own


def load(file: Path | None) -> Config:
    """The configuration with every source that the command line knows.

    Variables such as MVC_STORE_RESET_INTERVAL are settings.
    """
    return settings(file, os.environ)
