"""The cheapest path: from the nearer full record on either side, never backwards over a bridge."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.repo.commit.request import CommitOptions, FileOptions
from mvc.store.graph.search import Graph, Speed
from tests.store.repositories import CheckedHistory, view_of

LONG = 60
NOISE = np.random.default_rng(1).standard_normal((200, 100)).astype(np.float32)


def weight(repo: Repository, rev: object, path: str = "model.safetensors") -> BlobId:
    """The largest content of a version's file."""
    contents = repo.manifest(rev).by_path[path].contents
    return max(contents, key=lambda c: c.spec.nbytes).id


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory):
    """60 versions of one matrix, a reset point where the policy wants one."""
    folder = tmp_path_factory.mktemp("chain") / "repo"
    Repository.init(folder).close()
    (folder / ".mvc/config.yaml").write_text("store:\n  layout: chain\n")
    with Repository.open(folder) as repo:
        ids = []
        for step in range(LONG):
            state = {"w": NOISE + np.float32(1e-4 * step)}
            ids.append(repo.commit(state, options=CommitOptions(reset_point=step == 40)).id)
        yield repo, [weight(repo, id_) for id_ in ids], ids


def full(repo: Repository, id_: bytes) -> bool:
    return any(not step.member.base for step in repo.handle.store.graph.codings(id_))


def test_every_version_is_reached_from_the_nearer_reset_point(chain) -> None:
    repo, blobs, _ = chain
    sources = [i for i, id_ in enumerate(blobs) if full(repo, id_)]
    assert sources[0] == 0
    assert 40 in sources
    assert max(b - a for a, b in pairwise(sources)) <= 28
    for i, id_ in enumerate(blobs):
        path = repo.handle.store.graph.path(id_)
        assert path.depth == min(abs(i - source) for source in sources)
        assert not path.steps[0].member.base
        assert not path.steps[0].reverse
        assert all(step.member.base for step in path.steps[1:])


def test_paths_lead_backwards_too(chain) -> None:
    repo, blobs, ids = chain
    steps = repo.handle.store.graph.path(blobs[38]).steps
    assert [step.reverse for step in steps] == [False, True, True]
    assert repo.checkout(ids[38])["w"].tobytes() == (NOISE + np.float32(1e-4 * 38)).tobytes()


def test_the_whole_chain_comes_back(chain) -> None:
    repo, _, ids = chain
    for step, id_ in enumerate(ids):
        assert repo.checkout(id_)["w"].tobytes() == (NOISE + np.float32(1e-4 * step)).tobytes()


def test_costs_decide(chain) -> None:
    """With full records dearer than any chain, one chain from one of them is still needed."""
    repo, blobs, _ = chain
    speed = Speed(full=1e3)
    dear = Graph(view_of(repo), speed)
    for i in (0, 17, 45):
        path = dear.path(blobs[i])
        assert sum(not step.member.base for step in path.steps) == 1
        assert path.cost == pytest.approx(
            sum(Speed(full=1e3).seconds(s.member) for s in path.steps)
        )


def test_index_and_tail_plan_alike(chain) -> None:
    repo, blobs, _ = chain
    before = [repo.handle.store.graph.path(id_) for id_ in blobs]
    view_of(repo).index_tail(force=True)
    after = [repo.handle.store.graph.path(id_) for id_ in blobs]
    assert [p.cost for p in before] == [p.cost for p in after]


@pytest.mark.parametrize("change", ["resize", "cast", "patch"])
def test_a_bridge_is_never_crossed_backwards(tmp_path: Path, change: str) -> None:
    with Repository.init(tmp_path / "repo") as repo:
        first = {"w": NOISE}
        second = {
            "resize": {"w": np.vstack([NOISE, NOISE[:20]])},
            "cast": {"w": NOISE.astype(np.float16)},
            "patch": {"w": NOISE},
        }[change]
        if change == "patch":
            text = b"".join(b"line %d of a long text\n" % (i * i) for i in range(3000))
            (repo.root / "t.txt").write_bytes(text)
            one = repo.commit("t.txt", files=FileOptions(cwd=repo.root)).id
            (repo.root / "t.txt").write_bytes(text[:9000] + b"in between\n" + text[9000:])
            two = repo.commit("t.txt", files=FileOptions(cwd=repo.root)).id
            blobs = [weight(repo, rev, "t.txt") for rev in (one, two)]
        else:
            one = repo.commit(first).id
            repo.handle.recent.caches.clear()
            two = repo.commit(second).id
            blobs = [weight(repo, rev) for rev in (one, two)]
        graph = repo.handle.store.graph
        steps = graph.path(blobs[1]).steps
        assert steps[-1].member.coding.transform.partition(":")[0] == change
        assert graph.path(blobs[0]).depth == 0
        full_one = {s.place for s in graph.codings(blobs[0]) if not s.member.base}
        with pytest.raises(DamagedData, match="no full record leads to it"):
            graph.path(blobs[0], avoid=full_one)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "repo", 2)
    with history.open() as repo:
        graph = repo.handle.store.graph
        absent = bytes(range(32))
        assert not graph.holds(absent)
        assert not graph.nameable(absent)
        with pytest.raises(DamagedData, match="object 0001020304 cannot be recovered"):
            graph.path(absent)
        with pytest.raises(DamagedData, match="cannot be recovered"):
            graph.path(weight(repo, "HEAD"), start=999)


def test_what_its_first_bytes_do_not_name_is_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base is named by the first bytes of its id: the second of that name is no base."""
    history = CheckedHistory(tmp_path / "repo", 3)
    with history.open() as repo:
        graph = repo.handle.store.graph
        taken = weight(repo, history.ids[0])
        twin = taken[:8] + bytes(24)
        assert not graph.nameable(twin)
        assert graph.nameable(taken)
        assert not graph.holds(twin)
        newest, resolve = weight(repo, "HEAD"), Graph.resolve_prefix

        def other(graph: Graph, prefix: bytes) -> bytes | None:
            return newest[:8] + bytes(24) if newest.startswith(prefix) else resolve(graph, prefix)

        monkeypatch.setattr(Graph, "resolve_prefix", other)
        history.add(repo)
        assert graph.path(weight(repo, "HEAD")).depth == 0
        monkeypatch.undo()
        assert history.wrong(repo) == []


def test_a_shared_payload_counts_by_share(tmp_path: Path) -> None:
    """Else a small tensor beside a large one would pass the bound of its chain at once."""
    random = np.random.default_rng(0)
    with Repository.init(tmp_path) as repo:
        state = {
            "large": random.standard_normal(60_000).astype(np.float32),
            "small": random.standard_normal(600).astype(np.float32),
        }
        for _ in range(8):
            state = {k: v + np.float32(1e-4) * np.abs(v) for k, v in state.items()}
            repo.commit(state, pipeline="vsol")
        (entry,) = repo.manifest("HEAD").entries
        small = min(entry.contents, key=lambda c: c.spec.nbytes)
        path = repo.handle.store.graph.path(small.id)
        assert path.depth == 4  # 4 and 3 after the full record
        assert path.stored < 8 * small.spec.nbytes
