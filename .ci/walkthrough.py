"""Walks through mvc as it is installed: versions, moments, maintenance, remotes, a server, Python.

    PYTHON .ci/walkthrough.py [--loops C|numpy] [--torch yes|no]

PYTHON is the interpreter of the environment in which mvc is installed; nothing else needs to be
there. ``--loops`` and ``--torch`` say what the environment must have. Works in a temporary folder,
prints a line for each step, and ends with exit status 1 at the first one that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path
from typing import Any

VERSIONS = 5
_BEGUN = time.monotonic()
_PYTHON = """
import sys, mvc, numpy
kind = sys.argv[1]
repo = mvc.Repository.open("trainer")
state = repo.checkout("HEAD")
assert {type(value).__module__.partition(".")[0] for value in state.values()} == {kind}, state
made = repo.commit({"w": numpy.arange(6, dtype=numpy.float32)}, path="api.safetensors")
assert list(repo.checkout(made.id, path="api.safetensors")["w"]) == [0, 1, 2, 3, 4, 5]
"""
_TORCH = """
import sys, torch
state = {"w": torch.arange(6, dtype=torch.bfloat16), "nested": [torch.ones(2), 7]}
if sys.argv[1] == "save":
    torch.save(state, sys.argv[2])
else:
    found = torch.load(sys.argv[2], weights_only=True)
    assert torch.equal(found["w"], state["w"]) and found["nested"][1] == 7
"""


class Walk:
    """Commands in a folder of their own, with no settings but these."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("MVC_")}
        self.environment = {**own, "HOME": str(folder), "MVC_AUTHOR": "walker", "TZ": "UTC"}
        self.environment.pop("PYTHONPATH", None)
        self.program = str(Path(sys.executable).with_name("mvc"))

    def mvc(self, *words: str | Path, at: str = "trainer", code: int = 0) -> str:
        """What the command prints; it must end with ``code``, and never with a traceback."""
        done = self._run([self.program, *map(str, words)], self.folder / at)
        shown = f"mvc {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == code, shown
        assert "Traceback" not in done.stderr, shown
        return done.stdout if code == 0 else done.stderr

    def json(self, *words: str | Path, at: str = "trainer") -> Any:
        return json.loads(self.mvc(*words, "--json", at=at))

    def python(self, code: str, *words: str | Path) -> None:
        done = self._run([sys.executable, "-c", code, *map(str, words)], self.folder)
        assert done.returncode == 0, done.stderr

    def _run(self, command: list[str], at: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=at, env=self.environment, capture_output=True, text=True, timeout=300
        )

    @contextmanager
    def serving(self, folder: str) -> Iterator[str]:
        """The URL of a server for the repositories in a folder."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [self.program, "serve", folder, "--listen", address]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.DEVNULL
        ) as server:
            try:
                wait_for(address)
                yield f"http://{address}"
            finally:
                server.send_signal(signal.SIGTERM)
                assert server.wait(timeout=60) == 0


def wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(300):
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nothing listens at {address}")


def model(seed: int) -> bytes:
    """A safetensors file; two of them differ in a few words of one tensor."""
    random.seed(0)
    weights = {name: array("f", (random.gauss(0, 0.05) for _ in range(20_000))) for name in "ab"}
    for at in range(0, 20_000, 97):
        weights["b"][at] += seed * 1e-3
    header, end = {}, 0
    for name, values in weights.items():
        begin, end = end, end + len(values) * 4
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in weights.values())


def step(text: str) -> None:
    print(f"{time.monotonic() - _BEGUN:6.1f} s  {text}", flush=True)


def versions_and_moments(walk: Walk) -> None:
    trainer = walk.folder / "trainer"
    trainer.mkdir()
    walk.mvc("init")
    commits, moments = [], []
    for seed in range(VERSIONS):
        (trainer / "net.safetensors").write_bytes(model(seed))
        made = walk.json(
            "commit", "net.safetensors", "-m", f"version {seed}", "--metric", f"acc=0.{seed}",
            "--deploy", "prod",
        )  # fmt: skip
        commits.append(made["commit"]["id"])
        moments.append(datetime.now(UTC).isoformat())
        if not seed:
            step("first commit")
    for seed, (commit, moment) in enumerate(zip(commits, moments, strict=True)):
        live = walk.json("live", "prod", "--at", moment)["live"]
        assert [each["commit"] for each in live] == [commit], live
        walk.mvc("checkout", "--at", moment, "--target", "prod", "-o", "was.safetensors", "-f")
        assert (trainer / "was.safetensors").read_bytes() == model(seed)
    step("each moment leads to the version that was live, to the byte")
    for words in (["log"], ["show", "HEAD"], ["diff", "HEAD~1"], ["stats"], ["ls"], ["status"]):
        assert walk.mvc(*words)
    walk.mvc("rollback", "prod", "-m", "worse")
    assert walk.json("live", "prod")["live"][0]["commit"] == commits[-2]
    refused = walk.mvc("checkout", "nothing-of-this-name", code=3)
    assert refused.startswith("mvc: "), refused
    step("history, differences, a rollback, a refusal")
    walk.mvc("repack")
    walk.mvc("gc")
    walk.mvc("fsck", "--full")
    step("repack, gc, fsck --full")


def remotes(walk: Walk) -> None:
    walk.mvc("init", "--bare", "served/net", at=".")
    walk.mvc("remote", "add", "origin", walk.folder / "served/net")
    walk.mvc("push", "origin", "main")
    walk.mvc("clone", "served/net", "clone", at=".")
    walk.mvc("fsck", "--full", at="clone")
    assert (walk.folder / "clone/net.safetensors").read_bytes() == model(VERSIONS - 1)
    step("push, clone")
    token = walk.json("serve", "token", "add", "node", "--scope", "read", at="served")["token"]
    (walk.folder / "token").write_text(token)
    (walk.folder / "token").chmod(0o600)
    with walk.serving("served") as url:
        walk.mvc(
            "follow", f"{url}/net", "prod", "-o", "followed.safetensors", "--once",
            "--option", f"token_file={walk.folder / 'token'}", at=".",
        )  # fmt: skip
    assert (walk.folder / "followed.safetensors").read_bytes() == model(VERSIONS - 2)
    step("a node follows a server")


def python(walk: Walk, *, torch: bool) -> None:
    walk.python(_PYTHON, "torch" if torch else "numpy")
    step(f"states are {'tensors of torch' if torch else 'arrays of numpy'}")
    if torch:
        file = walk.folder / "trainer/model.pt"
        walk.python(_TORCH, "save", file)
        walk.mvc("commit", "model.pt", "-m", "a pickle")
        file.unlink()
        walk.mvc("checkout", "HEAD", "model.pt")
        walk.python(_TORCH, "load", file)
        step("a checkpoint of torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--loops", choices=["C", "numpy"], help="which must run")
    parser.add_argument("--torch", choices=["yes", "no"], help="whether it must be there")
    options = parser.parse_args()
    torch = util.find_spec("torch") is not None
    assert options.torch in (None, "yes" if torch else "no"), f"torch is there: {torch}"
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder).resolve())
        said = walk.mvc("--version", at=".").strip()
        assert said.startswith(f"mvc {metadata.version('mvc-weights')} (kernels in "), said
        assert options.loops is None or said.endswith(f"(kernels in {options.loops})"), said
        step(f"{said}, Python {sys.version.partition(' ')[0]}, torch: {torch}")
        versions_and_moments(walk)
        remotes(walk)
        python(walk, torch=torch)
        step("done")


if __name__ == "__main__":
    main()
