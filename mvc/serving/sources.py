"""Where a Follower gets versions from: a repository that this process opens, or a remote.

A Follower keeps a model in memory or a file (the replica) equal to the live version of a target.
The live version is the version that is deployed to the target now.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from mvc.api import Deployed, Repository, opened
from mvc.errors import (
    CommandFailed,
    DamagedData,
    HistoryMissing,
    IoFailed,
    MvcError,
    MvcWarning,
    NoDeployment,
    NotARepository,
    UnknownTarget,
)
from mvc.ids import CommitId
from mvc.names import check_node, printable
from mvc.serving.reports import Reports
from mvc.serving.sinks import ReplicaSink, Sink, TakenOver
from mvc.system import HookFailed, run_command
from mvc.text import count, listed
from mvc.times import format_time
from mvc.transport import (
    FollowedVersion,
    Replica,
    Transport,
    Update,
    names_folder,
    open_transport,
    remote_at,
    serve,
)
from mvc.types import PathName

MIRROR = "mirror"
"""If the remote is a bucket: the name of the folder with local copies of its files."""
_RETRY = "repair the command, then run mvc follow again"


class NotFollowing(MvcWarning):
    """A Follower cannot change its version, or cannot send its reports. The text is the reason."""


class Followed(Struct, frozen=True, kw_only=True):
    """A change: the Follower now serves the version ``commit``.

    ``time_ns``: when ``commit`` went live on ``target``. ``swapped_ns``: when the Follower began to
    serve it. ``previous``: the version served before; None if unknown. ``rollback``: whether the
    deployment returns to an earlier deployment, or ``commit`` is older than ``previous``.
    ``deployed``: the deployment; None with a ReplicaSink. ``file``: the file or folder of a
    ReplicaSink.
    ``path``: the file of the version that was written to ``file``; empty for a folder.
    ``received``: the number of bytes received for this change.
    """

    target: str
    commit: CommitId
    time_ns: int
    previous: CommitId | None
    swapped_ns: int
    rollback: bool = False
    deployed: Deployed | None = None
    file: str = ""
    path: str = ""
    received: int = 0


OnChange = Callable[[Followed], object]


class OpenSource:
    """A repository that is open in this process. Sinks (such as a model) load versions from it."""

    interval: float | None = 0.1
    """Seconds between two calls of ``news``. None if ``news`` waits until there is a change."""

    def __init__(
        self,
        source: Repository | PathName,
        target: str,
        sinks: Sequence[Sink],
        *,
        on_change: OnChange | None,
    ) -> None:
        self.repo, self._own = opened(source)
        self._target, self._sinks, self._on_change = target, sinks, on_change
        self._transport = serve(self.repo)
        self._is_sound = True  # False after an error of the open repository
        self._live: tuple[str, Deployed | None] = "", None  # mark and live deployment
        self.current: Followed | None = None

    @property
    def present(self) -> Followed | None:
        """The version in the sinks."""
        return self.current

    def news(self, mark: str, seconds: float) -> str | None:
        """As ``Transport.live``: waits for another live version, and returns its mark."""
        self._open()
        return self._transport.live(self._target, mark, seconds)

    def is_settled(self) -> bool:
        """Whether ``poll`` can be skipped until another version goes live.

        Always False: ``poll`` is called each time, because it is fast.
        """
        return False

    def _live_now(self) -> Deployed | None:
        """The live deployment; None before the first deployment.

        Raises NotARepository while the repository is missing; NoDeployment or UnknownTarget if no
        version is live any more; DamagedData; IoFailed.
        """
        try:
            self._open()
            mark, _ = self._transport.mark(self._target)
            if mark != self._live[0]:
                self._live = mark, self._read_live()
            return self._live[1]
        except (DamagedData, HistoryMissing, IoFailed, NotARepository):
            self.reset()
            raise

    def _read_live(self) -> Deployed | None:
        try:
            return self.repo.live(self._target).deployment
        except (NoDeployment, UnknownTarget):
            if self.current is not None:
                raise
            return None

    def _open(self) -> None:
        """Opens the repository again if it was replaced or closed, or after an error."""
        if self.repo.closed or not self._transport.is_in_place() or not self._is_sound:
            fs, clock = self._transport.fs, self._transport.clock
            fresh = Repository.open(self.repo.root, discover=False, fs=fs, clock=clock)
            self.close()
            self.repo, self._own, self._transport = fresh, True, serve(fresh)
            self._live, self._is_sound = ("", None), True

    def poll(self) -> Followed | None:
        """Serves the live version. Returns the change, or None if there is none."""
        live = self._live_now()
        if live is None or (self.current is not None and self.current.deployed == live):
            return None
        self.repo.manifest(live.commit)  # raises an error if the version's state is absent
        done = Followed(
            target=live.target, commit=live.commit, time_ns=live.time_ns,
            previous=None if self.current is None else self.current.commit,
            swapped_ns=self._transport.clock.now_ns(),
            rollback=live.returns_to is not None, deployed=live,
        )  # fmt: skip
        with ExitStack() as served:  # if a sink fails, all sinks are restored
            for sink in self._sinks:
                served.enter_context(sink.serving(self.repo, live))
            if self._on_change is not None:
                self._on_change(done)
        self.current = done
        return done

    def reset(self) -> None:
        """Makes the next call open the repository again."""
        self._is_sound = False

    def close(self) -> None:
        if self._own:
            self.repo.close()


class Replicated:
    """A file or folder (the replica) that is synchronized with a target of a remote.

    If the sink has a name, sends reports to the remote: which version is served under this name.
    """

    interval: float | None = None

    def __init__(
        self,
        source: Repository | PathName,
        target: str,
        sink: ReplicaSink,
        *,
        on_change: OnChange | None,
        options: Mapping[str, str | bool],
    ) -> None:
        url = source.root if isinstance(source, Repository) else source
        self._remote = remote_at(os.fspath(url), options)
        self._target, self._sink, self._on_change = target, sink, on_change
        self._report_warning = ""  # the newest warning about reports
        self._transport: Transport | None = None
        name = check_node(sink.name) if sink.name else ""
        self._paths = (sink.path,) if isinstance(sink.path, str) else tuple(sink.path or ())
        self._is_folder = names_folder(sink.fs, sink.file)
        self._file = Replica(
            sink.fs,
            Path(sink.file),
            folder=self._is_folder,
            in_place=sink.in_place,
            undo=sink.required,
        )
        self._reports = Reports(self._file.folder, name, sink.fs, sink.clock) if name else None
        self.current = self.present

    @property
    def present(self) -> Followed | None:
        """The version in the replica."""
        with suppress(MvcError):
            version = self._file.current()
            return None if version is None else self._followed(Update(version, 0))
        return None

    def _connected(self) -> Transport:
        if self._transport is None:
            self._transport = open_transport(self._remote, folder=self._file.folder / MIRROR)
        return self._transport

    def reset(self) -> None:
        """Closes the connection. The next access opens a new connection."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(MvcError):
                transport.close()

    def close(self) -> None:
        self.reset()
        self._file.close()

    def news(self, mark: str, seconds: float) -> str | None:
        """As ``Transport.live``: waits for another live version, and returns its mark."""
        return self._connected().live(self._target, mark, seconds)

    def is_settled(self) -> bool:
        """Whether the replica is complete and unchanged. If true, sends reports that wait."""
        current = self._file.current()
        if current is None or not current.commands_ran:
            return False
        self.report()
        return True

    def poll(self) -> Followed | None:
        """Serves the live version. Returns the change, or None if there is none."""
        done = self._swap()
        self.report()
        return done

    def report(self) -> None:
        """Sends reports that were not sent yet. If sending fails, warns once."""
        if self._reports is None or not self._reports.waiting:
            return
        try:
            self._reports.send(self._connected())
            self._report_warning = ""
        except MvcError as error:
            unsent, refused = self._reports.waiting, error.message.rpartition(" deploy:")[2]
            if is_foreign := refused in unsent and refused.split("/")[1] != self._reports.name:
                self._reports.drop(refused)  # a report under another name can never be sent
            if error.message != self._report_warning:
                self._report_warning = error.message
                text = (
                    f"{f'node {self._reports.name} drops' if is_foreign else 'not sent:'} "
                    f"{count(len(unsent), 'report')} of {listed(sorted(set(unsent)))}: "
                    f"{error.message}"
                )
                warnings.warn(text, NotFollowing, stacklevel=5)

    def _swap(self) -> Followed | None:
        """Updates the replica. Returns the change, or None if the replica was up to date.

        If a required command fails, the previous version stays or returns, and CommandFailed is
        raised.
        """
        clock, old, sink = self._sink.clock, self._file.current(), self._sink
        if old is not None:  # an earlier process may have been killed before it reported ``old``
            self._served(old, min(old.shown_ns, clock.now_ns()))
        update = self._file.update(
            self._connected(),
            self._target,
            self._paths,
            prepare=self._prepare if sink.prepare else None,
            full=sink.full,
        )
        version = update.version
        if update.foreign:
            warnings.warn(
                f"replaced {update.foreign}, which another program wrote, by "
                f"{version.id.short}, live on {printable(self._target)}",
                TakenOver,
                stacklevel=4,
            )
        self._served(version, clock.now_ns())
        done = self._followed(update)
        if version.commands_ran:
            self.current = self.current or done
            return None
        problem = self._run(sink.command, update)
        if problem is not None and sink.required:
            self._go_back(update, problem)
        if problem is not None:
            text = f"{self._file.shown} is now {version.id.short}, but its command {problem}"
            warnings.warn(text, HookFailed, stacklevel=4)
        if self._on_change is not None:
            self._on_change(done)
        self._file.note(replace(version, commands_ran=True))
        self._file.settle()
        self.current = done
        return done

    def _followed(self, update: Update) -> Followed:
        return Followed(
            target=self._target, commit=update.version.id, time_ns=update.version.time_ns,
            previous=None if update.before is None else update.before.id,
            swapped_ns=update.version.shown_ns
            if update.version.commands_ran
            else self._sink.clock.now_ns(),
            rollback=update.is_rollback, file=self._file.shown,
            path="" if self._is_folder else update.version.paths[0], received=update.received,
        )  # fmt: skip

    def _served(self, version: FollowedVersion, when_ns: int) -> None:
        if self._reports is not None:
            self._reports.served(version.id, self._target, when_ns)

    def _prepare(self, update: Update) -> None:
        problem = self._run(self._sink.prepare, update)
        if problem is not None:
            raise CommandFailed(
                f"the prepare command for {update.version.id.short} {problem}", hint=_RETRY
            )

    def _go_back(self, update: Update, problem: str) -> NoReturn:
        """Serves the previous version again, and runs the command for that version. Raises
        CommandFailed.
        """
        failed, before = f"the command for {update.version.id.short} {problem}", update.before
        if before is None:
            raise CommandFailed(f"{failed}, and there is no previous version", hint=_RETRY)
        self._file.go_back(update)
        self._served(before, self._sink.clock.now_ns())
        back = Update(before, 0, before=update.version, is_rollback=True)
        second = self._run(self._sink.command, back)
        self.report()
        if second is not None:
            failed += (
                f", and then the command for {before.id.short} {second}: "
                "the engine may serve another version"
            )
        raise CommandFailed(f"{self._file.shown} is {before.id.short} again: {failed}", hint=_RETRY)

    def _run(self, command: str, update: Update) -> str | None:
        """Runs a shell command of the sink. Returns what failed; None if nothing failed."""
        if not command:
            return None
        place, before = os.fspath(Path(self._sink.file).absolute()), update.before
        facts = {
            "schema": "mvc.follow/1",
            "target": self._target,
            "version": str(update.version.id),
            "previous": None if before is None else str(before.id),
            "rollback": update.is_rollback,
            "file": None if self._is_folder else place,
            "folder": place if self._is_folder else None,
            "path": "\n".join(self._paths if self._is_folder else update.version.paths),
            "prepared": None if update.prepared is None else str(update.prepared.absolute()),
            "url": self._remote.url,
            "time": format_time(update.version.time_ns),
        }
        return run_command(command, self._sink.timeout, facts, folder=str(self._sink.fs.cwd()))
