"""Every stored code declares its feature; what is written names it, and a repair finds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.codecs.compressors import Zstd
from mvc.errors import UnsupportedFormat
from mvc.io.files import FileSystem
from mvc.lossy.weights import LossyStage
from mvc.model import manifest, statement, tensor
from mvc.pipelines import table
from mvc.store import format as store_format
from mvc.store.packs.records import TRANSFORMS
from mvc.store.recovery.decode import coding_features
from mvc.types import FIRST_RELEASE

DTYPE, FORMAT, STAGE = "dtype-x", "file-x", "stage-x"


def features(root: Path) -> frozenset[str]:
    return store_format.read_features(FileSystem(), root / ".mvc")


def test_every_code_has_one() -> None:
    stages = table.STAGES.values()
    stored = [s for s in stages if not s.decides and not issubclass(s, LossyStage)]
    declared = {row.feature for row in tensor.DTYPES.values()} | {*manifest.FORMATS.values()}
    declared |= {*TRANSFORMS.values()} | {stage.feature for stage in stored}
    declared |= {kind.feature for kind in statement.KINDS}
    assert declared == {FIRST_RELEASE, *store_format.KNOWN}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A release whose float32, states and zstd came later than the first one."""
    monkeypatch.setitem(tensor.DTYPES, "float32", replace(tensor.DTYPES["float32"], feature=DTYPE))
    monkeypatch.setitem(manifest.FORMATS, "state", FORMAT)
    monkeypatch.setattr(Zstd, "feature", STAGE)
    known = store_format.KNOWN | {DTYPE, FORMAT, STAGE}
    monkeypatch.setattr(store_format, "KNOWN", known)
    coding_features.cache_clear()
    yield monkeypatch
    coding_features.cache_clear()


def test_what_is_written_names_its_codes(tmp_path: Path, later: pytest.MonkeyPatch) -> None:
    with mvc.Repository.init(tmp_path / "a") as repo:
        repo.commit({"w": np.arange(5)}, pipeline="none")
        assert features(tmp_path / "a") == {FORMAT}
        repo.commit({"w": np.arange(50, dtype=np.float32)}, pipeline="none")
        assert features(tmp_path / "a") == {FORMAT, DTYPE}
        repo.commit({"w": np.arange(70, dtype=np.float32)}, pipeline="sub | zstd:1")
        assert features(tmp_path / "a") == {FORMAT, DTYPE, STAGE}
    with mvc.clone(tmp_path / "a", tmp_path / "b"):
        assert features(tmp_path / "b") == {FORMAT, DTYPE, STAGE}
    (tmp_path / "a/.mvc/format").write_bytes(b"lost")
    mvc.heal(tmp_path / "a")
    assert features(tmp_path / "a") == {FORMAT, DTYPE, STAGE}


@pytest.mark.parametrize("feature", [DTYPE, FORMAT, STAGE])
def test_an_unknown_code_is_never_published(
    tmp_path: Path, later: pytest.MonkeyPatch, feature: str
) -> None:
    later.setattr(store_format, "KNOWN", store_format.KNOWN - {feature})
    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(UnsupportedFormat, match=feature):
            repo.commit({"w": np.arange(50, dtype=np.float32)}, pipeline="sub | zstd:1")
        assert repo.head().commit is None
