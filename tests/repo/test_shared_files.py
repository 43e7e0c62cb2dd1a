"""Several processes that change one shared file at once: what was acknowledged stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from mvc.api.repository import Repository

_PROCESSES, _EACH = 6, 8
_ACT = """
import sys
from pathlib import Path
import mvc
from mvc.io.files import FileSystem
from mvc.repo.config import set_value, unset_value

folder, number, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with mvc.Repository.open(folder) as repo:
    sys.stdin.read()
    for at in range(each):
        repo.remotes.add(f"r{number}-{at}", str(folder.parent / "elsewhere"))
        if at % 2:
            repo.remotes.remove(f"r{number}-{at}")
    key = sys.argv[4]
    for _ in range(each):
        set_value(FileSystem(), folder / ".mvc" / "config.yaml", key, sys.argv[5])
        unset_value(FileSystem(), folder / ".mvc" / "config.yaml", key)
    set_value(FileSystem(), folder / ".mvc" / "config.yaml", key, sys.argv[5])
"""


def test_remotes_and_settings_of_several_processes_stay(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "repo"):
        pass
    values = {
        "store.max_chain": "11",
        "store.max_recovery": "3.5",
        "core.bare": "true",
        "deploy.protect": "prod",
        "recorder.push_timeout": "7",
        "store.layout": "skip:4",
    }
    running = [
        subprocess.Popen(
            [
                sys.executable, "-c", _ACT, str(tmp_path / "repo"), str(number), str(_EACH),
                key, value,
            ],
            stdin=subprocess.PIPE,
        )
        for number, (key, value) in enumerate(values.items())
    ]  # fmt: skip
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(120) for process in running] == [0] * _PROCESSES
    with Repository.open(tmp_path / "repo") as repo:
        names = {remote.name for remote in repo.remotes.list()}
    assert names == {f"r{n}-{at}" for n in range(_PROCESSES) for at in range(0, _EACH, 2)}
    tree = yaml.safe_load((tmp_path / "repo" / ".mvc" / "config.yaml").read_text())
    for key in values:
        section, _, name = key.partition(".")
        assert name in tree[section], key
