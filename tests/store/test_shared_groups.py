"""Group records that several tensors' paths lead through are decoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.store.recovery import grouped


def test_a_group_on_several_paths_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    state = {name: random.standard_normal(1000).astype(np.float32) for name in "abc"}
    with mvc.Repository.init(tmp_path) as repo:
        for i, changed in enumerate(("abc", "a", "ab", "c", "abc")):
            state = state | {name: state[name] + np.float32(1e-3) for name in changed}
            last = repo.commit(state, message=str(i), pipeline="vsol").id
    decoded: list[bytes] = []
    inner = grouped.decode_group

    def counted(*arguments: object) -> object:
        decoded.append(bytes(arguments[1]))  # type: ignore[call-overload]
        return inner(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(grouped, "decode_group", counted)
    with mvc.Repository.open(tmp_path) as repo:
        back = repo.checkout(last)
    assert len(decoded) == len(set(decoded)) > 2
    assert all(np.array_equal(back[name], state[name]) for name in state)
