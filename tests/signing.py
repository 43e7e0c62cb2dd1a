"""SSH keys of people, the lists that say whose count, and repositories that somebody rewrote."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import GENESIS, encode_entry

__all__ = ["People", "people", "rewrite"]


class People:
    """Who has a key, and whose signatures count; the settings are those of whom ``act`` names."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.allowed = folder / "allowed_signers"
        self.revoked = folder / "revoked"
        self._patch = patch
        folder.mkdir()
        self.allowed.touch()
        self.set("allowed_signers", self.allowed)

    def set(self, name: str, value: object) -> None:
        self._patch.setenv(f"MVC_SIGN_{name.upper()}", str(value))

    def key(self, name: str, *, passphrase: str = "") -> Path:
        """The private key of a person, made at the first time."""
        file = self.folder / name
        if not file.exists():
            made = ("-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(file))
            subprocess.run(["ssh-keygen", *made], check=True, stdin=subprocess.DEVNULL)
        return file

    def public(self, name: str) -> str:
        return self.key(name).with_suffix(".pub").read_text()

    def allow(self, name: str, options: str = "") -> None:
        kind, key, *_ = self.public(name).split()
        with self.allowed.open("a") as file:
            file.write(" ".join(filter(None, (f"{name}@example.com", options, kind, key))) + "\n")

    def revoke(self, name: str) -> None:
        with self.revoked.open("a") as file:
            file.write(self.public(name))
        self.set("revoked", self.revoked)

    def act(self, name: str) -> None:
        """From now on this person signs every version and deployment."""
        self.set("key", self.key(name))
        self.set("commits", "true")
        self.set("deployments", "true")
        self._patch.setenv("MVC_AUTHOR", name)


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> People:
    """Ada may sign, and does."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    made = People(tmp_path / "people", monkeypatch)
    made.allow("ada")
    made.act("ada")
    return made


def rewrite(root: Path, edit: Callable[[list[Entry]], Iterable[Entry]]) -> None:
    """Writes the journal anew, as one would who has the disk and knows the format."""
    with Repository.open(root) as repo:
        entries = [recorded.entry for recorded in repo.handle.store.snapshot.entries()]
    data, at = b"", GENESIS
    for entry in edit(entries):
        frames, at = encode_entry(entry, at)
        data += frames
    (root / ".mvc" / "journal").write_bytes(data)
    (root / ".mvc" / "witness").unlink(missing_ok=True)
    shutil.rmtree(root / ".mvc" / "index.lmdb")
