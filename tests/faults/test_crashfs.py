"""The crash model against known answers."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from mvc.io.files import FileSystem
from tests.faults.crashfs import CrashFS
from tests.faults.disk import SECTOR


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


class Images:
    """Draws images of one CrashFS into fresh folders."""

    def __init__(self, fs: CrashFS, base: Path, seed: int = 1) -> None:
        self.fs, self.base, self.rng, self.count = fs, base, random.Random(seed), 0

    def draw(self, point: int | None = None) -> dict[str, bytes]:
        """Relative path -> content of every file of one image."""
        self.count += 1
        dest = self.base / f"image{self.count}"
        self.fs.image(self.fs.crash_points() if point is None else point, self.rng, dest)
        return {str(p.relative_to(dest)): p.read_bytes() for p in dest.rglob("*") if not p.is_dir()}

    def many(self, number: int, point: int | None = None) -> list[dict[str, bytes]]:
        return [self.draw(point) for _ in range(number)]


def create(fs: FileSystem, path: Path, data: bytes, *, sync: bool, sync_dir: bool) -> None:
    with fs.open_write(path, create=True) as file:
        file.write(data)
        if sync:
            file.sync()
    if sync_dir:
        fs.sync_dir(path.parent)


def test_synced_content_and_name_always_survive(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    create(fs, root / "a", b"x" * 3000, sync=True, sync_dir=True)
    assert all(image == {"a": b"x" * 3000} for image in Images(fs, tmp_path).many(60))


def test_file_sync_does_not_make_the_name_durable(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    create(fs, root / "a", b"data", sync=True, sync_dir=False)
    images = Images(fs, tmp_path).many(60)
    assert {} in images
    assert {"a": b"data"} in images
    assert all(image in ({}, {"a": b"data"}) for image in images)


def test_unsynced_write_may_be_lost_kept_torn_or_garbage(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    create(fs, root / "a", b"", sync=True, sync_dir=True)
    data = b"n" * (4 * SECTOR)
    with fs.open_write(root / "a") as file:
        file.write(data)
    contents = [image["a"] for image in Images(fs, tmp_path).many(300)]
    assert b"" in contents
    assert data in contents
    assert all(len(c) <= len(data) for c in contents)
    assert any(len(c) == len(data) and c[:SECTOR] == bytes(SECTOR) for c in contents), "a hole"
    assert any(set(c) - {0, ord("n")} for c in contents), "garbage"
    assert any(0 < len(c) < len(data) and len(c) % SECTOR for c in contents), "a torn size"


def test_bytes_outside_an_unsynced_write_are_never_touched(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    create(fs, root / "a", b"o" * 2000, sync=True, sync_dir=True)
    with fs.open_write(root / "a") as file:
        file.write_at(700, b"n" * 600)
        file.write(b"tail")
    for image in Images(fs, tmp_path).many(200):
        assert len(image["a"]) in range(2000, 2005)
        assert image["a"][:700] == b"o" * 700
        assert image["a"][1300:2000] == b"o" * 700


def test_unsynced_truncate_may_be_lost(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    create(fs, root / "a", b"o" * 1000, sync=True, sync_dir=True)
    with fs.open_write(root / "a") as file:
        file.truncate(100)
    contents = [image["a"] for image in Images(fs, tmp_path).many(200)]
    assert b"o" * 1000 in contents
    assert b"o" * 100 in contents
    assert all(c[:100] == b"o" * 100 for c in contents)
    with fs.open_write(root / "a") as file:
        file.sync()
    assert all(i["a"] == b"o" * 100 for i in Images(fs, tmp_path / "synced").many(20))


def test_sync_makes_what_was_written_through_another_handle_durable(
    root: Path, tmp_path: Path
) -> None:
    fs = CrashFS(root)
    create(fs, root / "a", b"one", sync=False, sync_dir=True)
    fs.replace(root / "a", root / "b")
    with fs.open_write(root / "b") as file:
        file.sync()
    fs.sync_dir(root)
    assert Images(fs, tmp_path).many(20) == [{"b": b"one"}] * 20


def test_rename_without_sync_dir_may_be_lost_but_is_one_step(root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(b"new")
    (root / "b").write_bytes(b"old")
    fs = CrashFS(root)
    fs.replace(root / "a", root / "b")
    images = Images(fs, tmp_path).many(60)
    before, after = {"a": b"new", "b": b"old"}, {"b": b"new"}
    assert before in images
    assert after in images
    assert all(image in (before, after) for image in images)
    fs.sync_dir(root)
    assert Images(fs, tmp_path / "synced").many(20) == [after] * 20


def test_rename_between_folders_never_loses_the_file(root: Path, tmp_path: Path) -> None:
    (root / "x").mkdir()
    (root / "y").mkdir()
    (root / "x" / "a").write_bytes(b"data")
    fs = CrashFS(root)
    fs.replace(root / "x" / "a", root / "y" / "a")
    images = Images(fs, tmp_path).many(100)
    assert all(image for image in images)
    assert {"x/a": b"data", "y/a": b"data"} in images, "both names"
    fs.sync_dir(root / "y")
    assert Images(fs, tmp_path / "synced").many(20) == [{"y/a": b"data"}] * 20


def test_a_durable_step_is_not_undone_by_an_earlier_one(root: Path, tmp_path: Path) -> None:
    (root / "x").mkdir()
    (root / "y").mkdir()
    fs = CrashFS(root)
    create(fs, root / "y" / "a", b"first", sync=True, sync_dir=False)
    create(fs, root / "x" / "a", b"second", sync=True, sync_dir=False)
    fs.replace(root / "x" / "a", root / "y" / "a")
    fs.sync_dir(root / "x")
    fs.sync_dir(root / "y")
    assert Images(fs, tmp_path).many(30) == [{"y/a": b"second"}] * 30


def test_unlink_without_sync_dir_may_come_back(root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(b"data")
    fs = CrashFS(root)
    fs.unlink(root / "a")
    images = Images(fs, tmp_path).many(60)
    assert {"a": b"data"} in images
    assert {} in images


def test_names_are_lost_in_any_order(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    for name in "ab":
        create(fs, root / name, b"", sync=True, sync_dir=False)
    seen = {frozenset(image) for image in Images(fs, tmp_path).many(120)}
    assert seen == {frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")}


def test_a_lost_folder_takes_its_durable_files_along(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    fs.make_dir(root / "d")
    fs.make_dir(root / "d" / "e")
    create(fs, root / "d" / "e" / "a", b"data", sync=True, sync_dir=True)
    assert {} in Images(fs, tmp_path).many(60)
    fs.sync_dir(root / "d")
    fs.sync_dir(root)
    assert Images(fs, tmp_path / "synced").many(20) == [{"d/e/a": b"data"}] * 20


def test_links_share_their_content(root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(b"1234")
    fs = CrashFS(root)
    fs.link(root / "a", root / "b")
    fs.sync_dir(root)
    with fs.open_write(root / "b") as file:
        file.write(b"5678")
    images = Images(fs, tmp_path).many(40)
    assert all(image["a"] == image["b"] for image in images)
    assert len({image["a"] for image in images}) > 1


def test_write_atomic_is_old_or_new_at_every_point(root: Path, tmp_path: Path) -> None:
    old, new = b"o" * 1500, b"n" * 1700
    (root / "a").write_bytes(old)
    fs = CrashFS(root)
    fs.write_atomic(root / "a", new)
    fs.mark("new")
    images, seen = Images(fs, tmp_path), set()
    points = fs.crash_points()
    assert points == 5  # create, write, sync, rename, sync_dir
    for i in range(500):
        point = i % (points + 1)
        content = images.draw(point)["a"]
        assert content in (old, new)
        assert content == new or not fs.marks_before(point)
        seen.add(content)
    assert seen == {old, new}


@pytest.mark.parametrize("missing", ["sync", "sync_dir"])
def test_the_model_notices_a_missing_flush(root: Path, tmp_path: Path, missing: str) -> None:
    (root / "a").write_bytes(b"old")
    fs = CrashFS(root, ignore=lambda op, path: op == missing)
    fs.write_atomic(root / "a", b"n" * 1700)
    assert {"a": b"n" * 1700} in (images := Images(fs, tmp_path).many(60))
    assert any(image.get("a") != b"n" * 1700 for image in images)


def test_marks_belong_to_the_points_after_them(root: Path) -> None:
    fs = CrashFS(root)
    fs.mark("nothing yet")
    create(fs, root / "a", b"x", sync=True, sync_dir=True)
    fs.mark("a")
    fs.unlink(root / "a")
    assert fs.crash_points() == 5
    assert fs.marks_before(0) == fs.marks_before(3) == ["nothing yet"]
    assert fs.marks_before(4) == fs.marks_before(5) == ["nothing yet", "a"]


def test_images_are_the_same_for_the_same_seed_in_any_order(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    for i in range(4):
        create(fs, root / f"f{i % 2}", bytes([i]) * 900, sync=i == 1, sync_dir=i == 2)
    points = range(fs.crash_points() + 1)
    rising = [Images(fs, tmp_path / f"r{p}", seed=p).draw(p) for p in points]
    falling = [Images(fs, tmp_path / f"f{p}", seed=p).draw(p) for p in reversed(points)]
    assert rising == falling[::-1]


def test_what_does_not_pass_the_seam_is_adopted_when_touched(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    (root / "foreign").mkdir()
    (root / "foreign" / "a").write_bytes(b"data")
    with fs.open_write(root / "foreign" / "a") as file:
        file.write(b"+")
        file.sync()
    fs.unlink(root / "foreign" / "unknown", missing_ok=True)
    assert Images(fs, tmp_path).many(10) == [{"foreign/a": b"data+"}] * 10


def test_paths_outside_the_root_are_not_recorded(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    fs.write_atomic(tmp_path / "elsewhere", b"data")
    assert fs.crash_points() == 0
    assert (tmp_path / "elsewhere").read_bytes() == b"data"


def test_a_file_moved_in_from_outside_counts_as_durable(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    (tmp_path / "outside").write_bytes(b"data")
    fs.replace(tmp_path / "outside", root / "a")
    assert Images(fs, tmp_path).many(5) == [{"a": b"data"}] * 5
    fs.replace(root / "a", tmp_path / "out-again")
    assert {} in Images(fs, tmp_path / "2").many(40)


def test_locks_pass_through_and_their_files_are_seen(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)
    lock = fs.lock(root / "lock")
    assert lock is not None
    assert fs.lock(root / "lock", block=False) is None
    lock.release()
    fs.sync_dir(root)
    assert Images(fs, tmp_path).many(5) == [{"lock": b""}] * 5


def test_threads_leave_a_consistent_record(root: Path, tmp_path: Path) -> None:
    fs = CrashFS(root)

    def work(name: str) -> None:
        for i in range(20):
            fs.write_atomic(root / name, bytes([i]) * 100)

    threads = [threading.Thread(target=work, args=(n,)) for n in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Images(fs, tmp_path).draw() == {n: bytes([19]) * 100 for n in "abcd"}


def test_the_real_folder_is_changed_too(root: Path) -> None:
    fs = CrashFS(root)
    fs.write_atomic(root / "a", b"data")
    fs.make_dir(root / "d")
    fs.remove_dir(root / "d")
    assert fs.list(root) == ["a"]
    assert fs.read_bytes(root / "a", 10) == b"data"


def test_a_point_that_does_not_exist_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 to 0"):
        CrashFS(root).image(1, random.Random(0), tmp_path / "image")
    with pytest.raises(ValueError, match="not empty"):
        CrashFS(root).image(0, random.Random(0), tmp_path)
