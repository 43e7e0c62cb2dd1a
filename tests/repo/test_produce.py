"""Lossy commits: what is kept is the production weights, bit for bit, and those are given back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import mvc
from mvc.errors import (
    InvalidPipeline,
    IoFailed,
    NothingToCommit,
    SourceChanged,
    UnknownPath,
    WrongUsage,
)
from mvc.lossy.reducer import is_optimizer
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.commit.request import CommitOptions, FileOptions
from mvc.store.recovery.recover import Recovery
from tests.training.runs import bits_of, tensor_bits

LSB = "xor | lsb:20 | planes | zstd:1"


def moved(state: dict[str, Any], by: float = 0.3) -> dict[str, Any]:
    return {n: t + by if t.is_floating_point() else t + 1 for n, t in state.items()}


def model() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "w": torch.rand(20, 10) + 1,
        "half": (torch.rand(8) + 1).to(torch.bfloat16),
        "double": torch.rand(5, dtype=torch.float64) + 1,
        "mean": torch.rand(4),
        "count": torch.tensor(5),
        "mask": torch.tensor([True, False]),
        "small": torch.rand(3).to(torch.float8_e4m3fn),
    }


def words(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.frombuffer(bits_of(tensor), f"<u{tensor.element_size()}")


def test_what_is_given_back_is_what_is_kept(tmp_path: Path) -> None:
    first, second = model(), moved({k: v for k, v in model().items() if k not in ("mask", "small")})
    second |= {"mask": ~model()["mask"], "small": torch.zeros_like(model()["small"])}
    second = {name: second[name] for name in first}
    given = tensor_bits(second)
    with mvc.Repository.init(tmp_path) as repo:
        one = repo.commit(first, pipeline=LSB, options=CommitOptions(exact=["mean"]))
        assert tensor_bits(one.state) == tensor_bits(first)  # the first version is exact
        two = repo.commit(second, pipeline=LSB, options=CommitOptions(exact=["mean"]))
        assert tensor_bits(second) == given  # training weights are as they were
        assert tensor_bits(repo.checkout()) == tensor_bits(two.state)
        assert two.root == repo.manifest("HEAD").root
        assert tensor_bits(repo.checkout("HEAD~1")) == tensor_bits(first)
    for name in ("mean", "count", "mask", "small"):
        assert bits_of(two.state[name]) == bits_of(second[name])
        assert two.state[name].dtype == second[name].dtype
    for name, keep in [("w", 20), ("half", 4), ("double", 49)]:
        low = (1 << keep) - 1
        new, old, live = words(second[name]), words(first[name]), words(two.state[name])
        assert (live & ~np.array(low, live.dtype) == new & ~np.array(low, live.dtype)).all()
        assert (live & np.array(low, live.dtype) == old & np.array(low, live.dtype)).all()
        assert two.state[name].dtype == second[name].dtype


def test_the_state_of_the_result_belongs_to_nobody_else(repo: mvc.Repository) -> None:
    state = model()
    repo.commit(state, pipeline=LSB)
    made = repo.commit(moved_floats(state), pipeline=LSB)
    kept = tensor_bits(made.state)
    for tensor in made.state.values():
        tensor.zero_()
    assert tensor_bits(repo.checkout()) == kept
    again = repo.commit(moved_floats(state), pipeline=LSB)
    assert tensor_bits(again.state) == kept


def moved_floats(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        n: t + 0.3 if t.dtype in (torch.float32, torch.float64) else t for n, t in state.items()
    }


def test_arrays_in_arrays_out_and_strides(repo: mvc.Repository) -> None:
    w = np.arange(12.0).reshape(3, 4) + 1
    repo.commit({"w": w.T, "step": 1, "name": "x"}, pipeline=LSB)
    made = repo.commit({"w": w.T * 1.01, "step": 2, "name": "y"}, pipeline=LSB)
    assert isinstance(made.state["w"], np.ndarray) and made.state["w"].shape == (4, 3)
    assert made.state["step"] == 2 and made.state["name"] == "y"
    assert (made.state["w"] != w.T * 1.01).any()
    assert repo.checkout()["w"].tobytes() == made.state["w"].tobytes()


def test_optimizer_state_is_exact_by_its_names(tmp_path: Path) -> None:
    net = torch.nn.Linear(6, 4)
    optimizer = torch.optim.Adam(net.parameters())
    with mvc.Repository.init(tmp_path) as repo:
        for _ in range(2):
            net(torch.randn(3, 6)).sum().backward()
            optimizer.step()
            whole = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            made = repo.commit(whole, pipeline=LSB)
        assert bits_of(made.state["model"]["weight"]) != bits_of(net.weight)
        for slot, kept in enumerate(made.state["optimizer"]["state"].values()):
            live = optimizer.state_dict()["state"][slot]
            assert tensor_bits(kept) == tensor_bits(live)
        assert list(made.state["optimizer"]["state"]) == [0, 1]
    assert is_optimizer("a.exp_avg") and is_optimizer("Optim.x") and not is_optimizer("top.weight")


def test_beside_is_exact(repo: mvc.Repository) -> None:
    for value in (1.0, 1.3):
        state = {"w": np.full(5, value, np.float32)}
        repo.commit(state, pipeline=LSB, states={"other.safetensors": dict(state)})
    assert repo.checkout()["w"][0] == 1.25
    assert repo.checkout(path="other.safetensors")["w"][0] == np.float32(1.3)


def test_against_what_lies_at_head(repo: mvc.Repository) -> None:
    """Each version builds on the one HEAD is at, whoever committed it."""
    repo.commit({"w": np.zeros(4, np.float32)})
    repo.commit({"w": np.full(4, 9, np.float32)})
    text = "topk:0.25 | xor | sparse | zstd:1"
    made = repo.commit({"w": np.array([1, 9, 9, 9.5], np.float32)}, pipeline=text)
    assert made.state["w"].tolist() == [1, 9, 9, 9]
    assert made.commit.pipeline == text.replace("sparse", made.commit.pipeline.split(" | ")[2])
    changed = repo.commit({"w": np.ones((2, 2), np.float32)}, pipeline=text)
    assert changed.state["w"].tolist() == [[1, 1], [1, 1]]  # another shape: a first version


def test_nothing_is_recovered_that_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    fill = Recovery.fill

    def counted(self: Recovery, requests: Any) -> None:
        wanted = list(requests)
        asked.extend(request.id for request in wanted)
        fill(self, wanted)

    monkeypatch.setattr(Recovery, "fill", counted)
    with mvc.Repository.init(tmp_path) as repo:
        for value in (1.0, 1.3, 1.7):
            made = repo.commit({"w": np.full(40, value, np.float32)}, pipeline=LSB)
        tensors = {t.id for e in repo.manifest().entries for t in e.tensors}
        assert not asked and made.state["w"][0] == 1.625
    with mvc.Repository.open(tmp_path) as repo:  # by another process: from disk
        made = repo.commit({"w": np.full(40, 1.3, np.float32)}, pipeline=LSB)
        assert set(asked) & tensors and made.state["w"][0] == 1.25


def test_the_preset_is_what_the_commit_says(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(40, np.float32)}, pipeline="vsol-0-fast")
    made = repo.commit({"w": np.full(40, 1.3, np.float32)}, pipeline="vsol-0-fast")
    assert made.commit.pipeline == "vsol-0-fast"
    codings = repo.handle.store.graph.codings(repo.manifest().entries[0].tensors[0].id)
    assert all("lsb" not in step.member.coding.text for step in codings)
    own = {"w": made.state["w"] + 1}
    produced = repo.commit(own, pipeline="vsol", options=CommitOptions(produced_by="vsol-0-slow"))
    assert produced.commit.pipeline == "vsol-0-slow"
    assert repo.checkout()["w"].tobytes() == own["w"].tobytes()


def test_a_lossy_setting_changes_no_state_that_did_not_ask_for_it(tmp_path: Path) -> None:
    (mvc.Repository.init(tmp_path)).close()
    for preset in ("vsol-0-fast", "vsol-1-slow", "frontier-1"):
        (tmp_path / ".mvc/config.yaml").write_text(f"commit:\n  pipeline: {preset}\n")
        with mvc.Repository.open(tmp_path) as repo:
            repo.commit({"w": np.ones(40, np.float32)})
            given = {"w": np.full(40, 1.3, np.float32)}
            exact = repo.commit(given)
            assert exact.state is given
            assert repo.checkout()["w"].tobytes() == given["w"].tobytes()
            coding = Pipeline.parse(preset).coding()
            assert Pipeline.parse(exact.commit.pipeline) == coding
            repo.storage.repack(interval=2)
            assert repo.checkout()["w"].tobytes() == given["w"].tobytes()
            with pytest.raises(WrongUsage, match="lossy pipeline"):
                repo.commit(given, options=CommitOptions(exact=["w"]))


def test_a_lossy_setting_acts_where_production_weights_are_asked_for(tmp_path: Path) -> None:
    (mvc.Repository.init(tmp_path)).close()
    (tmp_path / ".mvc/config.yaml").write_text("commit:\n  pipeline: vsol-0-fast\n")
    path = tmp_path / "a.npz"
    with mvc.Repository.open(tmp_path) as repo:
        for value, place in (
            (1.3, {}),
            (2.7, {"output": tmp_path / "out.npz"}),
            (1.1, {}),
            (2.9, {"in_place": True}),
        ):
            np.savez(path, w=np.full(40, value, np.float32))
            files = FileOptions(cwd=tmp_path, **place)
            made = repo.commit("a.npz", files=files)
            stored = repo.checkout()["w"][0]
            assert (stored == np.float32(value)) == (not place)
            assert (made.commit.pipeline == "vsol-0-fast") == bool(place)
            for written in place.values():
                assert np.load(path if written is True else written)["w"][0] == stored


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"

    def save(value: float) -> None:
        if suffix == ".npz":
            np.savez(path, w=np.full(30, value, np.float32), n=np.arange(3) + int(value * 10))
        else:
            state = {"w": torch.full((30,), value), "n": torch.arange(3) + int(value * 10)}
            torch.save(state, path) if suffix == ".pt" else save_file(state, path)

    def load(file: Path) -> dict[str, Any]:
        if suffix == ".npz":
            return dict(np.load(file))
        return torch.load(file) if suffix == ".pt" else load_file(file)

    with mvc.Repository.init(tmp_path) as repo:
        save(1.0)
        repo.commit(path.name, pipeline=LSB, files=mvc.FileOptions(in_place=True, cwd=tmp_path))
        save(1.3)
        training = path.read_bytes()
        out = tmp_path / f"served{suffix}"
        repo.commit(path.name, pipeline=LSB, files=mvc.FileOptions(output=out, cwd=tmp_path))
        assert path.read_bytes() == training
        assert float(load(out)["w"][0]) == 1.25 and int(load(out)["n"][0]) == 13
        assert repo.identify(out)[0].commit == repo.find("HEAD")
        repo.checkout("HEAD", to=tmp_path / "restored.bin")
        assert (tmp_path / "restored.bin").read_bytes() == out.read_bytes()
        save(1.7)
        path.chmod(0o640)
        repo.commit(path.name, pipeline=LSB, files=mvc.FileOptions(in_place=True, cwd=tmp_path))
        assert float(load(path)["w"][0]) == 1.625
        assert path.stat().st_mode & 0o777 == 0o640
        assert [c.kind for c in repo.status().changes] == ["unchanged"]
        with pytest.raises(NothingToCommit):
            repo.commit(path.name, pipeline=LSB, files=mvc.FileOptions(in_place=True, cwd=tmp_path))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".mvc-tmp")]


def test_several_files_and_what_is_no_model(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for value in (1.0, 1.3):
            for name in ("a", "b"):
                np.savez(tmp_path / f"{name}.npz", w=np.full(30, value, np.float32))
            (tmp_path / "notes.txt").write_text(f"{value}")
            repo.commit(
                ["a.npz", "b.npz", "notes.txt"],
                pipeline=LSB,
                files=mvc.FileOptions(in_place=True, cwd=tmp_path),
            )
        assert [np.load(tmp_path / f"{n}.npz")["w"][0] for n in "ab"] == [1.25, 1.25]
        assert (tmp_path / "notes.txt").read_text() == "1.3"
        repo.commit(
            "notes.txt",
            pipeline=LSB,
            files=mvc.FileOptions(output=tmp_path / "copy", cwd=tmp_path),
            options=CommitOptions(allow_empty=True),
        )
        assert (tmp_path / "copy").read_text() == "1.3"
        (tmp_path / "b.npz").unlink()
        (tmp_path / ".mvc/config.yaml").write_text("commit:\n  pipeline: vsol-0-fast\n")
    with mvc.Repository.open(tmp_path) as repo:
        repo.commit(tmp_path / "b.npz")  # nothing but a removal: no file to write
        assert "b.npz" not in repo.manifest().by_path


def test_where_production_weights_go_must_be_said(repo: mvc.Repository) -> None:
    np.savez(repo.root / "a.npz", w=np.ones(3))
    np.savez(repo.root / "b.npz", w=np.ones(3))
    with pytest.raises(WrongUsage, match="production weights") as caught:
        repo.commit("a.npz", pipeline=LSB, files=mvc.FileOptions(cwd=repo.root))
    assert "--in-place" in (caught.value.hint or "")
    with pytest.raises(WrongUsage, match="2 files"):
        repo.commit(
            ["a.npz", "b.npz"],
            pipeline=LSB,
            files=mvc.FileOptions(output=repo.root / "o", cwd=repo.root),
        )
    with pytest.raises(WrongUsage, match="not both"):
        repo.commit(
            "a.npz", pipeline=LSB, files=mvc.FileOptions(output="o", in_place=True, cwd=repo.root)
        )
    with pytest.raises(WrongUsage, match="lossy pipeline"):
        repo.commit("a.npz", files=mvc.FileOptions(output=repo.root / "o", cwd=repo.root))
    assert next(iter(repo.operations())).entry.operation == "init"
    assert not (repo.root / "o").exists()


def test_what_a_commit_cannot_decide(repo: mvc.Repository) -> None:
    state = {"w": np.ones(9, np.float32)}
    with pytest.raises(WrongUsage, match=r"dsed:0 decides") as caught:
        repo.commit(state, pipeline="vsol-0-slow")
    assert caught.value.hint is not None and "Recorder" in caught.value.hint
    assert caught.value.hint.endswith("xor | lsb:20 | planes:all | zstd:1")
    with pytest.raises(WrongUsage, match="drift:adwin decides"):
        repo.commit(state, pipeline=f"drift:adwin | {LSB}")
    with pytest.raises(InvalidPipeline):
        repo.commit(state, pipeline="lsb:20 | xor")
    repo.commit(state, pipeline="vsol-0.1-fast")
    with pytest.raises(WrongUsage, match="loss"):
        repo.commit({"w": state["w"] + 1}, pipeline="vsol-0.1-fast")
    repo.commit({"w": state["w"] + 1}, pipeline="vsol-0.1-fast", metrics={"loss": 0.5})


def test_an_exact_name_that_is_not_there(repo: mvc.Repository) -> None:
    with pytest.raises(UnknownPath, match="no tensor W to store exactly"):
        repo.commit({"w": np.ones(3)}, pipeline=LSB, options=CommitOptions(exact=["W"]))
    for name in "ab":
        np.savez(repo.root / f"{name}.npz", **{name: np.ones(3)})
    files = ["a.npz", "b.npz"]
    with pytest.raises(UnknownPath, match="no tensor c"):
        repo.commit(
            files,
            pipeline=LSB,
            files=mvc.FileOptions(in_place=True, cwd=repo.root),
            options=CommitOptions(exact=["a", "c"]),
        )
    repo.commit(
        files,
        pipeline=LSB,
        files=mvc.FileOptions(in_place=True, cwd=repo.root),
        options=CommitOptions(exact=["a", "b"]),
    )


def test_nan_and_infinity_are_taken_over(repo: mvc.Repository) -> None:
    old = np.array([1, np.nan, np.inf, 1], np.float32)
    new = np.array([np.nan, 1.3, 1.3, 1.3], np.float32)
    new.view(np.uint32)[0] = 0x7FC00123
    repo.commit({"w": old}, pipeline=LSB)
    made = repo.commit({"w": new}, pipeline=LSB)
    assert made.state["w"].view(np.uint32).tolist() == [
        0x7FC00123, *np.array([1.3, 1.3, 1.25], np.float32).view(np.uint32).tolist()
    ]  # fmt: skip
    assert repo.checkout()["w"].tobytes() == made.state["w"].tobytes()


def test_a_file_that_is_written_again_is_not_overwritten(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training has gone on and saved once more before the production file was written."""
    from mvc.repo.commit import production_files

    path = repo.root / "a.npz"
    np.savez(path, w=np.ones(3, np.float32))
    write = production_files.write_production

    def after(*arguments: Any) -> None:
        np.savez(path, w=np.full(4, 5, np.float32))
        write(*arguments)

    monkeypatch.setattr(production_files, "write_production", after)
    with pytest.raises(SourceChanged, match="changed during the commit") as caught:
        repo.commit("a.npz", pipeline=LSB, files=mvc.FileOptions(in_place=True, cwd=repo.root))
    assert np.load(path)["w"].tolist() == [5] * 4
    assert repo.find("HEAD").short in (caught.value.hint or "")


