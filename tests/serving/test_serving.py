"""FileSink and FileReader: whole versions only, whatever dies, and the time of who serves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import mvc
from mvc.errors import (
    BadModelFile,
    DamagedData,
    IoFailed,
    MvcError,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.serving.reader import FileReader
from mvc.serving.sinks import FileSink
from mvc.state import ServedVersion
from tests.seeds import draw
from tests.serving.child import number_of, version
from tests.training.killed import lines_until_killed
from tests.training.runs import tensor_bits

PROJECT = Path(__file__).parents[2]


@pytest.fixture(params=["disk", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A path on a disk, and one under /dev/shm."""
    if request.param == "disk":
        yield str(tmp_path / "served.safetensors")
        return
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no memory file system")
    with TemporaryDirectory(dir=memory) as folder:
        yield str(Path(folder, "served.safetensors"))


def child(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.serving.child", *arguments],
        cwd=PROJECT, stdout=subprocess.PIPE,
    )  # fmt: skip


def test_a_reader_gets_each_newer_version_once(path: str) -> None:
    sink, reader = FileSink(path), FileReader(path)
    assert reader.swap() is None and reader.production is None
    for number in (1, 2, 3):
        sink(version(number))
        assert number_of(reader.swap()) == number
        assert reader.swap() is None
        assert number_of(reader.production) == number
    sink(version(4))
    sink(version(5))
    assert number_of(reader.swap()) == 5  # the newest, not the next


def test_the_bits_of_torch_tensors(path: str) -> None:
    words = torch.tensor([0x80000000, 0x7FC00001, 1, 0x3F800000], dtype=torch.uint32)
    state = {
        "bits": words.view(torch.float32),
        "half": torch.randn(3, 2).to(torch.bfloat16),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 4),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    FileSink(path)(ServedVersion(state, CommitId(bytes(32)), 5))
    found = FileReader(path).swap().state
    assert list(found) == list(state)
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
    assert tensor_bits(found) == tensor_bits(state)
    assert found["bits"].view(torch.uint32).tolist() == words.tolist()
    assert found["count"].item() == 7


def test_swaps_while_another_process_writes(path: str) -> None:
    writer = child("write", path)
    try:
        reader = FileReader(path)
        before = swaps = 0
        while swaps < 30:
            found = reader.swap()
            if found is not None:
                assert number_of(found) > before
                before = number_of(found)
                swaps += 1
    finally:
        writer.kill()
        writer.communicate()


def test_another_process_serves(path: str) -> None:
    server = child("serve", path, "25")
    sink = FileSink(path)
    for number in range(1, 26):
        sink(version(number))
    printed, _ = server.communicate(timeout=60)
    assert server.returncode == 0
    seen = [int(line) for line in printed.split()]
    assert seen == sorted(set(seen)) and seen[-1] == 25


def test_a_writer_that_is_killed_leaves_a_whole_version(path: str) -> None:
    """Writers in turn, each killed somewhere; the next goes on where it was."""
    reader = FileReader(path)
    last = 0
    for turn in range(4):
        said = lines_until_killed(
            "tests.serving.child", "write", path,
            enough=lambda lines: int(lines[-1]) >= last + 2, delay=0.0007 * turn,  # noqa: B023
        )  # fmt: skip
        acknowledged = int(said[-1])
        found = reader.swap()
        assert found is not None
        last = number_of(found)
        assert last in (acknowledged, acknowledged + 1)
        assert number_of(FileReader(path).swap()) == last  # somebody who comes later


def test_a_file_that_every_reader_of_safetensors_takes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    old = os.umask(0o027)
    try:
        FileSink(path)(version(3))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert {name: a.tolist()[0] for name, a in load_file(path).items()} == {
        f"layer{i}": 3.0 for i in range(3)
    }
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]
    path.chmod(0o600)
    FileSink(path)(version(4))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_identified_as_its_version(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        made = repo.commit({"w": np.arange(5.0)})
        repo.commit({"w": np.arange(6.0)})
        FileSink(tmp_path / "served")(ServedVersion(made.state, made.id, 1))
        assert [f.commit for f in repo.identify(tmp_path / "served")] == [made.id]


def test_places_of_a_file_are_checked_when_the_sink_is_made(tmp_path: Path) -> None:
    mvc.Repository.init(tmp_path / "repo").close()
    (tmp_path / "link").symlink_to("repo/.mvc")
    for place in ("repo/.mvc/config.yaml", "repo/.mvc/new", "link/journal", "link"):
        with pytest.raises(WrongUsage, match="is inside the store of a repository"):
            FileSink(tmp_path / place)
    with pytest.raises(WrongUsage, match="repo is a folder"):
        FileSink(tmp_path / "repo")
    with pytest.raises(IoFailed, match=r"the folder .* does not exist"):
        FileSink(tmp_path / "absent" / "model.safetensors")


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IoFailed, match=r"the folder .* does not exist"):
        FileReader(tmp_path / "typo" / "model.safetensors")
    (tmp_path / "foreign").write_bytes(b"something else" * 1000)
    with pytest.raises(BadModelFile):
        FileReader(tmp_path / "foreign").swap()
    mvc.Repository.init(tmp_path / "repo").commit({"w": np.ones(3)})
    repo = mvc.Repository.open(tmp_path / "repo")
    repo.checkout("HEAD", to=tmp_path / "plain.bin")
    with pytest.raises(WrongUsage, match="not written by a sink"):
        FileReader(tmp_path / "plain.bin").swap()


def test_a_flipped_bit_is_noticed(path: str) -> None:
    FileSink(path)(version(1))
    data = bytearray(Path(path).read_bytes())
    data[data.index(np.float32(1).tobytes() * 8) + 3] ^= 1
    Path(path).write_bytes(data)
    reader = FileReader(path)
    with pytest.raises(DamagedData):
        reader.swap()
    assert reader.production is None


def test_any_bytes_give_a_version_or_an_error(tmp_path: Path) -> None:
    """Whatever stands in the file, nothing but mvc's own errors comes of it."""
    random = draw("sinks")
    path = tmp_path / "file"
    FileSink(path)(version(1, 40))
    whole = path.read_bytes()
    refused = 0
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(random.choice([1, 1, 3, 20])):
            at = random.randrange(min(len(data), 200) if random.random() < 0.5 else len(data))
            data[at] = random.choice([0, 1, 127, 128, 255, data[at] ^ 1 << random.randrange(8)])
        if random.random() < 0.2:
            del data[random.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            found = FileReader(path).swap()
        except MvcError:
            refused += 1
        else:
            assert number_of(found) == 1
    assert refused > 100


def test_productions_are_short_to_print() -> None:
    made: Any = version(1)
    assert repr(made) == "<ServedVersion 0100000000: 3 tensors>"
