"""Reads the state of the code, if an mvc repository is inside a git work tree.

A version records git's commit, and whether files differ from this commit. This module reads the
commit from git's files, and runs git to compute the difference. The settings of a work tree may
name commands. The work tree may belong to another person, so git runs with options that disable
such commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mvc.errors import IoFailed, MvcError, NotInstalled, WrongUsage
from mvc.io.files import FileSystem
from mvc.limits import MAX_ATTACHED_BYTES

_MAX_REF = 4096
_MAX_PACKED = 1 << 24
_HEX = frozenset("0123456789abcdef")
PATIENCE_SECONDS = 5.0  # for all calls of git together
QUICK_SECONDS = 0.2  # if git takes longer, its answer is cached
_SHARE = 20  # an answer is cached for 20 times the seconds that git took
_CHUNK = 1 << 16

# Changes inside submodules are ignored, because git would run commands of a submodule's settings.
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--ignore-submodules=dirty", "--submodule=short"),
)
_CAREFUL = {  # git must use no network, take no lock and ask for no password
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_HOOKS = "core.hookspath"
_OFF = (("core.fsmonitor", "false"), (_HOOKS, os.devnull))
_ASK_NAMES = (
    *("config", "--show-scope", "--includes", "-z"),
    *("--get-regexp", r"^(filter\.|lfs\.extension\.|core\.hookspath$)"),
)
_MAX_NAMES = 100  # the largest number of filters of a repository
_MAX_LISTED = 1 << 16  # the largest length of git's list of filters in bytes


class GitCode(Struct, frozen=True):
    """The state of the code. ``commit``: the id of git's HEAD; empty without a git work tree.

    ``dirty``: whether tracked files differ from the commit; also True if git failed. ``patch``: the
    difference, if the caller requested a patch. ``problem``: why a requested patch is missing.
    """

    commit: str = ""
    dirty: bool = False
    patch: bytes = b""
    problem: MvcError | None = None


def git_code(fs: FileSystem, folder: Path, *, patch: bool = False, retry: bool = False) -> GitCode:
    """The state of the code in ``folder``. If git is not installed, ``dirty`` is False.

    ``patch``: compute the difference, too. ``retry``: do not return a cached failure.
    """
    commit = git_commit(fs, folder)
    if not commit:
        return GitCode()
    known, until = _slow.get((folder, patch), (None, 0.0))
    counts = known is not None and known.commit == commit and time.monotonic() < until
    if known is not None and counts and not (retry and known.problem):
        return known
    began = time.monotonic()
    code = _code_in(folder, commit, patch=patch)
    seconds = time.monotonic() - began
    if seconds > QUICK_SECONDS:
        _slow[folder, patch] = code, began + seconds * _SHARE
    return code


_slow: dict[tuple[Path, bool], tuple[GitCode, float]] = {}
"""Cached results of slow calls of git, each with its expiry time."""


def _code_in(folder: Path, commit: str, *, patch: bool) -> GitCode:
    from shutil import which

    program = which("git")
    if program is None:
        missing = NotInstalled("git is not installed, so there is no patch of the code")
        return GitCode(commit, problem=missing if patch else None)
    text = b""
    try:
        git = _Git(program, folder)
        if not git.differs():
            return GitCode(commit)
        if patch:
            text = git.patch()
    except MvcError as error:
        return GitCode(commit, dirty=True, problem=error if patch else None)
    return GitCode(commit, dirty=True, patch=text)


class _Git:
    """Runs git in one folder. All methods raise IoFailed if git fails or takes too long."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._until = time.monotonic() + PATIENCE_SECONDS
        own = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
        self._environment = own | _CAREFUL | _settings(_OFF)
        code, listed = self._ask(_ASK_NAMES, _MAX_LISTED)
        if code != 0 and len(listed) <= _MAX_LISTED:
            raise _no_answer("it does not list its settings")
        names = _filters(listed)
        off = [
            (f"filter.{name}.{key}", value)
            for name in sorted(names)
            for key, value in (
                *(("clean", ""), ("smudge", ""), ("process", "")),
                ("required", "false"),
            )
        ]
        self._environment = own | _CAREFUL | _settings([*_OFF, *off])

    def differs(self) -> bool:
        code, _ = self._ask((*_DIFF, "--quiet", "HEAD", "--"), _MAX_LISTED)
        if code not in {0, 1}:
            raise _no_answer(f"it ended with status {code}")
        return code == 1

    def patch(self) -> bytes:
        """The output of ``git diff HEAD``. Raises WrongUsage if it is too large to be recorded."""
        arguments = (*_DIFF, "--binary", "--full-index", "HEAD", "--")
        code, text = self._ask(arguments, MAX_ATTACHED_BYTES)
        if len(text) > MAX_ATTACHED_BYTES:
            raise WrongUsage(
                f"the patch of the code has more than {MAX_ATTACHED_BYTES:,} bytes",
                hint="commit the code with git, or omit the patch",
            )
        if code != 0:
            raise _no_answer(f"it ended with status {code}")
        return text

    def _ask(self, arguments: Sequence[str], most: int) -> tuple[int, bytes]:
        """Exit status and output of git. Kills git if the output has more than ``most`` bytes."""
        import subprocess

        try:
            with subprocess.Popen(  # noqa: S603 - arguments of this module
                [self._program, *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            ) as process:
                try:
                    assert process.stdout is not None
                    text = self._read(process.stdout.fileno(), most)
                    if len(text) <= most:
                        process.wait(max(0.0, self._until - time.monotonic()))
                finally:
                    process.kill()  # does nothing if the process has ended
        except subprocess.TimeoutExpired:
            raise _late() from None
        except (OSError, ValueError) as error:
            raise _no_answer(str(error)) from error
        return process.returncode, text

    def _read(self, fd: int, most: int) -> bytes:
        """Reads all bytes, but at most one byte more than ``most``."""
        import selectors

        text = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(fd, selectors.EVENT_READ)
            while len(text) <= most:
                left = self._until - time.monotonic()
                if left <= 0 or not ready.select(left):
                    raise _late()
                chunk = os.read(fd, min(_CHUNK, most + 1 - len(text)))
                if not chunk:
                    break
                text += chunk
        return bytes(text)


def _late() -> IoFailed:
    return _no_answer(f"it took longer than {PATIENCE_SECONDS:g} s")


def _no_answer(why: str) -> IoFailed:
    return IoFailed(
        f"git did not return the code's difference: {why}", hint="try again, or omit the patch"
    )


def _settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Environment variables with settings of git, which override git's settings files."""
    keys = {f"GIT_CONFIG_KEY_{i}": key for i, (key, _) in enumerate(pairs)}
    values = {f"GIT_CONFIG_VALUE_{i}": value for i, (_, value) in enumerate(pairs)}
    return {"GIT_CONFIG_COUNT": str(len(pairs)), **keys, **values}


def _filters(listed: bytes) -> set[str]:
    """The names of the filters in the settings of the work tree. The user's settings are skipped.

    ``listed``: output of git. Raises IoFailed if the work tree has too many filters or has commands
    for git-lfs, or if git is too old to read settings from environment variables.
    """
    if len(listed) > _MAX_LISTED:
        raise _no_answer("the repository has too many filters")
    fields = os.fsdecode(listed).split("\0")
    names, obeys = set(), False
    for scope, setting in zip(fields[::2], fields[1::2], strict=False):
        key = setting.split("\n", 1)[0]
        if scope == "command":
            obeys = obeys or key == _HOOKS
        elif scope in {"system", "global"}:
            continue
        elif key.startswith("lfs."):
            raise _no_answer("the repository has commands for git-lfs")
        elif key.startswith("filter.") and key.count(".") > 1:
            names.add(key.removeprefix("filter.").rpartition(".")[0])
    if not obeys:
        raise _no_answer("it is older than version 2.31")
    if len(names) > _MAX_NAMES:
        raise _no_answer("the repository has too many filters")
    return names


def git_commit(fs: FileSystem, folder: Path) -> str:
    """The commit of git's HEAD in ``folder`` or a folder above; empty if none is readable."""
    with suppress(MvcError, OSError, ValueError):
        for place in (folder, *folder.parents):
            git = place / ".git"
            identity = fs.stat(git)
            if identity is None:
                continue
            if identity.is_file:  # a linked work tree or a submodule
                line = _line(fs, git)
                git = (place / line.removeprefix("gitdir: ")).resolve()
            return _git_head(fs, git)
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
    lines = fs.read_bytes(common / "packed-refs", _MAX_PACKED).decode().split("\n")
    packed = next((line for line in lines if line.endswith(" " + name)), None)
    return "" if packed is None else _checked(packed.split(" ", 1)[0])


def _line(fs: FileSystem, path: Path) -> str:
    return fs.read_bytes(path, _MAX_REF).decode().strip()


def _checked(text: str) -> str:
    return text if len(text) in {40, 64} and set(text) <= _HEX else ""
