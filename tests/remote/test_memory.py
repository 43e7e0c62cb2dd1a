"""Memory: of a client at any size of a model, of a server with a thousand that wait."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from tests.benchmarks.measuring import program
from tests.remote.kit.places import KINDS, Place, connect, place

PROJECT = Path(__file__).parents[2]
MIB = 1 << 20
CLIENT, SERVER = 256, 200
"""MiB."""


def sparse(megabytes: int, seed: int) -> dict[str, np.ndarray]:
    """Tensors of 64 MiB of which one number in a hundred is not zero."""
    random = np.random.default_rng(seed)
    made = {}
    for i in range(megabytes // 64):
        array = np.zeros(16 * MIB, np.float32)
        some = random.integers(0, array.size, array.size // 100)
        array[some] = random.standard_normal(some.size)
        made[f"t{i}"] = array
    return made


def peak(remote: Place, code: str, *folders: Path) -> float:
    """MiB of a process that runs ``code`` at its peak, and of whatever it starts."""
    variables = os.environ | remote.variables | {"PYTHONPATH": str(PROJECT)}
    words = [remote.url, *map(str, folders)]
    line = ["-c", f"import sys, mvc\nurl, *folders = sys.argv[1:]\n{code}", *words]
    return program(sys.executable, *line, environment=variables).peak


PUSH = "mvc.Repository.open(folders[0]).push('origin', ['main'])"
FETCH = "mvc.Repository.open(folders[0]).fetch('origin')"
CLONE = "mvc.clone(url, folders[0])"
FOLLOW = """
with mvc.Follower(url, 'prod', mvc.ReplicaSink(folders[0])) as follower: follower.poll()"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("megabytes", [128, pytest.param(1024, marks=pytest.mark.long)])
def test_a_client_stays_below_its_bound(kind: str, megabytes: int, tmp_path: Path) -> None:
    with place(kind, tmp_path) as remote:
        with Repository.init(tmp_path / "a") as repo:
            repo.commit(sparse(megabytes, 0), path="model.safetensors")
            repo.commit(sparse(megabytes, 1), path="model.safetensors")
            repo.remotes.add("origin", remote.url)
        a, b = tmp_path / "a", tmp_path / "b"
        found = {"push": peak(remote, PUSH, a), "clone": peak(remote, CLONE, b)}
        with mvc.Repository.open(a) as repo:
            repo.commit(sparse(megabytes, 2), path="model.safetensors")
        found["push one"] = peak(remote, PUSH, a)
        found["fetch one"] = peak(remote, FETCH, b)
        print(kind, found, remote.peak())
        assert max(found.values()) < CLIENT, found
        assert remote.peak() < SERVER


def dense(version: int) -> dict[str, np.ndarray]:
    """Tensors of 48 MiB, in pieces of 32 and 16, all of whose numbers change a little."""
    start = np.random.default_rng(0).standard_normal(MIB).astype(np.float32)
    start += np.float32(1e-4 * version)
    return {f"t{i}": np.concatenate([start * (12 * i + k + 1) for k in range(12)]) for i in (0, 1)}


def test_a_server_stays_below_its_bound_with_large_tensors(tmp_path: Path) -> None:
    with place("http", tmp_path) as remote, Repository.init(tmp_path / "a") as repo:
        repo.remotes.add("origin", remote.url)
        for version in range(3):
            repo.commit(dense(version))
            repo.push("origin", ["main"])
        mvc.clone(remote.url, tmp_path / "b").close()
        assert remote.peak() < SERVER


def test_a_follower_holds_a_few_pieces_of_a_large_tensor(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = random.integers(0, 1 << 14, 96 * MIB, np.uint16)
    with place("http", tmp_path) as remote, Repository.init(tmp_path / "a") as repo:
        repo.remotes.add("origin", remote.url)
        for bound in (CLIENT, 180):  # of a delta: three pieces, no second memory for its base
            repo.commit({"t": words}, path="model.safetensors", deploy="prod")
            repo.push("origin", ["main"])
            assert peak(remote, FOLLOW, tmp_path / "model.safetensors") < bound
            words[random.integers(0, words.size, words.size // 100)] += 1


def _waiting(remote: Place, count: int) -> list[http.client.HTTPConnection]:
    """Connections that wait for the first deployment."""
    made = []
    for _ in range(count):
        connection = connect(remote)
        path = "/remote/v1/live?target=prod&mark=-&wait=60"
        connection.request("GET", path, headers={"Authorization": f"Bearer {remote.token}"})
        made.append(connection)
    return made


def _closing(connections: list[http.client.HTTPConnection]) -> Callable[[], None]:
    def close() -> None:
        for connection in connections:
            connection.close()

    return close


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_a_server_stays_below_its_bound_with_many_that_wait(
    count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with place("http", tmp_path) as remote, Repository.init(tmp_path / "a") as repo:
        repo.commit(sparse(64, 0))
        repo.remotes.add("origin", remote.url)
        repo.push("origin", ["main"])
        connections = _waiting(remote, count)
        request.addfinalizer(_closing(connections))
        repo.commit(sparse(64, 1), deploy="prod")
        repo.push("origin", ["main"])  # while all wait
        statuses = [connection.getresponse().status for connection in connections]
        assert statuses == [200] * count
        assert remote.peak() < SERVER
