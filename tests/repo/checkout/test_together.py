"""A checkout of several files: the folder holds one version whole or the other, never a mixture."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.cli.main import run
from mvc.errors import Busy, DamagedData, IoFailed, MvcError, WouldOverwrite, WrongUsage
from mvc.io.files import FileIdentity, FileSystem
from mvc.testing import HookedFS, WrappedFS, fresh_process, killed
from mvc.testing.files import Hook
from tests.counters import count
from tests.faults.crashfs import CrashFS
from tests.repo.working import write_model
from tests.seeds import draw

SHARDS = [f"model-{i}-of-3.safetensors" for i in (1, 2, 3)]
Files = dict[str, bytes]
Capture = pytest.CaptureFixture[str]


def held(folder: Path) -> Files:
    """Every file below a folder that a program would load; temporary files included."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and ".mvc" not in p.parts
    }


class World:
    """Two versions of three shards; the second has one file more. HEAD is the second."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.versions: list[Files] = []
        self.ids: list[str] = []
        with Repository.init(root) as repo:
            for seed in (1, 2):
                for i, name in enumerate(SHARDS):
                    write_model(root / name, 10 * seed + i, layers=2)
                if seed == 2:
                    (root / "adapter").mkdir()
                    write_model(root / "adapter/extra.safetensors", 9, layers=1)
                self.ids.append(str(repo.commit([root]).id))
                self.versions.append(held(root))

    def shards(self, folder: Path) -> list[int]:
        """Of which version each shard in the folder is."""
        found = [(folder / name).read_bytes() for name in SHARDS]
        both = zip(*([version[name] for name in SHARDS] for version in self.versions), strict=True)
        return [each.index(data) for data, each in zip(found, both, strict=True)]

    def copy(self, into: Path) -> Path:
        shutil.copytree(self.root, into, symlinks=True)
        return into

    def version(self, folder: Path) -> int:
        """Which version the folder holds, whole; -1 for a mixture."""
        found = held(folder)
        return self.versions.index(found) if found in self.versions else -1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("together") / "models")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 0x55]))


# -- damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "served folder"])
def test_each_region_damaged_in_turn(world: World, tmp_path: Path, elsewhere: bool) -> None:
    """A flipped byte in every region of the packs: the folder is as it was, or whole and new."""
    chance = random.Random(5)
    (pack,) = (world.root / ".mvc/packs").iterdir()
    ends = list(range(0, pack.stat().st_size, 1024))
    failed = 0
    for start in ends:
        root = world.copy(tmp_path / "models")
        flip(root / ".mvc/packs" / pack.name, min(start + chance.randrange(1024), ends[-1]))
        served = root
        if elsewhere:
            served = tmp_path / "served"
            shutil.copytree(world.root, served, ignore=shutil.ignore_patterns(".mvc"))
        fresh_process()
        try:
            with Repository.open(root) as repo:
                if elsewhere:
                    repo.checkout(world.ids[0], to=served, force=True, delete=True)
                else:
                    repo.checkout(world.ids[0], to=repo.root)
            assert world.version(served) == 0
        except DamagedData as error:
            failed += 1
            assert world.version(served) == 1, "a mixture"
            assert "no file was replaced" in error.message or not held(served)
        shutil.rmtree(root)
        shutil.rmtree(tmp_path / "served", ignore_errors=True)
    count("checkouts from damaged packs", regions=len(ends), failed=failed)
    assert failed > 3


def test_a_failed_rename_is_told_and_the_next_command_completes_it(
    world: World, tmp_path: Path
) -> None:
    root = world.copy(tmp_path / "models")

    def refuse(_: int, op: str, path: Path) -> None:
        if op == "replace" and path.name == SHARDS[1]:
            raise IoFailed("the disk is busy")

    with (
        Repository.open(root, fs=HookedFS(refuse)) as repo,
        pytest.raises(IoFailed, match="the disk is busy") as caught,
    ):
        repo.checkout(world.ids[0], to=repo.root)
    text = caught.value.message
    assert f"done: {SHARDS[0]}; not done: {SHARDS[1]}, {SHARDS[2]}" in text
    assert Repository.open(root).interrupted.replaced == (root / SHARDS[1], root / SHARDS[2])
    assert world.version(root) == 0


# -- killed processes and power failures ---------------------------------------------------


def nth(wanted: int) -> Hook:
    return lambda number, _op, _path: number == wanted


def on(op: str, name: str) -> Hook:
    return lambda _number, found, path: (found, path.name) == (op, name)


def restore_in(root: Path, rev: str, **options: object) -> Callable[[FileSystem], object]:
    def act(fs: FileSystem) -> None:
        fresh_process()
        with Repository.open(root, fs=fs) as repo:
            repo.checkout(rev, **{"to": repo.root, **options})  # type: ignore[arg-type]

    return act


def calls_of(act: Callable[[FileSystem], object]) -> int:
    fs = HookedFS(lambda *_: None)
    act(fs)
    return fs.calls


@pytest.mark.parametrize("points", [20, pytest.param(100, marks=pytest.mark.long)])
def test_a_killed_checkout_leaves_one_version(world: World, tmp_path: Path, points: int) -> None:
    total = calls_of(restore_in(world.copy(tmp_path / "counted"), world.ids[0]))
    rng = draw("killed checkouts")
    completed = kept = between = 0
    for at in sorted(rng.sample(range(1, total + 1), min(points, total))):
        root = world.copy(tmp_path / "models")
        assert killed(restore_in(root, world.ids[0]), nth(at))
        between += world.version(root) < 0 and not list(root.rglob(".mvc-tmp-*"))
        fresh_process()
        with Repository.open(root) as repo:  # any command
            assert repo.find() is not None
        now = world.version(root)
        assert now >= 0, f"a mixture, or temporary files, after a kill at call {at}"
        completed, kept = completed + (now == 0), kept + (now == 1)
        assert not list((root / ".mvc").glob("checkouts/*"))
        with Repository.open(root) as repo:
            repo.checkout(world.ids[0], to=repo.root)
        assert world.version(root) == 0
        shutil.rmtree(root)
    count("killed checkouts", calls=total, old_version=kept, new_version=completed)
    assert kept and completed


@pytest.mark.parametrize("points", [10, pytest.param(100, marks=pytest.mark.long)])
def test_a_killed_swap_leaves_one_version(world: World, tmp_path: Path, points: int) -> None:
    live = tmp_path / "live"
    with Repository.open(world.root) as repo:
        repo.checkout(world.ids[1], to=live, atomic_dir=True)
    act = restore_in(world.root, world.ids[0], to=live, atomic_dir=True)
    total = calls_of(act)
    rng = draw("killed swaps")
    seen = set()
    for at in sorted(rng.sample(range(1, total + 1), min(points, total))):
        with Repository.open(world.root) as repo:
            repo.checkout(world.ids[1], to=live, atomic_dir=True)
        assert killed(act, nth(at))
        seen.add(world.version(Path(os.path.realpath(live))))  # nobody has cleaned up
    with Repository.open(world.root) as repo:
        repo.checkout(world.ids[1], to=live, atomic_dir=True)
    assert len(list(tmp_path.glob(".mvc-dir-live.*"))) <= 3  # this one, the one before, the lock
    assert seen <= {0, 1} and seen


@pytest.mark.parametrize("draws", [25, pytest.param(600, marks=pytest.mark.long)])
def test_a_power_failure_leaves_one_version(world: World, tmp_path: Path, draws: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    world.copy(disk / "models")
    times = {name: (disk / "models" / name).stat().st_mtime_ns for name in world.versions[1]}
    fs = CrashFS(disk)
    with Repository.open(disk / "models", fs=fs) as repo:
        repo.checkout(world.ids[0], to=repo.root)
    rng = draw("power failures of a checkout")
    seen = set()
    for point in sorted(rng.randint(0, fs.crash_points()) for _ in range(draws)):
        image = tmp_path / "image"
        fs.image(point, rng, image)
        for name, time_ns in times.items():  # images have no times: a real disk would
            path = image / "models" / name
            if path.is_file() and path.read_bytes() == world.versions[1][name]:
                os.utime(path, ns=(time_ns, time_ns))
        fresh_process()
        with Repository.open(image / "models") as repo:
            assert str(repo.find()) in world.ids
        found = {n: b for n, b in held(image / "models").items() if ".mvc-tmp-" not in n}
        assert found in world.versions, f"a mixture after a power failure at change {point}"
        seen.add(world.versions.index(found))
        shutil.rmtree(image)
    assert seen == {0, 1}


def stop_between_renames(world: World, root: Path) -> None:
    assert killed(restore_in(root, world.ids[0]), on("replace", SHARDS[1]))
    fresh_process()
    assert world.version(root) == -1


def test_a_plan_names_the_version(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    stop_between_renames(world, root)
    (plan,) = (at for at in (root / ".mvc/checkouts").iterdir() if at.stat().st_size)
    fields = json.loads(plan.read_bytes().splitlines()[0])
    assert fields["version"] == world.ids[0]
    with Repository.open(root) as repo:
        assert str(repo.find()) == world.ids[0]
    assert world.version(root) == 0


def test_a_file_that_was_cut_since_is_left_alone(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    stop_between_renames(world, root)
    cut = next(iter(root.glob(".mvc-tmp-*")))
    os.truncate(cut, 10)
    with Repository.open(root) as repo:
        assert repo.interrupted.left_alone == (cut,) and not repo.interrupted.replaced
        assert len(repo.interrupted.given_up) == 2
    assert list(root.rglob(".mvc-tmp-*")) == [cut]


def test_what_was_written_since_is_not_replaced(world: World, tmp_path: Path) -> None:
    """Another program wrote a shard after the process was killed: its work stays."""
    root = world.copy(tmp_path / "models")
    stop_between_renames(world, root)
    (root / SHARDS[2]).write_bytes(b"mine")
    with Repository.open(root) as repo:
        assert repo.interrupted.replaced == ()
    assert (root / SHARDS[2]).read_bytes() == b"mine"
    assert not list(root.rglob(".mvc-tmp-*"))


def test_a_running_checkout_is_left_alone(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    opened = []

    def look(_: int, op: str, path: Path) -> None:
        if op == "replace" and path.name == SHARDS[1]:
            with Repository.open(root) as other:
                opened.append(other.interrupted.replaced)

    with Repository.open(root, fs=HookedFS(look)) as repo:
        repo.checkout(world.ids[0], to=repo.root)
    assert opened == [()] and world.version(root) == 0


@pytest.mark.parametrize(
    "plan",
    [
        b"",
        b"{}\nready 00000000\n",
        b'{"steps": [["%s/secret", "", 6, %d, 0, 0]], "checks": [""], "then": {}, "version": ""}\n',
        b'{"steps": [["../secret", "", 6, %d, 0, 0]], "checks": [""], "then": {}, "version": ""}\n',
        b'{"steps": [["x", "../secret"]], "checks": [""], "then": {}, "version": ""}\n',
    ],
)
def test_a_forged_plan_does_no_harm(world: World, tmp_path: Path, plan: bytes) -> None:
    root = world.copy(tmp_path / "models")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    if b"%s" in plan:
        plan = plan.replace(b"%s", str(tmp_path).encode())
    if b"%d" in plan:
        plan %= secret.stat().st_mtime_ns
    plan += b"ready %08x\n" % zlib.crc32(plan)
    (root / ".mvc/checkouts").mkdir(exist_ok=True)
    (root / ".mvc/checkouts/0123456789abcdef").write_bytes(plan)
    (root / ".mvc/checkouts/notes").write_bytes(b"no plan")
    with Repository.open(root) as repo:
        assert repo.interrupted.replaced == ()
    assert secret.read_bytes() == b"secret"
    assert world.version(root) == 1


def test_plans_that_are_a_link_are_refused(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    shutil.rmtree(root / ".mvc/checkouts", ignore_errors=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/0123456789abcdef").write_bytes(b"")
    (root / ".mvc/checkouts").symlink_to(tmp_path / "other")
    with pytest.raises(MvcError):
        Repository.open(root)
    assert (tmp_path / "other/0123456789abcdef").exists()


# -- a folder that is served ---------------------------------------------------------------


def test_a_reader_of_a_swapped_folder_sees_one_version(world: World, tmp_path: Path) -> None:
    live = tmp_path / "live"
    with Repository.open(world.root) as repo:
        repo.checkout(world.ids[1], to=live, atomic_dir=True)
        stop, seen, wrong = threading.Event(), set(), []

        def read() -> None:
            while not stop.is_set():
                folder = Path(os.path.realpath(live))  # once: all files come from this folder
                try:
                    found = held(folder)
                except FileNotFoundError:  # two swaps in the meantime
                    continue
                if found in world.versions:
                    seen.add(world.versions.index(found))
                elif folder.exists():
                    wrong.append(sorted(found))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for i in range(30):
                repo.checkout(world.ids[i % 2], to=live, atomic_dir=True)
        finally:
            stop.set()
            reader.join()
    assert seen == {0, 1} and not wrong


def test_a_swap_keeps_the_folder_before_it_and_no_other(world: World, tmp_path: Path) -> None:
    live = tmp_path / "live"
    with Repository.open(world.root) as repo:
        targets = []
        for i in (0, 1, 0):
            done = repo.checkout(world.ids[i], to=live, atomic_dir=True)
            targets.append(os.readlink(live))
            assert world.version(tmp_path / targets[-1]) == i
        assert done.written[0] == str(live / SHARDS[0]) and not done.moved_head
    assert not (tmp_path / targets[0]).exists()
    assert world.version(tmp_path / targets[1]) == 1


def test_what_mvc_did_not_make_is_not_swapped(world: World, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    with Repository.open(world.root) as repo:
        with pytest.raises(WrongUsage, match="cannot be replaced"):
            repo.checkout(world.ids[0], to=".", atomic_dir=True)
        with pytest.raises(WouldOverwrite, match="not a symbolic link"):
            repo.checkout(world.ids[0], to=tmp_path / "folder", atomic_dir=True, force=True)
        with pytest.raises(WouldOverwrite, match="did not create"):
            repo.checkout(world.ids[0], to=tmp_path / "link", atomic_dir=True)
        repo.checkout(world.ids[0], to=tmp_path / "link", atomic_dir=True, force=True)
    assert (tmp_path / "mine").is_dir() and world.version(tmp_path / "link") == 0


def test_swapped_folders_in_the_working_tree_are_not_tracked(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    with Repository.open(root) as repo:
        repo.checkout("HEAD", to=root / "live", atomic_dir=True)
        assert {name.split("/")[0] for name in repo.status().untracked} == {"live"}


def test_delete_removes_what_the_version_lacks(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Repository.open(world.root) as repo:
        repo.checkout(world.ids[1], to=out)
        (out / "old").symlink_to("nowhere")
        with pytest.raises(WouldOverwrite, match="exists already"):
            repo.checkout(world.ids[0], to=out, delete=True)
        for name in SHARDS:
            (out / name).unlink()
        with pytest.raises(WouldOverwrite, match="would be deleted"):
            repo.checkout(world.ids[0], to=out, delete=True)
        assert (out / "adapter/extra.safetensors").exists()
        done = repo.checkout(world.ids[0], to=out, delete=True, force=True)
        assert done.deleted == (str(out / "adapter/extra.safetensors"), str(out / "old"))
        assert world.version(out) == 0 and not (out / "adapter").exists()
        with pytest.raises(WrongUsage):
            repo.checkout(world.ids[0], path=SHARDS[:1], to=out, delete=True, force=True)
        with pytest.raises(WrongUsage):
            repo.checkout(world.ids[0], delete=True, to=repo.root)


def test_delete_refuses_a_folder_with_a_repository(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    (root / "notes.txt").write_text("mine")
    with Repository.open(root) as repo:
        for place, why in ((root, "own folder"), (tmp_path, "contains a repository")):
            with pytest.raises(WrongUsage, match=why):
                repo.checkout(world.ids[0], to=place, delete=True, force=True)
    assert (root / "notes.txt").exists()


def test_a_repository_that_cannot_be_written_is_checked_out(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    shutil.rmtree(root / ".mvc/checkouts", ignore_errors=True)

    class ReadOnlyFS(FileSystem):
        def is_writable_dir(self, path: Path) -> bool:
            return path != root / ".mvc" and super().is_writable_dir(path)

    with Repository.open(root, fs=ReadOnlyFS()) as repo:
        repo.checkout(world.ids[0], to=tmp_path / "out")
    assert world.version(tmp_path / "out") == 0
    assert not (root / ".mvc/checkouts").exists()


class FoldingFS(WrappedFS):
    """Does not tell case apart, as file systems of macOS and Windows: a name once used stays."""

    def _known(self, path: Path) -> Path:
        if path.parent.is_dir():
            for name in self.inner.list(path.parent):
                if name.casefold() == path.name.casefold():
                    return path.with_name(name)
        return path

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        return super().stat(self._known(path), follow=follow)

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        super().replace(src, self._known(dst), within=within)

    def unlink(self, path: Path, *given: bool, **options: Any) -> None:
        super().unlink(self._known(path), *given, **options)


def test_delete_spares_what_was_just_written_under_another_case(tmp_path: Path) -> None:
    root, out = tmp_path / "models", tmp_path / "out"
    with Repository.init(root, fs=FoldingFS()) as repo:
        repo.commit(
            states={"model.safetensors": {"w": np.ones(1000)}, "b.safetensors": {"w": np.ones(9)}}
        )
        out.mkdir()
        (out / "Model.safetensors").write_bytes(b"old")
        (out / "other").write_bytes(b"old")
        os.link(out / "Model.safetensors", out / "linked")  # one file, but another name
        done = repo.checkout("HEAD", to=out, delete=True, force=True)
        assert sorted(p.name for p in out.iterdir()) == ["Model.safetensors", "b.safetensors"]
        assert done.deleted == (str(out / "linked"), str(out / "other"))
        assert (out / "Model.safetensors").stat().st_size > 1000


def test_what_a_killed_checkout_left_is_verified_before_it_is_renamed(
    world: World, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = world.copy(tmp_path / "models")
    stop_between_renames(world, root)
    assert world.shards(root) == [0, 1, 1]
    temporary = sorted(root.glob(".mvc-tmp-*"))
    flip(temporary[0], temporary[0].stat().st_size - 1)
    monkeypatch.chdir(root)
    assert run(["log"]) == 0
    said = capsys.readouterr().err
    assert "cancelled an interrupted checkout" in said and said.count("\n") == 1
    assert all(str(root / name) in said for name in SHARDS[1:])
    assert world.shards(root) == [0, 1, 1] and not list(root.glob(".mvc-tmp-*"))
    assert run(["log"]) == 0 and not capsys.readouterr().err


def test_a_checkout_that_is_taken_back_is_told(
    world: World, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = world.copy(tmp_path / "models")
    act = restore_in(root, world.ids[0])
    monkeypatch.chdir(root)
    for when, told, left in (
        (on("sync_dir", "models"), "cancelled", 1),  # all is written, but the plan is not ready yet
        (on("replace", SHARDS[1]), "completed", 0),
    ):
        assert killed(act, when)
        assert run(["log"]) == 0
        said = capsys.readouterr().err
        assert f"{told} an interrupted checkout" in said and said.count("\n") == 1
        assert world.version(root) == left


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "folder"])
def test_two_checkouts_of_the_same_files_do_not_mix(
    world: World, tmp_path: Path, elsewhere: bool
) -> None:
    """The second begins between two renames of the first."""
    root = world.copy(tmp_path / "models")
    out = tmp_path / "out" if elsewhere else root
    options: dict[str, Any] = {"to": out, "force": elsewhere}
    started: list[threading.Thread] = []

    def second() -> None:
        with Repository.open(root) as other:
            other.checkout("main", **options)

    def hook(_: int, op: str, path: Path) -> None:
        if op == "replace" and path.name == SHARDS[1] and not started:
            started.append(threading.Thread(target=second))
            started[0].start()
            started[0].join(3)

    with Repository.open(root, fs=HookedFS(hook)) as repo:
        repo.checkout("main~1", **options)
    started[0].join()
    assert world.version(out) == 1
    assert not list((root / ".mvc/checkouts").iterdir())


def test_a_checkout_that_waits_too_long_says_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mvc.io.replacement.LOCK_SECONDS", 0.1)
    root = world.copy(tmp_path / "models")
    caught: list[MvcError] = []

    def hook(_: int, op: str, path: Path) -> None:
        if op == "replace" and path.name == SHARDS[1]:
            with Repository.open(root) as other:
                with pytest.raises(Busy, match="another checkout has been writing") as error:
                    other.checkout("main", to=other.root)
                caught.append(error.value)
                other.checkout("main", to=tmp_path / "elsewhere")  # is not held up

    with Repository.open(root, fs=HookedFS(hook)) as repo:
        repo.checkout("main~1", to=repo.root)
    assert len(caught) == 1 and world.version(tmp_path / "elsewhere") == 1
