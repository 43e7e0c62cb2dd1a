"""Work for what a peer sends grows with its bytes alone, and little of it is under a lock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mvc.api.repository import Repository
from mvc.codecs.payload import pack_chunks
from mvc.errors import RemoteRefused
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.limits import CHUNK
from mvc.model.hashing import blob_id
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.remote.door import Slice, Wanted
from mvc.remote.folder import FolderDoor
from mvc.remote.merging import SentDeployment, SentRetraction, Tombstone, Truths
from mvc.remote.receiver import receive
from mvc.remote.slices import Sent, encode_entries
from mvc.repo.lookup.manifests import objects
from mvc.store.journal.entries import Evidence, evidence_bytes
from mvc.store.journal.signatures import Signature, write_signatures
from mvc.store.packs.records import MANIFEST, Coding, Member
from mvc.store.snapshot import JOURNAL
from mvc.testing import FixedClock
from mvc.testing.files import WrappedFS, WrappedWriteFile
from mvc.times import datetime_of
from tests.linear import assert_linear, lines_run
from tests.remote.kit.forged import Record, full, taken_apart
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


@pytest.mark.parametrize("count", [4, 5, 300])
def test_the_journal_is_locked_for_few_entries_at_a_time(count: int, tmp_path: Path) -> None:
    fs = Holds()
    with receiver(tmp_path / "r", fs) as repo:
        truths = said(repo, annotation, count)
        fs.entries.clear()
        take(repo, truths)
        assert sum(fs.entries) >= count
        assert max(fs.entries) <= 4
        assert len(repo.annotations(repo.log()[0].id)) == count


WHAT = ["annotations", "signatures", "retractions", "tombstones", "deployments"]


@pytest.mark.parametrize("what", WHAT)
def test_an_entry_that_says_much_is_merged_in_parts(what: str, tmp_path: Path) -> None:
    fs, count = Holds(), 1000
    with receiver(tmp_path / "r", fs) as repo:
        (version,) = repo.log()
        made = deployment(version.id)
        notes = [Evidence(version.id, note=f"note {i}") for i in range(count)]
        signed = [Signature("version", version.id, START + i, b"s") for i in range(count)]
        every: dict[str, Any] = {
            "annotations": evidence_bytes(notes),
            "signatures": write_signatures(signed),
            "retractions": (SentRetraction("prod", bytes(made.id), START),) * count,
            "tombstones": tuple(Tombstone(i.to_bytes(32, "big")) for i in range(count)),
            "deployments": tuple(replace(made, target=f"t{i}") for i in range(count)),
        }
        truths = Truths(START, **{what: every[what]})
        before = [*repo.context.fresh().entries()]
        fs.entries.clear()
        take(repo, [truths])
        assert max(fs.entries) <= 4
        new = [each.entry for each in repo.context.fresh().entries()][len(before) :]
        said = [(e.evidence, e.signatures, e.retractions, e.forgotten, e.deployments) for e in new]
        sizes = [sum(map(len, each)) for each in said]
        # The same retraction is recorded until it is on record.
        assert max(sizes) <= 50 and (sum(sizes) == count or what == "retractions")
        take(repo, [truths])
        assert len([*repo.context.fresh().entries()]) == len(before) + len(new)


@pytest.mark.parametrize("is_own", [True, False])
def test_an_entry_that_replaces_on_many_targets_is_linear_work(
    is_own: bool, tmp_path: Path
) -> None:
    def work(size: int) -> int:
        count = 2 * size  # so that neither is published at once
        with receiver(tmp_path / str(size)) as repo:
            made = deployment(repo.log()[0].id)
            every = tuple(replace(made, target=f"t{i:05}") for i in range(count))
            told = tuple((each.target, b"r" * 16) for each in every)
            truths = Truths(START, deployments=every, replaces=told, is_own=is_own)
            lines = lines_run(lambda: take(repo, [truths]))
            given = [each.replaces for each in repo.deployments() if each.target != "prod"]
            assert given == ([] if is_own else [b"r" * 16] * count)
            return lines

    assert_linear(work)


def test_deployments_of_one_hybrid_time_are_few(tmp_path: Path) -> None:
    """All of them are read to find one by its id, which is done under the journal's lock."""
    with receiver(tmp_path / "r") as repo:
        (version,) = repo.log()
        first = deployment(version.id)
        many = [replace(first, time_ns=START + i) for i in range(20)]
        with pytest.raises(RemoteRefused, match="16 deployments on prod have one hybrid time"):
            take(repo, [Truths(START, deployments=(each,)) for each in many])
        assert len(repo.deployments("prod")) == 16
        later = replace(first, hybrid_ns=START + 1)
        take(repo, [Truths(START, deployments=(later,))])
        assert len(repo.deployments("prod")) == 17


