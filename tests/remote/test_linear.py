"""Work for what a peer sends grows with its bytes alone, and little of it is under a lock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mvc import clone
from mvc.api.repository import Repository
from mvc.codecs.payload import pack_chunks
from mvc.errors import RemoteRefused
from mvc.ids import CommitId, Root, StatementId
from mvc.io.files import FileSystem
from mvc.limits import CHUNK
from mvc.model.hashing import blob_id
from mvc.model.manifest import Manifest
from mvc.model.statement import (
    AnnotationStatement,
    Deployment,
    Retraction,
    Signature,
    Statement,
    Tombstone,
)
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.remote.receiving.receiver import receive
from mvc.remote.slices import encode_entries, sent_with
from mvc.remote.transport import Slice, Wanted
from mvc.remote.transports.folder import FolderTransport
from mvc.repo.lookup.manifests import objects
from mvc.store.journal.frames import Recorded
from mvc.store.journal.reader import JournalReader
from mvc.store.packs.records import MANIFEST, Coding, Member
from mvc.store.snapshot import JOURNAL, Snapshot
from mvc.testing import FixedClock
from mvc.testing.files import WrappedFS, WrappedWriteFile
from mvc.times import datetime_of
from tests.linear import assert_linear, lines_run
from tests.remote.kit.forged import Record, full, taken_apart
from tests.remote.kit.mixed import START, model

SECOND = 10**9
Kind = Callable[[Repository, CommitId, int], Statement]


def deployment(id_: CommitId) -> Deployment:
    return Deployment(
        subject=id_, node=b"n" * 16, recorded_ns=START, hybrid_ns=START, target="prod",
        time_ns=START,
    )  # fmt: skip


def stamp(i: int) -> dict[str, Any]:
    return {"author": "ada", "node": b"n" * 16, "recorded_ns": START + i, "hybrid_ns": START + i}


def annotation(repo: Repository, id_: CommitId, i: int) -> Statement:
    return AnnotationStatement(subject=id_, metrics={"loss": 0.5}, note=f"note {i}", **stamp(i))


def same_annotation(repo: Repository, id_: CommitId, i: int) -> Statement:
    return AnnotationStatement(subject=id_, note="again", **stamp(i))


def signature(repo: Repository, id_: CommitId, i: int) -> Statement:
    return Signature(subject=id_, of_statement=False, signed_ns=START + i, blob=b"s", **stamp(0))


def retraction(repo: Repository, id_: CommitId, i: int) -> Statement:
    return Retraction(subject=deployment(id_).id, target="prod", **stamp(i))


def tombstone(repo: Repository, id_: CommitId, i: int) -> Statement:
    return Tombstone(subject=b"t" * 32, root=Root(bytes(32)), **stamp(i))


KINDS: list[Kind] = [annotation, same_annotation, signature, retraction, tombstone]


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
    take(repo, [(deployment(version.id),)])
    return repo


def take(repo: Repository, said: Sequence[Sequence[Statement]], *, is_own: bool = False) -> None:
    """Receives some operations with what they say."""
    head = encode_entries([sent_with(each, is_own=is_own) for each in said])
    receive(repo.handle.store, repo.handle.config, Slice(head, 0, ()))


def operations(repo: Repository, kind: Kind, count: int) -> list[tuple[Statement]]:
    (version,) = repo.log()
    return [(kind(repo, version.id, i),) for i in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_statements_on_one_thing_are_linear_work(kind: Kind, tmp_path: Path) -> None:
    def work(count: int) -> int:
        with receiver(tmp_path / str(count)) as repo:
            said = operations(repo, kind, count)
            lines = lines_run(lambda: take(repo, said))
            entries = sum(1 for _ in repo.handle.store.fresh().entries())
            assert entries >= count
            lines += lines_run(lambda: take(repo, said))  # all of it is here by now
            assert sum(1 for _ in repo.handle.store.fresh().entries()) == entries
            return lines

    assert_linear(work)


@pytest.mark.parametrize("count", [4, 5, 300])
def test_the_journal_is_locked_for_few_entries_at_a_time(count: int, tmp_path: Path) -> None:
    fs = Holds()
    with receiver(tmp_path / "r", fs) as repo:
        said = operations(repo, annotation, count)
        fs.entries.clear()
        take(repo, said)
        assert sum(fs.entries) >= count
        assert max(fs.entries) <= 4
        assert len(repo.annotations(repo.log()[0].id)) == count


@pytest.mark.parametrize("what", [annotation, signature, retraction, tombstone, deployment])
def test_an_entry_that_says_much_is_merged_in_parts(what: Any, tmp_path: Path) -> None:
    fs, count = Holds(), 1000
    with receiver(tmp_path / "r", fs) as repo:
        (version,) = repo.log()
        if what is deployment:
            every = [replace(deployment(version.id), target=f"t{i}") for i in range(count)]
        else:
            every = [what(repo, version.id, i) for i in range(count)]
        before = [*repo.handle.store.fresh().entries()]
        fs.entries.clear()
        take(repo, [every])
        assert max(fs.entries) <= 4
        new = [each.entry for each in repo.handle.store.fresh().entries()][len(before) :]
        sizes = [len(entry.statements) for entry in new]
        assert max(sizes) <= 50 and sum(sizes) == count
        take(repo, [every])
        assert len([*repo.handle.store.fresh().entries()]) == len(before) + len(new)


@pytest.mark.parametrize("is_own", [True, False])
def test_an_entry_that_replaces_on_many_targets_is_linear_work(
    is_own: bool, tmp_path: Path
) -> None:
    def work(size: int) -> int:
        count = 2 * size  # so that neither is published at once
        with receiver(tmp_path / str(size)) as repo:
            other = StatementId(b"r" * 32)
            made = replace(deployment(repo.log()[0].id), replaces=other)
            every = [replace(made, target=f"t{i:05}") for i in range(count)]
            lines = lines_run(lambda: take(repo, [every], is_own=is_own))
            given = [each.replaces for each in repo.deployments() if each.target != "prod"]
            assert given == ([] if is_own else [other] * count)
            return lines

    assert_linear(work)


def test_deployments_of_one_hybrid_time_are_few(tmp_path: Path) -> None:
    """All of them are read to find one by its id, which is done under the journal's lock."""
    with receiver(tmp_path / "r") as repo:
        (version,) = repo.log()
        first = deployment(version.id)
        many = [replace(first, time_ns=START + i) for i in range(20)]
        with pytest.raises(RemoteRefused, match="16 deployments with the same hybrid logical time"):
            take(repo, [(each,) for each in many])
        assert len(repo.deployments("prod")) == 16
        later = replace(first, hybrid_ns=START + 1)
        take(repo, [(later,)])
        assert len(repo.deployments("prod")) == 17


