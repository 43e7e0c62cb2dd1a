"""Where a Follower looks: in a repository that is open here, or wherever a URL leads."""

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
from mvc.text import count
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
"""The folder of a bucket's mirror, in that beside the file."""
_AGAIN = "once the command succeeds, run it again"


class NotFollowing(MvcWarning):
    """Why a Follower goes on with the version that it serves, or why its reports wait."""


class Followed(Struct, frozen=True, kw_only=True):
    """``commit`` is served, which went live on ``target`` at ``time_ns``; since ``swapped_ns``.

    ``previous``: the version that was served before, None if that is not known. ``rollback``: the
    deployment returns to another, or the version is older than that one. ``deployed``: the
    record, in a repository that is open here. Of a ReplicaSink: ``file`` holds the file ``path`` of
    the version, or is a folder that holds it, for which ``received`` bytes came.
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


class AtHand:
    """A repository that is open in this process: sinks take versions out of it."""

    interval: float | None = 0.1
    """Seconds between two looks; None where ``news`` waits by itself."""

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
        self._is_sound = True  # nothing that was read from the open repository was wrong
        self._live: tuple[str, Deployed | None] = "", None  # with its mark
        self.current: Followed | None = None

    @property
    def served(self) -> CommitId | None:
        """What the sinks have."""
        return None if self.current is None else self.current.commit

    def news(self, mark: str, seconds: float) -> str | None:
        """As ``Transport.live``."""
        self._open()
        return self._transport.live(self._target, mark, seconds)

    def is_settled(self) -> bool:
        """Whether there is nothing to do while nothing else is live: a poll costs no more."""
        return False

    def _live_now(self) -> Deployed | None:
        """The deployment that is live by the record; None before the first.

        While nothing is recorded and no dated deployment becomes due, this costs a few calls of
        the system. Raises NotARepository while the repository is away, NoDeployment or
        UnknownTarget if nothing is live any more, DamagedData, IoFailed.
        """
        try:
            self._open()
            mark, _ = self._transport.mark(self._target)
            if mark != self._live[0]:
                self._live = mark, self._look()
            return self._live[1]
        except (DamagedData, HistoryMissing, IoFailed, NotARepository):
            self.leave()
            raise

    def _look(self) -> Deployed | None:
        try:
            return self.repo.live(self._target).deployment
        except (NoDeployment, UnknownTarget):
            if self.current is not None:
                raise
            return None

    def _open(self) -> None:
        """Opens the repository again if another one has its place, or the caller closed it."""
        if self.repo.closed or not self._transport.is_in_place() or not self._is_sound:
            fs, clock = self._transport.fs, self._transport.clock
            fresh = Repository.open(self.repo.root, discover=False, fs=fs, clock=clock)
            self.close()
            self.repo, self._own, self._transport = fresh, True, serve(fresh)
            self._live, self._is_sound = ("", None), True

    def poll(self) -> Followed | None:
        """Serves what is live; what has changed."""
        live = self._live_now()
        if live is None or (self.current is not None and self.current.deployed == live):
            return None
        self.repo.manifest(live.commit)  # its state is here, or an error says what became of it
        done = Followed(
            target=live.target, commit=live.commit, time_ns=live.time_ns,
            previous=self.served, swapped_ns=self._transport.clock.now_ns(),
            rollback=live.returns_to is not None, deployed=live,
        )  # fmt: skip
        with ExitStack() as served:  # if one of them fails, all are as they were
            for sink in self._sinks:
                served.enter_context(sink.serving(self.repo, live))
            if self._on_change is not None:
                self._on_change(done)
        self.current = done
        return done

    def leave(self) -> None:
        """What is open may be gone: it is opened again when it is needed."""
        self._is_sound = False

    def close(self) -> None:
        if self._own:
            self.repo.close()


class Replicated:
    """A file or a folder is kept equal to what is live somewhere, and the node says so."""

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
        self._told_of_reports = ""
        self._transport: Transport | None = None
        self.current: Followed | None = None
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

    @property
    def served(self) -> CommitId | None:
        """What is there, whoever put it there."""
        with suppress(MvcError):
            current = self._file.current()
            return None if current is None else current.id
        return None

    def _at_transport(self) -> Transport:
        if self._transport is None:
            self._transport = open_transport(self._remote, folder=self._file.folder / MIRROR)
        return self._transport

    def leave(self) -> None:
        """Lets go of the remote; the next question opens the way again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(MvcError):
                transport.close()

    def close(self) -> None:
        self.leave()
        self._file.close()

    def news(self, mark: str, seconds: float) -> str | None:
        """As ``Transport.live``."""
        return self._at_transport().live(self._target, mark, seconds)

    def is_settled(self) -> bool:
        """Whether what is there is as it was left; reports that wait are sent."""
        current = self._file.current()
        if current is None or not current.told:
            return False
        self.report()
        return True

    def poll(self) -> Followed | None:
        """Serves what is live; what has changed."""
        done = self._swap()
        self.report()
        return done

    def report(self) -> None:
        """Sends the reports that wait; that they cannot be sent is said once."""
        if self._reports is None or not (waiting := self._reports.waiting):
            return
        try:
            self._reports.send(self._at_transport())
            self._told_of_reports = ""
        except MvcError as error:
            if error.message != self._told_of_reports:
                self._told_of_reports = error.message
                text = (
                    f"not sent: {count(waiting, 'report')} of node {self._reports.name} on "
                    f"{self._target}: {error.message}"
                )
                warnings.warn(text, NotFollowing, stacklevel=5)

    def _swap(self) -> Followed | None:
        """Makes the place what is live; what became of it, None if it was that already.

        Raises CommandFailed for a command that has to succeed; the version before is served then.
        """
        clock, old, sink = self._sink.clock, self._file.current(), self._sink
        if old is not None:  # a kill may have kept it from being told
            self._served(old, min(old.shown_ns, clock.now_ns()))
        update = self._file.update(
            self._at_transport(),
            self._target,
            self._paths,
            prepare=self._prepare if sink.prepare else None,
            full=sink.full,
        )
        version, before = update.version, update.before
        if update.foreign:
            text = (
                f"{update.foreign}, which something else wrote, becomes that of "
                f"{version.id.short}, which is live on {printable(self._target)}"
            )
            warnings.warn(text, TakenOver, stacklevel=4)
        self._served(version, clock.now_ns())
        done = Followed(
            target=self._target, commit=version.id, time_ns=version.time_ns,
            previous=None if before is None else before.id,
            swapped_ns=version.shown_ns if version.told else clock.now_ns(),
            rollback=update.is_rollback, file=self._file.shown,
            path="" if self._is_folder else version.paths[0], received=update.received,
        )  # fmt: skip
        if version.told:
            self.current = self.current or done
            return None
        problem = self._run(sink.command, update)
        if problem is not None and sink.required:
            self._go_back(update, problem)
        if problem is not None:
            text = f"{self._file.shown} is {version.id.short}, but its command {problem}"
            warnings.warn(text, HookFailed, stacklevel=4)
        if self._on_change is not None:
            self._on_change(done)
        self._file.note(replace(version, told=True))
        self._file.settle()
        self.current = done
        return done

    def _served(self, version: FollowedVersion, when_ns: int) -> None:
        if self._reports is not None:
            self._reports.served(version.id, self._target, when_ns)

    def _prepare(self, update: Update) -> None:
        problem = self._run(self._sink.prepare, update)
        if problem is not None:
            raise CommandFailed(
                f"the command that prepares {update.version.id.short} {problem}", hint=_AGAIN
            )

    def _go_back(self, update: Update, problem: str) -> NoReturn:
        """Serves the version before again; its command runs for that one, too."""
        failed, before = f"the command for {update.version.id.short} {problem}", update.before
        if before is None:
            raise CommandFailed(f"{failed}, and there is no version before it", hint=_AGAIN)
        self._file.go_back(update)
        self._served(before, self._sink.clock.now_ns())
        back = Update(before, 0, before=update.version, is_rollback=True)
        also = self._run(self._sink.command, back)
        self.report()
        if also is not None:
            failed += (
                f", and then the one for {before.id.short} {also}: "
                "the engine may serve something else"
            )
        raise CommandFailed(f"{self._file.shown} is {before.id.short} again: {failed}", hint=_AGAIN)

    def _run(self, command: str, update: Update) -> str | None:
        """Runs a command of the sink, if there is one; what went wrong, None if nothing did."""
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
