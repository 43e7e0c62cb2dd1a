"""Sharded checkpoints by real ranks: one commit, whole tensors, any number of ranks back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mvc
from tests.frameworks.need import need

need("fsspec")

from tests.frameworks import dcp_ranks as ranks  # noqa: E402


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A repository into which two ranks have saved: a state, another one, FSDP's."""
    root = tmp_path_factory.mktemp("dcp")
    with mvc.Repository.init(root / "models"):
        pass
    url = f"mvc://{root}/models@main"
    for name, act, args in [
        ("one", ranks.save, (f"{url}/ck", 1)),
        ("two", ranks.save_behind, (f"{url}/ck", 2)),
    ]:
        assert ranks.run(act, 2, root / name, *args) == [("done", None)] * 2
    saved = ranks.run(ranks.save_fsdp, 2, root / "fsdp", f"{url}/fsdp")
    assert [kind for kind, _ in saved] == ["done", "done"], saved
    return root, saved[0][1]


def test_a_checkpoint_of_two_ranks_is_one_commit_of_whole_tensors(models):
    root, _ = models
    with mvc.Repository.open(root / "models") as repo:
        assert [e.commit.message for e in repo.log()] == [
            "checkpoint fsdp",
            "checkpoint ck",
            "checkpoint ck",
        ]
        assert sorted(repo.manifest("HEAD~1").by_path) == [
            "ck/model.objects.safetensors",
            "ck/model.safetensors",
        ]
        for rev, seed in (("HEAD~2", 1), ("HEAD~1", 2), ("HEAD", 2)):
            whole = ranks.state(seed)
            found = repo.checkout(rev, path="ck/model.safetensors")
            wanted = ranks.flat(whole)
            assert {
                k: ranks.same_bits(t, wanted[k]) for k, t in ranks.flat(found).items()
            } == dict.fromkeys(wanted, True)
            assert found["optim"]["param_groups"] == whole["optim"]["param_groups"]
            assert found["epoch"] == seed
            entry = repo.manifest(rev).by_path["ck/model.safetensors"]
            with mvc.Repository.init(root / f"plain-{rev}") as plain:
                del whole["seen"]
                plain.commit(whole)
                assert plain.manifest().by_path["model.safetensors"].state.root == entry.state.root
        changes = repo.diff("HEAD~2", "HEAD~1", ["ck/model.safetensors"]).files[0].tensors
        assert {c.kind for c in changes if c.key == "model.uneven"} == {"changed"}
        assert not list(Path(repo.root, ".mvc/staging").glob("*/*"))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_ranks_loads_it(models, world, tmp_path):
    root, _ = models
    for rev, seed in (("main", 2), ("HEAD~2", 1)):
        url = f"mvc://{root}/models@{rev}/ck"
        assert ranks.run(ranks.load, world, tmp_path / rev, url, seed) == [("done", [])] * world


@pytest.mark.parametrize("world", [1, 4])
def test_fsdp_goes_on_with_other_ranks(models, world, tmp_path):
    root, saved = models
    found = ranks.run(ranks.load_fsdp, world, tmp_path / "x", f"mvc://{root}/models@main/fsdp")
    assert found == [("done", saved)] * world


def test_a_rank_that_is_killed_leaves_no_version(tmp_path):
    with mvc.Repository.init(tmp_path / "models") as repo:
        url = f"mvc://{repo.root}@main/ck"
        outcome = ranks.run(ranks.save_and_die, 2, tmp_path / "dies", url, 1)
        assert [kind for kind, _ in outcome] == ["failed", "killed"]
        assert repo.context.store.ref("heads/main") is None
        left = sorted(p.name for p in Path(repo.root, ".mvc/staging").glob("*/*"))
        assert left == ["__0_0.distcp", "__1_0.distcp"]
        # The next save, of another folder, removes what nobody holds any more.
        ranks.run(ranks.save, 2, tmp_path / "next", f"{url}2", 2)
        assert not list(Path(repo.root, ".mvc/staging").glob("*/*"))
        assert sorted(repo.manifest().by_path)[-1] == "ck2/model.safetensors"
        # And the one that failed can be done again.
        assert ranks.run(ranks.save, 2, tmp_path / "again", url, 1) == [("done", None)] * 2
        assert ranks.run(ranks.load, 1, tmp_path / "load", url, 1) == [("done", [])]


def test_ranks_hear_what_is_wrong(tmp_path):
    with mvc.Repository.init(tmp_path / "models") as repo:
        repo.commit({"w": torch.ones(2)})
        repo.tag("v1")
        outcome = ranks.run(ranks.save, 2, tmp_path / "tag", f"mvc://{repo.root}@v1/ck", 1)
        assert [kind for kind, _ in outcome] == ["failed", "failed"]
        assert all("v1 is not a branch" in said for _, said in outcome)
        outcome = ranks.run(ranks.load, 2, tmp_path / "none", f"mvc://{repo.root}@v9/ck", 1)
        assert all(kind == "failed" and "no version, branch or tag v9" in t for kind, t in outcome)


@pytest.mark.parametrize("world", [1, 2])
def test_the_recorder_names_a_sharded_tensor_and_the_way_out(tmp_path, world):
    for kind, said in ranks.run(ranks.record, world, tmp_path / "x", str(tmp_path)):
        assert kind == "done", said
        for line in said:
            assert line.startswith("UnsupportedTensor: ")
            assert "0.weight is a DTensor" in line
            assert "torch.distributed.checkpoint to an mvc:// path" in line
