"""Faults that a review found: each test failed before its mend."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import MvcError, RefConflict, SourceChanged, WrongUsage
from mvc.store.writing.precision_copies import PrecisionCopies


def test_a_checkout_that_cannot_be_finished_does_not_hold_up_later_ones(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        (tmp_path / "a.txt").write_text("one")
        (tmp_path / "d").write_text("d")
        repo.commit([tmp_path / "a.txt", tmp_path / "d"])
        repo.branch("other")
        repo.switch("other")
        (tmp_path / "a.txt").write_text("two")
        repo.remove(["d"])
        repo.commit([tmp_path / "a.txt"])
        repo.switch("main")
        (tmp_path / "d").unlink()
        (tmp_path / "d").mkdir()
        with pytest.raises(MvcError):
            repo.switch("other", force=True)
        (tmp_path / "d").rmdir()
        repo.switch("main", force=True)
        assert (tmp_path / "a.txt").read_text() == "one"
        assert not os.listdir(tmp_path / ".mvc" / "checkouts")


@pytest.mark.parametrize("elements", [64, 100_000])
def test_a_master_that_changes_while_its_copy_is_encoded_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    master = torch.randn(elements)
    state = {"master": master, "copy": master.to(torch.float16)}
    find = PrecisionCopies.find

    def changing(self, spec, data):
        found = find(self, spec, data)
        if found is not None:
            master[-1] += 1
        return found

    monkeypatch.setattr(PrecisionCopies, "find", changing)
    with mvc.Repository.init(tmp_path) as repo, pytest.raises(SourceChanged):
        repo.commit(state)


def test_a_report_of_versions_without_tensors(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for text in "abc":
            (tmp_path / "config.json").write_text(text)
            repo.commit([tmp_path / "config.json"])
        repo.report(tmp_path / "report.html")
        assert "</html>" in (tmp_path / "report.html").read_text()


def test_an_empty_output_is_no_folder(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit({"w": np.ones(3, np.float32)})
        with pytest.raises(WrongUsage, match="to is empty"):
            repo.checkout(to="", delete=True, force=True)


def test_undo_does_not_move_a_branch_that_a_training_records_on(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit({"w": np.ones(3, np.float32)})
        model = torch.nn.Linear(2, 2)
        with mvc.Recorder(repo, model) as recorder:
            recorder.step()
            recorder.flush()
            with pytest.raises(RefConflict, match="a training is recording on main"):
                repo.undo()
