"""Forged plans of checkouts: nothing outside the root of a checkout is touched by one."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.repo.commit import request
from tests.cli.program import Mvc, spawn

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
    line = json.dumps({"then": {}, "version": "", **fields}).encode() + b"\n"
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
def test_a_forged_plan_that_names_a_folder_touches_nothing(
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
    forge(mvc.folder, plan(steps=[[name, "", *facts]], checks=[""]))
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


# -- temporary files -----------------------------------------------------------------------


def content_of(mvc: Mvc) -> str:
    """How a plan says the content of model.safetensors."""
    with Repository.open(mvc.folder) as repo:
        return repo.manifest().by_path["model.safetensors"].content_id.hex()


def linked(path: Path, outside: Path) -> None:
    path.symlink_to(outside / TEMPORARY)


def larger(path: Path, outside: Path) -> None:
    path.write_bytes(b"a")
    os.truncate(path, 1 << 40)


FORGERIES = {
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "link": linked,
    "of another size": larger,
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("known", [True, False], ids=["content of a version", "unknown content"])
@pytest.mark.parametrize("version", [{}, {"version": "HEAD"}, {"version": "00" * 32}], ids=str)
def test_a_temporary_file_that_no_checkout_wrote_is_neither_read_nor_deleted(
    mvc: Mvc,
    outside: Path,
    forgery,
    known: bool,
    version: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = mvc.commit(1.0)
    model = mvc.folder / "model.safetensors"
    (outside / TEMPORARY).write_bytes(model.read_bytes())
    forgery(mvc.folder / TEMPORARY, outside)
    check = content_of(mvc) if known else "00" * 32
    said = {key: head if text == "HEAD" else text for key, text in version.items()}
    forge(mvc.folder, plan(steps=[["new", TEMPORARY]], checks=[check], **said))
    kept, opened, read = tree(outside), [], FileSystem.open_read

    def note(fs: FileSystem, path: Path, **options: bool):
        opened.append(path.name)
        if path.name == TEMPORARY:
            raise AssertionError("the temporary file is opened")
        return read(fs, path, **options)

    monkeypatch.setattr(FileSystem, "open_read", note)
    lines = mvc("log").err.splitlines()
    assert opened and TEMPORARY not in opened
    assert len(lines) == 1 and "new not replaced" in lines[0] and TEMPORARY in lines[0]
    assert os.path.lexists(mvc.folder / TEMPORARY) and tree(outside) == kept
    assert not os.listdir(mvc.folder / ".mvc/checkouts") and mvc("log").err == ""


def test_a_terabyte_of_zeros_under_a_plan_holds_no_command_up(mvc: Mvc) -> None:
    mvc.commit(1.0)
    larger(mvc.folder / TEMPORARY, mvc.folder)
    forge(mvc.folder, plan(steps=[["new", TEMPORARY]], checks=["00" * 32]))
    assert spawn("log", cwd=mvc.folder).returncode == 0
    assert (mvc.folder / TEMPORARY).stat().st_size == 1 << 40


def test_one_temporary_file_is_not_hashed_for_many_steps(
    mvc: Mvc, monkeypatch: pytest.MonkeyPatch
) -> None:
    mvc.commit(1.0)
    data = (mvc.folder / "model.safetensors").read_bytes()
    (mvc.folder / TEMPORARY).write_bytes(data)
    count, steps = 20_000, [[f"a{i}", TEMPORARY] for i in range(20_000)]
    forge(mvc.folder, plan(steps=steps, checks=[content_of(mvc)] * count))
    opened, read = [], FileSystem.open_read

    def note(fs: FileSystem, path: Path, **options: bool):
        opened.append(path.name)
        assert opened.count(TEMPORARY) < 2
        return read(fs, path, **options)

    monkeypatch.setattr(FileSystem, "open_read", note)
    mvc("log")
    assert not list(mvc.folder.glob("a*"))


def test_a_temporary_file_beyond_a_link_is_not_read(
    mvc: Mvc, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mvc.commit(1.0)
    (outside / TEMPORARY).write_bytes((mvc.folder / "model.safetensors").read_bytes())
    (mvc.folder / "a").mkdir()
    (mvc.folder / "a/link").symlink_to(outside)
    name = "a/link/new"
    forge(mvc.folder, plan(steps=[[name, TEMPORARY]], checks=[content_of(mvc)]))
    kept, opened, read = tree(outside), [], FileSystem.open_read

    def note(fs: FileSystem, path: Path, **options: bool):
        opened.append(path.name)
        return read(fs, path, **options)

    monkeypatch.setattr(FileSystem, "open_read", note)
    mvc("log")
    assert opened and TEMPORARY not in opened and tree(outside) == kept


FOREIGN = [
    ".git/config", "sub/.GIT/config", "git~1/config", ".hg/hgrc", ".svn/hooks/start", ".sl/config",
    ".jj/repo/config", ".bzr/branch", "_darcs/prefs/defaults", ".pijul/config", "CVS/Root",
]  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("version", [True, False], ids=["version named", "no version"])
def test_a_plan_writes_and_deletes_nothing_of_another_program(
    mvc: Mvc, name: str, version: bool
) -> None:
    said = {"version": mvc.commit(1.0)} if version else {}
    if not version:
        mvc.commit(1.0)
    target = mvc.folder / name
    target.parent.mkdir(parents=True)
    target.write_text("own")
    data = (mvc.folder / "model.safetensors").read_bytes()
    (target.parent / TEMPORARY).write_bytes(data)
    facts = before(target)
    for steps, check in (([name, TEMPORARY, *facts], content_of(mvc)), ([name, "", *facts], "")):
        forge(mvc.folder, plan(steps=[steps], checks=[check], **said))
        mvc("log")
        assert target.read_text() == "own"


@pytest.mark.parametrize("said", [{}, {"version": "HEAD"}], ids=["no version", "version named"])
def test_an_honest_plan_of_these_tests_is_carried_out(mvc: Mvc, said: dict[str, str]) -> None:
    """What the others forge fails for what is forged, and not for the form of the plan."""
    head = mvc.commit(1.0)
    said = dict.fromkeys(said, head)
    model = mvc.folder / "model.safetensors"
    data, check = model.read_bytes(), content_of(mvc)
    model.rename(mvc.folder / TEMPORARY)
    steps = [["model.safetensors", TEMPORARY]]
    forge(mvc.folder, plan(steps=steps, checks=[check], **said))
    assert "completed an interrupted checkout" in mvc("log").err
    assert model.read_bytes() == data
