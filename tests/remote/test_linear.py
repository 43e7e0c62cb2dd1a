"""Work for what a peer sends grows with its bytes alone, and little of it is under a lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.remote.door import Slice
from mvc.remote.merging import SentDeployment, SentRetraction, Tombstone, Truths
from mvc.remote.receiver import receive
from mvc.remote.slices import Sent, encode_entries
from mvc.store.journal.entries import Evidence, evidence_bytes
from mvc.store.journal.signatures import Signature, write_signatures
from mvc.store.snapshot import JOURNAL
from mvc.testing import FixedClock
from mvc.testing.files import WrappedFS, WrappedWriteFile
from tests.linear import assert_linear, lines_run
from tests.remote.kit.mixed import START, model

SECOND = 10**9
Statement = Callable[[Repository, CommitId, int], Truths]


def deployment(id_: CommitId) -> SentDeployment:
    return SentDeployment("prod", START, bytes(id_), b"n" * 16, START, START)


def annotation(repo: Repository, id_: CommitId, i: int) -> Truths:
    said = evidence_bytes([Evidence(id_, {"loss": 0.5}, note=f"note {i}")])
    return Truths(START + i, b"ada", annotations=said)


def same_annotation(repo: Repository, id_: CommitId, i: int) -> Truths:
    return Truths(START + i, annotations=evidence_bytes([Evidence(id_, note="again")]))


def signature(repo: Repository, id_: CommitId, i: int) -> Truths:
    return Truths(START, signatures=write_signatures([Signature("version", id_, START + i, b"s")]))


def retraction(repo: Repository, id_: CommitId, i: int) -> Truths:
    gone = SentRetraction("prod", bytes(deployment(id_).id), START)
    return Truths(START + i, retractions=(gone,))


def tombstone(repo: Repository, id_: CommitId, i: int) -> Truths:
    return Truths(START + i, tombstones=(Tombstone(b"t" * 32),))


KINDS: list[Statement] = [annotation, same_annotation, signature, retraction, tombstone]


class Holds(WrappedFS):
    """``entries``: of each time that the journal was locked, how often it was written."""

    def __init__(self, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self.entries: list[int] = []

    def lock(self, path: Path, **options: Any) -> Any:
        if path.name == JOURNAL:
            self.entries.append(0)
        return super().lock(path, **options)

    def write(self, file: WrappedWriteFile, offset: int, views: Sequence[memoryview]) -> int:
        if file.path.name == JOURNAL:
            self.entries[-1] += 1
        return super().write(file, offset, views)


def receiver(place: Path, fs: FileSystem | None = None) -> Repository:
    clock = FixedClock(START + SECOND, 1)
    Repository.init(place, clock=clock, bare=True).close()
    repo = Repository.open(place, clock=clock, fs=fs)
    version = repo.commit(model())
    take(repo, [Truths(START, deployments=(deployment(version.id),))])
    return repo


def take(repo: Repository, truths: Sequence[Truths]) -> None:
    head = encode_entries([Sent(truths=each) for each in truths])
    receive(repo.context, Slice(head, 0, ()))


def said(repo: Repository, kind: Statement, count: int) -> list[Truths]:
    (version,) = repo.log()
    return [kind(repo, version.id, i) for i in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_statements_on_one_thing_are_linear_work(kind: Statement, tmp_path: Path) -> None:
    def work(count: int) -> int:
        with receiver(tmp_path / str(count)) as repo:
            truths = said(repo, kind, count)
            lines = lines_run(lambda: take(repo, truths))
            entries = sum(1 for _ in repo.context.fresh().entries())
            assert entries >= count
            lines += lines_run(lambda: take(repo, truths))  # all of it is here by now
            assert sum(1 for _ in repo.context.fresh().entries()) == entries
            return lines

    assert_linear(work)


@pytest.mark.parametrize("count", [16, 17, 300])
def test_the_journal_is_locked_for_few_entries_at_a_time(count: int, tmp_path: Path) -> None:
    fs = Holds()
    with receiver(tmp_path / "r", fs) as repo:
        truths = said(repo, annotation, count)
        fs.entries.clear()
        take(repo, truths)
        assert sum(fs.entries) >= count
        assert max(fs.entries) <= 16
        assert len(repo.annotations(repo.log()[0].id)) == count
