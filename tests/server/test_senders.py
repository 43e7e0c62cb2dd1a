"""A server records who sent a change, says so, and lets a token annotate only what it may push."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import mvc
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import MvcError, RemoteRefused
from mvc.ids import CommitId
from mvc.io.process import user_name
from mvc.model.statement import AnnotationStatement, ReplayProof, Signature
from mvc.remote.slices import NodeReport, Sent, encode_entries, sent_with
from mvc.remote.transport import Slice
from tests.recipes.by_hand import prove
from tests.remote.kit import ssh
from tests.remote.kit.serving import serving, token, transport
from tests.server.moving import answering, record, served_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return served_folder(tmp_path / "served")


def test_who_sent_a_change_is_shown(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "push:heads/*", "deploy:lab", name="ci"))
    with serving(folder) as server:
        with Repository.init(tmp_path / "ada") as ada:
            ada.remotes.add("origin", f"{server.url}/models")
            record(ada, 1)
            ada.deploy("HEAD", "lab")
            ada.push()
            ada.annotate("HEAD", metrics={"auc": 0.9})
            ada.push()
            first, author = ada.find("HEAD").short, ada.version("HEAD").author
            ada.tag("v1", "HEAD")
            with pytest.raises(RemoteRefused, match="push:tags/v1"):
                ada.push(refs=["v1"])
        log = server.log
    shown = [line.partition("Z ")[2] for line in log.splitlines() if "Z token ci " in line]
    pushed, annotated, refused = shown
    assert pushed == (
        f"token ci models refs=[heads/main:..{first}] deployments=[lab:{first}] "
        "statements=[1 versions] done"
    )
    assert annotated == "token ci models statements=[1 annotations] done"
    assert refused == f"token ci models refs=[tags/v1:..{first}] remote-refused"

    def says(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "mvc", "-C", str(folder / "models"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    who = f"{author} (sent by token ci)"
    assert re.search(rf"^who +{re.escape(who)}$", says("live", "lab"), re.MULTILINE)
    assert who in says("live") and who in says("deploy", "--list") and who in says("undo", "--list")
    logged = says("log")
    assert f"Author:   {who}" in logged and re.search(r"Deployed: lab at .*token ci\)", logged)
    assert json.loads(says("log", "--json"))["commits"][0]["sent_by"] == "token ci"
    assert json.loads(says("live", "--json"))["live"][0]["sent_by"] == "token ci"
    with Repository.open(tmp_path / "ada") as ada:  # what was done here nobody sent
        assert {each.entry.sender for each in ada.operations()} == {""}


def test_a_name_of_any_length_that_is_refused_is_logged_in_one_short_line(folder: Path) -> None:
    text = token(folder, "push:heads/main", name="eve")
    target = "x\ntoken ada models " * 100_000
    gone = NodeReport(target, b"c" * 32, 1, 1)
    with serving(folder) as server:
        with closing(transport(f"{server.url}/models", text)) as opened, pytest.raises(MvcError):
            opened.receive(Slice(encode_entries([Sent((), 0, reports=(gone,)), Sent()]), 0, ()))
        (line,) = (line for line in server.log.splitlines() if "token ada" in line)
    assert "Z token eve models deployments=[x\\ntoken ada" in line and len(line) < 500


def test_an_account_sends_what_comes_by_a_folder_or_ssh(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ssh.install(tmp_path / "bin").items():
        monkeypatch.setenv(name, value)
    with Repository.init(tmp_path / "ada") as ada:
        record(ada, 1)
        ada.remotes.add("near", folder / "models")
        ada.push("near")
        record(ada, 2)
        ada.remotes.add("far", f"ssh://lab{folder}/models")
        ada.push("far")
    with Repository.open(folder / "models") as there:
        assert [each.sent_by for each in there.log()] == [f"account {user_name()}"] * 2


def test_who_forgets_without_admin_is_not_locked_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tombstone is left out and named; a token with admin sends it later."""

    def run(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-P", "-m", "mvc", "-C", str(tmp_path / "ada"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stderr

    def there() -> list[bool]:
        with Repository.open(folder / "models") as repo:
            return [isinstance(repo.availability(each.id), Gone) for each in repo.log("main")]

    with Repository.init(tmp_path / "ada") as ada:
        for value in range(3):
            record(ada, value)
        forgotten = ada.find("HEAD~1").short
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/*", name="ci"))
    with serving(folder) as server:
        run("remote", "add", "origin", f"{server.url}/models")
        run("push")
        run("forget", forgotten, "-f")
        with Repository.open(tmp_path / "ada") as ada:
            record(ada, 3)
            ada.annotate("HEAD", note="good")
        assert f"not sent: {forgotten} was forgotten here; forgetting" in run("push", code=3)
        assert there() == [False] * 4
        with Repository.open(folder / "models") as repo:
            assert [each.note for each in repo.annotations("main")] == ["good"]
        assert forgotten in run("push", code=3) and forgotten in run("push", "--partial")
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "admin", name="owner"))
        assert "not sent" not in run("push")
        assert there() == [False, False, True, False]
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/*", name="ci2"))
        run("push")  # it is there


def test_what_is_left_out_is_named_and_exits_with_3(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/*"))
    with serving(folder) as server, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", f"{server.url}/models")
        record(ada, 1)
        ada.deploy("HEAD", "prod")
        ada.tag("v1")
        command = [sys.executable, "-P", "-m", "mvc", "-C", str(tmp_path / "ada"), "push"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 3 and "main" in done.stdout
        assert "they need the scope push:tags/v1, deploy:prod" in done.stderr
        assert subprocess.run([*command, "--partial"], check=False).returncode == 0


def test_a_tag_that_was_not_named_does_not_fail_a_push(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/*"))
    with serving(folder) as server, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", f"{server.url}/models")
        record(ada, 1)
        ada.tag("v1")
        command = [sys.executable, "-P", "-m", "mvc", "-C", str(tmp_path / "ada"), "push"]
        for words, code in ((), 0), ((), 0), (("origin", "v1"), 3):
            done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
            assert done.returncode == code and "scope push:tags/v1" in done.stderr


def test_a_token_that_may_only_read_gets_the_name_of_the_scope(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read"))
    with serving(folder) as server, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", f"{server.url}/models")
        record(ada, 1)
        with pytest.raises(RemoteRefused, match=r"needs the scope push:heads/main\n") as refused:
            ada.push()
        assert str(refused.value.hint).endswith("a token with push:heads/main")


def test_a_deployment_that_a_fetch_brought_is_not_said_to_be_missing_there(tmp_path: Path) -> None:
    """Also where no branch of the remote leads to its version any more."""
    with Repository.init(tmp_path / "there") as there:
        record(there, 0)
        there.branch("side")
        there.switch("side")
        record(there, 1)
        there.deploy("HEAD", "prod")
        there.switch("main")
        there.delete_ref("branch", "side", force=True)
        with mvc.clone(str(there.root), tmp_path / "ada") as ada:
            record(ada, 2)
            assert ada.live("prod").commit == there.live("prod").commit
            assert ada.push(refs=["main:ada"]).not_there == ()
            ada.deploy("HEAD", "own")
            ada.branch("unsent")
            ada.switch("unsent")
            record(ada, 3)
            own = ada.deploy("HEAD", "own").commit
            assert ada.push(refs=["main:ada"]).not_there == (("own", own),)


class Annotating:
    """A repository in which a tag, or a deployment, alone leads to versions of others."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        with Repository.init(folder / "work") as repo:
            record(repo, 0)
            repo.branch("team/x")
            repo.branch("side")
            repo.switch("side")
            for value in range(1, 4):
                record(repo, value)
            self.ids = [entry.id for entry in repo.log()][::-1]
            repo.tag("v1", self.ids[1])
            repo.deploy(self.ids[2], "prod")
            repo.switch("main")
            repo.delete_ref("branch", "side", force=True)

    def said(self, id_: CommitId, scopes: str, name: str, *, signed: bool = False) -> None:
        stamp = {"node": b"n" * 16, "author": "eve", "recorded_ns": 1, "hybrid_ns": 1}
        statement = AnnotationStatement(subject=id_, metrics={"auc": 1.0}, **stamp)
        if signed:
            statement = Signature(subject=id_, of_statement=False, signed_ns=1, blob=b"x", **stamp)
        given = Slice(encode_entries([sent_with([statement])]), 0, ())
        with closing(
            transport(self.url, token(self.folder, *scopes.split(","), name=name))
        ) as opened:
            opened.receive(given)


@pytest.mark.parametrize("signed", [False, True])
def test_a_token_annotates_only_what_it_may_push(folder: Path, signed: bool) -> None:
    with answering(folder) as url:
        there = Annotating(folder, f"{url}/work")
        first, tagged, deployed, _ = there.ids
        for at, id_ in enumerate((tagged, deployed)):
            for scopes in ("push:heads/team/*", "push:tags/w*", "push:heads/*,deploy:prod"):
                name = f"{at}-{len(scopes)}"
                with pytest.raises(RemoteRefused, match=f"annotate or sign {id_.short}"):
                    there.said(id_, scopes, name, signed=signed)
        with pytest.raises(RemoteRefused, match="push:heads/main"):
            there.said(first, "push:heads/team/*", "foreign", signed=signed)
        for number, (id_, scopes) in enumerate(
            [(tagged, "push:tags/v1"), (first, "push:heads/*"), (deployed, "admin")]
        ):
            there.said(id_, scopes, f"allowed-{number}", signed=signed)


def test_a_proof_of_a_version_of_another_branch_does_not_fail_a_push(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Repository.open(folder / "models") as there:
        record(there, 1)
        main = there.find("HEAD")
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/ada/*", name="ada"))
    with serving(folder) as server, mvc.clone(f"{server.url}/models", tmp_path / "ada") as ada:
        ada.switch("ada/work", create=True)
        record(ada, 2)
        own = ada.find("HEAD")
        for id_ in (main, own):  # as replays on this machine record them
            prove(ada.handle, id_, "model.safetensors")
        ada.push(refs=["ada/work"])
    with Repository.open(folder / "models") as there:
        snapshot = there.handle.store.fresh()
        assert [[*snapshot.about(ReplayProof, id_)] != [] for id_ in (main, own)] == [False, True]


def test_a_clone_with_few_states_has_what_is_live(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "there") as there:
        for value in range(5):
            record(there, value)
        ids = [entry.id for entry in there.log()][::-1]
        there.deploy(ids[3], "prod")
        there.deploy(ids[1], "prod")
        there.deploy(ids[0], "lab")
        for states, stored in (("last:1", {0, 1, 4}), ("none", set())):
            with mvc.clone(str(there.root), tmp_path / states[:4], states=states) as ada:
                assert {
                    n for n in range(5) if getattr(ada.availability(ids[n]), "why", "") != "absent"
                } == stored
                assert all(ada.checkout(ids[n]) for n in stored)
