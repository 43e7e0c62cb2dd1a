"""A frozen repository with signatures of Ada and Bob, by keys that nobody has any more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from tests.frozen.made import Ticking


def state(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).standard_normal((6, 20)).astype(np.float32)}


def become(folder: Path, name: str) -> None:
    """From now on this person signs."""
    key = folder / name
    if not key.exists():
        made = ("-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key))
        subprocess.run(["ssh-keygen", *made], check=True)
        with (folder / "allowed_signers").open("a") as file:
            file.write(f"{name}@example.com {key.with_suffix('.pub').read_text()}")
    os.environ |= {"MVC_AUTHOR": name, "MVC_SIGN_KEY": str(key)}
    os.environ |= {"MVC_SIGN_COMMITS": "true", "MVC_SIGN_DEPLOYMENTS": "true"}


def signed(root: Path) -> None:
    people = root.parent / "people"
    people.mkdir()
    clock = Ticking()
    with Repository.init(root, clock=clock) as repo:
        plain = repo.commit(state(0), deploy="prod", message="not signed").id
        become(people, "ada")
        with Repository.open(root, clock=clock) as ada:
            for n in range(3):
                ada.commit(state(1 + n), deploy="prod", message=f"v{n}", metrics={"auc": n / 4})
            ada.deploy(plain, "edge", reason="asked for")
        become(people, "bob")
        with Repository.open(root, clock=clock) as bob:
            bob.rollback("prod", reason="worse")
            bob.retract(plain, "edge", reason="never was")
            bob.storage.gc(grace="0")
    signers = (people / "allowed_signers").read_bytes()
    Path(__file__).with_name("signed.signers").write_bytes(signers)
