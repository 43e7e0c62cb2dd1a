"""Processes that keep a repository open and do what they are told, one call after another.

The test tells a worker through a pipe which verb to run; the answer comes back before
anything else begins. A worker that raises, dies or hangs is a ``Wrong`` of the test's side.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import cycle
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.cli.main import run as command_line
from mvc.errors import MvcError, RefConflict
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.store.index import keys
from mvc.store.index.index import Index, Meta
from mvc.testing import open_quietly
from tests.crash import maintenance
from tests.crash.forks import warm_up
from tests.crash.ledger import (
    Deployment,
    Wrong,
    arrays,
    check,
    check_claims,
    check_version,
)
from tests.lent_index import environment, open_index

__all__ = ["Worker", "prepare", "warm_up_all"]

_LONGEST = 120.0  # seconds until a worker counts as one that hangs


def warm_up_all(folder: Path) -> None:
    """Imports also what checking, repairing and the command line import late."""
    warm_up(folder / "warm")
    repo = Repository.open(folder / "warm")
    made = repo.commit(arrays(1), deploy="prod")
    repo.deploy(made.id, "prod")
    repo.retract(None, "prod")
    repo.tag("v1")
    repo.storage.repair()
    repo.close()
    before = Path.cwd()
    _command(folder / "warm", "fsck", "--rebuild-index")
    _command(folder / "warm", "fsck", "--repair")
    os.chdir(before)


def prepare(batch: int | None, mutation: str | None) -> None:
    """Applies to this process for good: how many journal entries wait in memory before they
    are indexed, and a function (its dotted name) that takes a protection away.
    """
    if mutation is not None:
        module, _, name = mutation.rpartition(".")
        getattr(importlib.import_module(module), name)()
    if batch is not None:
        _set_index_batch(batch)


def _set_index_batch(entries: int) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("mvc.store") and hasattr(module, "INDEX_BATCH"):
            module.INDEX_BATCH = entries  # type: ignore[attr-defined]


# -- verbs: (repository, arguments); those that are asked say something ----------------------


def _commit(repo: Repository, path: str, number: int, target: str | None) -> Any:
    made = repo.commit(arrays(number), path=path, deploy=target)
    there = made.deployment
    told = None
    if there is not None:
        told = Deployment(there.target, there.time_ns, there.sequence, there.commit)
    return made.id, told


def _deploy(
    repo: Repository, commit: CommitId, target: str, count: int, before: int | None
) -> list[Deployment]:
    """``before``: so many nanoseconds ago, each the same; None for now."""
    told = []
    for _ in range(count):
        at = None if before is None else time.time_ns() - before
        there = repo.deploy(commit, target, at=at)
        told.append(Deployment(target, there.time_ns, there.sequence, commit, before is not None))
    return told


def _undo(repo: Repository) -> list[tuple[str, Any, Any]]:
    """What was moved; nothing where an undo is refused."""
    try:
        done = repo.undo()
    except RefConflict:
        return []
    return [(change.name, change.old, change.new) for change in done.entry.refs]


def _fsck(repo: Repository, full: bool) -> None:
    report = repo.storage.fsck(full=full)
    if not report.sound:
        raise Wrong("alarm", f"fsck: {report.problems}")


def _repair(repo: Repository) -> None:
    done = repo.storage.repair()
    if done.quarantined or not done.after.sound:
        raise Wrong("alarm", f"repair: {done.quarantined} {done.after.problems}")


def _lie(repo: Repository, tables: bytes, newest: int) -> None:
    """Makes an index that is sound by every checksum, but leaves out keys of these tables
    of the newest entries. The process that did so is of no further use.
    """
    extend, view = Index.extend, repo.handle.store.fresh()
    first = view.position.sequence - newest
    hidden = {r.offset for r in view.entries() if r.sequence >= first}

    def told(self: Index, old: Meta, fresh: Iterable[bytes], *given: Any) -> Meta:
        left_out = (k for k in fresh if k[0] in tables and keys.offset_of(k) in hidden)
        return extend(self, old, set(fresh).difference(left_out), *given)

    Index.extend = told  # type: ignore[method-assign]
    repo.storage.rebuild_index()


def _indexed(repo: Repository) -> int:
    """How many entries the open index knows, without a look at whether it still counts."""
    index = open_index(repo)
    assert index is not None
    return index.meta(repo.handle.store.snapshot.identity).position.sequence


def _extend_open(repo: Repository) -> None:
    """Writes to the open index, as an operation does that began before another process
    replaced it.
    """
    with environment(open_index(repo)).begin(write=True) as txn:
        txn.put(b"late", b"")


def _command(root: Path, *arguments: str) -> None:
    """The command line; it must say that all is well."""
    said = io.StringIO()
    os.chdir(root)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = command_line(arguments)
    if code:
        raise Wrong("alarm", f"mvc {' '.join(arguments)} ends with {code}: {said.getvalue()}")


_ASKED: dict[str, Callable[..., Any]] = {
    "commit": _commit,
    "deploy": _deploy,
    "retract": lambda repo, target: repo.retract(None, target).sequence,
    "undo": _undo,
    "indexed": _indexed,
    "deployed": lambda repo: {(d.target, d.sequence, d.commit) for d in repo.deployments()},
}
_DONE: dict[str, Callable[..., object]] = {
    "branch": lambda repo, name, commit: repo.branch(name, commit.hex(), force=True),
    "tag": lambda repo, name, commit: repo.tag(name, commit.hex(), force=True),
    "switch": lambda repo, name: repo.switch(name, force=True),
    "gc": lambda repo: repo.storage.gc(grace=timedelta(0)),
    "repack": lambda repo, interval: maintenance.repack(repo.handle, interval),
    "forget": lambda repo, commit: maintenance.forget_named(repo.handle, commit),
    "fsck": _fsck,
    "rebuild": lambda repo: repo.storage.rebuild_index(),
    "repair": _repair,
    "lie": _lie,
    "extend open": _extend_open,
    "check": lambda repo, ledger, seed, whole: check(repo, ledger, seed, whole=whole),
    "version": lambda repo, commit, recipe: check_version(repo, commit, recipe, others=True),
    "claims": lambda repo: check_claims(repo.root),
}


# -- processes -----------------------------------------------------------------------------


class Worker:
    """A forked process with its own open repository, from its first call on.

    ``alias``: a second name of the repository's folder, by which every other call goes, as
    where a file system is mounted twice. ``mutation``: the dotted name of a function that
    is called first, and takes a protection away.
    """

    def __init__(
        self,
        root: Path,
        *,
        batch: int | None = None,
        alias: Path | None = None,
        mutation: str | None = None,
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._pipe, theirs = Pipe()
        self.pid = os.fork()
        if not self.pid:
            self._pipe.close()
            _live(theirs, [root] if alias is None else [root, alias], batch, mutation)
        theirs.close()

    def call(self, verb: str, *arguments: Any) -> Any:
        """Runs one verb to its end; raises Wrong for every failure."""
        try:
            self._pipe.send((verb, arguments))
            if not self._pipe.poll(_LONGEST):
                raise Wrong("foreign", f"{verb} hangs")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise Wrong("foreign", f"a process died of {self._status()} in {verb}") from error
        if kind != "done":
            raise Wrong(kind, f"{verb}: {value}")
        return value

    def _status(self) -> int:
        self._pipe.close()
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end(self) -> None:
        """The process goes, whatever it is doing."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._status()


