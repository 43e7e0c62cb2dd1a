from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mvc.api import Repository
from mvc.errors import MvcError, RemoteRefused, RemoteUnreachable, WrongUsage
from mvc.remote.remotes import Remote
from mvc.remote.transports import ssh
from mvc.remote.transports.ssh import Address


def program(folder: Path, text: str) -> str:
    """A program that stands in for ssh."""
    path = folder / "ssh"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def failure(monkeypatch: pytest.MonkeyPatch, command: str) -> MvcError:
    monkeypatch.setenv("MVC_SSH", command)
    transport = ssh.open_transport(Remote("ssh://lab/srv/models"))
    try:
        with pytest.raises(MvcError) as caught:
            transport.head()
    finally:
        transport.close()
    return caught.value


def test_the_command_is_words_for_ssh_and_one_quoted_text_for_the_other_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MVC_SSH", "/opt/ssh -i 'my key'")
    remote = Remote("ssh://anna@lab:2222/srv/my%20models;reboot", program="/opt/my mvc")
    command = Address.of(remote).command(["serve", "--stdio", "--", Address.of(remote).path])
    assert command[:3] == ["/opt/ssh", "-i", "my key"]
    assert command[-4:] == [
        "-p",
        "2222",
        "anna@lab",
        "'/opt/my mvc' serve --stdio -- '/srv/my models;reboot'",
    ]
    assert "ServerAliveInterval=15" in command
    assert Address.of(remote).by_hand == "ssh -p 2222 anna@lab"


def test_a_path_in_the_home_folder() -> None:
    assert Address.of(Remote("ssh://lab/~/models")).path == "~/models"


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=id/x",
        "ssh://-lroot@lab/x",
        "ssh://lab;id/x",
        "ssh:///x",
        "ssh://lab/",
        "ssh://lab",
        "ssh://la b/x",
        "ssh://$(id)/x",
    ],
)
def test_what_ssh_could_take_for_an_option_or_a_command_is_refused(url: str) -> None:
    with pytest.raises(WrongUsage):
        Address.of(Remote(url))


@pytest.mark.parametrize(
    ("said", "code", "kind", "words"),
    [
        ("Host key verification failed.", 255, RemoteUnreachable, "host key is unknown"),
        ("bash: mvc: command not found", 127, RemoteRefused, "the host has no command mvc"),
        ("Permission denied (publickey).", 255, RemoteRefused, "ssh authentication failed"),
        ("ssh: Could not resolve hostname lab", 255, RemoteUnreachable, "Could not resolve"),
        ("", 0, RemoteUnreachable, "the connection ended too early"),
    ],
)
def test_each_way_in_which_ssh_fails_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, kind: type, words: str
) -> None:
    fake = program(tmp_path, f"import sys; print({said!r}, file=sys.stderr); sys.exit({code})")
    error = failure(monkeypatch, fake)
    assert type(error) is kind
    assert words in error.message and "\n" not in error.message
    assert error.hint


def test_an_ssh_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failure(monkeypatch, "/nowhere/ssh")
    assert isinstance(error, RemoteUnreachable)
    assert "cannot run /nowhere/ssh: no such file" in error.message


def test_what_the_other_end_says_is_escaped_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = program(
        tmp_path, "import sys; sys.stderr.write('\\x1b[2J' + 'a' * 100_000); sys.exit(255)"
    )
    error = failure(monkeypatch, fake)
    assert "\x1b" not in error.message and len(error.message) < 1000


def test_what_is_no_protocol_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = program(tmp_path, "print('Welcome to lab!', flush=True); import time; time.sleep(0.2)")
    error = failure(monkeypatch, fake)
    assert isinstance(error, RemoteRefused) and "does not come from mvc" in error.message


def test_a_command_runs_at_the_other_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MVC_SSH", program(tmp_path, "import sys; print(sys.argv[-1]); sys.exit(4)"))
    assert ssh.run(Remote("ssh://lab/srv/x"), ["fsck", "--full"]) == 4
    assert capfd.readouterr().out == "mvc -C /srv/x fsck --full\n"
    monkeypatch.setenv("MVC_SSH", program(tmp_path, "import sys; sys.exit(255)"))
    with pytest.raises(RemoteUnreachable):
        ssh.run(Remote("ssh://lab/srv/x"), ["gc"])


def test_no_process_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    fake = program(
        tmp_path,
        f"import os; open({str(pids)!r}, 'a').write(f'{{os.getpid()}} '); "
        "os.read(0, 100); os.read(0, 1)",
    )
    monkeypatch.setenv("MVC_SSH", fake)
    transport = ssh.open_transport(Remote("ssh://lab/srv/x"))
    with pytest.raises(RemoteUnreachable):
        transport.head()
    transport.close()
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_call_that_broke_is_not_kept_while_the_transport_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Repository.init(tmp_path / "served") as repo:
        repo.commit({"w": np.zeros(3)}, deploy="prod")
    pids = tmp_path / "pids"
    words = [sys.executable, "-P", "-m", "mvc", "serve", "--stdio", "--", str(repo.root)]
    fake = program(
        tmp_path,
        f"import os; open({str(pids)!r}, 'a').write(f'{{os.getpid()}} '); "
        f"os.execv({words[0]!r}, {words!r})",
    )
    monkeypatch.setenv("MVC_SSH", fake)
    with closing(ssh.open_transport(Remote("ssh://lab/srv/x"))) as transport:
        for _ in range(3):
            transport.live("prod")
            *broke, last = map(int, pids.read_text().split())
            os.kill(last, signal.SIGKILL)
        with pytest.raises(ProcessLookupError):
            os.kill(broke[0], 0)


def test_a_process_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    fake = program(
        tmp_path,
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(pid)!r}, 'w').write(str(os.getpid())); os.write(1, b'no'); time.sleep(60)",
    )
    monkeypatch.setenv("MVC_SSH", fake)
    monkeypatch.setattr("mvc.remote.transports.waiting.PATIENCE", 1.0)
    transport = ssh.open_transport(Remote("ssh://lab/srv/x"))
    with pytest.raises(RemoteUnreachable):
        transport.head()
    transport.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
