"""Signatures on their way between repositories: who may bring them, and what comes without."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.api.repository import Repository
from mvc.errors import DamagedData, RemoteRefused
from mvc.ids import CommitId, StatementId
from mvc.model.statement import Signature
from mvc.remote.receiving.receiver import receive
from mvc.remote.slices import Sent, encode_entries, sent_with
from mvc.remote.statements import without
from mvc.remote.transport import Slice
from tests.signing import people

__all__ = ["people"]

pytestmark = pytest.mark.usefixtures("people")


@pytest.fixture
def signed(repo: Repository) -> CommitId:
    """A version that Ada deployed."""
    return repo.commit({"w": np.zeros(4, np.float32)}, deploy="prod").id


def rows(repo: Repository, id_: CommitId) -> list[Signature]:
    """Those of a version, and of its deployments."""
    snapshot = repo.handle.store.fresh()
    every = [id_, *(each.id for each in repo.deployments(rev=id_))]
    return [row for subject in every for _, row in snapshot.about(Signature, subject)]


def told(repo: Repository, scopes: tuple[str, ...], *signatures: Signature) -> None:
    given = Slice(encode_entries([sent_with(signatures)]), 0, ())
    receive(repo.handle.store, repo.handle.config, given, scopes=scopes)


@pytest.mark.parametrize(
    ("scopes", "version", "deployment"),
    [
        (("admin",), True, True),
        (("read", "push:heads/main"), True, False),
        (("read", "push:heads/other"), False, False),
        (("read", "deploy:prod"), False, True),
        (("read", "deploy:edge"), False, False),
    ],
)
def test_who_may_bring_which(
    repo: Repository, signed: CommitId, scopes: tuple[str, ...], version: bool, deployment: bool
) -> None:
    for row, allowed in zip(rows(repo, signed), (version, deployment), strict=True):
        another = replace(row, signed_ns=row.signed_ns + 1)
        if allowed:
            told(repo, scopes, another)
        else:
            with pytest.raises(RemoteRefused, match="needs the scope"):
                told(repo, scopes, another)
        assert (another in rows(repo, signed)) is allowed


def test_what_is_there_is_passed_over(repo: Repository, signed: CommitId) -> None:
    before = repo.handle.store.fresh().position
    told(repo, ("read",), *rows(repo, signed))
    elsewhere = replace(rows(repo, signed)[0], subject=b"e" * 32)
    told(repo, ("read",), elsewhere)
    assert repo.handle.store.fresh().position == before


def test_what_does_not_fit_is_refused(repo: Repository, signed: CommitId) -> None:
    row = rows(repo, signed)[1]
    for data in (b"\xff" * 50, b"\x01", b"\x01\x03" + bytes(80)):
        sent = Sent(statements=(data,))
        with pytest.raises(DamagedData, match="a received statement"):
            receive(repo.handle.store, repo.handle.config, Slice(encode_entries([sent]), 0, ()))
    with pytest.raises(DamagedData):
        told(repo, (), replace(row, blob=bytes((16 << 10) + 1)))
    with pytest.raises(DamagedData):
        told(repo, (), replace(row, before=b"x"))


def test_without_deployments_only_those_of_versions_come(
    repo: Repository, signed: CommitId, tmp_path: Path
) -> None:
    with Repository.init(tmp_path / "other") as other:
        other.remotes.add("origin", str(repo.root), deployments=False)
        other.fetch()
        assert other.verify(signed).trust == "good"
        assert [row.of_statement for row in rows(other, signed)] == [False]
        other.remotes.add("origin", str(repo.root), deployments=True, force=True)
        other.fetch()
        assert [row.of_statement for row in rows(other, signed)] == [False, True]
        assert not [each for each in other.verify() if each.problems]


def test_those_of_a_deployment_that_stays_stay(repo: Repository, signed: CommitId) -> None:
    every = rows(repo, signed)
    assert without(every, {StatementId(every[1].subject)}) == (every[0],)
    assert without(every, {StatementId(b"e" * 32)}) == tuple(every)


def test_a_visit_sees_them(repo: Repository, signed: CommitId) -> None:
    with mvc.visit(str(repo.root)) as there:
        assert there.verify(signed).signer == "ada@example.com"
        assert not there.verify("prod")[0].problems


def test_many_signatures_of_one_version_are_taken_in_once(repo: Repository) -> None:
    """What is known is looked up once for a version, and not once for each of them."""
    id_ = repo.commit({"w": np.zeros(4, np.float32)}, options=mvc.CommitOptions(sign=False)).id
    now = repo.handle.store.now_ns()
    first, second = (
        [
            Signature(
                subject=id_,
                node=b"n" * 16,
                recorded_ns=now,
                hybrid_ns=now + n,
                of_statement=False,
                signed_ns=now,
                blob=b"%d" % n,
            )
            for n in range(start, start + 1500)
        ]
        for start in (0, 1500)
    )
    begun = time.process_time()
    told(repo, ("push:*",), *first, *first)
    none_known = time.process_time() - begun
    assert rows(repo, id_) == first
    begun = time.process_time()
    told(repo, ("push:*",), *first, *second)
    assert time.process_time() - begun < 5 * none_known
    assert rows(repo, id_) == first + second
