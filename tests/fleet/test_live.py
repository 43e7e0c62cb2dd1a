"""What a transport answers one who asks for nothing but what is live on a target."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidName, NoDeployment, StateForgotten, UnknownPath, UnknownTarget
from mvc.model.commit import Commit
from mvc.model.statement import Deployment
from mvc.remote.slices import Sent, decode_entries
from mvc.remote.transport import Slice, Transport, Wanted
from mvc.remote.transports.opening import open_transport
from tests.remote.kit.serving import serving, token, transport


@pytest.fixture(params=["folder", "http"])
def opened(request: pytest.FixtureRequest, folder: Path) -> Iterator[Transport]:
    if request.param == "folder":
        found = open_transport(str(folder / "models"))
        yield found
        found.close()
    else:
        text = token(folder, "read")
        with serving(folder) as server:
            yield transport(f"{server.url}/models", text)


def commit(repo: Repository, step: int, *, deploy: str | None = None, **files: object) -> bytes:
    random = np.random.default_rng(step)
    base = np.random.default_rng(0).standard_normal(20_000, np.float32)
    state = {"w": base + np.float32(1e-4 * step) * base, "b": random.random(30, np.float32)}
    done = repo.commit(states={"model.st": state, **files}, message=f"v{step}", deploy=deploy)
    return done.id


def ask(opened: Transport, target: str = "prod", **wanted: object) -> tuple[Sent, Slice, bytes]:
    slices = []
    for given in opened.send(Wanted(live=target, **wanted)):
        slices.append((given, b"".join(map(bytes, given.records))))
    ((given, records),) = slices
    (sent,) = decode_entries(given.head)
    assert sent.size == given.size == len(records)
    return sent, given, records


def test_the_answer_is_the_live_version_and_its_deployment(
    repo: Repository, opened: Transport
) -> None:
    ids = [commit(repo, i, deploy="prod") for i in range(3)]
    commit(repo, 3)
    repo.deploy(ids[0], "other")
    sent, _, records = ask(opened, paths=("model.st",))
    assert [Commit.decode(data).id for data in sent.commits] == [ids[2]]
    (made,) = sent.decoded
    assert isinstance(made, Deployment)
    assert (made.target, made.subject) == ("prod", ids[2])
    assert records
    same, given, _ = ask(opened, paths=("model.st",), have=frozenset({ids[2]}))
    assert given.size == 0 and same.statements == sent.statements and same.commits == sent.commits


def test_a_delta_against_the_file_is_small_in_both_directions(
    repo: Repository, opened: Transport
) -> None:
    ids = [commit(repo, i, deploy="prod") for i in range(1, 4)]
    whole = len(ask(opened, paths=("model.st",))[2])
    delta = len(ask(opened, paths=("model.st",), have=frozenset({ids[1]}))[2])
    assert delta < whole / 2
    repo.deploy(ids[0], "prod")
    back = len(ask(opened, paths=("model.st",), have=frozenset({ids[1]}))[2])
    assert back < whole / 2


def test_other_paths_do_not_travel(repo: Repository, opened: Transport) -> None:
    other = np.random.default_rng(7).standard_normal(200_000, np.float32)
    first = commit(repo, 1, deploy="prod", **{"other.st": {"m": other}})
    commit(repo, 2, deploy="prod", **{"other.st": {"m": other + 1}})
    _, given, _ = ask(opened, paths=("model.st",), have=frozenset({first}))
    assert given.size < 120_000
    with pytest.raises(UnknownPath):
        ask(opened, paths=("nothing",))


def test_what_cannot_be_had_is_named(repo: Repository, opened: Transport) -> None:
    with pytest.raises(UnknownTarget):
        ask(opened)
    version = commit(repo, 1, deploy="prod")
    commit(repo, 2)
    with pytest.raises(UnknownTarget):
        ask(opened, "staging")
    repo.retract(None, "prod")
    with pytest.raises(NoDeployment):
        ask(opened)
    repo.deploy(version, "prod")
    repo.storage.forget([version])
    with pytest.raises(StateForgotten):
        ask(opened)


def test_only_a_change_of_what_is_live_ends_a_wait(repo: Repository, opened: Transport) -> None:
    with pytest.raises(InvalidName):
        opened.live("..")
    nothing = opened.live("prod")
    assert nothing is not None
    first = commit(repo, 1, deploy="prod")
    mark = opened.live("prod", nothing, 5)
    assert mark is not None
    assert opened.live("prod", mark) is None
    heard: list[tuple[str | None, float]] = []

    def wait() -> None:
        heard.append((opened.live("prod", mark, 20), time.monotonic()))

    thread = threading.Thread(target=wait)
    thread.start()
    repo.deploy(first, "staging")  # an entry, but nothing else is live
    time.sleep(1.2)
    assert not heard
    begun = time.monotonic()
    commit(repo, 2, deploy="prod")
    thread.join()
    assert heard[0][0] not in (None, mark) and heard[0][1] - begun < 10


def test_a_dated_deployment_becomes_due_without_an_entry(
    repo: Repository, opened: Transport
) -> None:
    first, second = commit(repo, 1, deploy="prod"), commit(repo, 2)
    repo.deploy(second, "prod", at=datetime.now(UTC) + timedelta(seconds=1.5))
    mark = opened.live("prod")
    assert mark is not None and first.hex() in mark
    later = opened.live("prod", mark, 20)
    assert later is not None and second.hex() in later


def test_no_mark_comes_back(repo: Repository, opened: Transport) -> None:
    """Who was answered between a deployment and its retraction has to ask again."""
    commit(repo, 1, deploy="prod")
    mark = opened.live("prod")
    commit(repo, 2, deploy="prod")
    repo.retract(None, "prod")
    assert mark is not None and opened.live("prod", mark, 5) not in (None, mark)
