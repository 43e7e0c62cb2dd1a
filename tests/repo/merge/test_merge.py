"""Merges one by one: tensors, layouts, files, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mvc.api import Repository
from mvc.errors import (
    RefConflict,
    UnknownRevision,
    WeightsDropped,
    WouldOverwrite,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.repo.commit.request import CommitOptions
from mvc.state import StateFile
from tests.recipes import by_hand as recipes

Change = dict[str, Any]
FIRST = {
    "a": np.zeros(4, np.float32),
    "b": np.ones(3, np.float32),
    "lm_head.w": np.ones(2, np.float32),
    "n": np.arange(3),
}


def full(value: float, like: str = "a") -> np.ndarray:
    return np.full_like(FIRST[like], value)


def diverged(repo: Repository, ours: Change, theirs: Change, base: Change = FIRST) -> None:
    """Main and side have gone on from ``base``; None takes a tensor out. HEAD is main."""
    for branch, change in (("", {}), ("side", theirs), ("main", ours)):
        if branch == "side":
            repo.branch("side")
        if branch:
            repo.switch(branch, force=True)
        state = {key: value for key, value in {**base, **change}.items() if value is not None}
        repo.commit(state, message=branch or "base")
    repo.checkout("HEAD", to=repo.root, force=True)


def commit_files(repo: Repository, files: dict[str, Any]) -> CommitId:
    """Writes files, bytes or tensors, None for one that goes, and commits all."""
    for name, content in files.items():
        path = repo.root / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.unlink()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            tensors, metadata = content if isinstance(content, tuple) else (content, None)
            save_file(tensors, path, metadata)
    return repo.commit(repo.root, options=CommitOptions(allow_empty=True)).id


def two(repo: Repository, base: Change, ours: Change, theirs: Change) -> None:
    """As ``diverged``, of files in the working folder."""
    commit_files(repo, base)
    repo.branch("side")
    repo.switch("side")
    commit_files(repo, theirs)
    repo.switch("main")
    commit_files(repo, ours)


def stored(repo: Repository) -> dict[str, bytes]:
    """All that the repository holds."""
    folder = repo.root / ".mvc"
    kinds = [folder / "journal", *sorted((folder / "packs").iterdir())]
    return {path.name: path.read_bytes() for path in kinds}


def equal(state: Any, expected: dict[str, Any]) -> bool:
    return state.keys() == expected.keys() and all(
        np.array_equal(state[key], expected[key]) and state[key].dtype == expected[key].dtype
        for key in state
    )


# -- tensors


def test_each_tensor_comes_from_the_side_that_changed_it(repo: Repository) -> None:
    new = np.ones(2, np.float16)
    diverged(repo, {"a": full(1), "n": None, "x": new}, {"b": full(5, "b"), "y": new})
    ours, theirs = repo.find(), repo.find("side")
    done = repo.merge("side")
    assert (done.branch, done.old, done.new) == ("main", ours, repo.find())
    expected = {**FIRST, "a": full(1), "b": full(5, "b"), "x": new, "y": new}
    del expected["n"]
    assert equal(repo.checkout(), expected) and repo.status().clean
    made = repo.version("HEAD")
    assert made.parents == (ours, theirs) and made.message == "merge side"
    assert (repo.find("HEAD^2"), repo.find("HEAD^1")) == (theirs, ours)
    assert made.params == {"merge.base": repo.find("HEAD~2").hex()}
    assert repo.storage.fsck(full=True).sound


def test_conflicts_are_listed_with_the_size_of_both_changes(repo: Repository) -> None:
    diverged(
        repo, {"a": full(1), "b": None}, {"a": full(3), "b": full(2, "b"), "n": FIRST["n"] + 1}
    )
    before, files = stored(repo), (repo.root / "model.safetensors").read_bytes()
    done = repo.merge("side")
    assert done.new == done.old == repo.find() and done.restored is None
    a, b = done.conflicts
    assert (a.path, a.key, a.ours.l2, a.theirs.l2) == ("model.safetensors", "a", 2.0, 6.0)
    assert (b.key, b.ours.kind, b.theirs.kind) == ("b", "removed", "changed")
    assert stored(repo) == before and (repo.root / "model.safetensors").read_bytes() == files


def test_conflicts_of_tensors_that_leave_none_are_no_conflict_of_the_file(repo: Repository) -> None:
    diverged(repo, {"a": None}, {"a": full(3), "b": None}, {"a": full(1), "b": full(2, "b")})
    assert [each.key for each in repo.merge("side").conflicts] == ["a"]


def test_the_last_rule_that_fits_counts(repo: Repository) -> None:
    change = {"a": full(2), "b": full(2, "b"), "lm_head.w": full(2, "lm_head.w")}
    other = {key: value * 3 for key, value in change.items()}
    diverged(repo, change, other)
    rules = ["mean", "lm_head.*=ours", "b=ours", "model.safetensors:b=theirs"]
    repo.merge("side", strategy=rules)
    expected = {**FIRST, "a": full(4), "b": full(6, "b"), "lm_head.w": full(2, "lm_head.w")}
    assert equal(repo.checkout(), expected)
    params = repo.version("HEAD").params
    assert params["merge.strategy"] == " ".join(rules) and "merge.scale" not in params


def test_a_rule_for_everything_replaces_those_before_it(repo: Repository) -> None:
    diverged(repo, {"a": full(2)}, {"a": full(4)})
    repo.merge("side", strategy=["a=ours", "theirs"])
    assert equal(repo.checkout(), {**FIRST, "a": full(4)})


def test_the_sum_adds_both_changes_to_the_base(repo: Repository) -> None:
    diverged(repo, {"b": full(3, "b")}, {"b": full(11, "b")})
    repo.merge("side", strategy="sum", scale=0.5)
    assert equal(repo.checkout(), {**FIRST, "b": full(7, "b")})
    params = repo.version("HEAD").params
    assert (params["merge.strategy"], params["merge.scale"]) == ("sum", "0.5")


def test_integers_have_no_mean(repo: Repository) -> None:
    diverged(repo, {"n": FIRST["n"] + 1}, {"n": FIRST["n"] + 3})
    assert [each.key for each in repo.merge("side", strategy="mean").conflicts] == ["n"]
    repo.merge("side", strategy=["mean", "n=theirs"])
    assert equal(repo.checkout(), {**FIRST, "n": FIRST["n"] + 3})


def test_what_both_added_has_no_sum(repo: Repository) -> None:
    diverged(repo, {"x": full(1)}, {"x": full(3)})
    assert [each.key for each in repo.merge("side", strategy="sum").conflicts] == ["x"]
    repo.merge("side", strategy="mean")
    assert equal(repo.checkout(), {**FIRST, "x": full(2)})


def test_a_mean_of_bfloat16_is_rounded_once(repo: Repository) -> None:
    """Halfway cases, which a rounding by float32 decides wrongly, against exact fractions."""
    draws = np.random.default_rng(1)
    one, other = (
        torch.from_numpy(draws.standard_normal(5000, np.float32)).to(torch.bfloat16) * scale
        for scale in (1, 2**-12)
    )
    diverged(repo, {"w": one}, {"w": other}, {"w": one * 0})
    repo.merge("side", strategy="mean")
    found = repo.checkout()["w"]
    bits = found.view(torch.int16).numpy().view(np.uint16)
    for i in range(0, 5000, 7):
        exact = (Fraction(one[i].item()) + Fraction(other[i].item())) / 2
        near = {int(bits[i]) + step: _value(int(bits[i]) + step) for step in (-1, 0, 1)}
        away = {code: abs(value - exact) for code, value in near.items()}
        best = min(away.values())
        assert away[int(bits[i])] == best
        assert list(away.values()).count(best) == 1 or not bits[i] & 1


def _value(code: int) -> Fraction:
    return Fraction(float(np.array(code << 16, np.uint32).view(np.float32)))


# -- the commit graph


def test_a_branch_without_versions_of_its_own_moves_forward(repo: Repository) -> None:
    repo.commit(FIRST)
    repo.switch("side", create=True)
    newer = repo.commit({**FIRST, "a": full(1)}).id
    repo.switch("main")
    done = repo.merge("side")
    assert (done.base, done.new, repo.head().branch) == (done.old, newer, "main")
    assert repo.find("main") == newer and repo.status().clean
    assert next(iter(repo.operations())).entry.operation == "merge"
    again = repo.merge("HEAD~1")
    assert again.restored is None and again.new == newer


def test_a_first_version_comes_from_another_branch(repo: Repository) -> None:
    made = repo.commit(FIRST, options=CommitOptions(branch="side", new_branch=True)).id
    assert repo.merge("side").new == repo.find("main") == made


def test_a_detached_head_moves(repo: Repository) -> None:
    diverged(repo, {"a": full(1)}, {"b": full(2, "b")})
    ours = repo.find()
    repo.checkout(ours, to=repo.root)
    done = repo.merge(repo.find("side"))
    assert (repo.head().branch, done.branch, repo.find("main")) == (None, None, ours)
    assert repo.version("HEAD").parents == (ours, repo.find("side"))
    assert repo.version("HEAD").message == f"merge {repo.find('side')}"


def test_of_several_bases_the_newest_counts(repo: Repository) -> None:
    """Criss-cross: both branches have merged what the other one had before."""
    diverged(repo, {"a": full(1)}, {"b": full(2, "b")})
    ours, theirs = repo.find("main"), repo.find("side")
    repo.merge("side")
    repo.switch("side")
    repo.merge(ours)
    repo.commit({**repo.checkout(), "n": FIRST["n"] + 1})
    repo.checkout("HEAD", to=repo.root, force=True)
    repo.switch("main")
    done = repo.merge("side")
    assert done.base == ours  # it was recorded after theirs
    assert {ours, theirs} <= {entry.id for entry in repo.log()}
    assert equal(repo.checkout(), {**FIRST, "a": full(1), "b": full(2, "b"), "n": FIRST["n"] + 1})


def test_unrelated_histories_are_refused(repo: Repository) -> None:
    repo.commit(FIRST)
    options = CommitOptions(branch="side", new_branch=True)
    repo.commit({"z": full(1)}, options=options)
    with pytest.raises(RefConflict, match="no common ancestor"):
        repo.merge("side")


def test_a_rule_that_fits_no_conflict_is_named(repo: Repository) -> None:
    diverged(repo, {"a": full(1), "b": full(5, "b")}, {"a": full(2)})
    rules = ["lm_haed*=ours", "b=ours", "*=theirs"]
    done = repo.merge("side", strategy=rules[:2])
    assert done.conflicts and done.unused == ("lm_haed*=ours", "b=ours")  # b is no conflict
    assert repo.merge("side", strategy=["mean", *rules]).unused == ("lm_haed*=ours", "b=ours")


def test_what_is_no_version_or_strategy_is_refused(repo: Repository) -> None:
    diverged(repo, {"a": full(1)}, {"a": full(2)})
    with pytest.raises(UnknownRevision):
        repo.merge("nothing")
    for wrong in ("slerp", "lm_head.*", "lm_head.*=", "a=b=c"):
        with pytest.raises(WrongUsage, match="no strategy"):
            repo.merge("side", strategy=wrong)
    with pytest.raises(WrongUsage, match="no strategy meen") as caught:
        repo.merge("side", strategy="meen")
    assert caught.value.hint == "did you mean mean?"
    for rules, scale in (("sum", float("nan")), ("sum", float("inf")), ("mean", 0.5), ((), 2)):
        with pytest.raises(WrongUsage, match="needs --strategy sum"):
            repo.merge("side", strategy=rules, scale=scale)


def test_a_branch_on_which_a_training_records_stays(repo: Repository) -> None:
    diverged(repo, {"a": full(1)}, {"b": full(2, "b")})
    ours = repo.find()
    with repo.recording("main"), pytest.raises(RefConflict, match="recording on main"):
        repo.merge("side")
    assert repo.find() == ours


def test_a_branch_that_has_moved_meanwhile_stays(repo: Repository) -> None:
    """Another process commits while the merged version is being computed."""
    diverged(repo, {"a": full(1)}, {"a": full(3)})
    made: list[CommitId] = []

    def commit_once(*_: object) -> None:
        if not made:
            made.append(repo.find())
            with Repository.open(repo.root) as other:
                made.append(other.commit({**FIRST, "a": full(9)}).id)

    with pytest.raises(RefConflict, match="moved meanwhile"):
        repo.merge("side", strategy="mean", progress=commit_once)
    assert repo.find() == made[1]


def test_weights_that_were_given_up_are_named(repo: Repository) -> None:
    base = repo.commit(FIRST).id
    repo.branch("side")
    repo.commit({**FIRST, "a": full(1)})
    repo.switch("side", force=True)
    made = recipes.trained(repo, trained, {"value": 3}, base)
    recipes.drop(repo, made)
    repo.storage.gc(grace="0")
    repo.switch("main", force=True)
    before = stored(repo)
    assert [each.key for each in repo.merge("side").conflicts] == ["a"]  # by hashes
    with pytest.raises(WeightsDropped, match=made.short):
        repo.merge("side", strategy="mean")
    assert stored(repo) == before


def trained(arguments: dict[str, Any]) -> dict[str, np.ndarray]:
    return {**FIRST, "a": full(arguments["value"])}


def test_a_bare_repository_is_refused(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "bare", bare=True) as repo:
        repo.commit(FIRST)
        with pytest.raises(WrongUsage, match="bare"):
            repo.merge("HEAD")


# -- work that is not committed


@pytest.mark.parametrize("name", ["model.safetensors", "side.txt", "gone.txt"])
def test_work_is_not_overwritten_and_nothing_is_stored(repo: Repository, name: str) -> None:
    model = "model.safetensors"
    base = {model: FIRST, "gone.txt": b"1"}
    two(repo, base, {model: {**FIRST, "a": full(1)}}, {model: {**FIRST, "b": full(2, "b")}})
    repo.switch("side")
    commit_files(repo, {"side.txt": b"theirs", "gone.txt": None})
    repo.switch("main")
    (repo.root / name).write_bytes(b"work")
    before = stored(repo)
    with pytest.raises(WouldOverwrite, match=name):
        repo.merge("side")
    assert stored(repo) == before and (repo.root / name).read_bytes() == b"work"
    (repo.root / name).unlink()
    repo.merge("side")
    assert repo.status().clean and not (repo.root / "gone.txt").exists()
    assert (repo.root / "side.txt").read_bytes() == b"theirs"


# -- files without tensors


def test_files_without_tensors_are_merged_as_git_does(repo: Repository) -> None:
    base = {"same.txt": b"0", "ours.txt": b"0", "theirs.txt": b"0", "both.txt": b"0", "gone": b"0"}
    ours = {"ours.txt": b"1", "both.txt": b"1", "gone": None, "new/ours": b"1", "new/both": b"2"}
    theirs = {"theirs.txt": b"1", "both.txt": b"1", "new/theirs": b"1", "new/both": b"2"}
    two(repo, base, ours, theirs)
    assert repo.merge("side").conflicts == ()
    names = {"same.txt", "ours.txt", "theirs.txt", "both.txt", "new/ours", "new/theirs", "new/both"}
    assert repo.manifest().by_path.keys() == names and repo.status().clean
    assert (repo.root / "theirs.txt").read_bytes() == b"1"


@pytest.mark.parametrize("how", ["ours", "theirs"])
@pytest.mark.parametrize("ours", [b"1", None])
def test_only_a_side_settles_such_a_file(repo: Repository, how: str, ours: bytes | None) -> None:
    two(repo, {"a.txt": b"0", "b": b"0"}, {"a.txt": ours}, {"a.txt": b"2"})
    (conflict,) = repo.merge("side", strategy=["mean", "*.csv=ours"]).conflicts
    assert (conflict.path, conflict.key, conflict.theirs.kind) == ("a.txt", None, "changed")
    assert conflict.ours.kind == ("removed" if ours is None else "changed")
    assert len(repo.merge("side", strategy="sum").conflicts) == 1
    repo.merge("side", strategy=["mean", f"*.txt={how}"])
    content = {"ours": ours, "theirs": b"2"}[how]
    path = repo.root / "a.txt"
    assert (path.read_bytes() if path.exists() else None) == content and repo.status().clean


def test_a_file_in_the_place_of_a_folder_is_a_conflict(repo: Repository) -> None:
    two(repo, {"x": b"0"}, {"place": b"1"}, {"y": b"0"})
    inside = {"place/inside": StateFile.of_bytes(b"2")}
    repo.commit(states=inside, options=CommitOptions(branch="side"))
    conflicts = repo.merge("side", strategy="mean").conflicts
    assert [(each.path, each.ours.kind, each.theirs.kind) for each in conflicts] == [
        ("place", "added", "removed"), ("place/inside", "removed", "added"),
    ]  # fmt: skip
    assert repo.status().clean
    before = stored(repo)
    with pytest.raises(WouldOverwrite, match="place is a file, not a folder"):
        repo.merge("side", strategy="theirs")
    assert stored(repo) == before
    repo.merge("side", strategy="ours")
    assert repo.manifest().by_path.keys() == {"x", "y", "place"} and repo.status().clean


# -- layouts


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "np") as file:
        found: dict[str, str] = file.metadata()
        return found


def test_metadata_come_from_ours_unless_only_theirs_changed_them(repo: Repository) -> None:
    model = "model.safetensors"
    ours, theirs = {**FIRST, "a": full(1)}, {**FIRST, "b": full(2, "b")}
    two(repo, {model: (FIRST, {"step": "1"})}, {model: (ours, {"step": "1"})},
        {model: (theirs, {"step": "2"})})  # fmt: skip
    repo.merge("side")
    assert metadata(repo.root / model) == {"step": "2"}
    repo.switch("side")
    commit_files(repo, {model: ({**theirs, "n": FIRST["n"] + 1}, {"step": "3"})})
    repo.switch("main")
    commit_files(repo, {model: ({**ours, "b": full(2, "b"), "a": full(4)}, {"step": "4"})})
    repo.merge("side")
    assert metadata(repo.root / model) == {"step": "4"}
    expected = {**FIRST, "a": full(4), "b": full(2, "b"), "n": FIRST["n"] + 1}
    assert equal(load_file(repo.root / model), expected)


def test_a_file_with_tensors_of_both_gets_a_header_of_its_own(repo: Repository) -> None:
    model, x, y = "m.safetensors", np.ones(5, np.float16), np.ones(7, np.float64)
    two(repo, {model: (FIRST, {"format": "np"})}, {model: ({**FIRST, "x": x}, {"format": "pt"})},
        {model: ({**FIRST, "y": y, "b": full(3, "b")}, {"format": "np"})})  # fmt: skip
    repo.merge("side")
    with safe_open(repo.root / model, "np") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert equal(found, {**FIRST, "b": full(3, "b"), "x": x, "y": y})
    assert metadata(repo.root / model) == {"format": "pt"}
    entry = repo.manifest().by_path[model]
    assert entry.format == "safetensors" and repo.status().clean
    assert repo.storage.fsck(full=True).sound


def test_a_state_keeps_its_kinds_of_arrays(repo: Repository) -> None:
    diverged(
        repo, {"x": torch.ones(2)}, {"y": np.float32(3)}, {"a": np.zeros(2), "t": torch.ones(1)}
    )
    repo.merge("side")
    state = repo.checkout()
    assert {key: type(value) for key, value in state.items()} == {
        "a": np.ndarray, "t": torch.Tensor, "x": torch.Tensor, "y": np.float32,
    }  # fmt: skip
    with Repository.open(repo.root) as again:  # what was written is read as the same state
        assert again.status().clean


def test_plain_values_of_a_state_are_those_of_ours(repo: Repository) -> None:
    base = {"w": full(0), "v": full(0), "step": 1}
    diverged(repo, {"w": full(1), "step": 2}, {"v": full(3), "step": 5}, base)
    repo.merge("side")
    state = repo.checkout()
    assert (state["step"], state["w"][0], state["v"][0]) == (2, 1, 3)


@pytest.mark.parametrize("nested", [True, False])
def test_no_layout_for_tensors_of_both_is_a_conflict(repo: Repository, nested: bool) -> None:
    """A nested state, whose structure no other has, and a file of torch."""
    made: Callable[[Any], Any] = lambda keys: {"m": {key: torch.ones(2) for key in keys}, "step": 1}  # noqa: E731
    if nested:
        diverged(repo, made("ax"), made("ay"), made("a"))
    else:
        for branch, keys in (("main", "a"), ("side", "ay"), ("main", "ax")):
            if keys != "a":
                repo.switch(branch, create=branch == "side", force=True)
            torch.save(made(keys), repo.root / "m.pt")
            repo.commit(repo.root / "m.pt")
    (conflict,) = repo.merge("side", strategy="mean").conflicts
    assert conflict.key is None
    repo.merge("side", strategy=["mean", "*m*=theirs"])
    assert repo.checkout()["m"].keys() == {"a", "y"}


def test_a_file_of_torch_with_tied_weights(repo: Repository) -> None:
    """Two names of one storage; with the checksums of the zip."""

    def save(embedding: float, other: float) -> None:
        tied = torch.full((300,), embedding)
        state = {"embed": tied, "lm_head": tied, "other": torch.full((200,), other)}
        torch.save(state, repo.root / "m.pt")
        repo.commit(repo.root / "m.pt")

    save(0.0, 0.0)
    repo.branch("side")
    save(1.0, 0.0)
    repo.switch("side")
    save(3.0, 2.0)
    repo.switch("main")
    assert [each.key for each in repo.merge("side").conflicts] == ["embed", "lm_head"]
    repo.merge("side", strategy="mean")
    state = torch.load(repo.root / "m.pt", weights_only=True)
    assert state["embed"].unique().item() == 2 and state["other"].unique().item() == 2
    assert state["embed"].data_ptr() == state["lm_head"].data_ptr() and repo.status().clean
    repo.switch("side")
    save(7.0, 2.0)
    repo.switch("main")
    save(8.0, 2.0)
    rules = ["embed=ours", "lm_head=theirs"]  # one storage cannot have both
    (conflict,) = repo.merge("side", strategy=rules).conflicts
    assert (conflict.path, conflict.key) == ("m.pt", None)


def test_npz_files_are_merged_by_tensor(repo: Repository) -> None:
    for branch, a, b in (("main", 0, 0), ("side", 0, 2), ("main", 1, 0)):
        if (a, b) != (0, 0):
            repo.switch(branch, create=branch == "side", force=True)
        np.savez(repo.root / "m.npz", a=np.full(50, a), b=np.full(50, b))
        repo.commit(repo.root / "m.npz")
    repo.merge("side")
    with np.load(repo.root / "m.npz") as found:
        assert set(found["a"]) == {1} and set(found["b"]) == {2}


def test_a_large_tensor_is_computed_in_pieces(repo: Repository) -> None:
    draws = np.random.default_rng(3)
    base, ours, theirs = (draws.integers(-9, 9, 5 << 20).astype(np.float64) / 7 for _ in range(3))
    diverged(repo, {"w": ours}, {"w": theirs}, {"w": base})
    assert base.nbytes > PIECE
    repo.merge("side", strategy="sum", scale=0.7)
    expected = (1 - 1.4) * base + 0.7 * ours + 0.7 * theirs
    assert np.array_equal(repo.checkout()["w"], expected)


def test_a_state_may_have_gone_on_one_side(repo: Repository) -> None:
    repo.commit({"w": full(0)}, states={"other": {"v": full(0)}})
    repo.branch("side")
    repo.commit(states={"other": None})
    repo.switch("side", force=True)
    repo.commit(states={"other": {"v": full(1)}, "text": StateFile.of_bytes(b"new")})
    repo.switch("main", force=True)
    (conflict,) = repo.merge("side").conflicts
    kinds = conflict.ours.kind, conflict.theirs.kind
    assert (conflict.path, *kinds) == ("other", "removed", "changed")
    repo.merge("side", strategy="theirs")
    assert repo.manifest().by_path.keys() == {"model.safetensors", "other", "text"}


def test_the_output_of_mergekit_is_a_version_with_its_recipe(repo: Repository) -> None:
    """The commands of the guide, with numpy in the place of mergekit."""
    page = Path(__file__).parents[3] / "docs/guides/merging.md"
    block = (
        page.read_text(encoding="utf-8").partition("## SLERP")[2].split("```")[1].removeprefix("sh")
    )
    diverged(repo, {"a": full(1)}, {"a": full(4)})
    for name, rev in (("base", "HEAD~1"), ("exp-a", "main"), ("exp-b", "side")):
        repo.branch(name, rev)
    recipe = "merge_method: ties\nmodels: [../in/a, ../in/b]\n"
    (repo.root / "ties.yaml").write_text(recipe)
    for command in block.strip().splitlines():
        if command.startswith("mergekit-yaml"):
            folder = repo.root.parent
            states = [load_file(folder / f"in/{n}/model.safetensors") for n in ("base", "a", "b")]
            base, one, other = (state["a"] for state in states)
            largest = np.where(abs(one - base) > abs(other - base), one, other)
            (folder / "out").mkdir()
            save_file(states[0] | {"a": largest}, folder / "out/model.safetensors")
        else:
            program = f'mvc() {{ "{sys.executable}" -m mvc "$@"; }}; {command}'
            subprocess.run(["bash", "-ec", program], cwd=repo.root, check=True)
    made = repo.version("HEAD")
    assert made.params["recipe"] == recipe.strip()
    assert (made.params["a"], made.params["b"]) == tuple(
        str(repo.find(r)) for r in ("exp-a", "exp-b")
    )
    assert made.parents == (repo.find("base"),)
    assert equal(load_file(repo.root / "model.safetensors"), {**FIRST, "a": full(4)})
    assert {"in", "out"}.isdisjoint(path.split("/")[0] for path in repo.manifest().by_path)


def test_what_is_no_tensor_and_changed_on_both_sides_is_a_conflict(repo: Repository) -> None:
    """As an array in Fortran order, whose numbers are raw bytes."""

    def write(value: float) -> None:
        row = np.asfortranarray(np.full((2, 3), value))
        np.savez(repo.root / "m.npz", a=np.ones(3), fortran=row)
        repo.commit(repo.root / "m.npz")

    write(0)
    repo.branch("side")
    write(1)
    repo.switch("side")
    write(2)
    repo.switch("main")
    for strategy in ((), "mean"):
        (conflict,) = repo.merge("side", strategy=strategy).conflicts
        assert (conflict.path, conflict.key) == ("m.npz", None)
    repo.merge("side", strategy="theirs")
    with np.load(repo.root / "m.npz") as found:
        assert found["fortran"].tolist() == [[2, 2, 2]] * 2
