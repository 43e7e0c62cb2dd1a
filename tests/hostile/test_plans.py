"""Forged plans of checkouts: nothing outside the root of a checkout is touched by one."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.repo.commit import request
from tests.cli.program import Mvc

COMMANDS = [
    ["log"],
    ["status"],
    ["show"],
    ["ls"],
    ["fsck"],
    ["identify", "model.safetensors"],
    ["gc"],
    ["checkout", "-f", "HEAD"],
]
NAME = "0123456789abcdef"
TEMPORARY = f".mvc-tmp-{NAME}"


def before(path: Path) -> list[int]:
    """What a plan says about a file that it replaces or deletes."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def plan(**fields: object) -> bytes:
    """A plan whose files are ready."""
    line = json.dumps(fields).encode() + b"\n"
    return line + b"ready %08x\n" % zlib.crc32(line)


def forge(root: Path, data: bytes) -> None:
    (root / ".mvc/checkouts").mkdir(exist_ok=True)
    (root / ".mvc/checkouts" / NAME).write_bytes(data)


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder: names, kinds, contents and times of change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        at = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (at.st_mode, at.st_ino, at.st_mtime_ns, data)
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    (folder / TEMPORARY).write_bytes(b"left by somebody else")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_forged_plan_of_an_earlier_version_touches_nothing(
    mvc: Mvc, outside: Path, command: list[str]
) -> None:
    mvc.commit(1.0)
    steps = [["secret", "", *before(outside / "secret")], ["new", TEMPORARY]]
    kept = tree(outside)
    forge(mvc.folder, plan(folder=str(outside), steps=steps, checks=["", "00"]))
    mvc(*command)
    assert tree(outside) == kept
    assert not (mvc.folder / ".mvc/checkouts" / NAME).exists()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_forged_pointer_touches_nothing(mvc: Mvc, outside: Path, command: list[str]) -> None:
    """The folder is right to the inode, but what it is to hold lies in ``.mvc`` only."""
    mvc.commit(1.0)
    at = outside.stat()
    steps = [["secret", "", *before(outside / "secret")], ["new", TEMPORARY]]
    kept = tree(outside)
    where = {"folder": str(outside), "device": at.st_dev, "inode": at.st_ino, "owner": at.st_uid}
    forge(mvc.folder, plan(**where, steps=steps, checks=["", "00"]))
    mvc(*command)
    assert tree(outside) == kept


@pytest.mark.parametrize(
    "name", ["../outside/secret", ".MVC/journal", "/secret", "a/../../outside/secret"]
)
def test_a_plan_in_place_stays_in_the_working_folder(mvc: Mvc, outside: Path, name: str) -> None:
    mvc.commit(1.0)
    kept = tree(outside)
    target = os.path.normpath(mvc.folder / name.replace(".MVC", ".mvc"))
    facts = before(Path(target)) if os.path.exists(target) else [6, 0, 0, 0]
    forge(mvc.folder, plan(folder="", steps=[[name, "", *facts]], checks=[""]))
    mvc("log")
    assert tree(outside) == kept
    assert (mvc.folder / ".mvc/journal").exists()


def test_a_version_cannot_bring_a_plan_along(
    mvc: Mvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a version has the name under which a folder's own plan would be looked for."""
    with Repository.open(mvc.folder) as repo, monkeypatch.context() as forging:
        forging.setattr(request, "is_temporary", lambda _: False)
        repo.commit({"w": np.ones(3)}, path=TEMPORARY)
    output = tmp_path / "out"
    mvc("checkout", "HEAD", "-o", f"{output}/", code=3)
    assert not output.exists() or not list(output.iterdir())
