"""Approximated versions: what is stored is what comes back, bit for bit, whatever the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

import mvc
from mvc.errors import DamagedData, InvalidConfig, UnsupportedFormat, WrongUsage
from mvc.store import format as store_format
from mvc.store.graph.search import PathStep
from mvc.store.recovery.decode import pipeline_of
from mvc.store.recovery.grouped import walk_together
from tests.repo.lc.histories import bits, check, first, grow, moved, start

PIPELINES = ["lc", "lc:x=2", "lc:x=3,huffman", "lc:x=2,tensor", "lc:uniform,budget=0.05"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_version_is_what_its_commit_returned(tmp_path: Path, pipeline: str) -> None:
    with start(tmp_path) as repo:
        made, last = grow(repo, first(), 6, pipeline)
        assert repo.storage.fsck(full=True).sound
        check(repo, made)
        *_, state = made.values()
        exact = bits(repo.commit(last, pipeline="lossless").state)
    assert exact["layer.weight"] != state["layer.weight"]


def test_approximated_are_weights_and_nothing_else(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        given = first()
        assert bits(repo.commit(given, pipeline="lc:x=2").state) == bits(given)  # the first one
        given = moved(given)
        given["new"] = torch.randn(9)
        given["layer.bias"][3] = float("nan")
        stored = bits(repo.commit(given, pipeline="lc:x=2").state)
    same = {name for name, value in bits(given).items() if stored[name] == value}
    assert {"norm.running_var", "count", "new", "layer.bias"} <= same
    assert not {"wide", "layer.weight", "half", "brain"} & same


def test_the_error_does_not_add_up(tmp_path: Path) -> None:
    """Each step is taken from what is stored, so the error of one is part of the next."""
    with start(tmp_path) as repo:
        torch.manual_seed(1)
        state, errors = {"w": torch.randn(5000)}, []
        for _ in range(40):
            stored = repo.commit(state, pipeline="lc:x=3").state
            errors.append(float((stored["w"] - state["w"]).square().mean().sqrt()))
            state = moved(state)
    assert max(errors[20:]) < 2 * max(errors[1:20])


@pytest.mark.parametrize("frozen", [torch.float16, torch.float32])
def test_frozen_weights_stay_as_they_are(tmp_path: Path, frozen: torch.dtype) -> None:
    with start(tmp_path) as repo:
        state = {"head": torch.randn(50, 50), "backbone": torch.randn(50, 50).to(frozen)}
        repo.commit(state)
        state["head"] += 1e-3 * torch.randn(50, 50)
        for pipeline in ("lc", "expq:mean,tensor | promote:budget=0.05 | ans"):
            stored = repo.commit(state, pipeline=pipeline).state
            assert torch.equal(stored["backbone"], state["backbone"])


def test_tied_weights_stay_equal(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        shared = torch.randn(300)
        for _ in range(3):
            stored = repo.commit({"in": shared, "out": shared}, pipeline="lc:x=2").state
            assert torch.equal(stored["in"], stored["out"])
            shared = shared + 0.01 * torch.randn(300)


def test_exact_names_what_stays(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        repo.commit(first(), pipeline="lc")
        state = moved(first())
        done = repo.commit(state, pipeline="lc", options=mvc.CommitOptions(exact=["wide"]))
    assert bits(done.state)["wide"] == bits(state)["wide"]


def test_numpy_states(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        state = {"w": np.linspace(-1, 1, 999, dtype=np.float32).reshape(3, 333)}
        made = []
        for _ in range(3):
            made.append(repo.commit(state, pipeline="lc:x=2"))
            state = {"w": state["w"] * np.float32(1.01)}
        for done in made:
            assert repo.checkout(done.id)["w"].tobytes() == done.state["w"].tobytes()


def test_files_are_read_and_not_written(tmp_path: Path) -> None:
    safe, pickled = tmp_path / "model.safetensors", tmp_path / "model.pt"
    with start(tmp_path) as repo:
        state = first()
        for number in range(3):
            save_file(state, safe)
            torch.save(state, pickled)
            before = safe.read_bytes(), pickled.read_bytes()
            done = repo.commit([safe, pickled], pipeline="lc:x=2")
            assert (safe.read_bytes(), pickled.read_bytes()) == before
            repo.checkout(done.id, to=tmp_path / "out", everything=True, force=True)
            stored = load_file(tmp_path / "out/model.safetensors")
            again = torch.load(tmp_path / "out/model.pt", weights_only=True)
            assert bits(stored) == bits(again)
            assert (bits(stored) == bits(state)) == (number == 0)
            state = moved(state)
        save_file(state, safe)
        done = repo.commit([safe], pipeline="lc:x=2", files=mvc.FileOptions(in_place=True))
        assert bits(load_file(safe)) == bits(repo.checkout(done.id, path=safe.name))
        assert repo.storage.fsck(full=True).sound


def test_an_optimizer_in_a_file(tmp_path: Path) -> None:
    """Moments are approximated, the second one on the scale of its root; counters are exact."""
    with start(tmp_path) as repo:
        torch.manual_seed(0)
        state = {
            "model": {"w": torch.randn(500)},
            "optimizer": {
                "w": {
                    "step": torch.tensor(7.0),
                    "exp_avg": 1e-3 * torch.randn(500),
                    "exp_avg_sq": 1e-6 * torch.rand(500),
                }
            },
        }
        repo.commit(state, pipeline="lc:x=3")
        slot = state["optimizer"]["w"]
        slot["step"] += 1
        slot["exp_avg"] = slot["exp_avg"] + 1e-4 * torch.randn(500)
        slot["exp_avg_sq"] = slot["exp_avg_sq"] * 1.3
        stored = repo.commit(state, pipeline="lc:x=3").state["optimizer"]["w"]
    assert float(stored["step"]) == 8
    for name in ("exp_avg", "exp_avg_sq"):
        assert not torch.equal(stored[name], slot[name])
        torch.testing.assert_close(stored[name], slot[name], rtol=0.5, atol=3e-4)
    assert bool((stored["exp_avg_sq"] >= 0).all())


def test_lossless_and_approximated_versions_follow_each_other(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, state = {}, first()
        for pipeline in ("lc:x=2", "lossless", "lc:x=2", "lc:x=2", "vsol", "lossless", "lc"):
            more, state = grow(repo, state, 2, pipeline)
            made |= more
        check(repo, made)
        assert repo.storage.fsck(full=True).sound
        reset = repo.commit(state, pipeline="lc:x=2", options=mvc.CommitOptions(reset_point=True))
        check(repo, made | {reset.id: bits(reset.state)})
        assert reset.id in set(
            repo.storage.repack(interval=1000, dry_run=True).plan.before.reset_points
        )


def test_branches(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, state = grow(repo, first(), 3)
        repo.branch("other")
        more, _ = grow(repo, state, 3)
        made |= more
        repo.switch("other")
        more, _ = grow(repo, moved(state, 0.1), 3)
        options = mvc.CommitOptions(branch="third", new_branch=True)
        begun = repo.commit(state, pipeline="lc", options=options)
        check(repo, made | more | {begun.id: bits(begun.state)})


def test_the_setting(tmp_path: Path) -> None:
    with start(tmp_path, {"commit.pipeline": "lc:x=2"}) as repo:
        repo.commit(first())
        state = moved(first())
        done = repo.commit(state)
        assert bits(done.state) != bits(state)
        assert done.commit.pipeline == "expq | promote:2 | packed"
        check(repo, {done.id: bits(done.state)})
        assert bits(repo.commit(state, pipeline="lossless").state) == bits(state)
        assert repo.storage.gc(grace="0") is not None  # maintenance codes losslessly


def test_older_programs_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(tmp_path) as repo:
        repo.commit(first(), pipeline="lossless")
        assert "lc" not in store_format.read_features(repo.handle.store.fs, tmp_path / ".mvc")
        repo.commit(moved(first()), pipeline="lc")
    monkeypatch.setattr(store_format, "KNOWN", store_format.KNOWN - {"lc"})
    with pytest.raises(UnsupportedFormat, match="repository uses lc"):
        mvc.Repository.open(tmp_path)


def test_states_without_the_one_to_approximate(tmp_path: Path) -> None:
    with start(tmp_path) as repo, pytest.raises(WrongUsage, match="but there is none"):
        repo.commit(states={"other": first()}, pipeline="lc")


def test_reset_points_end_a_chain(tmp_path: Path) -> None:
    for layout in ("chain", "skip:4"):
        folder = tmp_path / layout.partition(":")[0]
        folder.mkdir()
        with start(folder, {"store.layout": layout, "store.reset_interval": 8}) as repo:
            made, _ = grow(repo, first(), 30)
            check(repo, made)
            assert repo.storage.stats().deltas_worst == 7
            assert repo.storage.stats().reset_points == 4


def test_a_bound_on_recovery(tmp_path: Path) -> None:
    with start(tmp_path, {"store.max_recovery": 10}) as repo:
        made, state = grow(repo, first(), 3)
        least = repo.storage.stats().recovery_worst
        assert repo.storage.stats().reset_points == 1
        bound = mvc.CommitOptions(max_recovery=least * 1.5)
        for _ in range(40):
            done = repo.commit(state, pipeline="lc:x=2", options=bound)
            made[done.id] = bits(done.state)
            state = moved(state)
        assert repo.storage.stats().reset_points > 1
        assert repo.storage.stats().recovery_worst < least * 3
        check(repo, made)
        with pytest.raises(InvalidConfig, match="max_recovery"):
            repo.commit(state, pipeline="lc", options=mvc.CommitOptions(max_recovery=1e-6))


def test_several_pieces(tmp_path: Path) -> None:
    """A tensor of more than 32 MiB is stored in pieces, each with its part of the step."""
    with start(tmp_path) as repo:
        torch.manual_seed(0)
        state = {"large": torch.randn(9_000_000), "small": torch.randn(7)}
        made, _ = grow(repo, state, 2)
        check(repo, made)


@pytest.mark.parametrize("pipeline", ["lc:uniform,error=0.1", "lc:uniform,budget=0.05", "lc"])
def test_changes_as_large_as_numbers_get(tmp_path: Path, pipeline: str) -> None:
    """One tensor moves to the end of its range and has no step; the other's table is shared."""
    least = torch.finfo(torch.float32).min
    with start(tmp_path) as repo:
        made = {}
        for far, near in ((0.0, 0.0), (least, -1e38), (0.0, -2e38), (-least, 1e38)):
            state = {"far": torch.full((64,), far), "near": torch.full((64,), near)}
            done = repo.commit(state, pipeline=pipeline)
            made[done.id] = bits(done.state)
        check(repo, made)
        assert repo.storage.fsck(full=True).sound


