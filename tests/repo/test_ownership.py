"""Repositories of other users are refused, unless the user's own settings name them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.api import Repository, heal
from mvc.cli.catalog import COMMANDS
from mvc.cli.main import run
from mvc.errors import DubiousOwnership, InvalidConfig
from tests.cli.program import Mvc
from tests.repo.working import write_model

OTHER = os.geteuid() + 54_321
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

WITHOUT = {
    "init",
    "config",
    "completion",
    "pipeline",
    "train-distributed",
    "probe",
    "help",
    "restore",
    "serve",
}
"""Commands that need no repository."""

ARGUMENTS = {
    "annotate": ["HEAD", "--note", "good"], "merge": ["HEAD"], "average": ["HEAD", "HEAD"],
    "deploy": ["HEAD", "production"], "forget": ["HEAD"],
    "import": ["."], "repack": ["-n"], "retract": ["production"], "retrain": ["HEAD"],
    "rollback": ["production"], "switch": ["main"], "commit": ["model.safetensors"],
    "identify": ["model.safetensors"], "clone": ["..", "../../copy"], "backup": ["../../copy"],
    "follow": ["..", "production", "-o", "followed.safetensors", "--once"],
}  # fmt: skip
ARGUMENTS["serve"] = [".."]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not in pytest's own folder: each session of pytest that begins closes it to other users."""
    with tempfile.TemporaryDirectory(prefix="mvc-test-") as folder:
        yield Path(folder)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository; the user's settings are an empty folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    with Repository.init(tmp_path / "theirs") as repo:
        write_model(repo.root / "model.safetensors")
        repo.commit(repo.root / "model.safetensors")
    (tmp_path / "theirs/sub").mkdir()
    return tmp_path / "theirs"


@pytest.fixture
def other(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, seen by another user."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    return root


def allow(value: str, tmp_path: Path) -> None:
    (tmp_path / "home/mvc").mkdir(parents=True, exist_ok=True)
    (tmp_path / "home/mvc/config.yaml").write_text(f"safe:\n  directory: '{value}'\n")


def test_opening_and_discovery_refuse(other: Path) -> None:
    for use in (
        lambda: Repository.open(other),
        lambda: Repository.open(other / "sub"),
        lambda: Repository.open_or_init(other),
        lambda: heal(other),
    ):
        with pytest.raises(DubiousOwnership, match="belongs to") as caught:
            use()
        assert f"mvc config --user safe.directory {other}" in str(caught.value.hint)


def test_a_backup_of_another_user_is_refused(
    root: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    for source in (root, root / ".mvc"):
        with pytest.raises(DubiousOwnership):
            repo.storage.repair(other=source)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT))
