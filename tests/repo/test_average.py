"""The mean of versions: its bits, what has none, and what becomes of the working folder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

import mvc
from mvc.api import ema_weights
from mvc.errors import (
    DamagedData,
    RefConflict,
    StateForgotten,
    UnknownRevision,
    WouldOverwrite,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.store.recovery.recover import Recovery
from tests.repo.nearest import NARROW, nearest

MODEL = "model.safetensors"
FLOATS = [*NARROW, "float32", "float64"]


@pytest.fixture
def repo(tmp_path: Path):
    with mvc.Repository.init(tmp_path / "r") as opened:
        yield opened


def tensors(seed: int, *dtypes: str) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {d: torch.randn(40, 30, generator=draws).to(getattr(torch, d)) for d in dtypes}


def committed(repo: mvc.Repository, *states: dict[str, torch.Tensor]) -> list[CommitId]:
    found = []
    for state in states:
        save_file(state, repo.root / MODEL)
        found.append(repo.commit(repo.root / MODEL).id)
    return found


def numbers(repo: mvc.Repository, rev: mvc.api.Rev, key: str) -> np.ndarray:
    return repo.checkout(rev)[key].to(torch.float64).numpy().ravel()


def bits(repo: mvc.Repository, rev: mvc.api.Rev, key: str) -> list[int]:
    found = repo.checkout(rev)[key]
    size = found.element_size()
    return np.frombuffer(found.contiguous().view(torch.uint8).numpy(), f"<u{size}").tolist()


def computed_again(repo: mvc.Repository, rev: str, key: str) -> np.ndarray:
    """The mean in float64 by what the version's params say, and nothing else."""
    total = None
    for _, text in sorted(repo.version(rev).params.items()):
        version, weight = text.split()
        term = np.float64(weight) * numbers(repo, version, key)
        total = term if total is None else total + term
    assert total is not None
    return total


@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_mean_can_be_computed_again_from_the_params(repo, count):
    ids = committed(repo, *(tensors(i, *FLOATS) for i in range(count)))
    repo.average(ids, weights=[1 + 0.3 * i for i in range(count)])
    for key in NARROW:
        wanted = [nearest(value, key) for value in computed_again(repo, "HEAD", key)]
        assert bits(repo, "HEAD", key) == wanted
    for key in ("float32", "float64"):
        wanted = computed_again(repo, "HEAD", key).astype(key)
        assert bits(repo, "HEAD", key) == wanted.view(f"<u{wanted.itemsize}").tolist()


def test_complex_numbers_by_their_parts(repo):
    states = ([1 + 2j, complex(math.nan, 1)], [2 + 4j, 2 + 2j])
    repo.average([repo.commit({"z": np.array(state, "c8")}).id for state in states])
    found = repo.checkout()["z"]
    assert found[0] == 1.5 + 3j and math.isnan(found[1].real) and found[1].imag == 1.5


def test_weights_are_divided_by_their_sum(repo):
    ids = committed(repo, *(tensors(i, "float32") for i in range(3)))
    repo.average(ids, weights=[1, 2, 5])
    params = repo.version("HEAD").params
    assert params == {
        f"average.00{i}": f"{id_.hex()} {w!r}"
        for i, id_, w in zip((1, 2, 3), ids, (0.125, 0.25, 0.625), strict=True)
    }


def test_an_exponential_moving_average_is_one_of_weights():
    values, moving = [3.0, 5.0, 11.0, 2.0], 3.0
    for value in values[1:]:
        moving = 0.75 * moving + 0.25 * value
    weights = ema_weights(4, 0.75)
    assert math.fsum(weights) == 1
    assert math.fsum(w * v for w, v in zip(weights, values, strict=True)) == moving
    assert ema_weights(3, 0) == (0, 0, 1)
    with pytest.raises(WrongUsage, match="at least 0 and below 1"):
        ema_weights(3, 1)


def test_tensors_of_several_pieces(repo):
    size, ids = PIECE // 4 + 1000, []
    draws = np.random.default_rng(3)
    states = [draws.standard_normal(size).astype("f4") for _ in range(3)]
    for state in states:
        save_arrays({"w": state, "b": state[:10]}, repo.root / MODEL)
        ids.append(repo.commit(repo.root / MODEL).id)
    wanted = (1 / 3) * states[0].astype("f8")
    for state in states[1:]:
        wanted = wanted + (1 / 3) * state.astype("f8")
    repo.average(ids, to=repo.root / "out.safetensors")
    assert load_file(repo.root / "out.safetensors")["w"].tobytes() == wanted.astype("f4").tobytes()
    repo.average(ids)
    assert (repo.root / MODEL).read_bytes() == (repo.root / "out.safetensors").read_bytes()


