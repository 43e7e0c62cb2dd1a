"""The git work tree around a repository: its commit, and what differs from it.

The commit is read from git's files. What differs is asked of git, if it is installed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

from mvc.errors import MvcError, WrongUsage
from mvc.io.files import FileSystem
from mvc.limits import MAX_ATTACHED_BYTES

PATCH = "code.patch"
"""What a version carries the patch of its code as."""

_MAX_REF = 4096
_MAX_PACKED = 1 << 24
_HEX = frozenset("0123456789abcdef")
_SECONDS = 5.0  # for which git is waited for
_QUICK = 0.2  # seconds after which its answer is remembered
_SHARE = 20  # the answer counts for so many times as long as it took
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color")


class GitCode(Struct, frozen=True):
    """``commit`` of git's HEAD, empty without one. ``dirty``: whether tracked files differ from it.

    ``patch``: the difference, if it was asked for.
    """

    commit: str = ""
    dirty: bool = False
    patch: bytes = b""


def git_code(fs: FileSystem, folder: Path, *, patch: bool = False) -> GitCode:
    """The code in ``folder``. Where git cannot be asked, nothing differs.

    Raises WrongUsage for a patch that no version can carry.
    """
    commit = git_commit(fs, folder)
    if not commit:
        return GitCode()
    known, until = _slow.get((folder, patch), (None, 0.0))
    if known is not None and known.commit == commit and time.monotonic() < until:
        return known
    began = time.monotonic()
    code = _asked(folder, commit, patch=patch)
    took = time.monotonic() - began
    if took > _QUICK:
        _slow[folder, patch] = code, began + took * _SHARE
    return code


_slow: dict[tuple[Path, bool], tuple[GitCode, float]] = {}
"""What a slow git said, and until when it counts: asking takes a twentieth of the time at most."""


def _asked(folder: Path, commit: str, *, patch: bool) -> GitCode:
    differs = _git(folder, *_DIFF, "--quiet", "HEAD", "--")
    if differs is None or differs[0] != 1:
        return GitCode(commit)
    made = _git(folder, *_DIFF, "--binary", "--full-index", "HEAD", "--") if patch else None
    text = b"" if made is None or made[0] else made[1]
    if len(text) > MAX_ATTACHED_BYTES:
        raise WrongUsage(
            f"the patch of the code has more than {MAX_ATTACHED_BYTES:,} bytes",
            hint="commit it with git, or leave patch out",
        )
    return GitCode(commit, dirty=True, patch=text)


def _git(folder: Path, *arguments: str) -> tuple[int, bytes] | None:
    """What git returns and prints; None if it does not run or takes long. It changes nothing."""
    import subprocess
    from shutil import which

    program = which("git")
    if program is None:
        return None
    own = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603 - arguments of this module
            [program, "-c", "core.fsmonitor=false", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=own | {"GIT_OPTIONAL_LOCKS": "0"},
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout


def git_commit(fs: FileSystem, folder: Path) -> str:
    """The commit of git's HEAD in ``folder`` or above it.

    Empty if there is none, or git's files cannot be read.
    """
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            identity = fs.stat(git)
            if identity is None:
                continue
            if identity.is_file:  # a linked work tree or a submodule
                line = _line(fs, git)
                git = (place / line.removeprefix("gitdir: ")).resolve()
            return _git_head(fs, git)
    except (MvcError, OSError, ValueError):
        return ""
    return ""


def _git_head(fs: FileSystem, git: Path) -> str:
    head = _line(fs, git / "HEAD")
    if not head.startswith("ref: "):
        return _checked(head)
    name = head.removeprefix("ref: ")
    common = git
    if fs.stat(git / "commondir") is not None:
        common = (git / _line(fs, git / "commondir")).resolve()
    for folder in (git, common):
        if fs.stat(folder / name) is not None:
            return _checked(_line(fs, folder / name))
    if fs.stat(common / "packed-refs") is None:
        return ""
    for line in fs.read_bytes(common / "packed-refs", _MAX_PACKED).decode().split("\n"):
        if line.endswith(" " + name):
            return _checked(line.split(" ", 1)[0])
    return ""


def _line(fs: FileSystem, path: Path) -> str:
    return fs.read_bytes(path, _MAX_REF).decode().strip()


def _checked(text: str) -> str:
    return text if len(text) in {40, 64} and set(text) <= _HEX else ""
