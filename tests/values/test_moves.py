"""One bit of a record changes while maintenance moves it: nothing is published nor deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.errors import EncodingFailed, MvcError
from mvc.store.packs.reader import PackReader
from mvc.store.writing.pack_writer import PackWriter
from mvc.testing import fresh_process, open_quietly
from tests.values.stories import stored_bytes

State = dict[str, np.ndarray]
Call = Callable[..., Any]


def flipped(data: Any) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def written_body(append: Call, packs: Any, head: bytes, body: Any) -> Any:
    return append(packs, head, [flipped(b"".join(body))])


def written_head(append: Call, packs: Any, head: bytes, body: Any) -> Any:
    return append(packs, flipped(head), body)


def read_body(raw: Call, *args: Any) -> Any:
    head, body = raw(*args)
    return head, memoryview(flipped(body))


def read_payload(payload: Call, *args: Any, **named: Any) -> Any:
    return memoryview(flipped(payload(*args, **named)))


CHANGES: dict[str, tuple[type, str, Call]] = {
    "written body": (PackWriter, "append", written_body),
    "written head": (PackWriter, "append", written_head),
    "read record": (PackReader, "raw", read_body),
    "read payload": (PackReader, "payload", read_payload),
}
COMMANDS: dict[str, Callable[[mvc.Repository], object]] = {
    "gc": lambda repo: repo.storage.gc(grace="0"),
    "interval": lambda repo: repo.storage.repack(interval=3),
    "super_step": lambda repo: repo.storage.join_steps(4),
}


def commit_all(repo: mvc.Repository, line: str) -> dict[mvc.ObjectId, State]:
    """Nine versions of six tensors, of which the fifth is forgotten."""
    rng, kept = np.random.default_rng(0), {}
    state = {f"t{i}": rng.normal(size=1500).astype("f4") for i in range(6)}
    for _ in range(9):
        done = repo.commit(state, pipeline=line)
        kept[done.id] = state = done.state if done.state is not None else state
        state = {n: v + (rng.normal(size=1500) * 1e-3).astype("f4") for n, v in state.items()}
    forgotten = list(kept)[4]
    repo.storage.forget([forgotten])
    del kept[forgotten]
    return kept


@pytest.mark.parametrize("line", ["lossless", "lc:x=2"])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_bit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, command: str, line: str
) -> None:
    owner, name, spoil = CHANGES[change]
    original = vars(owner)[name]
    with mvc.Repository.init(tmp_path) as repo:
        kept = commit_all(repo, line)
    for n in (1, 3):
        calls = 0

        def changed(*args: Any, n: int = n, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == n:
                return spoil(original, *args, **named)
            return original(*args, **named)

        before = stored_bytes(tmp_path)
        with open_quietly(tmp_path) as repo, monkeypatch.context() as patch:
            patch.setattr(owner, name, changed)
            try:
                COMMANDS[command](repo)
            except MvcError as error:
                assert calls >= n and "\n" not in error.message
                if owner is PackWriter:
                    assert isinstance(error, EncodingFailed)
                assert stored_bytes(tmp_path)["journal"] == before["journal"]
            else:
                if owner is PackWriter:
                    assert calls < n, f"call {n} was changed and nobody saw it"
        _check(tmp_path, kept)
        if calls < n:
            break


def _check(folder: Path, kept: dict[mvc.ObjectId, State]) -> None:
    fresh_process()
    with open_quietly(folder) as repo:
        assert repo.storage.fsck(full=True).sound
        for id_, state in kept.items():
            found = repo.checkout(id_)
            assert all(found[key].tobytes() == state[key].tobytes() for key in state)
