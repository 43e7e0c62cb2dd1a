"""The commit of a git work tree, read from git's files; git is not run."""

from __future__ import annotations

from pathlib import Path

from mvc.errors import MvcError
from mvc.io.files import FileSystem

_MAX_REF = 4096
_MAX_PACKED = 1 << 24
_HEX = frozenset("0123456789abcdef")


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
