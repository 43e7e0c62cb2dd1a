from __future__ import annotations

from pathlib import Path

import pytest

from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.remote.credentials import read_token
from mvc.remote.remotes import Remote
from mvc.repo.config import load_config

TOKEN = "mvc_" + "k" * 43


def read(remote: Remote) -> str | None:
    return read_token(FileSystem(), remote)


def test_a_token_comes_from_the_variable_with_the_name_of_the_remote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MVC_TOKEN_LAB_2", TOKEN)
    assert read(Remote("https://h/x", "lab-2")) == TOKEN
    assert read(Remote("https://h/x", "origin")) is None
    assert read(Remote("https://h/x")) is None


def test_a_token_comes_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    assert read(Remote("https://h/x", "origin", token_file=str(file))) == TOKEN


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o640)
    with pytest.raises(InvalidConfig, match="others can read") as caught:
        read(Remote("https://h/x", "origin", token_file=str(file)))
    assert TOKEN not in str(caught.value) and caught.value.hint == f"chmod 600 {file}"


def test_what_is_no_token_is_sent_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "id_rsa"
    file.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret")
    file.chmod(0o600)
    with pytest.raises(InvalidConfig, match="is no token") as caught:
        read(Remote("https://h/x", "origin", token_file=str(file)))
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no file"):
        read(Remote("https://h/x", "origin", token_file=str(tmp_path / "none")))


def test_variables_of_remotes_are_no_unknown_settings() -> None:
    load_config(FileSystem(), None, None, {"MVC_TOKEN_ORIGIN": TOKEN, "MVC_SSH": "ssh -v"}, {})
    with pytest.raises(InvalidConfig, match="MVC_TOKENS"):
        load_config(FileSystem(), None, None, {"MVC_TOKENS": TOKEN}, {})
