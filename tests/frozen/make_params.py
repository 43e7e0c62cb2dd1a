"""How the frozen repository with params on commits was made. It is never made again.

    git worktree add /tmp/old 3e7aeb6          # the program of the time
    cd tests/frozen && PYTHONPATH=/tmp/old python make_params.py OUT

As ``make.py``, whose helpers it uses, with the optional feature ``commit-2``: commits with params
beside commits without, and both behind a journal that gc has compacted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from keep import keep
from make import AUTHOR, Ticking, model, moved

from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions

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


if __name__ == "__main__":
    keep(Path(sys.argv[1]), "params", params)