def test_a_production_file_that_cannot_be_written(repo: mvc.Repository) -> None:
    """The commit stands, and the message says how to get the file."""
    np.savez(repo.root / "a.npz", w=np.ones(3, np.float32))
    target = repo.root / "served" / "a.npz"
    target.parent.mkdir()

    def committing(*_: object) -> None:
        shutil.rmtree(target.parent, ignore_errors=True)

    with pytest.raises(IoFailed, match="committed version") as caught:
        repo.commit(
            "a.npz",
            pipeline=LSB,
            files=mvc.FileOptions(output=target, cwd=repo.root),
            options=CommitOptions(progress=committing),
        )
    assert f"mvc checkout {repo.find('HEAD').short}" in (caught.value.hint or "")


@pytest.mark.parametrize("in_place", [True, False])
def test_a_state_beside_a_file_is_not_written_to_its_place(
    repo: mvc.Repository, in_place: bool
) -> None:
    path, out = repo.root / "m.safetensors", repo.root / "out.safetensors"
    save_file(model(), path)
    repo.commit(path)
    save_file({**model(), "w": model()["w"] + 0.3}, path)
    beside = {"opt": torch.arange(3.0)}
    files = mvc.FileOptions(output=None if in_place else out, in_place=in_place)
    made = repo.commit(path, states={"st": beside}, pipeline=LSB, files=files)
    written = load_file(path if in_place else out)
    assert tensor_bits(written) == tensor_bits(repo.checkout(made.id, path="m.safetensors"))
    assert repo.checkout(made.id, path="st")["opt"].equal(beside["opt"])


def test_arguments_that_would_be_passed_over(repo: mvc.Repository) -> None:
    with pytest.raises(WrongUsage, match="states is empty"):
        repo.commit(states={})
    with pytest.raises(WrongUsage, match="files= needs paths"):
        repo.commit(model(), files=mvc.FileOptions(all=True))
    assert repo.storage.stats().versions == 0