def chained(place: Path, count: int, order: str) -> Slice:
    """A true version of ``count`` tensors; each is stored as a delta from the one before."""
    state = {f"k{i:04}": np.arange(i, i + 16, dtype=np.int32) for i in range(count)}
    with Repository.init(place) as repo:
        manifest = repo.version(repo.commit(state).id).manifest
        (given,) = FolderDoor("a", repo.context).send(Wanted())
        forged = taken_apart(given)
        recovery = repo.context.store.recovery
        encoded = recovery.manifest(manifest)
        others = [full(manifest, encoded, MANIFEST)]
        for id_, spec in objects(Manifest.decode(encoded)).items():
            if spec != TensorSpec("int32", (16,)):  # what is no tensor
                others.append(full(id_, bytes(recovery.blob(id_, spec))))
    blobs = [bytes(array.data) for array in state.values()]
    ids = [blob_id(TensorSpec("int32", (16,)), memoryview(data)) for data in blobs]
    coding = Pipeline.parse("xor | zstd:1").coding()
    records = [full(ids[0], blobs[0])]
    for i in range(1, count):
        chunk = coding.encode_chunk(memoryview(blobs[i]), memoryview(blobs[i - 1]), 4)
        member = Member(1, ids[i], 0, 64, Coding(coding.text), ids[i - 1][:8], 0, 0, b"")
        records.append(Record([member], [b"".join(pack_chunks([chunk], 64, 4, CHUNK))]))
    if order == "one record":
        merged = [member for record in records for member in record.members]
        records = [Record(merged, [data for record in records for data in record.payloads])]
    elif order == "last first":
        records.reverse()
    elif order == "any":
        random.Random(count).shuffle(records)
    (at,) = (i for i, sent in enumerate(forged.entries) if sent.commits)
    forged.records[at] = [*others, *records]
    return forged.slice()


@pytest.mark.parametrize("order", ["first first", "one record", "last first", "any"])
def test_a_chain_of_contents_is_linear_work(order: str, tmp_path: Path) -> None:
    def work(count: int) -> int:
        given = chained(tmp_path / f"a{count}", count, order)
        with Repository.init(tmp_path / f"b{count}", bare=True) as repo:
            lines = lines_run(lambda: receive(repo.context, given))
            assert repo.context.fresh().position.sequence == 2
            return lines

    assert_linear(work)


@pytest.mark.parametrize("kind", ["immediate", "dated", "taken back"])
def test_deployments_that_are_not_sent_are_linear_work(kind: str, tmp_path: Path) -> None:
    def work(count: int) -> int:
        clock = FixedClock(START, SECOND)
        server = Repository.init(tmp_path / f"server{count}", clock=clock, bare=True)
        with server, Repository.init(tmp_path / str(count), clock=clock) as repo:
            repo.remotes.add("origin", str(tmp_path / f"server{count}"))
            version = repo.commit(model(), deploy="prod").id
            repo.push()
            for _ in range(count // 6):
                at = datetime_of(clock.now_ns()) if kind == "dated" else None
                repo.deploy(version, "prod", at=at)
                if kind == "taken back":
                    repo.retract(version, "prod")
            found = list[str]()
            lines = lines_run(lambda: found.extend(u.state for u in repo.remotes.unsent("prod")))
            assert found == ["not sent"]
            return lines

    assert_linear(work)


def test_deployments_that_are_taken_back_are_linear_work(tmp_path: Path) -> None:
    def work(count: int) -> int:
        with receiver(tmp_path / str(count)) as repo:
            first = deployment(repo.log()[0].id)
            truths = list[Truths]()
            for i in range(START + 1, START + 1 + count // 2):
                made = replace(first, time_ns=i, recorded_ns=i, hybrid_ns=i)
                gone = SentRetraction("prod", bytes(made.id), i)
                before, after = (("prod", bytes(first.id)),), (("prod", bytes(made.id)),)
                truths.append(Truths(i, deployments=(made,), replaces=before, is_own=True))
                truths.append(Truths(i, retractions=(gone,), replaces=after, is_own=True))
            lines = lines_run(lambda: take(repo, truths))
            assert len(repo.deployments("prod")) == 1 + count // 2
            assert repo.live("prod").deployment.id == first.id
            return lines

    assert_linear(work)
