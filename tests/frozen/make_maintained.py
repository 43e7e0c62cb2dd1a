"""How the frozen repositories of the format with maintenance were made. They are never made again.

    git worktree add /tmp/old 0ae8f6f          # the program of the time
    cd tests/frozen && PYTHONPATH=/tmp/old python make_maintained.py OUT

As ``make.py``, whose helpers it uses, with what came after the first format: journals that gc
and repack have compacted, states forgotten by name and by rule, operations that were undone,
deployments whose predecessor was corrected, lossy pipelines and weights on a grid, and the
full state of a training.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from describe import describe
from make import AUTHOR, START, Ticking, model, moved
from mvc.store.entries import Deployment, Entry

import mvc
from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions
from mvc.store.publishing.publish import publish
from tests.oracle import reader


def maintained(root: Path) -> None:
    """Forgotten, undone, collected, repacked, and worked on afterwards."""
    with Repository.init(root, clock=Ticking()) as repo:
        state, ids = model(), []
        for i in range(9):
            state = moved(state, i)
            ids.append(
                repo.commit(
                    state,
                    options=CommitOptions(author=AUTHOR),
                    deploy="prod" if i % 3 == 0 else None,
                ).id
            )
        repo.storage.forget([ids[1]])
        repo.branch("side", "HEAD~2")
        repo.switch("side", force=True)
        repo.commit(moved(state, 20), options=CommitOptions(author=AUTHOR), message="undone")
        repo.undo()
        repo.switch("main", force=True)
        repo.storage.repack(interval=3)
        repo.storage.gc(grace=timedelta(0))
        repo.storage.forget(keep_last=6)
        repo.commit(moved(state, 21), options=CommitOptions(author=AUTHOR, reset_point=True))
        repo.storage.gc(grace=timedelta(0))
        repo.commit(moved(state, 22), options=CommitOptions(author=AUTHOR), deploy="prod")


def relinked(root: Path) -> None:
    """A deployment with a wrong predecessor, which repair has corrected by a further entry."""
    with Repository.init(root, clock=Ticking()) as repo:
        state = model()
        for i in range(4):
            state = moved(state, i)
            head = repo.commit(state, options=CommitOptions(author=AUTHOR), deploy="prod").id
        wrong = Deployment("prod", START + 10**12, head, 1)
        entry = Entry("deploy", START + 10**12, "prod", deployments=(wrong,))
        publish(repo.context.store.snapshot, lambda: entry)  # what it names is not checked here
        repo.storage.repair()
        repo.commit(moved(state, 9), options=CommitOptions(author=AUTHOR), deploy="prod")


TOPK = "topk:0.075,min=0.001,loss=-0.5 | xor | lsb:20 | sparse | zstd:1"


def lossy(root: Path) -> None:
    """Production weights of every lossy kind, grids among them."""
    with Repository.init(root, clock=Ticking()) as repo:
        for number, pipeline in enumerate((TOPK, "frontier-0", "frontier-1")):
            state = model(shape=(40, 60))
            for i in range(4):
                state = moved(state, i)
                name = f"{number}.safetensors"
                repo.commit(
                    state,
                    path=name,
                    pipeline=pipeline,
                    options=CommitOptions(author=AUTHOR),
                    metrics={"loss": 0.5},
                )


def trained(root: Path) -> None:
    """Weights and the full state of a training, recorded behind it."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.Adam(net.parameters())
    random = np.random.default_rng(0)
    with (
        Repository.init(root, clock=Ticking()) as repo,
        mvc.Recorder(repo, net, optimizer, deploy="prod") as recorder,
    ):
        for _ in range(4):
            batch = torch.from_numpy(random.standard_normal((8, 6)).astype(np.float32))
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            recorder.step(loss=float(loss.detach()))


def keep(maker: Callable[[Path], None], out: Path) -> None:
    """Makes one repository, stores it with what is answered now."""
    name = maker.__name__
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "repo"
        maker(root)
        with zipfile.ZipFile(out / f"{name}.zip", "x", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            for path in sorted((root / ".mvc").rglob("*")):
                if path.is_file() and "index.lmdb" not in path.parts:
                    z.writestr(path.relative_to(root).as_posix(), path.read_bytes())
        with zipfile.ZipFile(out / f"{name}.zip") as z:
            z.extractall(again := Path(folder).resolve() / "again")
        found = describe(again)
        oracle = reader.Repository(again / ".mvc")
        found["second reader"] = sorted(map(bytes.hex, oracle.commits))
    text = json.dumps(found, indent=1, ensure_ascii=True, sort_keys=True)
    (out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for maker in (maintained, relinked, lossy, trained):
        keep(maker, Path(sys.argv[1]))
