"""import: commits the checkpoints of trainings in the order of their times.

Every version is durable as soon as it is made, but no branch leads to it until the import ends:
one operation then moves each branch to the end of its history. A checkpoint that was imported
before is found by content and time, so import can be repeated, also after it was killed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from mvc.errors import BadModelFile, MvcWarning, NothingToCommit, RefConflict, WrongUsage
from mvc.ids import CommitId
from mvc.limits import MIB
from mvc.model.commit import Commit
from mvc.names import printable
from mvc.repo.context import Context
from mvc.repo.importing.finding import Checkpoint, FoundHistory, find_histories
from mvc.repo.importing.metrics import MOST_BYTES, metrics_of
from mvc.repo.lookup import commits, manifests
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, head, tip
from mvc.repo.statements.live import of_commit
from mvc.repo.statements.protection import refuse_protected
from mvc.repo.statements.record import deploy as record_deployment
from mvc.repo.whole import refuse_incomplete
from mvc.repo.worktree.identify import at_its_path
from mvc.repo.worktree.worktree import entry_at
from mvc.store.journal.entries import Entry, RefChange
from mvc.types import Progress


class WithoutMetrics(MvcWarning):
    """The state that a trainer left is too long to read metrics from it."""


class Imported(Struct, frozen=True):
    """One checkpoint. ``kept`` is False if the version ``commit`` had its content before.

    ``branch`` is the branch of its history; None for a detached HEAD.
    """

    source: Path
    time_ns: int
    commit: CommitId
    kept: bool
    raw_bytes: int
    stored_bytes: int
    branch: str | None


def import_checkpoints(
    context: Context,
    sources: Sequence[Path],
    *,
    time: str = "mtime",
    deploy: str | None = None,
    path: str | None = None,
    message: str | None = None,
    progress: Progress | None = None,
    taken: Callable[[Imported], object] | None = None,
    left_out: list[Path] | None = None,
    broken: list[Path] | None = None,
    anyway: bool = False,
) -> list[Imported]:
    """See ``Repository.import_checkpoints``. All sources are listed before the first commit.

    Where a branch has moved meanwhile, the versions are kept, and the next import goes on with
    them. A run with the name of a tag is a RefConflict, too.
    """
    context.fresh()
    if deploy is not None:
        refuse_protected(context, deploy)
    histories = find_histories(context.store.fs, sources, time, path, left_out=left_out)
    if not histories:
        named = ", ".join(str(source) for source in sources[:3])
        raise WrongUsage(f"no model files in {named}", hint="name files, or a folder of them")
    for history in histories:
        if history.branch is not None and context.store.ref(TAG + history.branch) is not None:
            raise RefConflict(
                f"there is a tag {history.branch}, and the run would be a branch of that name",
                hint="rename its folder, or import it by itself: 'mvc import FOLDER'",
            )
    options = _Options(
        deploy=deploy, message=message, progress=progress, broken=broken, anyway=anyway
    )
    fresh = context.store.snapshot.position.sequence <= 1  # nothing but init
    total = sum(c.size for history in histories for c in history.checkpoints)
    lines: list[_Line] = []
    result, done = [], 0
    try:
        for history in histories:
            lines.append(_Line(context, options, history, done=done, total=total))
            for imported in lines[-1].versions(fresh):
                result.append(imported)
                if taken is not None:
                    taken(imported)
            done = lines[-1].done
    finally:
        _move_branches(context, lines)
    if options.too_long:
        warnings.warn(_without_metrics(options.too_long), WithoutMetrics, stacklevel=3)
    return result


def _without_metrics(states: Sequence[Path]) -> str:
    more = f" and {len(states) - 1} more" if len(states) > 1 else ""
    what = f"{printable(str(states[0]))}{more}"
    return f"no metrics are read from {what}: longer than {MOST_BYTES // MIB} MiB"


class _Options(Struct, frozen=True, kw_only=True):
    deploy: str | None
    message: str | None
    progress: Progress | None
    broken: list[Path] | None
    anyway: bool
    too_long: list[Path] = field(default_factory=list)


class _Line:
    """A history that is being imported: ``start`` is its branch as it was, ``end`` its newest.

    ``done`` and ``total``: bytes of checkpoints.
    """

    def __init__(
        self, context: Context, options: _Options, history: FoundHistory, *, done: int, total: int
    ) -> None:
        self._context = context
        self._options = options
        self._history = history
        self.start = tip(context, history.branch, new=True)
        self.end = self.start.commit
        self.done = done
        self._total = total
        self._previous: CommitId | None = None
        self._before: frozenset[str] = frozenset()
        tips = [] if self.start.commit is None else [self.start.commit]
        self._there = commits.Ancestors(context.store.snapshot, tips)

    def versions(self, fresh: bool) -> Iterator[Imported]:
        """Every checkpoint, once it is durable; in a ``fresh`` repository none is there already."""
        for checkpoint in self._history.checkpoints:
            known = None if fresh else self._known(checkpoint)
            try:
                made = self._commit(checkpoint) if known is None else self._have(checkpoint, known)
            except BadModelFile as error:
                self._note_broken(checkpoint, error)
            else:
                self._before, self._previous = frozenset(checkpoint.files), made.commit
                yield made
            self.done += checkpoint.size

    def _note_broken(self, checkpoint: Checkpoint, error: BadModelFile) -> None:
        """Notes a checkpoint that is no sound model; raises the error, with its place, if it may
        not be skipped.
        """
        if self._options.broken is None:
            raise BadModelFile(
                f"{printable(str(checkpoint.source))}: {error.message}",
                hint="mend, complete or move it, or skip such checkpoints with --skip-broken; "
                "one that lacks files is taken without --deploy",
            ) from error
        self._options.broken.append(checkpoint.source)

    def _commit(self, checkpoint: Checkpoint) -> Imported:
        from mvc.adapters.opening import open_file
        from mvc.repo.commit.commit import commit
        from mvc.repo.commit.request import Change, CommitOptions, CommitRequest

        fs, deploy = self._context.store.fs, self._options.deploy
        changes = [
            Change(name, partial(open_file, fs, place, name, strict=True))
            for name, place in checkpoint.files.items()
        ]
        gone = dict.fromkeys(sorted(self._before - checkpoint.files.keys()))
        changes += [Change(name, None) for name in gone]
        if deploy is not None and not self._options.anyway:
            refuse_incomplete(self._context, self.end, {**checkpoint.files, **gone})
        request = CommitRequest(
            changes,
            self._options.message or f"import {checkpoint.source.name}",
            metrics=metrics_of(fs, checkpoint, self._options.too_long),
            deploy=deploy,
            deploy_time_ns=None if deploy is None else checkpoint.time_ns,
            time_ns=checkpoint.time_ns,
            apart=True,
            onto=self.end,
            options=CommitOptions(run=self._history.run),
        )
        try:
            made = commit(self._context, request, self._report)
        except NothingToCommit:
            if self.end is None:
                raise
            return self._have(checkpoint, self.end)
        self.end = made.id
        return self._imported(checkpoint, made.id, made.raw_bytes, made.stored_bytes)

    def _imported(
        self, checkpoint: Checkpoint, commit: CommitId, raw: int, stored: int | None
    ) -> Imported:
        return Imported(
            checkpoint.source,
            checkpoint.time_ns,
            commit,
            kept=stored is not None,
            raw_bytes=raw,
            stored_bytes=stored or 0,
            branch=self.start.branch,
        )

    def _report(self, done: int, _: int, what: str) -> None:
        if self._options.progress is not None:
            self._options.progress(min(self.done + done, self._total), self._total, what)

    def _have(self, checkpoint: Checkpoint, commit: CommitId) -> Imported:
        """For a content that is stored already: records its deployment if that is missing."""
        target, time_ns = self._options.deploy, checkpoint.time_ns
        if target is not None:
            known = of_commit(self._context.store.snapshot, commit)
            if not any(d.time_ns == time_ns and d.target == target for d in known):
                anyway = self._options.anyway
                record_deployment(self._context, commit, target, time_ns, anyway=anyway)
        return self._imported(checkpoint, commit, checkpoint.size, None)

    def _known(self, checkpoint: Checkpoint) -> CommitId | None:
        """A version of this line with these files and the checkpoint's time, or the previous one.

        One that an import made and did not live to put on its branch comes next in the line.
        """
        name, place = max(checkpoint.files.items(), key=self._bytes)  # the others may not change
        largest = entry_at(self._context, place, name)
        wanted: dict[str, bytes] = {}
        for commit, exact in at_its_path(self._context, largest):
            is_due = commit.time_ns == checkpoint.time_ns or commit.id == self._previous
            if not (exact and is_due):
                continue
            wanted = wanted or {
                n: entry_at(self._context, p, n).content_id for n, p in checkpoint.files.items()
            }
            there = manifests.of_commit(self._context, commit.id).by_path
            same = all(n in there and there[n].content_id == i for n, i in wanted.items())
            if same and self._is_here(commit):
                return commit.id
        return None

    def _bytes(self, file: tuple[str, Path]) -> int:
        identity = self._context.store.fs.stat(file[1])
        return 0 if identity is None else identity.size

    def _is_here(self, commit: Commit) -> bool:
        if commit.id in {self.end, self._previous} or commit.id in self._there:
            return True
        if commit.parents == (() if self.end is None else (self.end,)):
            self.end = commit.id
            return True
        return False


def _move_branches(context: Context, lines: Sequence[_Line]) -> None:
    """Moves every branch to the end of its line, in one operation.

    Before the first version HEAD goes to the branch of the newest one. Raises RefConflict if one
    of them has moved since.
    """
    ends = {line.start: line.end for line in lines if line.end not in {None, line.start.commit}}
    if not ends:
        return

    def make() -> Entry:
        changes = []
        for start, end in ends.items():
            if tip(context, start.branch, new=True) != start:
                name = "HEAD" if start.branch is None else printable(start.branch)
                raise RefConflict(
                    f"{name} has moved since the import began; its versions are kept",
                    hint="run the same command again: it goes on with them",
                )
            name = HEAD if start.branch is None else BRANCH + start.branch
            changes.append(RefChange(name, start.commit, end))
        at = head(context)
        if at.commit is None and at not in ends:
            newest = max(ends, key=lambda start: _time(context, ends[start]))
            changes.append(RefChange(HEAD, at.branch, newest.branch))
        return Entry("import", context.store.now_ns(), refs=tuple(changes))

    context.store.publish(make)


def _time(context: Context, commit: CommitId | None) -> int:
    return 0 if commit is None else commits.get(context, commit).time_ns
