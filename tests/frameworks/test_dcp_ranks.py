"""Sharded checkpoints by real ranks: one commit, whole tensors, any number of ranks back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mvc
from tests.fleet.following import follow
from tests.frameworks import dcp_ranks as ranks

CK, FSDP = "ck/model.safetensors", "fsdp/model.safetensors"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A repository into which two ranks have saved: a state, another one, FSDP's."""
    root = tmp_path_factory.mktemp("dcp")
    with mvc.Repository.init(root / "models"):
        pass
    models = str(root / "models")
    for name, act, args in [
        ("one", ranks.save, ((models, "main", CK), 1)),
        ("two", ranks.save_behind, ((models, "main", CK), 2)),
    ]:
        assert ranks.run(act, 2, root / name, *args) == [("done", None)] * 2
    saved = ranks.run(ranks.save_fsdp, 2, root / "fsdp", (models, "main", FSDP))
    assert [kind for kind, _ in saved] == ["done", "done"], saved
    return root, saved[0][1]


def test_a_checkpoint_of_two_ranks_is_one_commit_of_whole_tensors(models):
    root, _ = models
    with mvc.Repository.open(root / "models") as repo:
        assert [e.commit.message for e in repo.log()] == [
            f"checkpoint {FSDP}",
            f"checkpoint {CK}",
            f"checkpoint {CK}",
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
        assert not list(Path(repo.root, ".mvc/staging").glob("*.shard"))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_ranks_loads_it(models, world, tmp_path):
    root, _ = models
    for rev, seed in (("main", 2), ("HEAD~2", 1)):
        place = (str(root / "models"), rev, CK)
        assert ranks.run(ranks.load, world, tmp_path / rev, place, seed) == [("done", [])] * world


@pytest.mark.parametrize("world", [1, 4])
def test_fsdp_goes_on_with_other_ranks(models, world, tmp_path):
    root, saved = models
    place = (str(root / "models"), "main", FSDP)
    found = ranks.run(ranks.load_fsdp, world, tmp_path / "x", place)
    assert found == [("done", saved)] * world


def test_versions_of_all_ranks_reach_those_who_follow_the_remote(tmp_path):
    remote, file = tmp_path / "remote", tmp_path / "node.safetensors"
    mvc.Repository.init(remote, bare=True).close()
    with mvc.Repository.init(tmp_path / "models") as repo:
        repo.remotes.add("origin", str(remote))
        place = (str(repo.root), "main", "policy/model.safetensors")

        def publish(name, seed):
            (first, said), other = ranks.run(ranks.publish, 2, tmp_path / name, place, seed)
            assert first == "done" and other == ("done", []), (said, other)
            return said

        for number, seed in enumerate((1, 1, 2)):
            assert publish(f"{number}", seed) == []
            served = follow(str(remote), "prod", to=file, once=True)
            assert served.commit == repo.find("main") == repo.live("prod").commit
        wanted, found = ranks.state(2)["model"], load_file(file)
        assert {k for k in wanted if ranks.same_bits(found[k], wanted[k])} == found.keys()
        remote.rename(tmp_path / "elsewhere")
        assert "1 version of main not pushed to origin" in publish("away", 3)[-1]
        (tmp_path / "elsewhere").rename(remote)
        assert publish("back", 4) == []
        with mvc.Repository.open(remote) as there:
            assert [e.commit for e in there.deployments("prod")] == [e.id for e in repo.log()][::-1]
        assert len(list(repo.log())) == 5


def test_a_rank_that_is_killed_leaves_no_version(tmp_path):
    with mvc.Repository.init(tmp_path / "models") as repo:
        place = (str(repo.root), "main", CK)
        outcome = ranks.run(ranks.save_and_die, 2, tmp_path / "dies", place, 1)
        assert [kind for kind, _ in outcome] == ["failed", "killed"]
        assert repo.handle.store.snapshot.ref("heads/main") is None
        assert len(list(Path(repo.root, ".mvc/staging").glob("*.shard"))) == 2
        # The next save, of another path, removes what nobody holds any more.
        ranks.run(ranks.save, 2, tmp_path / "next", (*place[:2], "ck2/model.safetensors"), 2)
        assert not list(Path(repo.root, ".mvc/staging").glob("*.shard"))
        assert sorted(repo.manifest().by_path)[-1] == "ck2/model.safetensors"
        # And the one that failed can be done again.
        assert ranks.run(ranks.save, 2, tmp_path / "again", place, 1) == [("done", None)] * 2
        assert ranks.run(ranks.load, 1, tmp_path / "load", place, 1) == [("done", [])]


def test_ranks_hear_what_is_wrong(tmp_path):
    with mvc.Repository.init(tmp_path / "models") as repo:
        repo.commit({"w": torch.ones(2)})
        repo.tag("v1")
        outcome = ranks.run(ranks.save, 2, tmp_path / "tag", (str(repo.root), "v1", CK), 1)
        assert [kind for kind, _ in outcome] == ["failed", "failed"]
        assert all("there is no branch v1" in said for _, said in outcome)
        outcome = ranks.run(ranks.load, 2, tmp_path / "none", (str(repo.root), "v9", CK), 1)
        said = "there is no version, branch, tag or target v9"
        assert all(kind == "failed" and said in text for kind, text in outcome)


@pytest.mark.parametrize("world", [1, 2])
def test_the_recorder_names_a_sharded_tensor_and_the_way_out(tmp_path, world):
    for kind, said in ranks.run(ranks.record, world, tmp_path / "x", str(tmp_path)):
        assert kind == "done", said
        for line in said:
            assert line.startswith("UnsupportedTensor: ")
            assert "0.weight is a DTensor" in line
            assert "torch.distributed.checkpoint and mvc.frameworks.dcp.MvcWriter" in line
