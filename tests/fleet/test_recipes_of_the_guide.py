"""The unit file and the container of docs/guides/fleet.md say what this mvc understands."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mvc.cli.main import run
from mvc.remote.scopes import parse_scopes

PAGE = Path(__file__).parents[2] / "docs/guides/fleet.md"


def block(language: str) -> str:
    """The page's only block of this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return str(found)


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(block("ini").replace("\\\n", ""))
    return parsed


def test_the_unit_runs_the_command_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its words are understood: what is in the way is that nothing answers there."""
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert program.endswith("/mvc")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("mvc_" + "x" * 43)
    (tmp_path / "token").chmod(0o600)
    places = {
        "/var/lib/mvc-node/net.safetensors": str(tmp_path / "net.safetensors"),
        "token_file=/etc/mvc/token": f"token_file={tmp_path / 'token'}",
        "https://models.example.org/net": "http://127.0.0.1:1/net",
        "%l": "node7",
    }
    assert run([*(places.get(word, word) for word in words), "--once"]) == 3
    assert "does not answer: connection refused" in capsys.readouterr().err


def test_the_unit_may_write_where_it_writes() -> None:
    service = unit()["Service"]
    state = service["StateDirectory"]
    assert f"/var/lib/{state}/" in service["ExecStart"]
    assert service["ReadWritePaths"] == f"/var/lib/{state}"
    assert (service["ProtectSystem"], service["Restart"]) == ("strict", "always")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "mvc-follow.service"
    text = block("ini").replace("/opt/mvc/bin/mvc", shutil.which("true") or "/bin/true")
    file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if file.name in line]
    assert not [line for line in ours if "Unknown" in line or "Failed to parse" in line], ours


def test_the_container_runs_the_command() -> None:
    text = (PAGE.parents[2] / ".github/container/Dockerfile").read_text()
    assert 'ENTRYPOINT ["mvc"]' in text and "pip install" in text and "HEALTHCHECK" in text
    users = re.findall(r"^USER (.*)$", text, re.M)
    assert users and "root" not in users
    runs = re.findall(r"^docker run (?:.*\\\n)*.* mvc (\S+) ", PAGE.read_text(), re.M)
    assert runs == ["follow", "serve"]


def test_the_scopes_of_a_node_are_scopes() -> None:
    (text,) = re.findall(r'--scope "(.*?)"', PAGE.read_text())
    assert parse_scopes([text.replace("$n", "7")]) == (
        "net:read",
        "net:push:heads/nodes/7/*",
        "net:deploy:nodes/7/*",
    )
