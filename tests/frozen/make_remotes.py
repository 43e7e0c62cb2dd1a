"""A frozen repository that has met a remote: stamps, absent states, what others did there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from tests.frozen.made import START, Ticking


def state(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).standard_normal((12, 20)).astype(np.float32)}


def remotes(root: Path) -> None:
    """Bob's repository; Ada's and the server's lie next to it."""
    server = str(root.parent / "server")
    Repository.init(server, bare=True).close()
    with (
        Repository.init(root.parent / "ada", clock=Ticking()) as ada,
        Repository.init(root, clock=Ticking()) as bob,
    ):
        for repo in (ada, bob):
            repo.remotes.add("origin", server)
        os.environ["MVC_AUTHOR"] = "Bob"
        own = [bob.commit(state(50 + n), deploy="edge", message=f"own {n}").id for n in range(2)]
        bob.branch("own")
        bob.deploy(own[0], "prod", at=START + 2 * 10**9, reason="by hand")
        os.environ["MVC_AUTHOR"] = "Ada"
        ids = [ada.commit(state(n), deploy="prod", message=f"v{n}").id for n in range(5)]
        ada.branch("b" * 190)
        ada.tag("v4")
        ada.push(every=True)
        os.environ["MVC_AUTHOR"] = "Bob"
        bob.fetch(states="last:2")
        bob.branch("theirs", "origin/main")
        bob.fetch("origin", [ids[1]])
        bob.deploy("theirs", "edge", reason="joined")
        bob.deploy(ids[3], "prod")
        bob.rollback("prod", reason="worse")
        bob.retract(ids[2], "prod", reason="never was")
        bob.annotate("theirs", metrics={"auc": 0.5}, note="bob's")
        bob.push(refs=["own"])
        os.environ["MVC_AUTHOR"] = "Ada"
        ada.annotate(ids[4], metrics={"auc": 0.75}, params={"by": "ada"})
        ada.deploy(ids[0], "prod", at=START + 3 * 10**9, reason="at the same time")
        ada.retract(ids[2], "prod", reason="twice")
        ada.fetch()
        ada.rollback("prod")
        ada.storage.forget(ids[3], reason="asked for")
        ada.push()
        os.environ["MVC_AUTHOR"] = "Bob"
        bob.fetch()
        bob.deploy("theirs", "new", reason="a target that has a stamp at once")
        bob.storage.gc(grace="0", reason="disk is full")
    (root / ".mvc/remotes.yaml").unlink()
    shutil.rmtree(root / ".mvc/remotes", ignore_errors=True)
