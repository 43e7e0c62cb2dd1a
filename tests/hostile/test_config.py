"""A hostile ``.mvc``: configuration that bombs, unknown files, somebody else's index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from tests.hostile.bounded import bounded
from tests.index_files import index_file

ANCHORS = b"a: &a0 {}\n" + b"".join(
    b"b%d: &a%d {%s}\n" % (i, i, b", ".join(b"k%d: *a%d" % (k, i - 1) for k in range(90)))
    for i in range(1, 9)
)
MERGES = b"a: &a {x: 1}\nb: &b {<<: [%s]}\nc: &c {<<: [%s]}\nd: {<<: [%s]}" % (
    b",".join([b"*a"] * 5000), b",".join([b"*b"] * 5000), b",".join([b"*c"] * 5000),
)  # fmt: skip
CONFIGS = {
    "laughs": ANCHORS,
    "merges": MERGES,
    "deep list": b"- " * 30_000,
    "deep brackets": b"[" * 60_000,
    "deep braces": b"{a: " * 15_000,
    "deep blocks": b"".join(b" " * i + b"a:\n" for i in range(340)),
    "too long": b"#" * 70_000,
    "digits": b"store: {reset_interval: " + b"9" * 60_000 + b"}",
    "float": b"store: {max_recovery: 1" + b":59" * 20_000 + b".5}",
    "sixty": b"store: {reset_interval: 1" + b":59" * 20_000 + b"}",
    "a date": b"store: {reset_interval: 2001-99-99}",
    "python": b"user: {name: !!python/object/apply:os.system [touch HERE]}",
    "python name": b"user: {name: !!python/name:os.system }",
    "empty sections": b"x: {y: {}}\n",
    "NUL": b'user: {name: "a\\0b"}',
    "escape": b"user: {name: \"\\e[2J\"}",
    "invalid UTF-8": b"user: {name: \xff\xfe\xff}",
    "a set as key": b"? {a, b}\n: 1\n",
    "hooks": b"hooks: {post-checkout: touch HERE}",
    "pager": b"core: {pager: touch HERE, sshCommand: touch HERE}",
    "infinity": b"store: {max_chain: .inf}",
    "not a number": b"store: {max_chain: .nan}",
}  # fmt: skip


def use(root: str) -> None:
    from mvc.errors import InvalidConfig, IoFailed

    os.chdir(root)
    try:
        Repository.open(root).close()
    except (InvalidConfig, IoFailed) as error:
        assert "\x1b" not in f"{error.message}{error.hint}"
        return
    raise AssertionError("the configuration was taken")


def all_configs(root: str) -> None:
    for name, data in CONFIGS.items():
        (Path(root) / ".mvc/config.yaml").write_bytes(data)
        try:
            use(root)
        except BaseException as error:
            raise AssertionError(f"{name}: {error!r}") from error


def test_configurations_that_are_data_and_nothing_else(tmp_path: Path) -> None:
    Repository.init(tmp_path).close()
    bounded("tests.hostile.test_config:all_configs", tmp_path).within(512, 30)
    assert not (tmp_path / "HERE").exists()


def test_unknown_files_are_left_alone(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        (tmp_path / "m").write_bytes(b"m")
        repo.commit([tmp_path / "m"])
    folder = tmp_path / ".mvc"
    marker = tmp_path / "marker"
    (folder / "hooks").mkdir()
    strange = [
        "hooks/post-commit", "packs/evil.sh", "packs/-1.pack", "packs/x.pack", "HEAD",
        "index.lmdb/__init__.py", "sitecustomize.py",
    ]  # fmt: skip
    for name in strange:
        (folder / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (folder / name).chmod(0o777)
    with Repository.open(tmp_path) as repo:
        (tmp_path / "m").write_bytes(b"n")
        repo.commit([tmp_path / "m"])
        assert len(list(repo.log())) == 2
    assert not marker.exists()


@pytest.mark.parametrize("name", ["9" * 22, "4294967296", "\u0663\u0663"])
def test_packs_with_impossible_numbers_are_left_alone(repo: Repository, name: str) -> None:
    (repo.root / ".mvc/packs" / f"{name}.pack").write_bytes(b"#!/bin/sh\n")
    (repo.root / "m").write_bytes(b"m")
    repo.commit([repo.root / "m"])
    assert (repo.root / ".mvc/packs/00000001.pack").exists()


@pytest.mark.parametrize("keys", ["none", "foreign", "wrong types"])
def test_an_index_of_somebody_else_is_made_anew(tmp_path: Path, keys: str) -> None:
    import lmdb

    with Repository.init(tmp_path) as repo:
        (tmp_path / "m").write_bytes(b"m")
        id_ = repo.commit([tmp_path / "m"]).id
        repo.handle.store.snapshot.index_tail(force=True)
    index = index_file(tmp_path).parent
    for file in index.iterdir():
        file.unlink()
    with lmdb.open(str(index), map_size=1 << 20) as env, env.begin(write=True) as txn:
        if keys != "none":
            txn.put(b"meta", b"x" * 100 if keys == "foreign" else b"")
            txn.put(b"d" + bytes(6), bytes(1000))
    with Repository.open(tmp_path) as repo:
        assert [entry.id for entry in repo.log()] == [id_]
        repo.handle.store.snapshot.index_tail(force=True)
    with Repository.open(tmp_path) as repo:
        assert repo.storage.fsck(full=True).problems == ()
