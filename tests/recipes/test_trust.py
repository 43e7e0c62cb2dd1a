"""Stored code runs for named versions alone: whoever trusts one has not trusted its bases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
import mvc.recipes as recipes
from mvc.errors import CannotRetrain, NotTrusted, WrongUsage
from mvc.ids import CommitId
from tests.cli.program import Mvc
from tests.models.project import Project
from tests.models.whole import commit_model
from tests.recipes import by_hand
from tests.recipes.recorded import recorded

pytestmark = pytest.mark.usefixtures("prepared")

SERVICE = """
    import os
    from pathlib import Path

    import torch
    from torch import nn

    if "TRAP_MARKER" in os.environ:
        with open(os.environ["TRAP_MARKER"], "a") as file:
            file.write(__name__.rpartition(".")[2] + "\\n")


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 2)


    def train(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
"""


@dataclass
class Foreign:
    """A version whose recipe is somebody else's; its weights were given up and are gone."""

    repo: mvc.Repository
    start: CommitId
    id: CommitId
    state: dict[str, torch.Tensor]
    own: Any
    marker: Path

    @property
    def ran(self) -> list[str]:
        """The modules of stored code that a process has imported, each time that it did."""
        return self.marker.read_text().split() if self.marker.exists() else []

    def model(self) -> torch.nn.Module:
        """A model of one's own code with the weights that are gone."""
        model = mvc.constructed(self.own.Net)
        model.load_state_dict(self.state)
        return model

    def trained_on(self, **options: Any) -> CommitId:
        with mvc.record(self.repo, self.model(), service=self.own.train, **options) as run:
            run.train()
        return run.result.id


@pytest.fixture
def foreign(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Project
) -> Foreign:
    project.write({"foreign.py": SERVICE, "own.py": SERVICE})
    theirs, own = project.load("foreign"), project.load("own")
    model = mvc.constructed(theirs.Net)
    start = repo.commit(model.state_dict()).id
    run = recorded(repo, model, service=theirs.train)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    by_hand.drop(repo, run.result.id)
    repo.commit({"other": torch.zeros(3)})
    repo.storage.gc(grace="0")
    marker = tmp_path / "ran"
    monkeypatch.setenv("TRAP_MARKER", str(marker))
    return Foreign(repo, start, run.result.id, state, own, marker)


@pytest.mark.parametrize("drop_weights", [None, True])
def test_training_on_proves_the_new_recipe_and_runs_none_of_its_base(
    foreign: Foreign, drop_weights: bool | None
) -> None:
    newest = foreign.trained_on(drop_weights=drop_weights)
    assert set(foreign.ran) == {"own"}
    (entry, *_) = foreign.repo.log()
    assert entry.id == newest
    if drop_weights:
        assert entry.dropped is not None and entry.dropped.proven_ns is not None


def test_a_base_is_trained_again_only_if_it_is_named(foreign: Foreign) -> None:
    repo = foreign.repo
    newest = foreign.trained_on(drop_weights=True)
    repo.commit({"other": torch.ones(3)})
    repo.storage.gc(grace="0")
    foreign.marker.unlink()
    for trust in (False, True, [newest], []):
        with pytest.raises(NotTrusted) as caught:
            mvc.retrain(repo, newest, trust=trust)
        unnamed = caught.value.versions
        assert unnamed == ((foreign.id,) if trust in (True, [newest]) else (foreign.id, newest))
        hint = str(caught.value.hint)
        assert all(f"mvc show --code {each.short}" in hint for each in unnamed)
        assert f"--trust {foreign.id.short} --trust {newest.short}" in hint
        with pytest.raises(NotTrusted), mvc.retraining(repo, newest, trust=trust):
            pass
        with pytest.raises(NotTrusted):
            recipes.store_weights(repo, newest, trust=trust)
    with pytest.raises(WrongUsage, match="trust must be True, or a list of versions"):
        mvc.retrain(repo, newest, trust=str(foreign.id))  # type: ignore[arg-type]
    assert foreign.ran == []
    done = mvc.retrain(repo, newest, trust=[foreign.id.short, newest])
    assert done.replayed == (foreign.id, newest)
    assert set(foreign.ran) == {"foreign", "own"}
    for version in (foreign.id, newest):
        recipes.store_weights(repo, version, trust=True)
    assert repo.storage.fsck(full=True).sound


def test_options_name_each_version_whose_code_may_run(
    foreign: Foreign, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = foreign.trained_on(drop_weights=True)
    foreign.repo.commit({"other": torch.ones(3)})
    foreign.repo.storage.gc(grace="0")
    foreign.marker.unlink()
    monkeypatch.chdir(foreign.repo.root)
    program = Mvc(foreign.repo.root, capsys)
    for words in (("--trust-code",), ("--trust", newest)):
        refused = program("retrain", newest, *words, code=3)
        assert f"would run code of {foreign.id.short}: code/foreign.py" in refused.err
    assert foreign.ran == []
    options = refused.err.rpartition("name each of them: ")[2].partition(" (")[0]
    program("retrain", newest, "--trust-code", *options.split())
    assert set(foreign.ran) == {"foreign", "own"}


def test_a_model_is_built_only_from_a_version_that_is_named(foreign: Foreign) -> None:
    repo, net = foreign.repo, foreign.own.Net()
    first, second = (commit_model(repo, net, path="net").id, repo.find("HEAD~1"))
    for trust in (False, [], [second]):
        with pytest.raises(NotTrusted):
            mvc.load_model(repo, first, trust=trust)
    assert foreign.ran == []
    assert isinstance(mvc.load_model(repo, first, trust=[second, first]), torch.nn.Module)
    assert foreign.ran == ["own"]


def test_weights_that_are_not_finite_are_proven_bit_for_bit_and_said(foreign: Foreign) -> None:
    foreign.state["line.bias"][:] = torch.tensor([float("nan"), float("-inf")])
    foreign.repo.commit(foreign.state)
    with pytest.warns(RuntimeWarning, match=r"was reproduced, with .* not finite: line\.bias"):
        newest = foreign.trained_on(drop_weights=True)
    foreign.repo.commit({"other": torch.ones(3)})
    foreign.repo.storage.gc(grace="0")
    with pytest.warns(RuntimeWarning):
        done = mvc.retrain(foreign.repo, newest, trust=True)  # the base is stored
    assert done.not_finite == ("line.bias",)
    assert done.state["line.bias"].isnan().tolist() == [True, False]


def test_a_replay_with_other_threads_is_no_proof(foreign: Foreign) -> None:
    newest = foreign.trained_on(verify=False)
    named = [foreign.id, newest]
    mvc.retrain(foreign.repo, newest, trust=named, anyway=True, threads=2)
    with pytest.raises(CannotRetrain, match="is not proven"):
        recipes.drop_weights(foreign.repo, [newest])
    mvc.retrain(foreign.repo, newest, trust=named)
    recipes.drop_weights(foreign.repo, [newest])


def test_unproven_weights_are_not_given_up_whatever_the_flags_say(foreign: Foreign) -> None:
    with pytest.raises(WrongUsage, match="needs a recipe proven by a replay"):
        foreign.trained_on(verify=False, drop_weights=True)
    newest = foreign.trained_on(verify=False)
    with pytest.raises(CannotRetrain, match="is not proven"):
        recipes.drop_weights(foreign.repo, [newest])
    assert foreign.repo.storage.stats().dropped == 1  # the foreign one