def _live(pipe: Connection, names: list[Path], batch: int | None, mutation: str | None) -> None:
    try:
        prepare(batch, mutation)
        _serve(pipe, names)
    except EOFError:
        pass  # whoever gave the orders is gone
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class _Literal(FileSystem):
    """Does not find out that two names lead to one folder, as with a second mount."""

    def realpath(self, path: Path) -> Path:
        return path


def _serve(pipe: Connection, names: list[Path]) -> None:
    open_: dict[Path, Repository] = {}
    turns = cycle(names)
    answer: tuple[str, Any]
    while True:
        verb, arguments = pipe.recv()
        name = next(turns)
        try:
            if verb == "reopen" and name in open_:
                open_.pop(name).close()
            if name not in open_ and verb != "command":
                open_[name] = open_quietly(name, fs=_Literal() if len(names) > 1 else None)
            answer = ("done", _run(verb, name, open_.get(name), arguments))
        except Wrong as wrong:
            answer = (wrong.kind, wrong.message)
        except MvcError as error:
            told = f"{type(error).__name__}: {error.message}\n{traceback.format_exc()}"
            answer = ("alarm", told)
        except BaseException:
            answer = ("foreign", traceback.format_exc())
        pipe.send(answer)


def _run(verb: str, root: Path, repo: Repository | None, arguments: Any) -> Any:
    if verb == "reopen":
        return None
    if verb in _ASKED:
        return _ASKED[verb](repo, *arguments)
    _DONE[verb](repo, *arguments) if verb in _DONE else _command(root, *arguments)
    return None
