"""import: commits the checkpoints of a training run in the order of their times.

A file becomes a version of one tracked path. A folder whose files belong together
(``checkpoint-500``) becomes one version with all of its files. A checkpoint that was imported
before is found by content and time, so import can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from mvc.adapters.parsed import ParsedFile
from mvc.errors import NothingToCommit, WrongUsage
from mvc.ids import CommitId
from mvc.repo.context import Context, Progress
from mvc.repo.deployments import deploy as record_deployment
from mvc.repo.deployments import of_commit
from mvc.repo.importing.checkpoints import Checkpoint, find_checkpoints
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.worktree.worktree import entry_at
from mvc.store.index import keys

__all__ = ["Imported", "import_checkpoints"]


@dataclass(frozen=True, slots=True)
class Imported:
    """One checkpoint. ``kept`` is False if the version ``commit`` had its content before."""

    source: Path
    time_ns: int
    commit: CommitId
    kept: bool
    raw_bytes: int
    stored_bytes: int


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
) -> list[Imported]:
    """Commits checkpoints on the current branch, each with its own time.

    ``time`` is ``mtime``, or ``name:FORMAT`` (strptime on the file's name; local time if it has
    no zone). ``deploy`` records that each version went live on that target at its time. ``path``
    is the tracked path of files (default ``model`` and the extension), or the tracked folder of
    checkpoints that are folders. All sources are listed before the first commit. ``taken`` is
    called with each version once it is committed, so that an interrupted caller knows what was
    done. Raises WrongUsage, InvalidTime, UnknownPath, BadModelFile.
    """
    context.fresh()
    found = find_checkpoints(context.store.fs, sources, time, path)
    if not found:
        named = ", ".join(str(source) for source in sources[:3])
        raise WrongUsage(f"no model files in {named}", hint="name files, or a folder of them")
    run = _Run(context, deploy, message, progress, sum(c.size for c in found))
    result = []
    for checkpoint in found:
        result.append(run.take(checkpoint))
        if taken is not None:
            taken(result[-1])
    return result


class _Run:
    """A running import."""

    def __init__(
        self,
        context: Context,
        deploy: str | None,
        message: str | None,
        progress: Progress | None,
        total: int,
    ) -> None:
        self._context = context
        self._deploy = deploy
        self._message = message
        self._progress = progress
        self._done = 0
        self._total = total
        self._before: frozenset[str] = frozenset()
        self._fresh = head(context).commit is None
        self._previous: CommitId | None = None

    def take(self, checkpoint: Checkpoint) -> Imported:
        known = None if self._fresh else self._known(checkpoint)
        result = self._already(checkpoint, known) if known else self._commit(checkpoint)
        self._before = frozenset(checkpoint.files)
        self._previous = result.commit
        self._done += checkpoint.size
        return result

    def _commit(self, checkpoint: Checkpoint) -> Imported:
        from mvc.repo.commit.commit import commit
        from mvc.repo.commit.request import Change, CommitRequest

        files = checkpoint.files.items()
        changes = [Change(name, self._opener(place, name)) for name, place in files]
        changes += [Change(name, None) for name in sorted(self._before - checkpoint.files.keys())]
        request = CommitRequest(
            changes,
            self._message or f"import {checkpoint.source.name}",
            deploy=self._deploy,
            deploy_time_ns=None if self._deploy is None else checkpoint.time_ns,
            time_ns=checkpoint.time_ns,
        )
        try:
            kept = commit(self._context, request, self._report)
        except NothingToCommit:
            tip = head(self._context).commit
            if tip is None:
                raise
            return self._already(checkpoint, tip)
        return Imported(
            checkpoint.source,
            checkpoint.time_ns,
            kept.id,
            True,
            kept.raw_bytes,
            kept.stored_bytes,
        )

    def _opener(self, place: Path, name: str) -> Callable[[], AbstractContextManager[ParsedFile]]:
        from mvc.repo.content.sources import open_file

        return lambda: open_file(self._context.store.fs, place, name, strict=True)

    def _report(self, done: int, _: int, what: str) -> None:
        if self._progress is not None:
            self._progress(min(self._done + done, self._total), self._total, what)

    def _already(self, checkpoint: Checkpoint, commit: CommitId) -> Imported:
        """For a content that is stored already: records its deployment if that is missing."""
        target, time_ns = self._deploy, checkpoint.time_ns
        if target is not None:
            known = of_commit(self._context.store.snapshot, commit)
            if not any(d.time_ns == time_ns and d.target == target for d in known):
                record_deployment(self._context, commit, target, time_ns)
        return Imported(checkpoint.source, time_ns, commit, False, checkpoint.size, 0)

    def _known(self, checkpoint: Checkpoint) -> CommitId | None:
        """A commit with these files that has the checkpoint's time or is the previous import."""
        name, place = next(iter(checkpoint.files.items()))
        first = entry_at(self._context, place, name)
        mark = bytes(first.state.root if first.tensors else first.content_id)[: keys.ID_BYTES]
        snapshot = self._context.store.snapshot
        wanted: dict[str, bytes] = {}
        for at in snapshot.marked(mark):
            for commit in snapshot.entry(at).entry.commits:
                if commit.time_ns != checkpoint.time_ns and commit.id != self._previous:
                    continue
                wanted = wanted or {
                    n: entry_at(self._context, p, n).content_id for n, p in checkpoint.files.items()
                }
                there = (manifests.if_kept(self._context, commit.id) or manifests.EMPTY).by_path
                if all(n in there and there[n].content_id == id_ for n, id_ in wanted.items()):
                    return commit.id
        return None