def chained(place: Path, count: int, order: str) -> Slice:
    """A true version of ``count`` tensors; each is stored as a delta from the one before."""
    state = {f"k{i:04}": np.arange(i, i + 16, dtype=np.int32) for i in range(count)}
    with Repository.init(place) as repo:
        manifest = repo.version(repo.commit(state).id).manifest
        (given,) = FolderTransport("a", repo.handle.store, repo.handle.config).send(Wanted())
        forged = taken_apart(given)
        recovery = repo.handle.store.recovery
        encoded = recovery.manifest(manifest)
        others = [full(manifest, encoded, MANIFEST)]
        for id_, spec in objects(Manifest.decode(encoded).all_entries).items():
            if spec != TensorSpec("int32", (16,)):  # what is no tensor
                others.append(full(id_, bytes(recovery.blob(id_, spec))))
    blobs = [bytes(array.data) for array in state.values()]
    ids = [blob_id(TensorSpec("int32", (16,)), memoryview(data)) for data in blobs]
    coding = Pipeline.parse("xor | zstd:1").coding()
    records = [full(ids[0], blobs[0])]
    for i in range(1, count):
        chunk = coding.encode_chunk(memoryview(blobs[i]), memoryview(blobs[i - 1]), 4)
        member = Member(1, ids[i], 0, 64, Coding(coding.text), ids[i - 1][:8], 0, 0, b"")
        records.append(Record([member], [b"".join(pack_chunks([chunk], 4, CHUNK))]))
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
            lines = lines_run(lambda: receive(repo.handle.store, repo.handle.config, given))
            assert repo.handle.store.fresh().position.sequence == 2
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
            clock.advance(-SECOND // 2)  # so that those that follow have to be compared
            repo.deploy(version, "prod")
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


def test_a_push_of_a_version_does_not_look_at_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not changed since the first version, as the rest of its file, is in the last."""
    looks, publishing = list[bytes](), Snapshot.publishing

    def counted(snapshot: Snapshot, first: bytes, last: bytes | None = None) -> list[Recorded]:
        looks.append(first)
        return publishing(snapshot, first, last)

    monkeypatch.setattr(Snapshot, "publishing", counted)
    counts, state = list[int](), model()
    Repository.init(tmp_path / "server", bare=True).close()
    with Repository.init(tmp_path / "r") as repo:
        repo.remotes.add("origin", str(tmp_path / "server"))
        for count in 8, 64, 64:
            for _ in range(count):
                state = {name: value + 1 for name, value in state.items()}
                repo.commit(state)
            repo.push()
            repo.commit({name: value + 1 for name, value in state.items()})
            looks.clear()
            assert repo.push().versions == 1
            counts.append(len(looks))
    assert max(counts[1:]) <= counts[0] + 4


@pytest.mark.parametrize("where", ["never pushed to", "pushed to", "cloned", "second"])
def test_deployments_that_are_not_sent_take_as_many_look_ups_as_one(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, entry = list[int](), JournalReader.entry

    def counted(reader: JournalReader, offset: int) -> Recorded:
        looks.append(offset)
        return entry(reader, offset)

    clock, url = FixedClock(START, SECOND), str(tmp_path / "server")
    with Repository.init(tmp_path / "server", clock=clock, bare=True) as server:
        version = server.commit(model(), deploy="prod").id
    if where == "never pushed to":
        repo = Repository.init(tmp_path / "r", clock=clock)
        version = repo.commit(model(), deploy="prod").id
        repo.remotes.add("origin", url)
    else:
        clone(url, tmp_path / "r")
        repo = Repository.open(tmp_path / "r", clock=clock)
    if where in {"pushed to", "second"}:
        repo.deploy(version, "prod")
        repo.push()
    if where == "second":
        repo.remotes.add("other", str(tmp_path / "other"))
    monkeypatch.setattr(JournalReader, "entry", counted)
    counts = list[int]()
    with repo:
        for count in 1, 40:
            for _ in range(count):
                repo.deploy(version, "prod")
            looks.clear()
            found = {(each.remote, each.state) for each in repo.remotes.unsent("prod")}
            assert {state for _, state in found} == {"not sent"}
            counts.append(len(looks))
    assert counts[1] <= counts[0] + 1 < 20


def test_deployments_that_are_taken_back_are_linear_work(tmp_path: Path) -> None:
    def work(count: int) -> int:
        with receiver(tmp_path / str(count)) as repo:
            first = deployment(repo.log()[0].id)
            said = list[tuple[Statement]]()
            for i in range(START + 1, START + 1 + count // 2):
                made = replace(first, time_ns=i, recorded_ns=i, hybrid_ns=i, replaces=first.id)
                gone = Retraction(
                    subject=made.id, node=b"n" * 16, recorded_ns=i, hybrid_ns=i, target="prod",
                    replaces=made.id,
                )  # fmt: skip
                said += [(made,), (gone,)]
            lines = lines_run(lambda: take(repo, said, is_own=True))
            assert len(repo.deployments("prod")) == 1 + count // 2
            assert repo.live("prod").deployment.id == first.id
            return lines

    assert_linear(work)
