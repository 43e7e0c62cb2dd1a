from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mvc.io.files import FileSystem
from mvc.server.tokens import Tokens
from tests.cli.program import Mvc


def test_a_token_is_printed_once_and_listed_without_itself(mvc: Mvc) -> None:
    made = mvc("serve", "token", "add", "anna", "--scope", "read,push:heads/*", "--days", 3)
    text = made.out.strip()
    assert text.startswith("mvc_") and "shown only once" in made.err
    held = Tokens(FileSystem(), mvc.folder).holder(text)
    assert held is not None and held.scopes == ("read", "push:heads/*")
    listed = mvc("serve", "token", "list")
    titles, shown = listed.out.splitlines()
    assert titles.split() == ["name", "until", "scopes"] and shown.startswith("anna  20")
    assert shown.index("read,push:heads/*") == titles.index("scopes")
    assert text not in listed.out
    (row,) = mvc("serve", "token", "list", "--json").json["tokens"]
    assert row["name"] == "anna" and not row["expired"] and row["made"] < row["expires"]
    mvc("serve", "token", "remove", "anna")
    none = mvc("serve", "token", "list")
    assert none.out == "" and none.err.startswith("No tokens yet: create one with")


def test_a_token_as_an_object(mvc: Mvc) -> None:
    made = mvc("serve", "token", "add", "ci", "--scope", "admin", "--json").json
    assert made["schema"] == "mvc.serve.token/1" and made["token"].startswith("mvc_")
    assert mvc("serve", "token", "remove", "ci", "--json").json["tokens"] == []


def test_a_scope_that_matches_no_repository_is_named(mvc: Mvc) -> None:
    for name in ("empty", "served/team/models"):
        mvc("init", "--bare", name)
    (mvc.folder / "empty/below").mkdir()
    none = mvc("-C", "empty/below", "serve", "token", "add", "a", "--scope", "x:read").err
    assert "there is no repository in" in none and "the scope" not in none
    scopes = "read,team/models:read,team/*:push:main,team/model:read,models:deploy:prod,metrics"
    said = mvc("-C", "served", "serve", "token", "add", "b", "--scope", scopes).err
    warned = [line for line in said.splitlines() if "no repository" in line]
    assert [line.rpartition("the scope ")[2].rpartition(" no ")[0] for line in warned] == [
        "team/model:read matches", "models:deploy:prod matches",
    ]  # fmt: skip
    inside = mvc(
        "-C", "served/team/models", "serve", "token", "add", "c", "--scope", "models:read,read"
    )
    assert "the scope models:read matches" in inside.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "name one FOLDER"),
        ("one two", "name one FOLDER"),
        ("none", "none is not a folder"),
        (". --listen 0.0.0.0:7433", "which requires TLS"),
        (". --listen example.org:80", "which requires TLS"),
        (". --listen 7433", "is not an address"),
        (". --listen 127.0.0.1:99999", "is not an address"),
        (". --tls-key k.pem", "needs --tls-cert"),
        (". --tls-cert none.pem", "cannot use none.pem for TLS: no such file"),
        (". --tls-cert . --tls-key none.pem", "cannot use none.pem for TLS"),
        (". --tls-cert text.pem", "cannot use text.pem for TLS: [ssl]"),
        (". --quota much", "is not a size"),
        (". --scope read", "cannot be combined with --scope"),
        ("--stdio . --listen 127.0.0.1:1", "--stdio cannot be combined with --listen"),
        ("--stdio . --scope write", "'write' is not a scope"),
        ("token", "use token add NAME, token list or token remove NAME"),
        ("token add", "token add NAME"),
        ("token add x", "name 1 to 100 scopes with --scope"),
        ("token add x --scope write", "'write' is not a scope"),
        ("token add x/y --scope read", "the name of a token"),
        ("token remove x", "no token 'x'"),
        ("token list --scope read", "cannot be combined with --scope"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(mvc: Mvc, words: str, says: str) -> None:
    (mvc.folder / "text.pem").write_text("no certificate")
    failed = mvc("serve", *words.split(), code=None)
    assert failed.code in (2, 3) and says in failed.err
    assert len(failed.err.splitlines()) <= 3 and "Traceback" not in failed.err


def test_a_folder_that_is_not_there_lacks_no_token(mvc: Mvc) -> None:
    assert "token" not in mvc("serve", "none", code=2).err


def test_an_address_that_is_taken_is_named(mvc: Mvc) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = mvc("serve", ".", "--listen", address, code=3)
    assert "token" not in failed.err
    assert f"cannot listen on {address}: address already in use" in failed.err


def test_a_server_without_tokens_warns_once_it_listens(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "mvc", "serve", ".", "--listen", f"unix:{tmp_path}/s"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            assert running.stderr.readline().startswith("serving . at unix:")
            assert "'mvc -C . serve token add NAME --scope read'" in running.stderr.readline()
        finally:
            running.terminate()


def test_a_server_loads_no_torch() -> None:
    code = (
        "import sys, mvc.server.listening, mvc.server.stdio, mvc.cli.commands.remotes.serve;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_served_folder_may_be_called_token(mvc: Mvc) -> None:
    Path("token").mkdir()
    assert "token is no folder" not in mvc("serve", "token", "--tls-key", "k", code=2).err


def test_a_token_where_nothing_is_served_says_so(mvc: Mvc, tmp_path: Path) -> None:
    def add(folder: Path, name: str) -> str:
        return mvc("-C", folder, "serve", "token", "add", name, "--scope", "read").err

    (tmp_path / "wrong" / "photos").mkdir(parents=True)
    assert "there is no repository in" in add(tmp_path / "wrong", "anna")
    mvc("init", "--bare", tmp_path / "right" / "team" / "cnn")
    assert "no repository" not in add(tmp_path / "right", "anna")
    assert "no repository" not in add(tmp_path / "right" / "team" / "cnn", "anna")