def test_every_command_refuses(
    other: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(other / "sub")
    before = sorted(p.name for p in (other / ".mvc").iterdir())
    err = Mvc(other, capsys)(name, *ARGUMENTS.get(name, []), code=3).err
    assert err.startswith("mvc: dubious ownership: ") and len(err.splitlines()) == 2
    assert sorted(p.name for p in (other / ".mvc").iterdir()) == before


@NEEDS_ROOT
def test_the_hint_is_the_command_that_allows_it(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    allow("/srv/a", tmp_path)
    monkeypatch.chdir(other)
    mvc = Mvc(other, capsys)
    hint = mvc("log", code=3).err.partition("if you trust it: mvc ")[2]
    mvc(*shlex.split(hint))
    assert (tmp_path / "home/mvc/config.yaml").read_text().split()[-1] == f"/srv/a:{other}"
    mvc("log")


@NEEDS_ROOT
@pytest.mark.parametrize("value", ["*", "{root}", "/nowhere:{root}", "{root}/sub/.."])
def test_the_users_file_allows(other: Path, tmp_path: Path, value: str) -> None:
    allow(value.format(root=other), tmp_path)
    Repository.open(other / "sub").close()


@NEEDS_ROOT
@pytest.mark.parametrize("value", ["", "/", "theirs", ".", "{root}/sub", "{root}x"])
def test_other_values_allow_nothing(
    other: Path, tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(other.parent)
    allow(value.format(root=other), tmp_path)
    with pytest.raises(DubiousOwnership):
        Repository.open(other)


def test_the_environment_allows(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MVC_SAFE_DIRECTORY", str(other))
    Repository.open(other).close()


def test_a_repository_cannot_allow_itself(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    err = Mvc(root, capsys)("config", "safe.directory", "*", code=3).err
    assert "mvc config --user safe.directory" in err
    (root / ".mvc/config.yaml").write_text("safe: {directory: '*'}")
    with pytest.raises(InvalidConfig, match=r"safe\.directory is a personal setting"):
        Repository.open(root)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(DubiousOwnership):
        Repository.open(root)


def test_root_behind_sudo_is_the_user_who_called(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = root.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(owner))
    Repository.open(root).close()
    if owner:
        for wrong in ("", "-1", "0", str(owner + 1), "9" * 40, "\u0663"):
            monkeypatch.setenv("SUDO_UID", wrong)
            with pytest.raises(DubiousOwnership):
                Repository.open(root)


def test_only_root_may_name_the_user_who_called(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", str(other.stat().st_uid))
    with pytest.raises(DubiousOwnership):
        Repository.open(other)


def give_away(folder: Path, owner: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)


@NEEDS_ROOT
def test_a_folder_that_was_given_away(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(root / ".mvc", OTHER)
    with pytest.raises(DubiousOwnership, match=f"belongs to uid-{OTHER}, and you are"):
        Repository.open(root)
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    Repository.open(root).close()


@NEEDS_ROOT
def test_a_link_of_another_user_to_an_own_repository(root: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/.mvc").symlink_to(root / ".mvc")
    os.chown(tmp_path / "shared/.mvc", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(DubiousOwnership):
        Repository.open(tmp_path / "shared")


def as_other(folder: Path, *arguments: str) -> tuple[int, str]:
    """A command line of a process of another user; its exit code and errors.

    The process is forked, because the interpreter may lie where no other user may go. So every
    module that it needs must have been loaded before.
    """
    errors = folder.parent / "errors"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            sys.stderr = errors.open("w")
            os.environ["XDG_CONFIG_HOME"] = str(folder.parent / "mine")
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            os.chdir(folder)
            code = run(list(arguments))
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), errors.read_text()


def open_to_all(folder: Path) -> None:
    for place in (folder, *folder.parents):
        if not place.stat().st_mode & 1:
            os.chmod(place, place.stat().st_mode | 0o055)


@NEEDS_ROOT
def test_processes_of_two_users(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real other user meets the repository above the working folder, and has its own."""
    open_to_all(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, OTHER, OTHER)
    allow("/nowhere", tmp_path)
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    for line in (["init"], ["status"], ["config", "--user", "user.name", "x"]):
        Mvc(own, capsys)(*line)
    monkeypatch.chdir(root)
    Mvc(root, capsys)("log")
    with monkeypatch.context() as patched, pytest.raises(DubiousOwnership):
        patched.setattr(os, "geteuid", lambda: OTHER)
        Repository.open(own)

    code, errors = as_other(root, "log")
    assert code == 3 and "dubious ownership" in errors
    assert as_other(mine, "config", "--user", "safe.directory", str(root)) == (0, "")
    assert as_other(root, "log") == (0, "")
    assert as_other(mine, "init")[0] == 0
    assert as_other(mine, "status")[0] == 0
    with pytest.raises(DubiousOwnership):
        Repository.open(mine)


@NEEDS_ROOT
def test_a_repository_of_ones_own_below_a_strangers(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read of the repository above: nobody but root may."""
    (root / "sub/deep").mkdir()
    give_away(root / "sub", OTHER)
    monkeypatch.chdir(root / "sub/deep")
    for line in (["init"], ["status"], ["config"]):
        Mvc(root / "sub/deep", capsys)(*line)
    shutil.rmtree(root / "sub/deep/.mvc")
    open_to_all(root)
    write_model(root / "sub/deep/model.safetensors")
    give_away(root / "sub", OTHER)
    os.chmod(root / ".mvc", 0)

    code, errors = as_other(root, "init")
    assert code == 3 and "dubious ownership" in errors
    assert as_other(root / "sub", "init", "deep")[0] == 0
    for line in ("status", "config user.name", "commit model.safetensors", "log", "gc", "fsck"):
        code, errors = as_other(root / "sub/deep", *line.split())
        assert code == 0, errors
    code, errors = as_other(root / "sub", "log")
    assert code == 3 and "dubious ownership" in errors


WRITABLE, STRANGERS = "is writable by everyone", f"belongs to uid-{OTHER}"


@pytest.mark.parametrize(
    ("problem", "link"),
    [(WRITABLE, False), (WRITABLE, True), pytest.param(STRANGERS, False, marks=NEEDS_ROOT),
     pytest.param(STRANGERS, True, marks=NEEDS_ROOT)],
)  # fmt: skip
def test_settings_that_others_may_have_written_are_not_believed(
    problem: str, link: bool, root: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    allow("*", tmp_path)
    file = config = tmp_path / "home/mvc/config.yaml"
    if link:
        file = config.rename(tmp_path / "elsewhere")
        config.symlink_to(file)
    before = file.read_bytes()
    if problem == WRITABLE:
        file.chmod(0o666)
    else:
        os.chown(file, OTHER, OTHER)
    monkeypatch.chdir(root)
    for line in (
        ["log"], ["config"], ["config", "--user", "user.name", "me"],
        ["config", "--user", "--unset", "safe.directory"],
    ):  # fmt: skip
        first, hint = Mvc(root, capsys)(*line, code=3).err.splitlines()
        assert first == f"mvc: {config} is ignored as unsafe: it {problem}"
        assert hint.startswith("hint: ")
    assert file.read_bytes() == before
    monkeypatch.setattr(os, "geteuid", lambda: OTHER + 1)
    with pytest.raises(InvalidConfig, match="is ignored as unsafe"):
        Repository.open(root)


@NEEDS_ROOT
def test_settings_that_root_wrote_for_a_user_count(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow("*", tmp_path)
    (tmp_path / "home/mvc/config.yaml").chmod(0o664)  # a group of one's own, as with umask 002
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    Repository.open(root).close()
