"""What a bucket asks of its store, of every store the same."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from mvc.errors import NotInstalled, RemoteRefused, RemoteUnreachable, WrongUsage
from mvc.io.files import FileSystem
from mvc.remote.transports.bucket.objects import FolderObjects, Objects, check_conditions
from tests.remote.bucket.conftest import opened
from tests.remote.bucket.faults import Unconditional

DAY = 24 * 3600 * 10**9


def test_objects_are_read_whole_and_in_ranges(objects: Objects) -> None:
    objects.write("packs/a", [b"hello ", memoryview(b"world")], 11)
    assert objects.read("packs/a", 11) == b"hello world"
    assert objects.read_range("packs/a", 6, 5) == b"world"
    assert objects.read_range("packs/a", 6, 100) == b"world"
    assert objects.read("packs/b", 10) is None
    assert objects.read_range("packs/b", 0, 10) is None
    with pytest.raises(RemoteRefused, match="more than 10 bytes"):
        objects.read("packs/a", 10)


def test_large_objects_are_written_in_parts(objects: Objects) -> None:
    block = os.urandom(1 << 20)
    objects.write("packs/a", (block for _ in range(12)), 12 << 20)
    assert objects.read("packs/a", 12 << 20) == 12 * block


def test_objects_are_listed_and_deleted(objects: Objects) -> None:
    for name in ("packs/a", "packs/b", "journal/c"):
        objects.write(name, [b"x"], 1)
    assert objects.swap("head", b"head", "")
    assert sorted((each.name, each.size) for each in objects.list("packs/")) == [
        ("packs/a", 1), ("packs/b", 1),
    ]  # fmt: skip
    assert all(abs(each.time_ns - objects.now_ns()) < DAY for each in objects.list("journal/"))
    objects.delete(["packs/a", "packs/gone"])
    assert [each.name for each in objects.list("packs/")] == ["packs/b"]


def test_one_of_two_swaps_succeeds(objects: Objects, url: str) -> None:
    other = opened(url)
    assert objects.read_version("head", 100) is None
    first = objects.swap("head", b"one", "")
    assert first
    assert other.swap("head", b"two", "") is None
    second = other.swap("head", b"three", first)
    assert second
    assert objects.swap("head", b"four", first) is None
    found = objects.read_version("head", 100)
    assert found is not None
    assert (found.data, found.version) == (b"three", second)
    again = objects.read_version("head", 100, second)
    assert again is not None
    assert (again.data, again.version) == (b"", second)


def test_of_many_swaps_at_once_one_succeeds(url: str) -> None:
    known = ""
    for turn in range(3):
        results: list[str | None] = []

        def race(known: str = known, results: list[str | None] = results, turn: int = turn) -> None:
            name = threading.current_thread().name
            results.append(opened(url).swap("head", f"{turn} {name}".encode(), known))

        threads = [threading.Thread(target=race) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [version for version in results if version]
        assert len(won) == 1
        known = won[0]


def test_a_store_that_keeps_conditions_passes(objects: Objects) -> None:
    check_conditions(objects)
    assert list(objects.list("probe")) == []


@pytest.mark.parametrize("ignored", ["create", "version"])
def test_a_store_without_conditions_is_refused(objects: Objects, ignored: str) -> None:
    with pytest.raises(RemoteRefused, match="cannot be a remote"):
        check_conditions(Unconditional(objects, ignored))


# -- folders --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> FolderObjects:
    (tmp_path / "bucket").mkdir()
    return FolderObjects(FileSystem(), tmp_path / "bucket")


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    objects = FolderObjects(FileSystem(), tmp_path / "absent")
    for act in (lambda: objects.read_version("head", 10), lambda: objects.swap("head", b"", "")):
        with pytest.raises(RemoteUnreachable, match="there is no folder"):
            act()
    assert not (tmp_path / "absent").exists()


def test_old_heads_are_deleted_and_none_can_be_made_again(folder: FolderObjects) -> None:
    known = ""
    heads = Path(folder.url.removeprefix("bucket:")) / "head"
    for i in range(40):
        known = folder.swap("head", b"%d" % i, known) or ""
        for path in heads.iterdir():
            if path.name.strip("0") != str(i + 1):
                os.utime(path, ns=(0, path.stat().st_mtime_ns - 2 * DAY))
    numbers = sorted(int(path.name) for path in heads.iterdir())
    assert numbers[0] == 1  # or another first one could be made
    assert len(numbers) < 20
    assert folder.swap("head", b"late", f"5-{blake3(b'4').hexdigest(16)}") is None
    assert folder.swap("head", b"late", f"1-{blake3(b'0').hexdigest(16)}") is None
    assert folder.swap("head", b"late", "") is None
    found = folder.read_version("head", 10)
    assert found is not None
    assert found.data == b"39"


def test_a_file_system_without_links_is_refused(tmp_path: Path) -> None:
    class NoLinks(FileSystem):
        def link(self, src: Path, dst: Path) -> None:
            raise self_error(dst)

    def self_error(path: Path) -> Exception:
        from mvc.errors import IoFailed

        return IoFailed(f"cannot create {path}: Operation not supported")

    (tmp_path / "bucket").mkdir()
    with pytest.raises(RemoteRefused, match="no hard links"):
        check_conditions(FolderObjects(NoLinks(), tmp_path / "bucket"))


# -- S3 -------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there(s3: str) -> None:
    objects = opened("s3://no-such-bucket/x")
    for act in (lambda: objects.read_version("head", 10), lambda: objects.swap("head", b"", "")):
        with pytest.raises(RemoteRefused, match=r"bucket of .* does not exist"):
            act()


def test_an_endpoint_that_is_away(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteUnreachable, match="does not answer") as raised:
        opened(s3).read_version("head", 10)
    assert "a-secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_url_without_a_bucket() -> None:
    with pytest.raises(WrongUsage, match="does not name a bucket"):
        opened("s3:///x")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotInstalled, match="obstore") as raised:
        opened("s3://bucket/x")
    assert raised.value.hint is not None
    assert "[s3]" in raised.value.hint
