"""What a Recorder is given is looked at in the constructor, and named."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import CannotResume, InvalidName, NotARepository, WrongUsage


def small() -> nn.Module:
    return nn.Linear(2, 2)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def messages(repo: mvc.Repository) -> list[str]:
    return [entry.commit.message for entry in repo.log()][::-1]


def test_a_path_stands_for_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    mvc.Repository.init(folder).close()
    for given in (folder, str(folder)):
        with mvc.Recorder(given, small()) as recorder:
            recorder.step()
            repo = recorder.repo
        assert recorder.report.durable == 1
        assert repo.closed
    recorder = mvc.Recorder(folder, small())
    recorder.step()
    recorder.repo.close()  # ends the recorder first
    assert recorder.close().durable == 1
    with mvc.Repository.open(folder) as repo:
        assert messages(repo) == ["step 1"] * 3
        with mvc.Recorder(repo, small()):
            pass
        assert not repo.closed  # it stays the caller's
        (folder / "sub").mkdir()
        for wrong in (folder / "sub", tmp_path / "nothing"):
            with pytest.raises(NotARepository, match=str(wrong)) as caught:
                mvc.Recorder(wrong, small())
            assert "Repository.init" in str(caught.value.hint)
    with pytest.raises(WrongUsage, match="this repository is closed"):
        mvc.Recorder(repo, small())


def test_wrong_objects_are_named(tmp_path: Path) -> None:
    model = small()
    optimizer = adam(model)
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(model.state_dict())
        before = threading.active_count()
        for given, options, match in (
            ((7, model), {}, r"repo must be .*, not of type int"),
            ((repo, model.state_dict()), {}, "model is of type OrderedDict.*torch.nn.Module"),
            ((repo, optimizer, model), {}, "model is of type Adam"),
            ((repo, model, model), {}, "optimizer is of type Linear"),
            ((repo, model, optimizer), {"scheduler": 3}, "scheduler is of type int"),
            ((repo, model, optimizer), {"scaler": "x"}, "scaler is of type str"),
        ):
            with pytest.raises(WrongUsage, match=match):
                mvc.Recorder(*given, **options)
        with pytest.raises(WrongUsage, match="model is of type OrderedDict"):
            mvc.resume(repo, model.state_dict())
        with pytest.raises(WrongUsage, match="optimizer is of type Linear"):
            mvc.resume(repo, model, model)
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"every": 1.5}, "every is of type float"),
        ({"every": True}, "every is of type bool"),
        ({"every": 0}, "every must be at least 1, but is 0"),
        ({"start": -1}, "start must be at least 0"),
        ({"start": "3"}, "start is of type str"),
        ({"queue_bytes": 1e6}, "queue_bytes is of type float"),
        ({"include": ()}, "include names nothing"),
        ({"name": 3}, "name is of type int"),
        ({"name": "a/"}, "name is .a/.: a Recorder writes one file"),
        ({"name": "a/model.training.safetensors"}, "training state of a/model.safetensors"),
        ({"deploy": 3}, "deploy is of type int"),
        ({"metrics": 0.5}, "metrics is of type float"),
        ({"params": "lr=1"}, "params is of type str"),
        ({"params": {"f": small}}, "param 'f' is neither text nor plain data"),
        ({"params": {"a": "x" * 1025}}, "the param a is longer than 1024 bytes"),
        ({"on_deploy": "x"}, "on_deploy is of type str"),
        ({"exact": "weight"}, "exact is of type str"),
        ({"message": None}, "message is of type NoneType"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_values_are_named(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with mvc.Repository.init(tmp_path) as repo, pytest.raises(WrongUsage, match=match):
        mvc.Recorder(repo, small(), **options)


def test_wrong_numbers_of_steps_are_named(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, small(), start=4) as recorder:
            for number, match in ((-5, "at least 4, but is -5"), (3, "at least 4"), ("7", "str")):
                with pytest.raises(WrongUsage, match=f"number .*{match}"):
                    recorder.step(number=number)
            recorder.step(number=torch.tensor(6))
        assert messages(repo) == ["step 6"]


def test_one_name_is_as_good_as_a_list_of_one(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, small(), include="model") as recorder:
            recorder.step()
        assert repo.checkout(path="model.training.safetensors")["rng"] is None


def test_numbers_of_any_kind(tmp_path: Path) -> None:
    """Also a loss that still has its graph, of which torch would warn."""
    model = small()
    with mvc.Repository.init(tmp_path) as repo, warnings.catch_warnings():
        warnings.simplefilter("error")
        with mvc.Recorder(repo, model) as recorder:
            loss = model(torch.ones(1, 2)).square().sum()
            recorder.step(loss=loss, metrics={"top": torch.tensor(float("inf")), "n": 3})
            loss.backward()  # the graph is still the caller's
            for wrong, match in ((torch.ones(2), "not a number"), (10**400, "fit a float64")):
                with pytest.raises(WrongUsage, match=match):
                    recorder.step(loss=wrong)
        (entry,) = repo.log()
        assert entry.commit.metrics == {"top": float("inf"), "n": 3.0, "loss": loss.item()}


def test_params_of_every_version_and_of_one(tmp_path: Path) -> None:
    model = small()
    optimizer = adam(model)

    def rate() -> dict[str, Any]:
        return {"lr": optimizer.param_groups[0]["lr"]}

    def kept(repo: mvc.Repository) -> list[dict[str, str]]:
        return [dict(entry.commit.params) for entry in repo.log(limit=2)][::-1]

    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, params={"data": "october", "layers": [2, 2]}) as recorder:
            recorder.step()
            recorder.step(params={"data": "november", "seed": torch.tensor(7)})
            with pytest.raises(WrongUsage, match="'f' is neither text nor plain data"):
                recorder.step(params={"f": small})
        assert recorder.report.durable == 2
        assert kept(repo) == [
            {"data": "october", "layers": "[2, 2]"},
            {"data": "november", "layers": "[2, 2]", "seed": "7"},
        ]
        with mvc.watch(repo, model, optimizer, params=rate):  # asked for at each step
            for value in (0.25, 0.5):
                optimizer.param_groups[0]["lr"] = value
                optimizer.step()
        assert kept(repo) == [{"lr": "0.25"}, {"lr": "0.5"}]


def test_message_and_author(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, small(), message="lr 0.1", author="Ada") as recorder:
            recorder.step()
        (entry,) = repo.log()
        assert (entry.commit.message, entry.commit.author) == ("lr 0.1: step 1", "Ada")
        with pytest.raises(InvalidName, match="author"):
            mvc.Recorder(repo, small(), author="a\nb")


def test_numbering_goes_on_and_the_origin_is_kept(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model) as recorder:
            for _ in range(4):
                recorder.step()
        resumed = mvc.resume(repo, model, rev="HEAD~2")
        with mvc.Recorder(repo, model, start=resumed) as recorder:
            for _ in range(2):
                recorder.step()
            assert recorder.report.steps == 2
        short = resumed.commit.short
        assert messages(repo)[4:] == [f"step 3 (resumed from {short})", "step 4"]
        for rev in ("HEAD", "HEAD~1"):
            kept = repo.checkout(rev, path="model.training.safetensors")
            assert kept["origin"] == str(resumed.commit)
        assert "origin" not in repo.checkout("HEAD~2", path="model.training.safetensors")
        assert mvc.resume(repo, model).step == 4


def test_a_step_beside_watch_is_refused(tmp_path: Path) -> None:
    model = small()
    optimizer = adam(model)
    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.watch(repo, model, optimizer)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with pytest.raises(WrongUsage, match="records each optimizer step itself"):
            recorder.step(loss=1.0)
        assert recorder.close().durable == 1


def test_hints_of_refusals(tmp_path: Path) -> None:
    """What to do is part of what Python prints, not only of what the command line does."""
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, adam(model)) as recorder:
            recorder.step()
        more = nn.Linear(3, 2)
        for given, match, hint in (
            ((model,), "state of an optimizer, but none", "pass the optimizer"),
            ((more, adam(more)), "weight: float32", "create the model with the architecture"),
            ((model, torch.optim.SGD(model.parameters())), "is torch", "of the recorded type"),
            ((model, Around(adam(model))), "Around", r"pass its \.optimizer"),
            ((model, torch.optim.Adam([model.weight])), "other param", "parameters and groups"),
        ):
            with pytest.raises(CannotResume, match=match) as caught:
                mvc.resume(repo, *given)
            (note,) = caught.value.__notes__
            assert note == f"hint: {caught.value.hint}"
            assert hint.replace("\\", "") in note
        repo.commit({"schema": "mvc.keras/1"}, path="model.training.safetensors")
        with pytest.raises(CannotResume, match=r"of a Recorder, but of mvc\.keras/1") as caught:
            mvc.resume(repo, model)
        assert "callback" in str(caught.value.hint)


class Around(torch.optim.Optimizer):
    """As accelerate wraps an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()