def test_integers_come_from_the_last_and_are_named(repo):
    a, b = (
        {**tensors(i, "float32"), "n": torch.tensor([i]), "same": torch.ones(2)} for i in (1, 2)
    )
    done = repo.average(committed(repo, a, b))
    assert done.copied == (f"{MODEL}: n",)
    assert repo.checkout()["n"].tolist() == [2]
    old, new = (repo.manifest(rev).by_path[MODEL] for rev in ("HEAD~1", "HEAD"))
    same = {entry: next(t.id for t in entry.tensors if t.key == "same") for entry in (old, new)}
    assert same[old] == same[new]


def test_other_files_come_from_the_last_and_are_named(repo):
    ids = []
    for i in (1, 2):
        save_file(tensors(i, "float32"), repo.root / MODEL, metadata={"step": str(i)})
        (repo.root / "config.json").write_text(f'{{"step": {i}}}')
        (repo.root / "same.txt").write_text("same")
        ids.append(repo.commit(repo.root).id)
    (repo.root / "later.txt").write_text("stays")
    repo.commit(repo.root / "later.txt")
    done = repo.average(ids)
    assert done.copied == ("config.json", f"{MODEL}: metadata")
    with safe_open(repo.root / MODEL, "np") as file:
        assert file.metadata() == {"step": "2"}
    assert repo.open_file("HEAD", "config.json").read() == b'{"step": 2}'
    assert repo.open_file("HEAD", "later.txt").read() == b"stays"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"extra": torch.ones(2)},
            r"extra of model.safetensors is missing in .*, but float32\[2\]",
        ),
        (
            {"w": torch.ones(3)},
            r"w of model.safetensors is float32\[2\] in .*, but float32\[3\] in",
        ),
        ({"w": torch.ones(2).half()}, r"w of .* is float32\[2\] in .*, but float16\[2\] in"),
    ],
)
def test_versions_of_other_models_are_refused(repo, change, said):
    first = {"w": torch.zeros(2)}
    ids = committed(repo, first, first | change)
    with pytest.raises(WrongUsage, match=said) as caught:
        repo.average(ids)
    assert ids[0].short in str(caught.value) and ids[1].short in str(caught.value)
    assert repo.find("HEAD") == ids[1]


def test_a_missing_file_is_refused(repo):
    ids = committed(repo, {"w": torch.zeros(2)}, {"w": torch.ones(2)})
    save_file({"v": torch.ones(2)}, repo.root / "second.safetensors")
    more = repo.commit(repo.root / "second.safetensors").id
    for pair in ([ids[0], more], [more, ids[0]]):
        with pytest.raises(WrongUsage, match=r"v of second.safetensors is .*missing in"):
            repo.average(pair)


@pytest.mark.parametrize(
    ("weights", "count", "said"),
    [
        (None, 1, "an average needs two versions or more"),
        ([1], 2, "2 versions need as many weights, not 1"),
        ([1, 2, 3], 2, "2 versions need as many weights, not 3"),
        ([1, -1], 2, "divided by their sum, which is 0"),
        ([0, 0], 2, "divided by their sum, which is 0"),
        ([1, math.nan], 2, "a weight must be a finite number"),
        ([math.inf, -math.inf], 2, "a weight must be a finite number"),
    ],
)
def test_weights_without_a_mean_are_refused(repo, weights, count, said):
    ids = committed(repo, {"w": torch.zeros(2)}, {"w": torch.ones(2)})
    with pytest.raises(WrongUsage, match=said):
        repo.average(ids[:count], weights=weights)


def test_equal_versions_are_refused(repo):
    ids = committed(repo, {"w": torch.zeros(2)})
    with pytest.raises(WrongUsage, match="nothing to average"):
        repo.average([*ids, *ids])
    with pytest.raises(UnknownRevision):
        repo.average(["HEAD", "no"])


