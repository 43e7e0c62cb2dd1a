"""What was acknowledged, as plain Python, and whether a repository says the same.

A ``Ledger`` holds commits with their contents, deployments and refs, as the calls that
made them reported them. ``check`` asks an open repository every question about them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.errors import NoDeployment, StateForgotten, UnknownRevision
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.store.journal.frames import GENESIS, scan
from mvc.store.snapshot import JOURNAL
from mvc.testing import fresh_process
from tests.crash.state import check_arrays

__all__ = [
    "Deployment", "Ledger", "Recipe", "Wrong", "arrays", "check", "check_claims", "check_forgotten",
    "check_live", "check_version", "expect_deployments",
]  # fmt: skip

Recipe = dict[str, int]
"""Path to the number that its contents are computed from."""

_SAMPLES = 6  # moments of each target at which is asked what was live


class Wrong(Exception):
    """An answer that is not what was acknowledged. ``kind``: "lost", "wrong" or "alarm"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


def arrays(number: int) -> dict[str, np.ndarray]:
    """The contents that ``number`` stands for: mostly the same from one to the next."""
    base = np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32)
    base[number % 20] += np.float32(number)
    return {"w": base, "n": np.array(number)}


@dataclass(frozen=True)
class Deployment:
    """``dated``: its time was given when it was recorded."""

    target: str
    time_ns: int
    sequence: int
    commit: CommitId
    dated: bool = False
    retracted: bool = False


@dataclass
class Ledger:
    """``commits``: parent and recipe of each. ``sequence``: the newest one that was told.

    ``forgotten``: commits whose state was deleted by name.
    """

    commits: dict[CommitId, tuple[CommitId | None, Recipe]] = field(default_factory=dict)
    refs: dict[str, Any] = field(default_factory=lambda: {"HEAD": "main"})
    deployments: list[Deployment] = field(default_factory=list)
    sequence: int = 0
    forgotten: set[CommitId] = field(default_factory=set)

    @property
    def head(self) -> CommitId | None:
        at = self.refs["HEAD"]
        return at if isinstance(at, CommitId) else self.refs.get(f"heads/{at}")

    def committed(self, id_: CommitId, path: str, number: int) -> None:
        head = self.head
        before = {} if head is None else self.commits[head][1]
        self.commits[id_] = (head, {**before, path: number})
        at = self.refs["HEAD"]
        self.refs["HEAD" if isinstance(at, CommitId) else f"heads/{at}"] = id_

    def deployed(self, made: Iterable[Deployment]) -> None:
        for each in made:
            self.deployments.append(each)
            self.sequence = max(self.sequence, each.sequence)

    def retracted(self, target: str, sequence: int) -> None:
        for i, each in enumerate(self.deployments):
            if (each.target, each.sequence) == (target, sequence):
                self.deployments[i] = replace(each, retracted=True)

    def newest_standing(self, target: str) -> Deployment | None:
        """The one that ``retract`` takes back."""
        standing = [d for d in self.deployments if d.target == target and not d.retracted]
        return max(standing, key=lambda d: d.sequence, default=None)

    def undone(self, changes: Sequence[tuple[str, Any, Any]]) -> None:
        """Takes in what an undo says that it did; it must begin at what the ledger knows."""
        for name, old, new in changes:
            if self.refs.get(name) != old:
                raise Wrong("wrong", f"an undo moved {name} from {old}, not {self.refs.get(name)}")
            if new is None:
                del self.refs[name]
            else:
                self.refs[name] = new

    def collected(self) -> None:
        """Only what refs and deployments lead to is kept."""
        waiting = [value for value in self.refs.values() if isinstance(value, CommitId)]
        waiting += [deployment.commit for deployment in self.deployments]
        kept: set[CommitId] = set()
        while waiting:
            commit = waiting.pop()
            if commit not in kept:
                kept.add(commit)
                parent, _ = self.commits[commit]
                waiting += [] if parent is None else [parent]
        self.commits = {c: made for c, made in self.commits.items() if c in kept}

    def may_be_forgotten(self, commit: CommitId) -> bool:
        """Whether no ref names it, so that nobody checks it out by a name."""
        return commit not in self.forgotten and commit not in {self.head, *self.refs.values()}

    def line(self) -> list[CommitId]:
        """HEAD and its ancestors, newest first."""
        found, at = [], self.head
        while at is not None:
            found.append(at)
            at = self.commits[at][0]
        return found

    def of_target(self, target: str) -> list[Deployment]:
        """By time and sequence."""
        found = [d for d in self.deployments if d.target == target]
        return sorted(found, key=lambda d: (d.time_ns, d.sequence))

    def targets(self) -> list[str]:
        return sorted({d.target for d in self.deployments})


# -- a repository against it ---------------------------------------------------------------


def check(repo: Repository, ledger: Ledger, seed: int, *, whole: bool) -> None:
    """Raises Wrong. Without ``whole`` only samples of the versions are looked at."""
    rng = random.Random(seed)
    _refs(repo, ledger)
    for target in ledger.targets():
        expected = ledger.of_target(target)
        expect_deployments(repo, target, expected)
        check_live(repo, target, expected, rng)
    commits = list(ledger.commits)
    if not whole:
        commits = [*commits[-1:], *rng.sample(commits, min(3, len(commits)))]
    for commit in commits:
        if commit in ledger.forgotten:
            check_forgotten(repo, commit)
        else:
            check_version(repo, commit, ledger.commits[commit][1])


