"""What a commit reads may change while it is encoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mvc
from mvc.errors import SourceChanged
from mvc.store.writing.precision_copies import PrecisionCopies


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