def test_all_versions_are_parents_once(repo):
    ids = committed(repo, *({"w": torch.full((2,), float(i))} for i in range(3)))
    done = repo.average([ids[0], ids[1], ids[0]])
    assert done.result is not None and done.result.commit.parents == (ids[2], ids[0], ids[1])
    assert repo.checkout()["w"][0] == np.float32(1 / 3)
    assert [entry.id for entry in repo.log()] == [done.result.id, *ids[::-1]]


def test_the_working_files_follow_unless_they_were_modified(repo):
    ids = committed(repo, {"w": torch.zeros(2)}, {"w": torch.ones(2)})
    done = repo.average(ids)
    assert done.written == (MODEL,) and load_file(repo.root / MODEL)["w"].tolist() == [0.5, 0.5]
    assert [change.kind for change in repo.status().changes] == ["unchanged"]
    save_file({"w": torch.full((2,), 9.0)}, repo.root / MODEL)
    with pytest.raises(WouldOverwrite, match=MODEL):
        repo.average(ids, weights=[1, 3])
    assert done.result is not None and repo.find("HEAD") == done.result.id
    (repo.root / MODEL).unlink()
    assert repo.average(ids, weights=[1, 3]).written == ()
    assert not (repo.root / MODEL).exists()


def test_another_branch_leaves_the_working_folder(repo):
    ids = committed(repo, {"w": torch.zeros(2)}, {"w": torch.ones(2)})
    save_file({"w": torch.full((2,), 9.0)}, repo.root / MODEL)
    done = repo.average(ids, branch="mean", deploy="prod", message="mean")
    assert done.result is not None and done.result.branch == "mean" and done.written == ()
    assert done.result.commit.parents == tuple(ids) and repo.find("HEAD") == ids[1]
    assert repo.live("prod").commit == done.result.id
    again = repo.average(ids, branch="mean", weights=[1, 3])
    assert again.result is not None and again.result.commit.parents[0] == done.result.id
    assert repo.version("mean").message == "average of 2 versions"


def test_a_new_branch_is_compared_with_its_first_parent(repo):
    first = {"w": torch.zeros(2), "same": torch.ones(2)}
    ids = committed(repo, first, first | {"w": torch.ones(2)})
    for branch in ("new", "new"):
        done = repo.average(ids, branch=branch)
        assert done.result is not None
        (path,) = done.result.paths
        parent, made = (repo.manifest(rev).by_path[MODEL] for rev in ("new^", "new"))
        changed = sum(a.id != b.id for a, b in zip(parent.tensors, made.tensors, strict=True))
        assert (path.tensors_changed, path.tensors) == (changed, 2)


def test_a_branch_with_the_name_of_a_tag_is_refused(repo):
    ids = committed(repo, {"w": torch.zeros(2)}, {"w": torch.ones(2)})
    repo.tag("v1")
    with pytest.raises(RefConflict, match="a tag v1 exists already"):
        repo.average(ids, branch="v1")
    for new, error, why in (
        (True, RefConflict, "a tag v1 exists already"),
        (False, UnknownRevision, "there is no branch v1"),
    ):
        options = mvc.CommitOptions(branch="v1", new_branch=new)
        with pytest.raises(error, match=why):
            repo.commit({"w": torch.zeros(2)}, options=options)
    assert repo.find("v1") == ids[1]


def test_a_bare_repository(tmp_path):
    with mvc.Repository.init(tmp_path / "bare", bare=True) as repo:
        ids = [repo.commit({"w": np.full(3, v)}).id for v in (1.0, 3.0)]
        assert repo.average(ids).written == ()
        assert repo.checkout()["w"].tolist() == [2.0] * 3


def test_shards_and_a_folder_as_output(repo, tmp_path):
    ids = []
    for i in (1, 3):
        for part in "ab":
            save_file({part: torch.full((5,), float(i))}, repo.root / f"m-{part}.safetensors")
        (repo.root / "index.json").write_text("{}")
        ids.append(repo.commit(repo.root).id)
    done = repo.average(ids, to=tmp_path / "out")
    assert len(done.written) == 3 and (tmp_path / "out/index.json").read_text() == "{}"
    for part in "ab":
        assert load_file(tmp_path / f"out/m-{part}.safetensors")[part].tolist() == [2.0] * 5
    with pytest.raises(WouldOverwrite):
        repo.average(ids, to=tmp_path / "out")
    repo.average(ids, to=tmp_path / "out", force=True, weights=[1, 3])
    assert load_file(tmp_path / "out/m-b.safetensors")["b"].tolist() == [2.5] * 5
    with pytest.raises(WrongUsage, match="receives one file"):
        repo.average(ids, to=tmp_path / "out.safetensors")
    with pytest.raises(WrongUsage, match="to= only writes files"):
        repo.average(ids, to=tmp_path / "out2", branch="b")
    with pytest.raises(WrongUsage, match="written to stdout"):
        repo.average(ids, to="-")
    assert not Path("-").exists()
    assert repo.find("HEAD") == ids[1]


