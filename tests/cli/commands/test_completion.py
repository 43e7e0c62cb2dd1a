from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import ROOT, spawn


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(mvc, shell: str) -> None:
    assert "_MVC_COMPLETE" in mvc("completion", shell).out


def test_the_bash_script_is_valid(mvc) -> None:
    script = mvc("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def words(mvc, line: str) -> list[str]:
    env = {
        "_MVC_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
    }
    done = spawn(cwd=mvc.folder, env=env)
    assert done.stderr == ""
    return [entry.partition(",")[2] for entry in done.stdout.split()]


def test_completes_commands_revisions_and_targets(mvc) -> None:
    mvc.commit(1)
    mvc("tag", "v1")
    mvc("deploy", "HEAD", "prod")
    assert words(mvc, "mvc dep") == ["deploy"]
    assert words(mvc, "mvc deploy --list ") == ["prod"]
    assert words(mvc, "mvc rev") == []  # an alias for scripts
    assert words(mvc, "mvc help rev") == ["revisions"]
    assert words(mvc, "mvc help undo") == ["undo"]
    assert words(mvc, "mvc show ") == ["HEAD", "main", "prod", "v1"]
    assert words(mvc, "mvc log pro") == ["prod"]
    assert words(mvc, "mvc log --target p") == ["prod"]


def test_completes_remotes_and_their_refs(mvc) -> None:
    mvc.commit(1)
    mvc("init", "--bare", "server")
    mvc("remote", "add", "origin", "server")
    assert words(mvc, "mvc clone --states l") == ["last:1", "live"]
    mvc("push")
    assert words(mvc, "mvc fetch ") == words(mvc, "mvc gc --remote ") == ["origin"]
    assert words(mvc, "mvc push origin ") == ["main"]
    assert words(mvc, "mvc remote ") == ["add", "list", "remove", "show"]
    assert words(mvc, "mvc remote show ") == ["origin"]
    assert words(mvc, "mvc show or") == ["origin/main"]


def test_completes_metrics(mvc) -> None:
    mvc.write(1)
    mvc("commit", "model.safetensors", "--metric", "acc=1", "--metric", "val_loss=2")
    assert words(mvc, "mvc log --sort a") == ["acc"]
    assert words(mvc, "mvc log --sort ") == ["-acc", "-val_loss", "acc", "val_loss"]
    assert words(mvc, "mvc log --sort val") == ["val_loss"]


def test_a_shell_that_is_not_named(mvc) -> None:
    failed = mvc("completion", code=2).err
    assert "missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish\n" in failed


def test_offers_nothing_outside_a_repository(mvc, tmp_path) -> None:
    mvc.folder = tmp_path
    assert words(mvc, "mvc show ") == []


def test_completes_paths_tensors_settings_and_presets(mvc) -> None:
    mvc.commit(1)
    mvc.write(2, "sub/other.safetensors")
    mvc("commit", "sub")
    assert words(mvc, "mvc checkout HEAD mo") == ["model.safetensors"]
    assert words(mvc, "mvc checkout ") == ["HEAD", "main"]
    assert words(mvc, "mvc log HEAD sub/") == ["sub/other.safetensors"]
    assert words(mvc, "mvc ls HEAD~1 ") == ["model.safetensors"]
    assert words(mvc, "mvc show HEAD layer.") == ["layer.bias", "layer.weight"]
    assert "lossless" in words(mvc, "mvc pipeline lo")
    assert words(mvc, "mvc config commit.") == ["commit.patch", "commit.pipeline"]
    assert "vsol" in words(mvc, "mvc config commit.pipeline vs")
    assert "lossless" in words(mvc, "mvc commit --pipeline lo")
    mvc("deploy", "HEAD~1", "prod")
    assert words(mvc, "mvc checkout --target prod ") == ["model.safetensors"]
    assert words(mvc, "mvc show --target prod layer.w") == ["layer.weight"]
    folder, mvc.folder = mvc.folder, mvc.folder.parent
    assert words(mvc, f"mvc -C {folder} show m") == ["main"]


# -- the real shells -----------------------------------------------------------------------


class Shell:
    """An interactive shell on a terminal of its own, with ``mvc`` on its path."""

    START = {
        "bash": (
            ["bash", "--norc", "--noprofile", "-i"],
            "bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; "
            "bind 'set enable-bracketed-paste off'; bind 'set page-completions off'",
            "source {script}",
        ),
        "zsh": (
            ["zsh", "-f", "-i"],
            "unsetopt zle_bracketed_paste prompt_sp; setopt no_list_beep; autoload -Uz compinit; "
            "compinit -u -D; zstyle ':completion:*' menu no",
            "source {script}",
        ),
        "fish": (["fish", "--no-config", "-i"], "set fish_greeting", "source {script}"),
    }

    def __init__(self, name: str, folder: Path, script: Path, path: Path) -> None:
        command, settings, load = self.START[name]
        self.name = name
        child, self._fd = pty.fork()
        if child == 0:
            os.chdir(folder)
            env = {k: v for k, v in os.environ.items() if not k.startswith("MVC_")}
            env |= {"PATH": f"{path}:{env['PATH']}", "TERM": "dumb", "HOME": str(path)}
            os.execvpe(command[0], command, env)
        self._child = child
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.run(settings)
        self.run(load.format(script=script))

    def run(self, line: str) -> str:
        """What the shell prints for a line, up to a mark that it prints after it."""
        mark = f"done{random.randrange(10**9)}"
        os.write(self._fd, f"{line}; echo {mark[:4]}''{mark[4:]}\n".encode())
        return self._until(mark)

    def complete(self, line: str, wanted: str) -> str:
        """What stands on the screen after TAB, once ``wanted`` is there; the line is given up."""
        os.write(self._fd, line.encode() + b"\t")
        found = self._until(wanted)
        os.write(self._fd, b"\x15")  # kills the line
        self.run("true")
        return found

    def _until(self, wanted: str, seconds: float = 60) -> str:
        text, end = "", time.monotonic() + seconds
        while wanted not in text:
            ready, _, _ = select.select([self._fd], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise AssertionError(f"{self.name} does not say {wanted!r}, but: {text!r}")
            text += os.read(self._fd, 1 << 16).decode(errors="replace")
        return text

    def close(self) -> None:
        os.close(self._fd)
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, mvc, tmp_path: Path) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    mvc.commit(1)
    mvc("tag", "v1")
    mvc.write(2, "two words.safetensors")
    (mvc.folder / "folder").mkdir()
    path = tmp_path / "bin"
    path.mkdir()
    program = path / "mvc"
    program.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec '{sys.executable}' -m mvc \"$@\"\n")
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(mvc("completion", request.param).out)
    started = Shell(request.param, mvc.folder, script, path)
    yield started
    started.close()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mvc commit mod", "mvc commit model.safetensors "),
        ("mvc commit two", r"mvc commit two\ words.safetensors "),
        ("mvc import fol", "mvc import folder/"),
        ("mvc show v", "mvc show v1 "),
        ("mvc diff v1 mod", "mvc diff v1 model.safetensors "),
        ("mvc checkout v1 mod", "mvc checkout v1 model.safetensors "),
        ("mvc checkout v1 -o mod", "mvc checkout v1 -o model.safetensors "),
        ("mvc show v1 layer.w", "mvc show v1 layer.weight "),
        ("mvc config store.reset_i", "mvc config store.reset_interval "),
        ("mvc commit --pipeline loss", "mvc commit --pipeline lossless "),
    ],
)
def test_a_real_shell_completes(shell: Shell, line: str, wanted: str) -> None:
    added = wanted[len(line) :]
    assert added in shell.complete(line, added).replace("\x1b[K", "")
