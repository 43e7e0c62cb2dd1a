"""Names that clash, where the file system tells them apart and where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidName, WouldOverwrite
from mvc.io.files import FileIdentity, FileSystem
from mvc.repo.commit.request import CommitOptions


class FoldingFS(FileSystem):
    """Finds a file under its name in any case, as macOS and Windows do."""

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        for name in (path.name, path.name.lower(), path.name.upper()):
            if found := super().stat(path.with_name(name) if name else path, follow=follow):
                return found
        return None


@pytest.fixture
def two_cases(tmp_path: Path) -> tuple[Path, str]:
    root = tmp_path / "repo"
    with Repository.init(root) as repo:
        for name in ("model.pt", "MODEL.PT"):
            (root / name).write_bytes(name.encode())
        return root, str(repo.commit([root], options=CommitOptions(opaque=True)).id)


def test_two_cases_are_two_files_where_they_are(
    two_cases: tuple[Path, str], tmp_path: Path
) -> None:
    root, id_ = two_cases
    with Repository.open(root) as repo:
        repo.checkout(id_, to=tmp_path / "out")
    assert (tmp_path / "out/model.pt").read_bytes() == b"model.pt"
    assert (tmp_path / "out/MODEL.PT").read_bytes() == b"MODEL.PT"


def test_neither_is_lost_where_they_are_one(two_cases: tuple[Path, str], tmp_path: Path) -> None:
    root, id_ = two_cases
    with Repository.open(root, fs=FoldingFS()) as repo:
        with pytest.raises(WouldOverwrite, match="one name on this file system"):
            repo.checkout(id_, to=tmp_path / "out")
        repo.checkout(id_, path=["MODEL.PT"], to=tmp_path / "single")
    assert (tmp_path / "single").read_bytes() == b"MODEL.PT"


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "CON", "x.", ".mvc/x", "a\nb", "y" * 256])
def test_python_states_have_the_same_names(tmp_path: Path, name: str) -> None:
    import numpy as np

    with Repository.init(tmp_path) as repo, pytest.raises(InvalidName):
        repo.commit({"w": np.ones(3)}, path=name)
