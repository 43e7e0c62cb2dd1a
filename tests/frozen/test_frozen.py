"""T14: repositories of earlier programs, sound and damaged, answer as they did then.

``make.py`` and the other ``make_*.py`` say how they were made and by which
programs; they are never made again. What is compared is in ``describe.py``: every commit, ref,
deployment, what was live when, the SHA-256 of every file of every version, and what fsck finds.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
import mvc.recipes as recipes
from mvc.api.repository import Repository
from mvc.errors import DamagedData, RefConflict, WeightsDropped
from mvc.names import RECIPE
from mvc.recipes.recipe import recipe_of
from tests.counters import count
from tests.frozen.describe import describe
from tests.oracle import reader
from tests.oracle.holding import codings_of

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.zip"))
READ = {
    "codings",
    "files",
    "history",
    "indexed",
    "one-copy",
    "torn-first-copy",
    "torn-second-copy",
    "maintained",
    "relinked",
    "lossy",
    "trained",
    "params",
    "recipes",
    "annotated",
    "predicted",
    "remotes",
    "signed",
}


def unpacked(name: str, root: Path) -> Path:
    with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
        archive.extractall(root)
    return root


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return found


def test_all_of_them_are_here() -> None:
    assert {path.stem for path in HERE.glob("*.json")} == set(NAMES)
    assert len(NAMES) == 25 and set(NAMES) >= READ
    assert sum(path.stat().st_size for path in HERE.glob("*.*")) < 700_000


@pytest.mark.parametrize("name", [name for name in NAMES if name != "both-copies"])
def test_a_frozen_repository_answers_as_it_did(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path / "repo")
    then = expected(name)
    then.pop("second reader")
    now = json.loads(json.dumps(describe(root)))
    assert set(now) == set(then)
    for what in then:
        assert _comparable(now[what]) == _comparable(then[what]), what
    count(
        "frozen repositories of format 1",
        repositories=1,
        versions=len(then.get("commits", ())),
        of_them_sound=not then.get("fsck", True),
    )


def test_more_comes_back_of_a_lost_entry_than_did_then(tmp_path: Path) -> None:
    """It was refused as a whole. The same series, sound, says what its versions hold."""
    root = unpacked("both-copies", tmp_path / "repo")
    assert expected("both-copies")["refused"] == ["damaged-data", DamagedData.exit_code]
    then = expected("one-copy")["commits"]
    with Repository.open(root) as repo:
        view = repo.handle.store.snapshot
        with pytest.raises(DamagedData):
            list(view.entries())
        kept = [c for r in view.entries(lost=lambda gap: None) for c in r.entry.commits]
        assert len(kept) == len(then) - 1
        for commit in kept:
            for path, digest in then[str(commit.id)]["files"].items():
                repo.checkout(str(commit.id), path=[path], to=tmp_path / "out.bin", force=True)
                assert hashlib.sha256((tmp_path / "out.bin").read_bytes()).hexdigest() == digest
        (lost,) = then.keys() - {str(commit.id) for commit in kept}
        assert [str(id_) for id_ in repo.storage.fsck().lost] == [lost]
        for ask in (repo.deployments, repo.live, lambda: repo.checkout("HEAD")):
            with pytest.raises(DamagedData):
                ask()


def _comparable(value: Any) -> str:
    """NaN equals itself here, and True is not 1."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_second_reader_agrees(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path / "repo")
    then = expected(name)
    if then["second reader"] == "refuses":
        with pytest.raises((reader.Bad, FileNotFoundError)):
            reader.Repository(root / ".mvc")
        return
    oracle = reader.Repository(root / ".mvc")
    assert sorted(map(bytes.hex, oracle.commits)) == then["second reader"]
    if name == "cut-journal":  # of which only the witness knows, and that is no part of the format
        assert then["refused"][0] == "history-missing"
        return
    refs = {n: c.hex() if isinstance(c, bytes) else c for n, c in oracle.refs.items()}
    assert refs == then["refs"]
    for id_, commit in then["commits"].items():
        assert oracle.commits[bytes.fromhex(id_)].params == commit.get("params", {})
        made = oracle.commits[bytes.fromhex(id_)]
        carried = commit.get("carried", {})
        assert [each.hex() for each in made.needs] == commit.get("needs", [])
        assert set(made.attached) == {name.split("/")[0] for name in carried}
        if commit["files"] == "lost: state-forgotten" or commit.get("dropped"):
            with pytest.raises(reader.Bad):
                oracle.checkout(bytes.fromhex(id_))
            continue
        files = oracle.checkout(bytes.fromhex(id_))
        found = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
        assert found == commit["files"]


