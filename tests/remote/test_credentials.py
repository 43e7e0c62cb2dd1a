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


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("https://gpu.lab/x", "GPU_LAB"),
        ("https://GPU.lab:7433/x", "GPU_LAB_7433"),
        ("https://gpu-lab/x", "GPU__LAB"),
        ("https://gpu_lab/x", "GPU___LAB"),
        ("https://[2001:db8::1]/x", "_2001_DB8__1_"),
    ],
)
def test_a_token_comes_from_the_variable_of_the_host(
    url: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MVC_TOKEN_AT_{variable}", TOKEN)
    for name in ("origin", "lab", ""):
        assert read(Remote(url, name)) == TOKEN
        assert read(Remote("https://gpu.lab.evil.org/x", name)) is None


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:7433/x", "https://localhost/x", "http://[::1]:1/x", "unix:/run/s"]
)
def test_on_this_machine_a_token_goes_with_the_name_of_a_remote(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_TOKEN_LAB_2", TOKEN)
    assert read(Remote(url, "lab-2")) == TOKEN
    assert read(Remote(url, "origin")) is read(Remote(url)) is None


@pytest.mark.parametrize(
    "url",
    ["https://evil.org/x", "https://localhost.evil.org/x", "http://127.0.0.1.evil.org/x",
     "https://127.evil.org/x", "http://10.0.0.1/x", "https://127.0.0.1@evil.org/x"],
)  # fmt: skip
def test_the_token_of_a_name_leaves_this_machine_by_no_way(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone of any URL, or a copied repository, calls it origin."""
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", TOKEN)
    assert read(Remote(url, "origin")) is None


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
