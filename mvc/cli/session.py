"""``Session``: the output and the repository of a command.

The repository is opened when the command first uses the repository.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.api import Config, settings
from mvc.cli.output import Output
from mvc.cli.tables import shortened
from mvc.errors import DamagedData, MvcError, NotARepository, WouldOverwrite, WrongUsage
from mvc.system import Clock, FileSystem
from mvc.text import format_time, listed, one_line, printable
from mvc.times import whole_second

if TYPE_CHECKING:
    from mvc.api import Interrupted, Repository
    from mvc.ids import CommitId, Digest

_ACCESS = ("token_file", "ca_file", "program", "endpoint", "region")
"""The options of a remote that mvc needs to connect to the remote."""


class Session(Output):
    """One run of the program.

    ``as_json``: whether the command prints one JSON object. ``arguments``: the words after ``mvc``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fs = FileSystem()
        self.debug = False
        self.as_json = False
        self.no_pager = False
        self.arguments: Sequence[str] = ()
        self._opened: Repository | None = None

    @property
    def repo(self) -> Repository:
        """The repository of the working folder. The first access opens the repository."""
        if self._opened is None:
            from mvc.api import Repository

            self._opened = Repository.open(".", config=load)
            self._warn_of_interrupted(self._opened.interrupted)
        return self._opened

    @contextmanager
    def visiting(self, remote: str | None, *, nodes: bool = False) -> Iterator[None]:
        """Within the ``with`` block, ``repo`` is a temporary copy of ``remote`` (a name or a URL).

        ``nodes``: whether the copy has the reports of nodes (machines that serve a model). If
        ``remote`` is None, ``repo`` does not change.
        """
        if remote is None:
            yield
            return
        from mvc.api import visit

        url, options = remote, dict[str, str | bool]()
        if not {"/", ":"} & set(remote):
            with suppress(NotARepository):
                known = self.repo.remotes.find(remote)
                url, options = known.url, {name: getattr(known, name) for name in _ACCESS}
        with (
            self.progress("receiving") as progress,
            visit(url, nodes=nodes, config=load, progress=progress, **options) as visited,
            self.working_on(visited),
        ):
            yield

    def at_remote(
        self, name: str | None, act: Callable[[], int | None], *, changes: bool
    ) -> int | None:
        """Runs ``act`` on the repository of the remote ``name``. Returns the exit code.

        If ``name`` is None, runs ``act`` on the local repository. If the remote is on another
        machine and is reached over ssh, runs the same command on that machine instead of ``act``.
        ``changes``: whether ``act`` writes.
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
        """The name of the command and the words that follow, without ``--remote``."""
        name = click.get_current_context().info_name or ""
        words = iter(self.arguments[list(self.arguments).index(name) :])
        rest = []
        for word in words:
            if word == "--remote":
                next(words, None)
            elif not word.startswith("--remote="):
                rest.append(word)
        return rest

    def moment_or_rev(
        self, words: tuple[str, ...], at: str | None, target: str | None
    ) -> tuple[str | None, tuple[str, ...]]:
        """The revision that the arguments name, and the words that remain.

        If ``at`` or ``target`` is given, the revision is the version that was live at ``at`` on
        ``target``. Otherwise the revision is the first of ``words``, or None if ``words`` is empty.
        """
        if at is None and target is None:
            return (words[0], words[1:]) if words else (None, ())
        if target is None and {*words[:1]} & {*self.repo.targets()} and not self.tracks(words[0]):
            raise WrongUsage(
                f"{printable(words[0])} is a target, not a path",
                hint=f"name the target with '--target {printable(words[0])}'",
            )
        self.repo.find(at=at, target=target)  # raises an error if no target is named
        live = self.repo.live(target, at=at) if target else self.repo.live(at=at)[0]
        self.note(
            f"{live.commit.short} was live on {live.target} from {self.moment(live.since_ns)}"
        )
        return str(live.commit), words

    def _warn_of_interrupted(self, interrupted: Interrupted) -> None:
        """When a repository is opened, mvc completes or cancels interrupted checkouts. Warns of
        these checkouts.
        """
        replaced, given_up, alone = (
            listed([printable(str(path)) for path in paths], 3)
            for paths in (interrupted.replaced, interrupted.given_up, interrupted.left_alone)
        )
        done = [f"{replaced} replaced" if replaced else "", "HEAD moved" * interrupted.moved_head]
        if any(done):
            self.warn(f"completed an interrupted checkout: {'; '.join(filter(None, done))}")
        if given_up:
            more = f"; not changed, because another program wrote there: {alone}" if alone else ""
            self.warn(
                f"cancelled an interrupted checkout: {given_up} not replaced{more}; "
                "see 'mvc status'"
            )

    def answered(self, schema: str, payload: object, *, one_line: bool = False) -> bool:
        """With ``--json``, prints ``payload``. Returns whether ``--json`` is given."""
        if self.as_json:
            self.json(schema, payload, one_line=one_line)
        return self.as_json

    @property
    def config_file(self) -> Path:
        return self.repo.root / ".mvc" / "config.yaml"

    def now_ns(self) -> int:
        """The clock's time in ns since 1970, to print ages such as ``3 hours ago``.

        Does not check the clock: the time is not recorded.
        """
        return Clock().now_ns()

    def moment(self, time_ns: int, *, cell: bool = False) -> str:
        """The text of a time in whole seconds; with -v, in nanoseconds.

        The seconds are rounded up, so that ``--at`` with this text finds an event of this time.
        ``cell``: whether the text is for a table. In a table on a terminal, the offset from UTC,
        such as ``+01:00``, is omitted.
        """
        text = format_time(time_ns if self.verbose else whole_second(time_ns))
        return text[:19] if cell and self.terminal and not self.verbose else text

    def id_text(self, id_: Digest) -> str:
        """The first ten digits of an id. With -v, all digits."""
        return str(id_) if self.verbose else id_.short

    def title(self, id_: CommitId) -> str:
        text = one_line(self.repo.version(id_).message)
        return text if self.width is None else shortened(text, max(self.width - 40, 40), "end")

    def named(self, id_: CommitId) -> str:
        """The id and the title of a version: ``1a2b3c4d5e, nightly``."""
        return ", ".join(filter(None, (id_.short, self.title(id_))))

    def names(self, paths: Iterable[str]) -> list[str]:
        """Converts PATHs, which are relative to the working folder, to tracked names.

        Tracked names are relative to the repository's root. The root itself is ``.``.
        """
        return [self.repo.tracked_name(path) or "." for path in paths]

    def tracks(self, path: str) -> bool:
        """Whether this PATH is a file in HEAD, or a folder with files in HEAD."""
        with suppress(MvcError):  # an invalid path, or no version yet
            (name,) = self.names([path])
            return name == "." or any(
                f"{file}/".startswith(f"{name}/") for file in self.repo.manifest().by_path
            )
        return False

    def from_here(self, name: str) -> str:
        """Converts a tracked name to a printable path relative to the working folder."""
        path = os.path.relpath(self.repo.root / name, self.fs.realpath(self.fs.cwd()))
        return printable(path + "/" if name.endswith("/") else path)

    def check_output(self, output: str | Path, *, force: bool | None) -> None:
        """Raises WouldOverwrite if the output file exists, unless ``force``.

        ``force`` is None if the command has no option -f. Raises WrongUsage if ``output`` names a
        folder, or a file inside .mvc.
        """
        from mvc.files import refuse_slash, refuse_store

        refuse_slash(output)
        path = Path(output)
        if path == Path():
            raise WrongUsage("the output name is empty", hint="name a file")
        refuse_store(self.fs, path)
        if self.fs.stat(path) is not None and not force:
            name = printable(str(path))
            hint = "choose another name" if force is None else "add -f to replace it"
            raise WouldOverwrite(f"{name} already exists", hint=hint)

    def exit_code(self, code: int | None) -> int:
        """Returns ``code``. If the output is incomplete, warns, and returns the code for damage."""
        if not self.incomplete:
            return code or 0
        self.warn(f"the answer is incomplete: {self.incomplete[0].message}")
        if self.incomplete[0].hint is not None:
            self.note(f"hint: {self.incomplete[0].hint}")
        return DamagedData.exit_code

    def close(self) -> None:
        """Closes the repository. If journal entries are lost, warns that output may lack data."""
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
        """Within the ``with`` block, ``repo`` is ``repository``."""
        own, self._opened = self._opened, repository
        try:
            yield
        finally:
            self._opened = own


def load(file: Path | None) -> Config:
    """Reads settings from ``file``, and from variables such as MVC_STORE_RESET_INTERVAL."""
    return settings(file, os.environ)