@pytest.mark.parametrize("name", sorted(READ))
def test_a_frozen_repository_takes_further_commits(name: str, tmp_path: Path) -> None:
    """By today's program, which must leave all that was there as it was."""
    root = unpacked(name, tmp_path / "repo")
    then = expected(name)
    state = {"w": np.arange(12, dtype=np.float32)}
    with Repository.open(root) as repo:
        made = repo.commit(state, message="today", deploy="prod", path="today.safetensors")
        repo.handle.store.snapshot.index_tail(force=True)
    with Repository.open(root) as repo:
        assert repo.checkout(path="today.safetensors")["w"].tobytes() == state["w"].tobytes()
    now = describe(root)
    assert now["log"] == [str(made.id), *then["log"]]
    assert {id_: c["files"] for id_, c in now["commits"].items() if id_ in then["commits"]} == {
        id_: c["files"] for id_, c in then["commits"].items()
    }


def test_what_the_frozen_annotations_say(tmp_path: Path) -> None:
    """Who, why and what was found out, also after this program has collected and repacked."""
    root = unpacked("annotated", tmp_path / "repo")
    then = expected("annotated")
    with Repository.open(root) as repo:
        repo.commit({"w": np.arange(5.0)})
        repo.storage.repack(interval=1)
        repo.storage.gc(grace="0")
    now = describe(root)
    for what in ("returns", "annotations", "code", "statements"):
        found = now[what]
        if what == "code":
            found = {id_: each for id_, each in found.items() if id_ in then["code"]}
        assert _comparable(found) == _comparable(then[what]), what
    why = {(operation, reason) for _, operation, reason, _ in then["who"] if reason}
    assert why <= {(operation, reason) for _, operation, reason, _ in now["who"]}
    oracle = reader.Repository(root / ".mvc")
    for id_, found in then["annotations"].items():
        read = oracle.annotations(bytes.fromhex(id_))
        assert [each.note for each in read] == [each[5] for each in found]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_who_signed_the_frozen_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same people, also after this program has collected."""
    root = unpacked("signed", tmp_path / "repo")
    monkeypatch.setenv("MVC_SIGN_ALLOWED_SIGNERS", str(HERE / "signed.signers"))
    for _ in range(2):
        with Repository.open(root) as repo:
            found = [(v.signature.signer.partition("@")[0], v.problems) for v in repo.verify()]
            nobody = "", ("unsigned",)
            assert found == [("ada", ()), nobody, *[("ada", ())] * 3, ("bob", ())]
            assert repo.verify(repo.find("HEAD")).signer == "ada@example.com"
            assert repo.verify("edge")[0].retraction == repo.verify("prod")[-1].signature
            repo.storage.gc(grace="0")


def test_what_the_frozen_recipes_say(tmp_path: Path) -> None:
    """A version without weights, one that has them again, and all that their recipes need."""
    root = unpacked("recipes", tmp_path / "repo")
    with mvc.Repository.open(root) as repo:
        last, third, second, first, base = (entry.id for entry in repo.log())
        with pytest.raises(WeightsDropped, match="were dropped"):
            repo.checkout(first)
        for there in (last, third, second, base):
            assert set(repo.checkout(there)) == {"weight", "bias"}
        recipe = recipe_of(repo, first)
        data = recipes.data_set(repo, "numbers.txt").version
        assert recipe.needs == tuple(sorted((base, data)))
        assert recipe.encoded() == repo.attachment(first, RECIPE)
        assert any(b"def train(" in text for text in recipes.code(repo, first).values())
        with pytest.raises(RefConflict, match="is needed to retrain"):
            repo.storage.forget(base)
        assert repo.diff(base, first).unmeasured
        repo.storage.repack(interval=1)
        repo.storage.gc(grace="0")
        assert repo.storage.fsck(full=True).sound
        assert repo.storage.stats().dropped == 1


def test_what_they_hold(tmp_path: Path) -> None:
    """All that make.py promises is in them."""
    oracle = reader.Repository(unpacked("codings", tmp_path / "codings") / ".mvc")
    codings = codings_of(oracle)
    assert {text.split(" | ")[0] for text in codings} >= {
        "sub", "xor", "planes", "planes:all", "raw", "patch", "resize",
        "cast:float32>bfloat16", "cast:float32>float16", "cast:float64>float32",
    }  # fmt: skip
    specs = {t.spec[0] for id_ in oracle.commits for e in oracle.manifest(id_) for t in e.tensors}
    assert len(specs) >= 18
    operations = set(expected("history")["operations"])
    assert operations >= {"init", "commit", "deploy", "retract", "tag", "branch"}
    (index,) = (unpacked("indexed", tmp_path / "indexed") / ".mvc").rglob("data.mdb")
    assert index.stat().st_size > 8192