def _refs(repo: Repository, ledger: Ledger) -> None:
    found = {f"heads/{ref.name}": ref.commit for ref in repo.refs()}
    found |= {f"tags/{ref.name}": ref.commit for ref in repo.refs("tag")}
    expected = {name: value for name, value in ledger.refs.items() if name != "HEAD"}
    if found != expected:
        raise Wrong("wrong", f"refs are {found}, expected {expected}")
    line = ledger.line()
    try:
        head = repo.find("HEAD")
    except UnknownRevision:
        head = None
    if head != (line[0] if line else None):
        raise Wrong("wrong", f"HEAD is {head}, expected {line[:1]}")
    if line:
        log = [entry.commit.id for entry in repo.log()]
        if log != line:
            raise Wrong("lost" if set(line) - set(log) else "wrong", f"log is {log}, not {line}")


def check_version(
    repo: Repository, commit: CommitId, recipe: Recipe, *, others: bool = False
) -> None:
    """Every path of a version comes back bit for bit; with ``others`` it may have more paths."""
    fresh_process()
    found = set(repo.manifest(commit).by_path)
    if found != set(recipe) and not (others and found >= set(recipe)):
        raise Wrong("wrong", f"{commit.short} has the paths {found}, not {set(recipe)}")
    for path, number in recipe.items():
        try:
            check_arrays(repo.checkout(commit, path=path), arrays(number))
        except AssertionError as error:
            raise Wrong("wrong", f"{path} of {commit.short}: {error}") from error


def check_forgotten(repo: Repository, commit: CommitId) -> None:
    """A forgotten version is refused as such, and by nothing else."""
    fresh_process()
    try:
        repo.manifest(commit)
    except StateForgotten:
        return
    raise Wrong("wrong", f"{commit.short} is forgotten, but its state is handed out")


def expect_deployments(repo: Repository, target: str, expected: list[Deployment]) -> None:
    """Exactly these deployments are listed, by time and sequence."""
    found = [
        Deployment(d.target, d.time_ns, d.sequence, d.commit, d.dated, d.retracted)
        for d in repo.deployments(target)
    ]
    if found != expected:
        missing = [d for d in expected if d not in found]
        foreign = [d for d in found if d not in expected]
        kind = "lost" if missing and not foreign else "wrong"
        raise Wrong(kind, f"deployments on {target}: missing {missing}, foreign {foreign}")


def check_live(
    repo: Repository, target: str, expected: list[Deployment], rng: random.Random
) -> None:
    """What was live at moments between, at and before the deployments, and what is now."""
    moments: list[int | None] = [None, expected[0].time_ns - 1]
    moments += [d.time_ns + rng.choice((-1, 0, 1)) for d in _some(expected, rng)]
    for at in moments:
        wanted = _live(expected, at)
        try:
            found = repo.live(target, at=at).deployment.sequence
        except NoDeployment:
            found = None
        if found != (None if wanted is None else wanted.sequence):
            raise Wrong("wrong", f"at {at} operation {found} was live on {target}, not {wanted}")


def _some(expected: list[Deployment], rng: random.Random) -> list[Deployment]:
    return rng.sample(expected, min(_SAMPLES, len(expected)))


def _live(expected: list[Deployment], at: int | None) -> Deployment | None:
    """docs/architecture.md: by (time, sequence); now the newest immediate one goes first."""
    standing = [d for d in expected if not d.retracted]
    if at is not None:
        return next((d for d in reversed(standing) if d.time_ns <= at), None)
    recent = sorted(expected, key=lambda d: d.sequence)[-256:]
    immediate = [d for d in recent if not d.retracted and not d.dated]
    newest = immediate[-1] if immediate else None
    if newest is None:
        return standing[-1] if standing else None
    # Dates are in the past in these stories, so none is still to come.
    place = (newest.time_ns, newest.sequence)
    behind = [d for d in standing if d.dated and (d.time_ns, d.sequence) > place]
    return behind[-1] if behind else newest


def check_claims(root: Path) -> None:
    """No two entries of the journal claim the same bytes of a pack; read without an index."""
    claimed: dict[int, list[tuple[int, int, int]]] = {}
    with FileSystem().open_read(root / ".mvc" / JOURNAL) as journal:
        for recorded in scan(journal, GENESIS):
            for region in recorded.entry.regions:
                if region.length:
                    span = (region.start, region.start + region.length, recorded.sequence)
                    claimed.setdefault(region.pack, []).append(span)
    for pack, (first, second) in _neighbours(claimed):
        if second[0] < first[1]:
            raise Wrong("lost", f"pack {pack}: {first} and {second} claim the same bytes")


def _neighbours(
    claimed: dict[int, list[tuple[int, int, int]]],
) -> Iterator[tuple[int, tuple[tuple[int, int, int], tuple[int, int, int]]]]:
    for pack, spans in claimed.items():
        spans.sort()
        for pair in pairwise(spans):
            yield pack, pair
