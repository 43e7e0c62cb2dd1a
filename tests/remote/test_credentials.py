from __future__ import annotations

import re
from pathlib import Path

import pytest

from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.remote.remotes import Remote
from mvc.remote.transports.credentials import read_token, variable_of
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


_LIKE = [
    "my_models.lab", "my-.models.lab", "my.-models.lab", "my.models.lab", "my-models.lab",
    "my_.lab",
    "my-_models.lab", "my_-models.lab", "my--models.lab", "my__models.lab", "my---models.lab",
    "gpu.lab:80", "gpu.lab.80", "10.0.1:5", "10.0.1.5", "10.0.0.1:80", "10.0.0.1.80", "gpu:80",
    "[fe80::1%251]", "[fe80::1:251]", "[::ffff:1.2.3.4]", "[::ffff:1:2:3:4]", "[::2]:80",
    "[::2:80]", "[1::]:80", "stra\u00dfe.lab", "strasse.lab", "\u017ftrasse.lab",
]  # fmt: skip


def test_no_two_hosts_share_a_variable() -> None:
    hosts = [*_LIKE, *(host.replace("my", "7") for host in _LIKE if "my" in host)]
    variables = {variable_of(Remote(f"https://{host}/x", "origin")) for host in hosts}
    assert len(variables) == len(hosts)
    assert all(re.fullmatch("MVC_TOKEN_AT_[A-Z0-9_]+", name) for name in variables)


def test_a_name_on_this_machine_reaches_no_token_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MVC_TOKEN_AT_GPU_LAB", TOKEN)
    for name in ("at-gpu-lab", "AT_GPU_LAB", "at.gpu.lab"):
        assert read(Remote("http://127.0.0.1:1/x", name)) is None


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_an_empty_variable_counts_as_none(
    tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    for variable, url in (("ORIGIN", "http://localhost/x"), ("AT_GPU_LAB", "https://gpu.lab/x")):
        monkeypatch.setenv(f"MVC_TOKEN_{variable}", value)
        assert read(Remote(url, "origin")) is None
        assert read(Remote(url, "origin", token_file=str(file))) == TOKEN


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
    with pytest.raises(InvalidConfig, match="other users can read") as caught:
        read(Remote("https://h/x", "origin", token_file=str(file)))
    assert TOKEN not in str(caught.value) and caught.value.hint == f"chmod 600 {file}"


def test_what_is_no_token_is_sent_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "id_rsa"
    file.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret")
    file.chmod(0o600)
    with pytest.raises(InvalidConfig, match="does not contain a token") as caught:
        read(Remote("https://h/x", "origin", token_file=str(file)))
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"token file .* does not exist"):
        read(Remote("https://h/x", "origin", token_file=str(tmp_path / "none")))


def test_variables_of_remotes_are_no_unknown_settings() -> None:
    load_config(FileSystem(), None, None, {"MVC_TOKEN_ORIGIN": TOKEN, "MVC_SSH": "ssh -v"}, {})
    with pytest.raises(InvalidConfig, match="MVC_TOKENS"):
        load_config(FileSystem(), None, None, {"MVC_TOKENS": TOKEN}, {})
