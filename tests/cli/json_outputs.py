"""One history, and what every command says of it with ``--json``.

``python -m tests.cli.json_outputs`` writes ``json_outputs.txt`` anew: what changes there, changes
for programs that read it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from mvc.cli.main import run

FROZEN = Path(__file__).with_suffix(".txt")
_NET = """
import torch


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def inputs():
    return torch.ones(1, 2)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def train(model, optimizer, data=None):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
_HISTORY = (
    r"""
init work
-C work init
commit model.safetensors -m one --metric acc=0.5 --param lr=0.1 --date 2026-01-01T10:00Z \
  --deploy prod --at 2026-01-02T10:00Z
commit model.safetensors notes.txt -m two --metric acc=0.75 --date 2026-01-03T10:00Z
commit -a -m three --date 2026-01-04T10:00Z
commit --metric loss=nan model.safetensors
deploy HEAD prod --at 2026-01-05T10:00Z
deploy HEAD prod --at 2026-01-06T10:00Z
deploy HEAD prod --retract --at 2026-01-06T10:00Z
rollback prod
deploy
status
undo -n
log
stats --versions
show
show HEAD~2
show --code
diff HEAD~2 HEAD
diff HEAD~1
ls HEAD~1
show HEAD steps
identify model.safetensors
identify other.txt
stats
report -o page.html
report -o page.html
show --id HEAD main
show --id --at 2026-01-02T10:00Z
tag v1
branch side HEAD~1
branch -m side aside
checkout HEAD~1
checkout main
checkout HEAD -o out
checkout HEAD -o -
switch nowhere
merge aside
import --data numbers.txt
ls --data
ls --data numbers.txt
config store.layout
pipeline
pipeline "xor | planes:all | zstd:1"
pipeline --speed fast
import old --time name:%Y%m%d.npz
probe net.py --save run.json
repack -n --interval 2
repack --interval 2
forget HEAD~3 -n
forget HEAD~3 -f
log HEAD~2
gc -n --grace 0
gc --grace 0
undo --list
fsck --full
fsck --repair
commit net.safetensors -m base
commit net.safetensors -m trained --provenance net.py --metric acc=1
forget --weights HEAD
show --environment
diff --environment HEAD
show --code
log -n 1
retrain HEAD --trust-code
checkout HEAD --model -o whole
nonsense
init --bare server
remote add origin server
remote
push -n
push
push
fetch
pull
live --nodes
remote show
clone server copy
clone server copy
push --delete nowhere
remote remove origin
""".replace("\\\n  ", "")
    .strip()
    .splitlines()
)
_ID = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{10})\b|[0-9-]+\.pack|[0-9,]+ (?=bytes)")
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)")
_MEASURED = re.compile(
    r"bytes|seconds|recovery|price|ratio|_ns$|^decoded|^(commit|checkout|full|delta|threads)$"
)
_OF_THE_MACHINE = {
    "causes", "code", "environment", "differences", "in_use", "other", "reason", "recommended",
}  # fmt: skip


def transcript(folder: Path) -> str:
    """Each command line and its object, without what differs from one run to the next."""
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {"TZ": "UTC", "MVC_USER_NAME": "me"}),
    ):
        _write_files(folder)
        return "".join(_entries(folder))


def _write_files(folder: Path) -> None:
    (folder / "work").mkdir()
    np.savez(folder / "first.npz", w=np.zeros(3))


def _entries(folder: Path) -> Iterator[str]:
    yield _entry(_HISTORY[0])
    with contextlib.chdir(folder / "work"):
        Path("notes.txt").write_text("a note")
        Path("other.txt").write_text("another")
        Path("numbers.txt").write_text("1 2 3")
        Path("net.py").write_text(_NET)
        Path("old").mkdir()
        np.savez("old/20250101.npz", w=np.zeros(3))
        _save("other.safetensors", 5)
        for number, line in enumerate(_HISTORY[1:]):
            if line.startswith("commit"):
                _save("model.safetensors", number)
            if "net.safetensors" in line:
                _train(steps=int("--provenance" in line))
            if "--repair" in line:
                _damage("model.safetensors")
            yield _entry(line)


def _train(steps: int) -> None:
    """Writes what ``net.py`` makes, before its step or after it."""
    code: dict[str, Any] = {}
    exec(_NET, code)
    model = code["model"]()
    optimizer = code["optimizer"](model.parameters())
    for _ in range(steps):
        code["train"](model, optimizer)
    save_file({k: v.detach().numpy() for k, v in model.state_dict().items()}, "net.safetensors")


def _damage(name: str) -> None:
    """Turns a byte of a tensor over that the file in the working folder still has."""
    with Repository.open() as repo:
        (content, *_) = repo.manifest("HEAD").by_path[name].contents
        step = repo.handle.store.graph.path(content.id).steps[-1]
    pack = Path(f".mvc/packs/{step.pack:08}.pack")
    data = bytearray(pack.read_bytes())
    data[step.offset + step.header.body_at + step.member.at] ^= 255
    pack.write_bytes(data)


def _save(name: str, value: float) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    weight[0, 0] = value
    save_file({"layer.weight": weight, "steps": np.array(7, np.int64)}, name)


def _entry(line: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run([*shlex.split(line), "--json"])
    text = out.getvalue()
    payload = _steady(json.loads(text)) if text else {}
    fields = "".join(f"{name}: {json.dumps(value)}\n" for name, value in payload.items())
    return f"$ mvc {line}  # {code}\n{fields}\n"


def _steady(value: Any) -> Any:
    """The value without ids, times and what is measured; keys and their order stay."""
    text = json.dumps(steady_numbers(value))
    return json.loads(_TIME.sub("<time>", _ID.sub("<id>", text)).replace(str(Path.cwd()), "<here>"))


def steady_numbers(value: Any, key: str = "") -> Any:
    """The value without what is measured; keys and their order stay."""
    if key in _OF_THE_MACHINE and value:
        return f"<{type(value).__name__}>"
    if key == "pipelines":
        return [list(row) for row in value[:1]]
    if key == "curve":  # seconds decide how many points it has
        value = value | {"points": value["points"][:1]}
    if isinstance(value, dict):
        return {name: steady_numbers(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [steady_numbers(item, key) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    measured = is_number and (value > 1e17 or _MEASURED.search(key))
    return "<number>" if measured and key != "raw_bytes" else value


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        FROZEN.write_text(transcript(Path(scratch)), encoding="utf-8")
    sys.stdout.write(f"{FROZEN}\n")
