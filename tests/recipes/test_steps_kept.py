"""What a replay of steps does not reproduce, or cannot read, keeps its weights and is named."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
import mvc.recipes as recipes
from mvc.api import CommitOptions
from mvc.errors import (
    CannotRecord,
    CannotRetrain,
    MvcError,
    NotTrusted,
    RetrainingDiffers,
    StorageFull,
)
from mvc.names import SCRATCH
from mvc.recipes.recipe import Batches
from mvc.testing import HookedFS, open_quietly
from tests.models.project import Project
from tests.recipes.stepped import step
from tests.recipes.test_steps import recorded, root, training, versions

pytestmark = pytest.mark.usefixtures("prepared")


def readable(repo: mvc.Repository, roots: list[bytes]) -> bool:
    """Whether every version has its weights, bit for bit."""
    return [root(repo.checkout(each)) for each in versions(repo)] == roots


def trained(repo: mvc.Repository, model: Any, optimizer: Any, data: Any, **options: Any) -> Any:
    """Four versions; their roots, and what became of the proofs."""
    roots = []
    with mvc.Recorder(
        repo, model, optimizer, recipe=step, data=data, prove=True, **options
    ) as recorder:
        for number in range(4):
            recorder.train([number, number + 50])
            roots.append(root(dict(model.state_dict())))
    return roots, recorder.report.proof


def test_data_that_changed_after_they_were_read(repo: mvc.Repository, tmp_path: Path) -> None:
    """What is stored is what the file holds when the recorder starts."""
    model, optimizer, data = training(tmp_path / "data")
    file = tmp_path / "data" / "samples.npz"
    with np.load(file) as found:
        np.savez(file, x=found["x"] + 1, y=found["y"])
    roots, proof = trained(repo, model, optimizer, data)
    assert (proof.dropped, proof.unproven) == (0, (2, 3, 4))
    assert "produced other weights" in proof.why
    assert readable(repo, roots)


def test_data_by_reference_keep_the_weights_and_are_compared(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    model, optimizer, data = training(tmp_path / "data")
    file = tmp_path / "data" / "samples.npz"
    recipes.add_data(repo, file, reference=True)
    roots, proof = trained(repo, model, optimizer, data)
    assert (proof.proven, proof.dropped, proof.unproven) == (3, 0, ())
    assert "are stored outside of mvc" in proof.why
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(CannotRetrain, match=r"data set samples\.npz has changed"):
        mvc.retrain(repo, "HEAD", trust=True)
    file.unlink()
    with pytest.raises(CannotRetrain, match="is missing"):
        mvc.retrain(repo, "HEAD", trust=True)
    assert readable(repo, roots)


def test_data_that_are_gone_before_a_proof_are_named_segment_by_segment(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    model, optimizer, data = training(tmp_path / "data")
    file = tmp_path / "data" / "samples.npz"
    recipes.add_data(repo, file, reference=True)
    with mvc.Recorder(
        repo, model, optimizer, recipe=step, data=data, prove=True, full_every=2
    ) as recorder:
        file.unlink()
        for number in range(6):
            recorder.train([number, 50])
    proof = recorder.report.proof
    assert proof is not None and "is missing" in proof.why
    assert (proof.proven, proof.dropped, proof.unproven) == (0, 0, (2, 3, 4, 5, 6))


def test_another_number_of_threads_proves_nothing(repo: mvc.Repository, tmp_path: Path) -> None:
    roots, _ = recorded(repo, tmp_path / "data", 4)
    with pytest.raises(CannotRetrain, match="trained in another environment"):
        mvc.retrain(repo, trust=True, threads=2)
    with suppress(RetrainingDiffers):  # on a few machines it makes the same bits
        mvc.retrain(repo, trust=True, threads=2, anyway=True)
    assert repo.storage.proofs() == {}
    with pytest.raises(NotTrusted):
        recipes.drop_weights(repo, ["HEAD~1"])
    assert readable(repo, roots)


def test_a_step_function_that_changed_on_disk(
    repo: mvc.Repository, tmp_path: Path, project: Project
) -> None:
    """Before a recorder reads it it is refused; later it does no harm."""
    source = """
        def step(model, optimizer, batch):
            import torch
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            return loss
    """
    changed = source.replace("loss.backward()", "(2 * loss).backward()")
    project.write({"mine.py": source, "other.py": source})
    mine, other = project.load("mine"), project.load("other")
    model, optimizer, data = training(tmp_path / "data")
    roots = []
    with mvc.Recorder(
        repo, model, optimizer, recipe=mine.step, data=data, prove=True, full_every=2
    ) as recorder:
        for number in range(4):
            recorder.train([number, 7])
            roots.append(root(dict(model.state_dict())))
            project.write({"mine.py": changed, "other.py": changed})
    proof = recorder.report.proof
    assert proof is not None and (proof.dropped, proof.unproven) == (1, ())
    with pytest.raises(CannotRecord, match="was edited after its import"):
        mvc.Recorder(repo, model, optimizer, recipe=other.step, data=data)
    made = versions(repo)
    with mvc.retraining(repo, made[1], trust=True):
        assert readable(repo, roots)


@pytest.mark.parametrize("batches", [("500",), ("1 2", "3 100")])
def test_rows_beyond_the_data_are_one_line(
    repo: mvc.Repository, tmp_path: Path, batches: tuple[str, ...]
) -> None:
    recorded(repo, tmp_path / "data", 2)
    with pytest.raises(CannotRetrain, match=r"IndexError: index \d+ is out of bounds"):
        mvc.retrain(repo, forged(repo, batches), trust=True)


@pytest.mark.parametrize("carried", [{"other": np.zeros(2)}, {"0": {"torch": np.zeros(2)}}])
def test_drawn_states_that_are_none_are_one_line(
    repo: mvc.Repository, tmp_path: Path, carried: dict[str, Any]
) -> None:
    recorded(repo, tmp_path / "data", 2)
    made = forged(repo, ("1 2",), drawn=(0,), carried=carried)
    with pytest.raises(CannotRetrain, match="state of the random generators is invalid"):
        mvc.retrain(repo, made, trust=True)


def forged(
    repo: mvc.Repository, rows: tuple[str, ...], drawn: tuple[int, ...] = (), carried: Any = None
) -> Any:
    """A version of which a stranger says that such batches made it."""
    start, last = versions(repo)
    data = recipes.data_set(repo, "samples.npz").version
    attached = {"recipe.json": Batches(start, last, rows, drawn).encoded()}
    if carried is not None:
        attached["service/random.safetensors"] = carried
    state = {name: value + 1 for name, value in repo.checkout(last).items()}
    options = CommitOptions(needs=(start, last, data))
    return repo.commit(state, attachments=attached, options=options).id


# -- beside other work -------------------------------------------------------------------------


def test_gc_beside_the_proofs_takes_nothing_that_they_need(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    model, optimizer, data = training(tmp_path / "data")
    roots = []
    with mvc.Recorder(
        repo, model, optimizer, recipe=step, data=data, prove=True, full_every=3
    ) as recorder:
        for number in range(9):
            recorder.train([number, number + 50])
            roots.append(root(dict(model.state_dict())))
            recorder.flush()
            with mvc.Repository.open(repo.root) as other:
                other.storage.gc(grace=timedelta(0))
    proof = recorder.report.proof
    assert proof is not None and (proof.proven, proof.unproven) == (8, ())
    assert proof.dropped == 5
    repo.storage.gc(grace=timedelta(0))
    made = versions(repo)
    for number in (1, 5, 7):
        with mvc.retraining(repo, made[number], trust=True):
            assert root(repo.checkout(made[number])) == roots[number]
    stored = [number for number in range(9) if number % 3 == 0 or number == 8]
    assert all(root(repo.checkout(made[number])) == roots[number] for number in stored)
    assert repo.storage.fsck(full=True).sound
    assert not [*(repo.root / ".mvc" / SCRATCH).glob("*")]


def test_undo_of_a_drop_names_the_way_back(repo: mvc.Repository, tmp_path: Path) -> None:
    roots, report = recorded(repo, tmp_path / "data", 4, prove=True)
    assert report.proof is not None and report.proof.dropped == 2
    repo.storage.gc(grace=timedelta(0))
    made = versions(repo)
    with pytest.raises(MvcError) as caught:
        repo.undo()
    assert "drop-weights" in caught.value.message or "given up" in caught.value.message
    recipes.store_weights(repo, made[1], trust=True)
    recipes.store_weights(repo, made[2], trust=True)
    assert readable(repo, roots)


@pytest.mark.parametrize("at", [1, 4, 9, 20, 45])
def test_a_full_disk_in_the_prover_stops_no_training(tmp_path: Path, at: int) -> None:
    calls = 0

    def full(_: int, op: str, path: Path) -> None:
        nonlocal calls
        if threading.current_thread().name == "mvc-prover":
            calls += 1
            if calls >= at:
                raise StorageFull(f"{path} cannot be written: no space left on device")

    mvc.Repository.init(tmp_path / "repo").close()
    with open_quietly(tmp_path / "repo", fs=HookedFS(full)) as repo:
        roots, report = recorded(repo, tmp_path / "data", 7, full_every=3, prove=True)
        proof = report.proof
        assert proof is not None and report.durable == 7 and calls >= at
        assert "no space left on device" in proof.why
        assert proof.dropped == 0
        assert len(proof.unproven) + proof.proven == 6
    with mvc.Repository.open(tmp_path / "repo") as repo:
        assert readable(repo, roots)
        assert repo.storage.fsck(full=True).sound
        repo.storage.gc(grace=timedelta(0))
        assert not [*(repo.root / ".mvc" / SCRATCH).glob("*")]
