# ruff: noqa: E501
"""What data says is shown escaped on every screen; values that look like options stay values."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import Content, FileEntry, LogicalTensor, Manifest
from mvc.model.statement import Deployment
from mvc.model.tensor import TensorSpec
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.packs.records import MANIFEST
from tests.cli.program import Mvc
from tests.hostile.forged import Forger, Piece, full, raw_id

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\u2066\u200b\x08\x00\ue000"
KEY = "w"


@pytest.fixture
def mvc(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mvc:
    monkeypatch.chdir(tmp_path / "repo") if (tmp_path / "repo").exists() else None
    return Mvc(tmp_path, capsys)


def forge(root: Path) -> list[CommitId]:
    """Two versions whose every free text moves the cursor."""
    from mvc.codecs.patch import encode_patch

    forger = Forger(root)
    pieces, commits = [], []
    for version in (b"\1" * 16, b"\2" * 16):
        id_ = raw_id(version)
        spec = TensorSpec("raw", (16,))
        pieces.append(Piece(id_, 16, full(version)))
        entry = FileEntry(
            "m.pt", "torch", 16, (Content(0, spec, id_),), None, (), (LogicalTensor(KEY, spec, id_, 0),)
        )  # fmt: skip
        none = FileEntry("empty.pkl", "opaque", 0, (), None)
        two = FileEntry(
            "two.pkl", "opaque", 32, (Content(0, spec, id_), Content(16, spec, id_)), None
        )
        manifest = Manifest([none, entry, two])
        patch = encode_patch(
            memoryview(manifest.encoded),
            memoryview(b""),
            b"".join(p.id for p in pieces if p.kind == 1),
        )
        parents = (commits[-1].id,) if commits else ()
        commits.append(
            Commit(manifest.id, manifest.root, parents, "me" + EVIL, 10**18, 60, "message" + EVIL,
                   {"loss" + EVIL: 1.0}, "lossless" + EVIL, "code" + EVIL)
        )  # fmt: skip
        pieces.append(
            Piece(bytes(manifest.id), len(manifest.encoded), patch, "patch", kind=MANIFEST)
        )
        region = forger.record(pieces)
        pieces = []
        refs = [RefChange("heads/main", parents[0] if parents else None, commits[-1].id)]
        if parents:
            refs += [RefChange(f"tags/{EVIL}", None, commits[-1].id),
                     RefChange(f"heads/{EVIL}", None, commits[-1].id)]  # fmt: skip
        live = Deployment(
            subject=commits[-1].id, author="me" + EVIL, node=bytes(16), recorded_ns=10**18,
            hybrid_ns=10**18 + len(commits), target="prod" + EVIL, time_ns=10**18,
        )  # fmt: skip
        forger.entry(
            Entry("commit", 10**18, "note" + EVIL, regions=(region,), commits=(commits[-1],),
                  refs=tuple(refs), statements=(live,), previous=(1 if parents else None,))
        )  # fmt: skip
    forger.entry(Entry("strange" + EVIL, 10**18, EVIL))
    forger.write()
    return [commit.id for commit in commits]


COMMANDS = [
    "log", "log -v", "log --oneline", "log --graph", "log -n 1 --json", "show HEAD", "show HEAD --json",
    "stats --versions",
    "status", "branch", "branch --json", "tag", "tag --json", "deploy", "deploy --json",
    "ls", "ls HEAD -v", "ls --json", "show HEAD w", "diff HEAD~1 HEAD", "diff HEAD~1 HEAD --json",
    "fsck --full", "fsck --json", "stats", "show --id HEAD", "undo --list", "undo --list --json", "gc -n",
    "checkout --at now", "checkout HEAD~1 -o out", "identify m.pt", "undo -n", "stats --json",
    "show --id NOTHING", "log NOTHING", "checkout --at now --target NOTHING", "repack -n", "config",
    "deploy HEAD lab", "show lab", "show target:lab@{now}~1",
]  # fmt: skip


def assert_harmless(text: str, command: str) -> None:
    bad = {
        c for c in text if c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    }
    assert not bad, f"{command} prints {sorted(map(ascii, bad))}"


def test_no_screen_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(tmp_path / "repo")
    monkeypatch.chdir(tmp_path / "repo")
    (tmp_path / "repo/m.pt").write_bytes(b"\2" * 16)
    from mvc.cli.main import run

    for command in COMMANDS:
        capsys.readouterr()
        run(command.split())
        seen = capsys.readouterr()
        assert "internal error" not in seen.err, f"{command}: {seen.err}"
        for text in (seen.out, seen.err):
            assert_harmless(text, command)


def test_names_of_files_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mvc = Mvc(tmp_path, capsys)
    mvc("init")
    (tmp_path / "bad\x1b[2J\n.pt").write_bytes(b"x")
    for command in ("status", "commit .", "status --json"):
        from mvc.cli.main import run

        capsys.readouterr()
        run(command.split())
        seen = capsys.readouterr()
        assert_harmless(seen.out, command)
        assert_harmless(seen.err, command)


@pytest.mark.parametrize(
    "value", ["-x", "--help", "-oProxyCommand=touch HERE", "--upload-pack=x", "-"]
)
def test_values_that_begin_with_a_dash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """No name of a ref or target begins with one; a path may, behind ``--``."""
    monkeypatch.chdir(tmp_path)
    mvc = Mvc(tmp_path, capsys)
    mvc("init")
    mvc.commit()
    for command in ("branch", "tag"):
        assert "not a valid name" in mvc(command, "--", value, code=3).err
    assert "not a valid name" in mvc("deploy", "--", "HEAD", value, code=3).err
    assert mvc("show", "--id", "--", value, code=3).err
    assert mvc("checkout", "--", value, code=3).err
    if value != "-":
        (tmp_path / value).write_bytes(b"x")
        mvc("commit", "-m", value, "--", value)
        assert value in mvc("ls").out
        assert mvc("log", "-n", "1", "--json").json["commits"][0]["message"] == value
    assert not (tmp_path / "HERE").exists()


def test_a_forged_version_is_readable_all_the_same(tmp_path: Path) -> None:
    from mvc.api.repository import Repository

    ids = forge(tmp_path / "repo")
    with Repository.open(tmp_path / "repo") as repo:
        assert [e.id for e in repo.log()] == ids[::-1]
        repo.checkout(ids[0], path="m.pt", to=tmp_path / "out.bin")
        assert np.frombuffer((tmp_path / "out.bin").read_bytes(), np.uint8).tolist() == [1] * 16
