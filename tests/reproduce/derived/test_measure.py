"""Every approach gives back what went in, and its bytes are counted honestly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import mvc
from mvc import Environment, root_of
from mvc.errors import BadModelFile, CannotRetrain, DamagedData, WeightsDropped, WrongUsage
from reproduce.derived.approaches import (
    APPROACHES,
    Model,
    changed_tensors,
)
from reproduce.derived.flow import BASES
from reproduce.derived.measure import FIGURES, Measured, measure, runs
from reproduce.experiment import known
from reproduce.workspace import Workspace
from tests.reproduce.derived.tiny import TINY

pytestmark = pytest.mark.usefixtures("prepared")

WHOLE = 4 * 66_856 + 4 * 2 * 64 + 8  # bytes of all tensors
UPDATE = 4 * 65_000  # bytes of the last layer


@pytest.fixture(scope="module")
def measured(models, tmp_path_factory):
    """A run of each approach but provenance: ``measure`` compares networks with what was saved."""
    folder = tmp_path_factory.mktemp("measured")
    stored = [approach for approach in APPROACHES.values() if not approach.retrains]
    return {each.name: measure(models, each, folder / each.name) for each in stored}


def environment() -> int:
    """Bytes of the environment, which the first version of a repository stores as it is."""
    return len(Environment.current().encoded)


def test_full_snapshots_share_nothing(measured):
    for cell in measured["full"].values():
        # The layer's 64 ones and 64 zeros are stored as one value each.
        assert WHOLE - 2 * 4 * 64 < cell["payload"] < WHOLE
        assert 0 < (cell["stored"] - cell["payload"]) < 2_000 + environment()


@pytest.mark.parametrize("name", ["by-value", "update"])
def test_updates_hold_the_last_layer(measured, name):
    for use_case, cell in measured[name].items():
        assert (cell["tensors"], cell["changed"]) == (
            (8, WHOLE) if use_case == "U1" else (2, UPDATE)
        )
        assert cell["changed"] - 2 * 4 * 64 < cell["payload"] < cell["changed"] + 20
        assert (
            0
            < (cell["stored"] - cell["payload"])
            < 2_000 + (environment() if use_case == "U1" else 0)
        )


def test_both_ways_to_an_update_store_the_same_patch(measured):
    for use_case in BASES:
        one, other = (measured[name][use_case] for name in ("by-value", "update"))
        assert one["payload"] == other["payload"]
        assert ("generate update" in one["save"]) is (use_case != "U1")
        assert list(other["save"]) == ["persist"]


def test_compression_and_deltas_store_less(measured):
    for use_case in BASES:
        update, packed, deltas = (
            measured[name][use_case]["stored"] for name in ("update", "update-zstd", "deltas")
        )
        assert packed < update
        assert deltas <= packed + 200
        # A reset point stores changed tensors in full and, as a way to its base, as deltas.
        assert measured["reset-points"][use_case]["stored"] < packed + deltas + 2_000


def test_steps_of_recovery(measured):
    steps = ["load", "check environment", "recover", "check hash"]
    for name, run in measured.items():
        for cell in run.values():  # the stored code loads the weights by itself
            assert list(cell["recover"]) == steps[name == "full-code" :]
            assert all(seconds > 0 for seconds in cell["recover"].values())


def test_another_environment_is_noticed_before_a_network_is_made(models, tmp_path, monkeypatch):
    approach = APPROACHES["update"]
    with mvc.Repository.init(tmp_path) as repo:
        commit = approach.save(repo, model_of(models, "U1", None)).commit
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        with pytest.raises(CannotRetrain, match=r"in another environment: settings\.mkldnn: True"):
            approach.recover(repo, commit, TINY)


def test_provenance_keeps_the_training_and_gives_up_the_weights(models, tmp_path):
    approach = APPROACHES["provenance"]
    with mvc.Repository.init(tmp_path) as repo:
        first = approach.save(repo, model_of(models, "U1", None)).commit
        whole = repo.storage.stats().stored_bytes
        saved = approach.save(repo, model_of(models, "U2", first))
        assert list(saved.seconds) == ["train", "persist", "delete weights"]
        assert min(saved.seconds.values()) >= 0
        # Most of this is the source of the examples, which the recipe carries.
        assert repo.storage.stats().stored_bytes - whole < UPDATE * 3 // 10
        assert "model.safetensors" in repo.manifest(saved.commit).by_path
        with pytest.raises(WeightsDropped):
            repo.checkout(saved.commit)
        again = approach.save(repo, model_of(models, "U3.2.1", saved.commit))
        assert [each.name for each in repo.refs("tag")] == ["data/images"]  # stored once
        kept = approach.recover(repo, first, TINY)
        found = approach.recover(repo, again.commit, TINY)
    assert not changed_tensors(models.state("U1"), kept.network.state_dict())
    assert not changed_tensors(models.state("U3.2.1"), found.network.state_dict())
    assert list(found.seconds) == ["retrain", "recover", "check hash"]


def test_a_training_that_makes_other_weights_is_refused(models, tmp_path):
    approach = APPROACHES["provenance"]
    with mvc.Repository.init(tmp_path) as repo:
        first = approach.save(repo, model_of(models, "U1", None)).commit
        model = replace(model_of(models, "U2", first), state=models.state("U3.1.1"))
        with pytest.raises(WrongUsage, match="U2 has other weights than those recorded"):
            approach.save(repo, model)


def model_of(models, use_case, base):
    old = {} if base is None else models.state(BASES[use_case])
    return Model(use_case, models.state(use_case), base, old, None, models.experiment)


def test_a_wrong_bit_is_found(models, tmp_path):
    honest = APPROACHES["update"]

    class Broken:
        apart = False
        save = staticmethod(honest.save)

        @staticmethod
        def recover(repo, commit, architecture):
            found = honest.recover(repo, commit, architecture)
            with torch.no_grad():
                found.network.fc.bias[0] += 1
            return found

    with pytest.raises(DamagedData, match="U1 is not what was saved"):
        measure(models, Broken(), tmp_path)


def test_runs_are_kept_and_go_on(models, tmp_path):
    approach = APPROACHES["deltas"]
    (first,) = runs(models, approach, 1, Workspace(tmp_path))

    def interrupted(_, __, place, ___):
        (place / "left").touch()
        raise KeyboardInterrupt

    by = Measured(interrupted, FIGURES)
    assert runs(models, approach, 1, Workspace(tmp_path), by=by) == [first]
    with pytest.raises(KeyboardInterrupt):
        runs(models, approach, 2, Workspace(tmp_path), by=by)
    again = runs(models, approach, 3, Workspace(tmp_path))
    assert (again[0], len(again)) == (first, 3)
    assert runs(models, approach, 2, Workspace(tmp_path)) == again[:2]
    assert not list(tmp_path.rglob("*.repository"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": [{}]}', '{"runs": [{"U1": 1}]}'])
def test_a_result_that_is_none(models, tmp_path, text):
    file = tmp_path / "results" / models.experiment.name / "deltas.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(BadModelFile, match="is no result"):
        runs(models, APPROACHES["deltas"], 1, Workspace(tmp_path))
    assert file.read_text() == text


def test_results_are_json(models, tmp_path):
    runs(models, APPROACHES["update"], 1, Workspace(tmp_path))
    (file,) = tmp_path.rglob("update.json")
    cell = json.loads(file.read_text())["runs"][0]["U3.2.4"]
    names = ["stored", "payload", "changed", "tensors", "save", "recover", "processor"]
    assert list(cell) == names
    assert list(cell["processor"]) == ["save", "recover"]


def test_changes_are_of_bits():
    old = {"a": torch.tensor([0.0, float("nan")]), "b": torch.zeros(2, 3), "c": torch.zeros(2)}
    assert changed_tensors(old, old) == []
    new = {"a": torch.tensor([-0.0, float("nan")]), "b": torch.zeros(3, 2), "d": torch.zeros(2)}
    assert changed_tensors(old, new) == ["a", "b", "d"]
    assert changed_tensors(old, {"c": torch.zeros(2, dtype=torch.int32)}) == ["c"]
    assert changed_tensors({"t": torch.arange(6).view(2, 3).T}, {"t": torch.tensor(
        [[0, 3], [1, 4], [2, 5]])}) == []  # fmt: skip


def test_the_root_is_that_of_a_commit(models, tmp_path):
    with mvc.Repository.init(tmp_path) as repo:
        made = repo.commit(models.state("U2"))
    assert root_of(models.state("U2")) == made.root


def test_a_name_that_is_not_known():
    with pytest.raises(WrongUsage, match="there is no approach zip: it must be one of full, full-"):
        known("approach", APPROACHES, "zip")