# -- direction ---------------------------------------------------------------------------


def test_a_short_form_in_a_record_is_refused(tmp_path: Path) -> None:
    """The graph would take its delta for one that can be undone."""
    with start(tmp_path) as repo:
        grow(repo, first(), 2)
        step = _addition(repo)
        pipeline_of(step)
        coding = type(step.member.coding)("lc:x=2")
        with pytest.raises(DamagedData, match="has a coding"):
            pipeline_of(replace(step, member=step.member._replace(coding=coding)))


def test_an_addition_is_not_undone(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        grow(repo, first(), 2)
        step = _addition(repo)
        path = repo.handle.store.graph.path(step.member.id)
        wrong = replace(path, steps=(path.steps[0], replace(step, reverse=True)))
        out = memoryview(bytearray(step.member.nbytes))
        with pytest.raises(DamagedData, match="cannot be applied backwards"):
            walk_together(repo.handle.store.recovery.packs, [(wrong, out)])


def _addition(repo: object) -> PathStep:
    (entry,) = repo.manifest("HEAD").entries  # type: ignore[attr-defined]
    graph = repo.handle.store.graph  # type: ignore[attr-defined]
    steps = (step for content in entry.contents for step in graph.path(content.id).steps[1:])
    return next(step for step in steps if step.member.coding.forward_only)
