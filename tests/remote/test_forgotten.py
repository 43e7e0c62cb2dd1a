"""A version forgotten by name: on no remote after a push, and gone from old clones after gc."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import MvcError, StateForgotten
from mvc.ids import CommitId
from tests.remote.kit.places import KINDS, Place, place
from tests.remote.kit.same import assert_clean

SECRET = np.frombuffer(b"a secret nobody may keep, " * 64, np.uint8).copy()
"""Stored as it is by the pipeline ``none``."""


def bytes_of(state: dict[str, np.ndarray]) -> bytes:
    return state["w"].tobytes()


def state(number: int) -> dict[str, np.ndarray]:
    """Numbers of no pattern, so that full records hold them as they are."""
    random = np.random.default_rng(number)
    return {"w": random.integers(0, 256, 4000, np.uint8)}


def found_in(folder: Path, needle: bytes) -> list[Path]:
    """Every file below that has these bytes, or a piece of them."""
    pieces = [needle[at : at + 64] for at in range(0, len(needle) - 64, 500)]
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(piece in path.read_bytes() for piece in pieces)
    ]


def push_anything(repo: Repository) -> None:
    """With all means; a refusal is by name."""
    for force in (False, True):
        try:
            repo.push("origin", every=True, force=force)
        except MvcError as error:
            assert error.hint or error.message


@pytest.fixture(
    params=[KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])]
)
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made = place(request.param, tmp_path)
    request.addfinalizer(lambda: made.__exit__(None, None, None))
    return made.__enter__()


def shared(remote: Place, tmp_path: Path) -> tuple[Repository, CommitId, bytes]:
    """A repository at the remote, its second version, and that one's bytes."""
    repo = Repository.init(tmp_path / "ada")
    ids = [repo.commit(state(i), pipeline="none").id for i in range(3)]
    repo.remotes.add("origin", remote.url)
    repo.push("origin", ["main"])
    return repo, ids[1], bytes_of(state(1))


def test_it_is_not_on_the_remote_after_a_push_of_an_old_clone(
    remote: Place, tmp_path: Path
) -> None:
    repo, secret, needle = shared(remote, tmp_path)
    old = mvc.clone(remote.url, tmp_path / "old")
    repo.storage.forget([secret], reason="a person asked")
    repo.storage.gc(grace="0")
    assert not found_in(repo.root / ".mvc", needle)
    assert repo.push("origin").operations == 1  # what the remote forgets is news
    assert not repo.push("origin").is_news
    old.branch("keeps", secret)
    old.tag("too", secret)
    old.deploy(secret, "prod")
    old.commit(state(7))
    push_anything(old)
    assert found_in(old.root / ".mvc", needle)
    with mvc.clone(remote.url, tmp_path / "new") as new:
        assert not found_in(new.root / ".mvc", needle)
        with pytest.raises(StateForgotten):
            new.checkout(secret)
        assert_clean(new)

    def collect(owned: Repository) -> None:
        with pytest.raises(StateForgotten):
            owned.checkout(secret)
        owned.storage.gc(grace="0")

    remote.own(collect)
    if remote.root is not None:  # a bucket keeps what nothing names any more for 14 days
        assert not found_in(remote.root, needle)


def test_it_is_gone_from_an_old_clone_after_its_gc(remote: Place, tmp_path: Path) -> None:
    repo, secret, needle = shared(remote, tmp_path)
    old = mvc.clone(remote.url, tmp_path / "old")
    repo.storage.forget([secret])
    repo.push("origin")
    assert found_in(old.root / ".mvc", needle)
    old.fetch("origin")
    with pytest.raises(StateForgotten):
        old.checkout(secret)
    old.storage.gc(grace="0")
    assert not found_in(old.root / ".mvc", needle)
    assert_clean(old)
    repo.close()
    old.close()


def test_a_third_party_that_knows_nothing_of_it_gives_it_to_nobody(
    remote: Place, tmp_path: Path
) -> None:
    """Its clone is older than the tombstone, and its remote another one."""
    repo, secret, needle = shared(remote, tmp_path)
    old = mvc.clone(remote.url, tmp_path / "old")
    repo.storage.forget([secret])
    repo.storage.gc(grace="0")
    repo.remotes.add("old", str(old.root))
    repo.fetch("old")
    assert not found_in(repo.root / ".mvc", needle)
    with pytest.raises(StateForgotten):
        repo.checkout(secret)
    assert_clean(repo)
    repo.close()
    old.close()
