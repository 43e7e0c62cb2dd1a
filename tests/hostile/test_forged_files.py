"""Every file of ``.mvc`` but journal, packs and index, forged: nothing outside is touched.

A variant is one forged file in a copy of a repository. All reading commands and some that write
run on it; each ends well or with an error of mvc, and what lies outside stays as it is.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import click
import pytest

import mvc.cli.main
from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.testing import fresh_process
from tests.cli.program import spawn
from tests.counters import count
from tests.hostile.test_plans import NAME, TEMPORARY, before, plan, tree
from tests.repo.working import write_model
from tests.seeds import draw

READING = [
    ["log"], ["log", "--all", "--json"], ["status"], ["show"], ["ls"], ["fsck"], ["stats"],
    ["identify", "model.safetensors"], ["diff", "HEAD~1", "HEAD"], ["deploy"], ["undo", "--list"],
    ["show", "--id", "HEAD"], ["config"], ["show", "HEAD", "layer0.weight"],
    ["forget", "-n", "--unqueried"],
]  # fmt: skip
WRITING = [
    ["commit", "new.safetensors", "-m", "new"], ["checkout", "-f", "HEAD~1"], ["tag", "forged"],
    ["checkout", "HEAD~1", "-o", "out/"], ["deploy", "HEAD", "production"], ["undo"], ["gc"],
    ["repack"], ["fsck", "--repair"], ["rm", "--cached", "model.safetensors"], ["branch", "side"],
    ["config", "user.name", "me"], ["switch", "-c", "other"], ["forget", "-f", "HEAD~1"],
]  # fmt: skip
SECONDS = 60
TARGETS = [
    "format", "config.yaml", ".gitignore", "witness", "queries", "queries.lock", "checkouts",
    f"checkouts/{NAME}", "index.lmdb/current", "index.lmdb/building", "recording-main",
    "training-production", "decisions", f"decisions/{NAME}", "retraining",
    f"retraining/{NAME}", f"retraining/{NAME}.lock", "staging", "quarantine",
    "quarantine/00000001-00000010.pack", TEMPORARY, "hooks", "hooks/post-commit",
]  # fmt: skip
FOLDERS = {
    "checkouts",
    "decisions",
    "retraining",
    f"retraining/{NAME}",
    "staging",
    "quarantine",
    "hooks",
}


class World:
    """A repository with two versions and something at every target; canaries outside."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.outside = folder, folder / "models", folder / "outside"
        with Repository.init(self.root) as repo:
            for seed in (1, 2):
                write_model(self.root / "model.safetensors", seed, layers=1)
                repo.commit(self.root / "model.safetensors", deploy="production")
                repo.checkout("HEAD")
            repo.handle.store.snapshot.index_tail(force=True)
        write_model(self.root / "new.safetensors", 3, layers=1)
        for name in TARGETS:
            path = self.root / ".mvc" / name
            if name in FOLDERS:
                path.mkdir(exist_ok=True)
            elif not path.exists():
                path.touch()
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(b"secret")
        (self.outside / TEMPORARY).write_bytes(b"left by somebody else")
        (self.outside / "folder").mkdir()
        (self.outside / "folder" / NAME).write_bytes(b"in a folder")
        (self.outside / "folder/00000001-000000000016.pack").write_bytes(b"as in a quarantine")

    @contextmanager
    def copy(self) -> Iterator[Path]:
        root = self.folder / "copy"
        shutil.copytree(self.root, root, symlinks=True)
        try:
            yield root
        finally:
            shutil.rmtree(root)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("forged"))


# -- variants ----------------------------------------------------------------------------

Forge = Callable[[random.Random, World, Path], None]
"""Puts something at a path, where nothing is left."""


def clear(path: Path) -> bytes:
    """What stood there; nothing does any more."""
    old = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return old


def link(rng: random.Random, world: World, path: Path) -> None:
    targets = [
        world.outside, world.outside / "secret", world.outside / "new", world.outside / "folder",
        world.outside / "folder" / NAME, path, Path("/dev/zero"), Path("/proc/self/mem"),
        Path("..") / ".." / "outside" / "secret", world.root / ".mvc", world.root / ".mvc/journal",
    ]  # fmt: skip
    path.symlink_to(rng.choice(targets))


def folder_of_links(rng: random.Random, world: World, path: Path) -> None:
    path.mkdir()
    for name in rng.sample(
        [NAME, f"{NAME}.lock", TEMPORARY, "data.mdb", "x", "00000001-1.pack"], 3
    ):
        link(rng, world, path / name)


