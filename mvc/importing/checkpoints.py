"""Commits existing checkpoints as versions, the oldest first (``mvc import``).

The branches move once, at the end of the import. An import can be repeated, even after a crash: a
checkpoint is not committed again if a version has the same time and content.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from mvc.api import CommitOptions, Repository
from mvc.errors import (
    BadModelFile,
    DamagedData,
    MvcWarning,
    NothingToCommit,
    RefConflict,
    StateForgotten,
    WrongUsage,
)
from mvc.files import open_file
from mvc.ids import CommitId
from mvc.importing.finding import Checkpoint, FoundHistory, find_histories
from mvc.importing.metrics import MOST_BYTES, metrics_of
from mvc.limits import MIB
from mvc.system import FileSystem
from mvc.text import listed, printable
from mvc.types import PathName, Progress


class WithoutMetrics(MvcWarning):
    """A ``trainer_state.json`` is too long, so no metrics are read from it."""


class Imported(Struct, frozen=True):
    """The result for one checkpoint.

    ``is_new``: whether the version ``commit`` was made for this checkpoint. ``branch``: the branch
    of the version; None if the import commits to a detached HEAD.
    """

    source: Path
    time_ns: int
    commit: CommitId
    is_new: bool
    raw_bytes: int
    stored_bytes: int
    branch: str | None


def import_checkpoints(
    repo: Repository,
    sources: Sequence[PathName],
    *,
    time: str = "mtime",
    deploy: str | None = None,
    path: str | None = None,
    message: str | None = None,
    progress: Progress | None = None,
    on_imported: Callable[[Imported], object] | None = None,
    left_out: list[Path] | None = None,
    broken: list[Path] | None = None,
    anyway: bool = False,
) -> list[Imported]:
    """Commits existing checkpoints, which are files or folders. Each version has the time of its
    checkpoint.

    ``time``: where this time is from: ``mtime``, or ``name:FORMAT`` if FORMAT (of strptime)
    describes the file's name (local time by default). ``deploy``: a target, to which each version
    is deployed at the time of its checkpoint. ``path``: the path of each checkpoint (a file or
    folder) in the repository, by default for a file: ``model`` and the extension. ``on_imported``:
    called with the result for each checkpoint when its version is durable. ``left_out``: a list
    that receives the files and subfolders whose names are not names of models. ``broken``: a list
    that receives the checkpoints that are not valid models. Without ``broken``, the first invalid
    checkpoint raises BadModelFile. With ``deploy``, an incomplete model is invalid, unless
    ``anyway`` is true.

    A subfolder with numbered checkpoints (``runs/A/checkpoint-500``) is a training run. The
    versions of a run go to a branch with the name of the subfolder. Metrics are read from
    ``trainer_state.json`` and from the names of checkpoints. Raises WrongUsage, InvalidTime and
    UnknownPath before anything is committed. Raises RefConflict if another process moved a branch
    during the import (to continue, repeat the import), or if a tag has the name of a run.
    """
    fs, places = FileSystem(), [Path(source) for source in sources]
    histories = find_histories(fs, places, time, path, left_out=left_out)
    if not histories:
        named = ", ".join(map(str, places[:3]))
        raise WrongUsage(f"no model files in {named}", hint="name files, or their folder")
    for tag in {tag.name for tag in repo.refs("tag")} & {history.branch for history in histories}:
        raise RefConflict(
            f"the run {tag} would be a branch, but a tag has that name",
            hint="rename the run's folder, or import only this folder: 'mvc import FOLDER'",
        )
    options = _Options(
        fs=fs,
        deploy=deploy,
        message=message,
        progress=progress,
        broken=broken,
        anyway=anyway,
        total=sum(c.size for history in histories for c in history.checkpoints),
    )
    lines: list[_Line] = []
    result = []
    try:
        for history in histories:
            lines.append(_Line(repo, options, history, lines[-1].done if lines else 0))
            for imported in lines[-1].versions():
                result.append(imported)
                if on_imported is not None:
                    on_imported(imported)
    finally:
        _move_branches(repo, lines)
    if options.too_long:
        warnings.warn(_without_metrics(options.too_long), WithoutMetrics, stacklevel=2)
    return result


def _without_metrics(states: Sequence[Path]) -> str:
    names = listed([printable(str(state)) for state in states], 1)
    return f"no metrics are read from {names}: longer than {MOST_BYTES // MIB} MiB"


class _Options(Struct, frozen=True, kw_only=True):
    fs: FileSystem
    deploy: str | None
    message: str | None
    progress: Progress | None
    broken: list[Path] | None
    anyway: bool
    total: int
    too_long: list[Path] = field(default_factory=list)


class _Line:
    """A history (consecutive checkpoints) during its import.

    ``start``: the branch's tip before the import. ``end``: the newest version of the history.
    ``done``: the number of bytes of all checkpoints so far.
    """

    def __init__(
        self, repo: Repository, options: _Options, history: FoundHistory, done: int
    ) -> None:
        self._repo = repo
        self._options = options
        self._history = history
        head = repo.head()
        self.branch = head.branch if history.branch is None else history.branch
        tips = {branch.name: branch.commit for branch in repo.refs()}
        self.start = head.commit if self.branch is None else tips.get(self.branch)
        self.end = self.start
        self.done = done
        self._previous: CommitId | None = None
        self._before: frozenset[str] = frozenset()
        self._by_time = defaultdict[int, set[CommitId]](set)
        self._known_versions = set[CommitId]()
        for entry in () if self.start is None else repo.log(self.start):
            self._by_time[entry.commit.time_ns].add(entry.id)
            self._known_versions.add(entry.id)
        if options.deploy is not None:  # finds versions of an import that was killed before its end
            for deployed in repo.deployments():
                self._by_time[deployed.time_ns].add(deployed.commit)

    def versions(self) -> Iterator[Imported]:
        """Yields the result for each checkpoint when its version is durable."""
        for checkpoint in self._history.checkpoints:
            known = self._known(checkpoint)
            try:
                result = self._existing(checkpoint, known) if known else self._commit(checkpoint)
            except BadModelFile as error:
                self._note_broken(checkpoint, error)
            else:
                self._before, self._previous = frozenset(checkpoint.files), result.commit
                yield result
            self.done += checkpoint.size

    def _note_broken(self, checkpoint: Checkpoint, error: BadModelFile) -> None:
        """Adds an invalid checkpoint to ``broken``.

        Without ``broken``, raises the error, with the path of the checkpoint.
        """
        if self._options.broken is None:
            redundant = (
                f"{next(iter(checkpoint.files))} is "
                if checkpoint.source in checkpoint.files.values()
                else ""
            )
            raise BadModelFile(
                f"{printable(str(checkpoint.source))}: {error.message.removeprefix(redundant)}",
                hint="repair, complete or move the checkpoint, or skip it with --skip-broken; "
                "an incomplete model can be imported without --deploy",
            ) from error
        self._options.broken.append(checkpoint.source)

    def _commit(self, checkpoint: Checkpoint) -> Imported:
        options = self._options
        removed = dict.fromkeys(sorted(self._before - checkpoint.files.keys()))
        try:
            commit = self._repo.commit(
                states={**checkpoint.files, **removed},
                message=options.message or f"import {checkpoint.source.name}",
                metrics=metrics_of(options.fs, checkpoint, options.too_long),
                deploy=options.deploy,
                options=CommitOptions(
                    at=None if options.deploy is None else checkpoint.time_ns,
                    time=checkpoint.time_ns,
                    run=self._history.run,
                    detached=True,
                    parent=self.end,
                    allow_empty=False,
                    anyway=options.anyway,
                    progress=self._report,
                ),
            )
        except NothingToCommit:
            if self.end is None:
                raise
            return self._existing(checkpoint, self.end)
        self.end = commit.id
        return self._imported(checkpoint, commit.id, commit.raw_bytes, commit.stored_bytes)

    def _imported(
        self, checkpoint: Checkpoint, commit: CommitId, raw: int, stored: int | None
    ) -> Imported:
        return Imported(
            checkpoint.source,
            checkpoint.time_ns,
            commit,
            is_new=stored is not None,
            raw_bytes=raw,
            stored_bytes=stored or 0,
            branch=self.branch,
        )

    def _report(self, done: int, _: int, label: str) -> None:
        total = self._options.total
        if self._options.progress is not None:
            self._options.progress(min(self.done + done, total), total, label)

    def _existing(self, checkpoint: Checkpoint, commit: CommitId) -> Imported:
        """The result for a checkpoint whose content is in the version ``commit``.

        If the checkpoint is to be deployed, and its deployment is not recorded, records it.
        """
        target, time_ns = self._options.deploy, checkpoint.time_ns
        if target is not None and time_ns not in {
            deployment.time_ns for deployment in self._repo.deployments(target, rev=commit)
        }:
            self._repo.deploy(commit, target, at=time_ns, anyway=self._options.anyway)
        return self._imported(checkpoint, commit, checkpoint.size, None)

    def _known(self, checkpoint: Checkpoint) -> CommitId | None:
        """The version of this history with the checkpoint's files and time, or None.

        The version of the previous checkpoint may have another time. A deployed version that is on
        no branch can become the next version of the history.
        """
        # ``end`` is not compared here, because ``_commit`` compares the checkpoint with ``end``.
        due = [*self._by_time[checkpoint.time_ns], *filter(None, {self._previous} - {self.end})]
        wanted: dict[str, bytes] = {}
        for id_ in due:
            with suppress(StateForgotten, DamagedData):
                entries = self._repo.manifest(id_).by_path
                if not checkpoint.files.keys() <= entries.keys():
                    continue
                wanted = wanted or {
                    name: self._content(place, name) for name, place in checkpoint.files.items()
                }
                same = all(entries[name].content_id == content for name, content in wanted.items())
                if same and self._continues_history(id_):
                    return id_
        return None

    def _content(self, place: Path, name: str) -> bytes:
        with open_file(self._options.fs, place, name) as file:
            return file.entry.content_id

    def _continues_history(self, id_: CommitId) -> bool:
        if id_ in self._known_versions or id_ in {self.end, self._previous}:
            return True
        if self._repo.version(id_).parents == (() if self.end is None else (self.end,)):
            self.end = id_
            return True
        return False


def _move_branches(repo: Repository, lines: Sequence[_Line]) -> None:
    """Moves every branch to the end of its history.

    If HEAD has no version, HEAD moves to the branch of the newest version.
    """
    moves = {
        line.branch: (line.start, line.end)
        for line in lines
        if line.end is not None and line.end != line.start
    }
    if moves:
        newest = max(moves, key=lambda branch: repo.version(moves[branch][1]).time_ns)
        repo.advance(moves, "import", first=newest)
