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
from collections.abc import Callable, Iterator
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
from mvc.maintenance.fsck.fsck import rebuild_index
from mvc.store.index import keys
from mvc.store.index.reader import IndexReader
from mvc.store.journal.frames import Recorded
from mvc.testing import open_quietly
from tests.crash import maintenance
from tests.crash.forks import warm_up
from tests.crash.ledger import (
    Deployment,
    Ledger,
    Recipe,
    Wrong,
    arrays,
    check,
    check_claims,
    check_version,
)

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


# -- verbs: (repository, arguments) -> what is to be told ------------------------------------


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


def _retract(repo: Repository, target: str) -> int:
    return repo.retract(None, target).sequence


def _branch(repo: Repository, name: str, commit: CommitId) -> None:
    repo.branch(name, commit.hex(), force=True)


def _tag(repo: Repository, name: str, commit: CommitId) -> None:
    repo.tag(name, commit.hex(), force=True)


def _switch(repo: Repository, name: str) -> None:
    repo.switch(name, force=True)


def _undo(repo: Repository) -> list[tuple[str, Any, Any]]:
    """What was moved; nothing where an undo is refused."""
    try:
        done = repo.undo()
    except RefConflict:
        return []
    return [(change.name, change.old, change.new) for change in done.entry.refs]


def _gc(repo: Repository) -> None:
    repo.storage.gc(grace=timedelta(0))


def _repack(repo: Repository, interval: int) -> None:
    maintenance.repack(repo.context, interval)


def _forget(repo: Repository, commit: CommitId) -> None:
    maintenance.forget_named(repo.context, commit)


def _fsck(repo: Repository, full: bool) -> None:
    report = repo.storage.fsck(full=full)
    if not report.sound:
        raise Wrong("alarm", f"fsck: {report.problems}")


def _rebuild(repo: Repository) -> None:
    rebuild_index(repo.context)


def _repair(repo: Repository) -> None:
    done = repo.storage.repair()
    if done.quarantined or not done.after.sound:
        raise Wrong("alarm", f"repair: {done.quarantined} {done.after.problems}")


def _lie(repo: Repository, tables: bytes, newest: int) -> None:
    """Makes an index that is sound by every checksum, but leaves out keys of these tables
    of the newest entries. The process that did so is of no further use.
    """
    entry_keys, object_keys = keys.entry_keys, IndexReader._object_keys
    from_ = repo.context.fresh().position.sequence - newest

    def told(recorded: Recorded) -> Iterator[bytes]:
        hides = recorded.sequence >= from_
        return (key for key in entry_keys(recorded) if not (hides and key[0] in tables))

    def objects(self: IndexReader, offset: int, *given: Any) -> Iterator[bytes]:
        hides = self._journal.entry(offset).sequence >= from_
        return (k for k in object_keys(self, offset, *given) if not (hides and k[0] in tables))

    keys.entry_keys = told
    IndexReader._object_keys = objects  # type: ignore[method-assign]
    rebuild_index(repo.context)


def _indexed(repo: Repository) -> int:
    """How many entries the open index knows, without a look at whether it still counts."""
    view = repo.context.store.snapshot
    assert view._index.lent is not None
    return view._index.lent.index.meta(view.identity).position.sequence


def _extend_open(repo: Repository) -> None:
    """Writes to the open index, as an operation does that began before another process
    replaced it.
    """
    view = repo.context.store.snapshot
    assert view._index.lent is not None
    with view._index.lent.index._env.begin(write=True) as txn:
        txn.put(b"late", b"")


def _check(repo: Repository, ledger: Ledger, seed: int, whole: bool) -> None:
    check(repo, ledger, seed, whole=whole)


def _version(repo: Repository, commit: CommitId, recipe: Recipe) -> None:
    check_version(repo, commit, recipe, others=True)


def _deployed(repo: Repository) -> set[tuple[str, int, CommitId]]:
    return {(d.target, d.sequence, d.commit) for d in repo.deployments()}


def _claims(repo: Repository) -> None:
    check_claims(repo.root)


def _command(root: Path, *arguments: str) -> None:
    """The command line; it must say that all is well."""
    said = io.StringIO()
    os.chdir(root)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = command_line(arguments)
    if code:
        raise Wrong("alarm", f"mvc {' '.join(arguments)} ends with {code}: {said.getvalue()}")


_VERBS: dict[str, Callable[..., Any]] = {
    "commit": _commit,
    "deploy": _deploy,
    "retract": _retract,
    "branch": _branch,
    "tag": _tag,
    "switch": _switch,
    "undo": _undo,
    "gc": _gc,
    "repack": _repack,
    "forget": _forget,
    "fsck": _fsck,
    "rebuild": _rebuild,
    "repair": _repair,
    "lie": _lie,
    "indexed": _indexed,
    "extend open": _extend_open,
    "check": _check,
    "version": _version,
    "deployed": _deployed,
    "claims": _claims,
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
    return _VERBS[verb](repo, *arguments) if verb in _VERBS else _command(root, *arguments)
