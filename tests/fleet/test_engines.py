"""The lines of docs/guides/inference.md against a server that plays the engine."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.serving.sources import NotFollowing
from tests.cli.program import Mvc
from tests.fleet.engine import Engine, serving, total
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs/guides/inference.md"
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the scripts call curl")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def scripts() -> dict[str, str]:
    """The page's scripts; what it says of a vLLM without the backend is done to the second."""
    sglang, vllm, others = blocks("sh")[1:]
    old = re.search(r"^post /init_.*?(?=^post /resume)", vllm, re.M | re.S)
    assert old is not None
    return {"sglang": sglang, "vllm": vllm, "vllm without disk": vllm.replace(old[0], others)}


STATES = {
    name: {
        "model-00001-of-00002.safetensors": {"a": np.full((50, 50), number, np.float32)},
        "model-00002-of-00002.safetensors": {"b": np.full((50, 50), last, np.float32)},
    }
    for name, number, last in (
        ("first", 1.0, 2.0), ("second", 1.5, 2.0), ("third", 3.0, 4.0), ("broken", 9.0, np.nan)
    )
}  # fmt: skip


class Fleet:
    """A trainer's repository, and a node ``a`` with an engine."""

    def __init__(self, repo: Repository, mvc: Mvc, engine: Engine, *words: object) -> None:
        self.repo, self.engine, self._mvc, self._words = repo, engine, mvc, words
        self.prepares = "--prepare" in words

    def deploy(self, name: str) -> CommitId:
        return self.repo.commit(states=STATES[name], message=name, deploy="prod").id

    def follow(self, *more: object, code: int = 0, required: bool = True) -> Any:
        words = ["-o", "policy/", "--as", "a", "--once", *self._words, *more]
        if required:
            words.append("--exec-required")
        return self._mvc("follow", self.repo.root, "prod", *words, code=code)

    def serves(self, version: CommitId, name: str) -> bool:
        expected = sum(total(state) for state in STATES[name].values())
        folder = self._mvc.folder / "policy"
        shown = {path.name for path in folder.iterdir()} == set(STATES[name])
        return shown and self.engine.answer() == (str(version), expected)

    def reported(self) -> list[CommitId]:
        """The oldest first."""
        made = sorted(self.repo.deployments("nodes/a/prod"), key=lambda each: each.time_ns)
        return [each.commit for each in made]


@pytest.fixture(params=[*scripts(), "sglang in place"])
def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Fleet]:  # fmt: skip
    engine, node, script = Engine(), tmp_path / "node", tmp_path / "reload"
    name, in_place, _ = request.param.partition(" in place")
    node.mkdir()
    monkeypatch.chdir(node)
    script.write_text(scripts()[name])
    script.chmod(0o755)
    with ExitStack() as stack:
        monkeypatch.setenv("ENGINE", stack.enter_context(serving(engine)))
        repo = stack.enter_context(Repository.init(tmp_path / "trainer", bare=True))
        words: list[object] = ["--exec", script]
        if in_place:  # the script's first request, before the files are written
            pause = scripts()[name].partition("post /update")[0]
            words += ["--in-place", "--prepare", pause]
        yield Fleet(repo, Mvc(node, capsys), engine, *words)


def test_a_deployment_a_rollback_and_a_load_that_fails(fleet: Fleet) -> None:
    first = fleet.deploy("first")
    fleet.follow()
    assert fleet.serves(first, "first")
    second = fleet.deploy("second")
    fleet.follow()
    assert fleet.serves(second, "second")
    fleet.repo.rollback("prod")
    fleet.follow()
    assert fleet.serves(first, "first")
    broken = fleet.deploy("broken")
    done = fleet.follow(code=3)
    (line, _) = done.err.splitlines()[-2:]
    assert line.startswith(f"mvc: policy is {first.short} again: the command for {broken.short} ")
    assert fleet.serves(first, "first")
    assert fleet.reported() == [first, second, first, broken, first]
    third = fleet.deploy("third")
    fleet.follow()
    assert fleet.serves(third, "third")


def test_without_exec_required_the_engine_stays_paused(fleet: Fleet) -> None:
    fleet.deploy("first")
    fleet.follow(required=False)
    broken = fleet.deploy("broken")
    done = fleet.follow(required=False)
    assert f"policy is now {broken.short}, but its command failed" in done.err
    assert fleet.engine.is_paused


def test_an_engine_that_never_answers(fleet: Fleet) -> None:
    first = fleet.deploy("first")
    fleet.follow()
    fleet.deploy("second")
    fleet.engine.hangs = True
    done = fleet.follow("--exec-timeout", "0.3", code=3)
    times = done.err.count("took longer than 0.3 s and was killed")
    assert times == (1 if fleet.prepares else 2)  # for both versions
    fleet.engine.hangs = False
    assert fleet.serves(first, "first")
    assert fleet.reported()[-1] == first


def test_a_server_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    (code,) = (block for block in blocks("python") if "transformers" in block)
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
    monkeypatch.chdir(tmp_path)
    stop = threading.Event()
    with Repository.init(tmp_path / "trainer") as repo:

        def deploy() -> str:
            transformers.GPT2LMHeadModel(config).save_pretrained(repo.root)
            files = ["config.json", "generation_config.json", "model.safetensors"]
            return str(repo.commit([repo.root / name for name in files], deploy="prod").id)

        version = deploy()
        page: dict[str, Any] = {}
        exec(compile(code, str(PAGE), "exec"), page)
        follower = threading.Thread(target=page["follow"], args=(repo.root, stop))
        follower.start()
        try:
            until(lambda: page["served"] is not None and page["served"][1] == version, 60)
            version = deploy()
            until(lambda: page["served"][1] == version, 60)
        finally:
            stop.set()
            follower.join(30)
        assert json.loads((tmp_path / "policy/config.json").read_text())["n_embd"] == 8
    repo.root.rename(tmp_path / "away")
    page["served"], stop = None, threading.Event()
    with pytest.warns(NotFollowing, match=f"still serving {version[:10]}"):
        follower = threading.Thread(target=page["follow"], args=(repo.root, stop))
        follower.start()
        try:
            until(lambda: page["served"] is not None and page["served"][1] == version, 60)
            time.sleep(1)  # the first attempt to connect
        finally:
            stop.set()
            follower.join(30)
