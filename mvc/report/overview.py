"""Reads the data for the report, a page with charts about the history of a repository.

The data are versions, deployments, and distances between the weights of versions.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from msgspec import Struct

from mvc.api import Commit, History, Live, Repository
from mvc.errors import DamagedData, StateForgotten
from mvc.ids import CommitId
from mvc.names import is_training_key, training_files
from mvc.report.axis import By
from mvc.times import within
from mvc.types import Counted, Progress


class Excerpt(Struct, frozen=True):
    """The period that the report shows, from ``since`` to ``until`` inclusive, in ns since 1970.

    ``by``: the x axis of the charts, time or version numbers. None: the report selects the axis.
    """

    since: int | None = None
    until: int | None = None
    by: By | None = None

    def shows(self, commit: Commit) -> bool:
        """Whether a version is in this period."""
        return within(commit.time_ns, self.since, self.until)


class Overview(Struct, frozen=True):
    """The versions in a period.

    ``lines``: maps each version to the name of its line in the charts: the name of its training run
    or, without a run, the name of a branch or tag.
    """

    history: History
    view: Excerpt
    versions: tuple[Commit, ...]
    lines: Mapping[CommitId, str]

    def end(self, span: Live) -> int:
        """The time until which a version was live, at most now, in ns since 1970."""
        now = self.history.now_ns
        return now if span.until_ns is None else min(span.until_ns, now)


def overview(repo: Repository, view: Excerpt) -> Overview:
    """Reads the history for the report. Raises DamagedData if a part of the history is lost."""
    history = repo.history(view.since, view.until)
    remote = {ref.name for ref in repo.refs("remote")}
    shown = tuple(filter(view.shows, history.versions.values()))
    return Overview(history, view, shown, _lines(history, remote))


def _lines(history: History, remote: Collection[str]) -> dict[CommitId, str]:
    """Maps each version to the name of its training run.

    A version without a run gets the name of a ref from which it is reached by first parents: the
    current branch, else another branch, else a tag, else a remote branch (``remote``). A version
    that is not reached in this way gets the name "no branch".
    """
    known, branch = history.versions, history.head.branch
    tips = sorted((name, id_) for id_, names in history.names.items() for name in names)
    tips.sort(key=lambda t: (t[0] != branch, t[0] in remote, t[0].startswith("tag: ")))
    lines = dict[CommitId, str]()
    for name, tip in [*tips, *(("no branch", id_) for id_ in reversed(list(known)))]:
        at: CommitId | None = tip if name != "HEAD" or branch is None else None
        while at is not None and at in known and at not in lines:
            lines[at] = known[at].run or name
            at = next(iter(known[at].parents), None)
    return lines


class VersionChange(Struct, frozen=True):
    """The difference between ``commit`` and its first parent.

    ``layers``: maps each tensor of the model to a pair: the L2 norm of the change, and the number
    of elements. A tensor that was added, removed or reshaped is mapped to None. ``training``:
    tensors of optimizers, schedulers and random generators.
    """

    commit: Commit
    layers: Mapping[str, tuple[float, int] | None]
    training: Collection[str]


class _TimeIsUp(Exception):
    """The time for computing distances is used up."""


def changes(
    repo: Repository,
    shown: Overview,
    *,
    seconds: float,
    most: int,
    progress: Progress | None = None,
) -> tuple[list[VersionChange], int]:
    """Compares each version with its first parent, along the first parents of HEAD.

    Returns the differences, oldest first, and how many of these versions are in the period and have
    a parent. At most the ``most`` newest of them are compared, and no more after ``seconds``. A
    version is left out if its state or the state of its parent is forgotten, dropped or damaged.
    """
    deadline, known = time.monotonic() + seconds, shown.history.versions
    missing = shown.history.forgotten | shown.history.absent  # their states are not fetched

    def check(_done: int, _total: int, _unit: str) -> None:
        if time.monotonic() > deadline:
            raise _TimeIsUp

    line, tip = [], shown.history.head.commit
    while tip is not None and tip in known and known[tip].parents:
        if shown.view.shows(known[tip]):
            line.append(known[tip])
        tip = known[tip].parents[0]
    measured: list[VersionChange] = []
    for commit in Counted(progress, len(line[:most])).iterate(line[:most], "versions"):
        try:
            check(0, 0, "")
            if missing.isdisjoint({commit.id, commit.parents[0]}) and (
                change := _change(repo, commit, check)
            ):
                measured.append(change)
        except _TimeIsUp:
            break
        except (StateForgotten, DamagedData):
            continue
    return measured[::-1], len(line)


def _change(repo: Repository, commit: Commit, check: Progress) -> VersionChange | None:
    """Compares a version with its first parent.

    None if the weights of one of the two versions were dropped.
    """
    difference = repo.diff(commit.parents[0], commit.id, progress=check)
    if difference.unmeasured:
        return None
    several = sum(bool(file.tensors) for file in difference.files) > 1
    of_training = training_files({file.path for file in difference.files})
    layers, training = dict[str, tuple[float, int] | None](), set[str]()
    for file in difference.files:
        for row in file.tensors:
            key = f"{file.path}: {row.key}" if several else row.key
            if file.path in of_training or is_training_key(row.key):
                training.add(key)
            elif row.new_spec is not None and row.changed_share is not None:
                layers[key] = row.l2 or 0.0, row.new_spec.elements
            else:
                layers[key] = None
    return VersionChange(commit, layers, training)