def listening(_: random.Random, _world: World, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as place:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            place.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def huge(rng: random.Random, _: World, path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, rng.choice([1 << 27, 1 << 31, 1 << 40]))


def given_away(rng: random.Random, _: World, path: Path) -> None:
    path.write_bytes(rng.randbytes(30))
    with suppress(PermissionError):
        os.chown(path, 54_321, 54_321)


def locked_up(rng: random.Random, _: World, path: Path) -> None:
    path.write_bytes(rng.randbytes(30))
    path.chmod(0)


def written(rng: random.Random, world: World, path: Path) -> None:
    path.write_bytes(rng.choice(TEXTS)(rng, world))


def fifo(_: random.Random, _world: World, path: Path) -> None:
    os.mkfifo(path)


def empty_folder(_: random.Random, _world: World, path: Path) -> None:
    path.mkdir()


KINDS: list[Forge] = [
    link, link, folder_of_links, listening, huge, given_away, locked_up, written, written, fifo,
    empty_folder,
]  # fmt: skip


def nested(rng: random.Random, _: World) -> bytes:
    deep = rng.choice([100, 30_000])
    return rng.choice([b"[" * deep, b'{"a":' * deep, b"- " * deep, b"{a: " * (deep // 4)])


def expanding(_: random.Random, _world: World) -> bytes:
    more = (b"b%d: &a%d [%s]\n" % (i, i, b"*a%d," % (i - 1) * 50) for i in range(1, 9))
    return b"a: &a0 [x]\n" + b"".join(more)


def wrong_text(rng: random.Random, _: World) -> bytes:
    return rng.choice([b"\xff\xfe\x00", b"\x00" * 40, b"\xed\xa0\x80", b"\x1b[2J", b"9" * 5000])


def path_text(rng: random.Random, world: World) -> bytes:
    outside = str(world.outside).encode()
    return rng.choice([outside, b"../../outside", b"../../outside/folder", b"/", NAME.encode()])


def settings_text(rng: random.Random, world: World) -> bytes:
    name = rng.choice(["user.name", "store.layout", "safe.directory", "core.pager", "init.branch"])
    section, _, key = name.partition(".")
    value = rng.choice([str(world.outside), "*", "../x", "{}", "!!python/name:os.system", "1e999"])
    return f"{section}:\n  {key}: {value}\n".encode()


TEXTS: list[Callable[[random.Random, World], bytes]] = [
    nested, expanding, wrong_text, path_text, settings_text,
    lambda rng, _: rng.randbytes(rng.randrange(200)),
]  # fmt: skip


def mutated(rng: random.Random, old: bytes, path: Path) -> None:
    data = bytearray(old or rng.randbytes(20))
    for _ in range(rng.choice([1, 1, 3, 20])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(4)
        if how == 0:
            del data[at:]
        elif how == 1:
            data[at : at + 1] = rng.randbytes(1)
        elif how == 2:
            data[at:at] = data[: rng.randrange(64)]
        else:
            data += rng.randbytes(rng.randrange(60))
    path.write_bytes(data)


def forged_plan(rng: random.Random, world: World, root: Path, path: Path) -> None:
    """A plan or a pointer as near to a real one as a stranger can make it."""
    places = [
        "secret", "model.safetensors", "../outside/secret", str(world.outside / "secret"),
        ".mvc/journal", "a\0b", "\ud800", "x" * 300, "", ".", "folder", f"folder/{NAME}",
        TEMPORARY, 7, None, ["x"],
    ]  # fmt: skip
    steps: list[object] = []
    for _ in range(rng.randrange(1, 5)):
        name = rng.choice(places)
        temporary = rng.choice(["", "", TEMPORARY, "../secret", ".mvc-tmp-x", 3, None])
        target = rng.choice([world.outside, root]) / (name if isinstance(name, str) else "x")
        facts: list[object] = []
        with suppress(OSError, ValueError):
            facts = rng.choice([list(before(target)), ["x"] * 4, [[]], [1 << 70] * 4])
        steps.append([name, temporary, *facts] if rng.random() < 0.95 else rng.choice([7, "x", {}]))
    at = world.outside.stat()
    fields: dict[str, object] = {
        "then": {},
        "version": rng.choice(["", "00" * 32, 7]),
        "steps": rng.choice([steps, steps, steps, {}, None, 7]),
        "checks": rng.choice([[""] * len(steps), [""] * len(steps), None, 7, [{}]]),
    }
    if rng.random() < 0.5:
        names = [f"branch {x}" for x in ("main", "no", "../x", "\ud800")] + ["", "ff", "00" * 32]
        then = {key: rng.choice([*names, 7]) for key in ("from", "to", "made")}
        fields["then"] = rng.choice([then, then, [], "x"])
    if rng.random() < 0.4:
        exact = {"device": at.st_dev, "inode": at.st_ino, "owner": at.st_uid}
        wrong = {"device": "x", "inode": 1 << 80, "owner": None}
        pointer = {"folder": str(world.outside), **rng.choice([exact, exact, wrong])}
        fields = rng.choice([pointer, {**fields, **pointer}])
    path.write_bytes(plan(**fields))


def forge(rng: random.Random, world: World, root: Path, target: str) -> None:
    path = root / ".mvc" / target
    old = clear(path)
    if target.endswith(f"checkouts/{NAME}") and rng.random() < 0.7:
        forged_plan(rng, world, root, path)
    elif rng.random() < 0.3:
        mutated(rng, old, path)
    else:
        rng.choice(KINDS)(rng, world, path)


# -- what happens then -------------------------------------------------------------------


class Hangs(BaseException):
    """A command that takes a minute."""


def stop(*_: object) -> None:
    raise Hangs


def run_all(root: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs command lines in this process; returns how many failed, all with errors of mvc."""
    failed = 0
    describe = mvc.cli.main.describe

    def check(error: BaseException) -> mvc.cli.main.Failure:
        nonlocal failed
        failed += 1
        if not isinstance(error, MvcError | click.ClickException | click.Abort):
            raise AssertionError(f"a raw error: {error!r}") from error
        return describe(error)

    with monkeypatch.context() as patched:
        patched.chdir(root)
        patched.setattr(mvc.cli.main, "describe", check)
        for command in commands:
            out, err = io.StringIO(), io.StringIO()
            fresh_process()
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            with redirect_stdout(out), redirect_stderr(err):
                code = mvc.cli.main.run(command)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert code in range(6), (command, code, err.getvalue())
            assert "\x1b" not in out.getvalue() + err.getvalue(), command
    return failed


def attack(world: World, target: str, variants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = draw(f"forged {target}")
    old = signal.signal(signal.SIGALRM, stop)
    failed = commands = 0
    safe = tree(world.outside), sorted(p.name for p in world.folder.iterdir())
    try:
        for _ in range(variants):
            seed = rng.getrandbits(32)
            chance = random.Random(seed)
            lines = [*READING, *chance.sample(WRITING, 3)]
            with world.copy() as root:
                forge(chance, world, root, target)
                try:
                    failed += run_all(root, lines, monkeypatch)
                except BaseException as error:
                    raise AssertionError(f"variant {seed} of {target}: {error!r}") from error
            assert safe == (tree(world.outside), sorted(p.name for p in world.folder.iterdir())), (
                f"variant {seed} of {target} touched what lies outside"
            )
            commands += len(lines)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    count(
        "forged files in .mvc",
        variants=variants,
        commands=commands,
        failed=failed,
        outside=0,
        raw=0,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_forged_files(world: World, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(world, target, 4, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_many_forged_files(world: World, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(world, target, 500, monkeypatch)


@pytest.mark.long
def test_forged_files_in_processes(world: World) -> None:
    """A sample with real processes: none ends by a signal, a traceback or time."""
    rng = draw("forged files in processes")
    safe = tree(world.outside)
    for target in TARGETS:
        with world.copy() as root:
            forge(rng, world, root, target)
            for command in rng.sample([*READING, *WRITING], 3):
                done = spawn(*command, cwd=root)
                assert 0 <= done.returncode < 6, (target, command, done.stderr)
                assert "Traceback" not in done.stderr and "internal error" not in done.stderr
        assert tree(world.outside) == safe
    count("forged files in .mvc, processes", variants=len(TARGETS), outside=0, raw=0)


def test_the_canaries_would_be_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan could do before it was checked, done by hand, is seen."""
    monkeypatch.setattr(sys.modules[__name__], "run_all", lambda *_: touch(world))
    with pytest.raises(AssertionError, match="touched what lies outside"):
        attack(world, "hooks", 1, monkeypatch)
    (world.outside / "secret").write_bytes(b"secret")


def touch(world: World) -> int:
    (world.outside / "secret").unlink()
    return 0


def test_the_pointer_of_this_suite_is_a_true_one(world: World) -> None:
    """Only the plan in the folder itself is missing from it."""
    from mvc.io.files import FileSystem
    from mvc.io.plans import Pointer

    at = world.outside.stat()
    text = json.dumps(
        {"folder": str(world.outside), "device": at.st_dev, "inode": at.st_ino, "owner": at.st_uid}
    )
    pointer = Pointer.parse(text.encode())
    assert pointer is not None and pointer.is_true(FileSystem())
