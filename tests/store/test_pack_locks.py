"""A pack that cannot be opened: not left locked, and said to be missing where it is gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData, IoFailed
from mvc.io.files import FileSystem
from mvc.store.packs.reader import PackReader
from mvc.testing import HookedFS


def test_a_failed_opening_lets_go_of_the_lock(tmp_path: Path) -> None:
    opened: list[Path] = []

    def hook(number: int, op: str, path: Path) -> None:
        if op == "open_write" and path.suffix == ".pack":
            opened.append(path)
            if len(opened) == 2:  # the first time it is made
                raise IoFailed("injected")

    with Repository.init(tmp_path, fs=HookedFS(hook)) as repo:
        # What was raised is held, and with it whatever it refers to.
        with pytest.raises(IoFailed, match="injected") as _held:
            repo.commit({"a": np.arange(10)})
        assert FileSystem().lock(opened[0], block=False) is not None
        assert _held.value


def test_a_pack_that_goes_while_it_is_opened_is_missing(tmp_path: Path) -> None:
    """Maintenance deletes packs; whoever still wants one is told so, and looks again."""

    def hook(number: int, op: str, path: Path) -> None:
        if op == "open_read" and path.suffix == ".pack":
            path.unlink(missing_ok=True)

    with Repository.init(tmp_path) as repo:
        repo.commit({"a": np.arange(10)})
    reader = PackReader(HookedFS(hook), tmp_path / ".mvc" / "packs")
    with pytest.raises(DamagedData, match="is missing"):
        reader.header(1, 8)
