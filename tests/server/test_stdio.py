"""``mvc serve --stdio`` behind a program that stands in for ssh."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import RemoteRefused, RemoteUnreachable
from mvc.remote.transport import Transport, Wanted
from mvc.remote.transports.opening import open_transport
from tests.remote.kit import ssh
from tests.server.moving import content, move, served_folder


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the program."""
    folder = tmp_path / "bin"
    for name, value in ssh.install(folder).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def models(tmp_path: Path, bin_: Path) -> Path:
    return served_folder(tmp_path / "served dir") / "models"


def opened(path: Path) -> Transport:
    return open_transport(f"ssh://lab{path}".replace(" ", "%20"))


def test_what_is_pushed_through_ssh_comes_back(
    models: Path, source: Repository, bin_: Path, tmp_path: Path
) -> None:
    transport = opened(models)
    assert move(source, transport, "heads/main") == ("heads/main",)
    with Repository.init(tmp_path / "copy") as copy:
        move(transport, copy, "heads/main")
        assert content(copy) == content(source)
    transport.close()
    (call,) = ssh.calls(bin_)  # one connection for all
    assert call["arguments"][-1] == f"mvc serve --stdio -- '{models}'"


def test_a_folder_without_a_repository_is_said_to_be_one(models: Path) -> None:
    with pytest.raises(RemoteRefused, match=r"there is no repository in .*served dir"):
        opened(models.parent).head()


def test_a_repository_in_the_home_folder(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(models.parent))
    assert open_transport("ssh://lab/~/models").head().bare


def test_a_forced_command_narrows_the_account(
    models: Path, source: Repository, bin_: Path, tmp_path: Path
) -> None:
    forced = bin_ / "mvc"
    command = f"serve --stdio --scope 'push:heads/nodes/7/*' '{models}'"
    forced.write_text(forced.read_text().replace('"$@"', command))
    transport = opened(models)
    assert transport.head().scopes == ("push:heads/nodes/7/*",)
    assert move(source, transport, "heads/nodes/7/main") == ("heads/nodes/7/main",)
    with pytest.raises(RemoteRefused, match="needs the scope push:heads/main"):
        move(source, transport, "heads/main")
    with pytest.raises(RemoteRefused, match="needs the scope read"):
        next(iter(transport.send(Wanted())))
    transport.close()


@pytest.mark.parametrize("fault", [{"up": 700}, {"up": 9000}, {"down": 100}, {"down": 9000}])
def test_a_call_that_is_cut_is_made_again(
    models: Path, source: Repository, bin_: Path, tmp_path: Path, fault: dict[str, int]
) -> None:
    def moved(source: Repository | Path, target: Repository | Path) -> None:
        ssh.cut_next(bin_, **fault)
        for _ in range(2):  # the first call is cut before anything was reached, or goes on
            ends = [opened(e) if isinstance(e, Path) else e for e in (source, target)]
            with suppress(RemoteUnreachable):
                move(ends[0], ends[1], "heads/main")
                return
        raise AssertionError("a call that was not cut failed")

    moved(source, models)
    with Repository.init(tmp_path / "copy") as copy:
        moved(models, copy)
        assert content(copy) == content(source)
    assert not (bin_ / "faults").exists()
