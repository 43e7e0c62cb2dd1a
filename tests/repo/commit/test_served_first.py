"""``CommitOptions(before=...)``: a version is served before it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.errors import NothingToCommit, StateForgotten, UnknownRevision, WrongUsage
from mvc.ids import CommitId

STATE = {"w": np.arange(6, dtype=np.float32)}


def test_the_id_and_the_time_are_known_before(tmp_path: Path) -> None:
    told: list[Any] = []
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit({"v": np.zeros(3)}, path="kept.safetensors")

        def serve(commit: Any, time_ns: int) -> None:
            with pytest.raises(UnknownRevision):
                repo.find(str(commit))
            told.append((commit, time_ns))

        made = repo.commit(
            STATE, deploy="prod", message="m", metrics={"loss": 1.5}, params={"lr": 0.1},
            attachments={"note": b"text", "norms": {"w": np.ones(2)}},
            options=mvc.CommitOptions(before=serve),
        )  # fmt: skip
        assert made.deployment is not None
        assert told == [(made.id, made.deployment.time_ns)]
        assert repo.live("prod", at=told[0][1]).commit == made.id
        path = tmp_path / "file.npy"
        np.save(path, STATE["w"])
        file = repo.commit(
            "file.npy", files=mvc.FileOptions(cwd=tmp_path), options=mvc.CommitOptions(before=serve)
        )
        assert told[1][0] == file.id and file.deployment is None


def test_an_error_of_it_stores_nothing(tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no server")

    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(OSError, match="no server"):
            repo.commit(STATE, deploy="prod", options=mvc.CommitOptions(before=fail))
        assert not list(repo.refs()) and not list(repo.deployments())


def test_what_commit_reduces_is_refused(tmp_path: Path) -> None:
    told: list[Any] = []
    options = mvc.CommitOptions(before=lambda *words: told.append(words))
    with mvc.Repository.init(tmp_path) as repo:
        for pipeline in ("xor | lsb:20", "lc:x=2"):
            with pytest.raises(WrongUsage, match="stored unchanged"):
                repo.commit(STATE, pipeline=pipeline, options=options)
    assert not told


def test_what_is_refused_is_not_served(tmp_path: Path) -> None:
    told: list[Any] = []
    options = mvc.CommitOptions(before=lambda *words: told.append(words), time=10**18)
    unknown = CommitId(bytes(32))
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(STATE, options=mvc.CommitOptions(time=10**18))
        repo.commit({"w": STATE["w"] + 1})
        repo.commit(STATE)
        repo.storage.forget(first.id)
        for wrong, given in (
            (StateForgotten, {"detached": True}),
            (NothingToCommit, {"allow_empty": False}),
            (UnknownRevision, {"parents": [unknown]}),
            (UnknownRevision, {"needs": [unknown]}),
            (WrongUsage, {"at": 10**18}),
        ):
            with pytest.raises(wrong):
                repo.commit(STATE, deploy="prod", options=replace(options, **given))
    assert not told
