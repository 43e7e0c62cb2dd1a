"""A frozen repository with params on some commits, behind a journal that gc has rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions
from tests.frozen.made import AUTHOR, Ticking, model, moved

PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 1e-3, "data": "cifar-10", "layers": [64, {"act": "relu"}]},
    {"é": "ü", "empty": "", "none": None, "Z": True, "a": "\udcff", "lines": "a\nb"},
    {},
    {f"p{i}": i for i in range(40)} | {"long": "x" * 1024},
)


def params(root: Path) -> None:
    """Params of every kind, alone and beside metrics; forgotten, collected, committed again."""
    with Repository.init(root, clock=Ticking()) as repo:
        state = model()
        for i, given in enumerate(PARAMS):
            state = moved(state, i)
            repo.commit(
                state,
                message=f"params {i}",
                params=given,
                metrics={"acc": 0.5 + i / 10} if i % 2 else {},
                options=CommitOptions(author=AUTHOR),
                deploy="prod" if i == 1 else None,
            )
        repo.storage.forget(["HEAD~2"])
        repo.storage.gc(grace="0")
        repo.commit(moved(state, 9), params={"after": "gc"}, options=CommitOptions(author=AUTHOR))