def test_a_torch_file_with_shared_storage(repo, tmp_path):
    ids = []
    for i in (1, 3):
        base = torch.arange(12, dtype=torch.float32) * i
        torch.save({"base": base, "rows": base.view(3, 4).t(), "n": 7}, repo.root / "m.pt")
        ids.append(repo.commit(repo.root / "m.pt").id)
    done = repo.average(ids, to=tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(found["base"], torch.arange(12.0) * 2) and found["n"] == 7
    assert torch.equal(found["rows"], found["base"].view(3, 4).t())
    assert done.copied == ()
    repo.average(ids)
    assert (repo.root / "m.pt").read_bytes() == (tmp_path / "out.pt").read_bytes()


def test_numbers_that_are_no_tensors_are_named(repo):
    ids = []
    for i in (1.0, 3.0):
        row = np.asfortranarray(np.full((2, 3), i))
        np.savez(repo.root / "m.npz", a=np.full(3, i), fortran=row)
        ids.append(repo.commit(repo.root / "m.npz").id)
    assert repo.average(ids).copied == ("m.npz: metadata",)
    with np.load(repo.root / "m.npz") as found:
        assert found["a"].tolist() == [2, 2, 2] and found["fortran"][0, 0] == 3


def test_weights_that_are_tied_in_some_versions(repo, tmp_path):
    """Those of their own have a mean of their own, or are refused where they have no room."""
    tied, ids = torch.ones(4), []
    for head in (tied, torch.full((4,), 5.0)):
        torch.save({"emb": tied, "head": head}, repo.root / "m.pt")
        ids.append(repo.commit(repo.root / "m.pt").id)
    with pytest.raises(WrongUsage, match=r"head and emb of m.pt share storage in the last"):
        repo.average(ids[::-1])
    repo.average(ids, weights=[3, 1], to=tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["emb"].tolist() == [1] * 4 and found["head"].tolist() == [2] * 4


def test_states_with_an_optimizer(repo):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    ids, seen = [], []
    for _ in range(3):
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        ids.append(repo.commit(states).id)
        seen.append(optimizer.state_dict()["state"][0]["exp_avg"].double().numpy().copy())
    repo.average(ids)
    found = repo.checkout()["optimizer"]["state"][0]["exp_avg"]
    wanted = (1 / 3) * seen[0] + (1 / 3) * seen[1] + (1 / 3) * seen[2]
    assert found.numpy().tobytes() == wanted.astype("f4").tobytes()
    assert repo.storage.fsck(full=True).sound


def test_a_version_without_its_state_is_refused(repo):
    ids = committed(repo, *({"w": torch.full((2,), float(i))} for i in range(3)))
    repo.storage.forget([ids[0]])
    with pytest.raises(StateForgotten, match=ids[0].short):
        repo.average(ids)
    assert repo.find("HEAD") == ids[2]


def test_around_damage_each_version_takes_its_own_path(repo, monkeypatch):
    ids = committed(repo, *(tensors(i, "float32") for i in range(3)))
    repo.average(ids, to=repo.root / "sound.safetensors")

    def pieces(*_: object) -> None:
        raise DamagedData("a payload that they share")

    monkeypatch.setattr(Recovery, "pieces", pieces)
    repo.average(ids, to=repo.root / "other.safetensors")
    found = [(repo.root / f"{name}.safetensors").read_bytes() for name in ("sound", "other")]
    assert found[0] == found[1]


def test_states_come_from_a_lazy_remote(repo, tmp_path):
    ids = committed(repo, *({"w": torch.full((2,), float(i))} for i in range(3)))
    with mvc.clone(str(repo.root), tmp_path / "copy", states="none") as copy:
        with pytest.raises(StateForgotten):
            copy.average(ids, branch="mean")
        copy.remotes.remove("origin")
        copy.remotes.add("origin", str(repo.root), lazy=True)
        copy.average(ids, branch="mean")
        assert copy.checkout("mean")["w"].tolist() == [1.0, 1.0]
