"""What the page and the charts show: versions, what was live when, how far versions are apart."""

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
from mvc.types import Progress


class Excerpt(Struct, frozen=True):
    """What is looked at: versions and deployments from ``since`` to ``until``, both included, in ns
    since 1970, on an axis of time or of version numbers; None: the one that shows more.
    """

    since: int | None = None
    until: int | None = None
    by: By | None = None

    def shows(self, commit: Commit) -> bool:
        """Whether a version lies in this time."""
        return within(commit.time_ns, self.since, self.until)


class Overview(Struct, frozen=True):
    """``versions``: those of the time that is looked at; ``lines``: by version its run, else its
    branch, else its tag.
    """

    history: History
    view: Excerpt
    versions: tuple[Commit, ...]
    lines: Mapping[CommitId, str]

    def end(self, span: Live) -> int:
        """Until when, or until now, a version was live, in ns since 1970."""
        now = self.history.now_ns
        return now if span.until_ns is None else min(span.until_ns, now)


def overview(repo: Repository, view: Excerpt) -> Overview:
    """Raises DamagedData if entries of the journal are lost."""
    history = repo.history(view.since, view.until)
    remote = {ref.name for ref in repo.refs("remote")}
    shown = tuple(filter(view.shows, history.versions.values()))
    return Overview(history, view, shown, _lines(history, remote))


def _lines(history: History, remote: Collection[str]) -> dict[CommitId, str]:
    """By version its run, else the branch from which first parents lead to it, else a tag.

    The current branch comes before the others; names of remotes, which are ``remote``, come last.
    """
    known, branch = history.versions, history.head.branch
    tips = sorted((name, id_) for id_, each in history.names.items() for name in each)
    tips.sort(key=lambda t: (t[0] != branch, t[0] in remote, t[0].startswith("tag: ")))
    found = dict[CommitId, str]()
    for name, tip in [*tips, *(("no branch", id_) for id_ in reversed(list(known)))]:
        at: CommitId | None = tip if name != "HEAD" or branch is None else None
        while at is not None and at in known and at not in found:
            found[at] = known[at].run or name
            at = next(iter(known[at].parents), None)
    return found


class VersionChange(Struct, frozen=True):
    """How far ``commit`` is from its first parent.

    ``layers``: by tensor of a model the L2 norm of its change and the number of its elements;
    None for one that was added, removed or has another shape. ``training``: the tensors of
    optimizers, schedulers and random generators.
    """

    commit: Commit
    layers: Mapping[str, tuple[float, int] | None]
    training: Collection[str]


class _TimeIsUp(Exception):
    """No time is left for distances."""


def changes(
    repo: Repository, found: Overview, *, seconds: float, most: int
) -> tuple[list[VersionChange], int]:
    """Those of HEAD and its first parents, as many as ``seconds`` allow; and how many there are.

    Oldest first, of the time that is looked at. A version whose state or whose parent's was
    forgotten, given up or is damaged is left out.
    """
    deadline, known = time.monotonic() + seconds, found.history.versions
    gone = found.history.forgotten | found.history.absent  # whose states nothing is to fetch

    def check(_done: int, _total: int, _what: str) -> None:
        if time.monotonic() > deadline:
            raise _TimeIsUp

    line, tip = [], found.history.head.commit
    while tip is not None and tip in known and known[tip].parents:
        if found.view.shows(known[tip]):
            line.append(known[tip])
        tip = known[tip].parents[0]
    measured: list[VersionChange] = []
    for commit in line[:most]:
        try:
            check(0, 0, "")
            if gone.isdisjoint({commit.id, commit.parents[0]}) and (
                change := _change(repo, commit, check)
            ):
                measured.append(change)
        except _TimeIsUp:
            break
        except (StateForgotten, DamagedData):
            continue
    return measured[::-1], len(line)


def _change(repo: Repository, commit: Commit, check: Progress) -> VersionChange | None:
    """The distances by layer, of models; None if weights were given up."""
    found = repo.diff(commit.parents[0], commit.id, progress=check)
    if found.unmeasured:
        return None
    several = sum(bool(file.tensors) for file in found.files) > 1
    of_training = training_files({file.path for file in found.files})
    layers, training = dict[str, tuple[float, int] | None](), set[str]()
    for file in found.files:
        for row in file.tensors:
            key = f"{file.path}: {row.key}" if several else row.key
            if file.path in of_training or is_training_key(row.key):
                training.add(key)
            elif row.new_spec is not None and row.changed_share is not None:
                layers[key] = row.l2 or 0.0, row.new_spec.elements
            else:
                layers[key] = None
    return VersionChange(commit, layers, training)
