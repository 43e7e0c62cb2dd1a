from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from tests.cli.program import spawn


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    """Somebody at a terminal who types this."""

    def types(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(text))

    return types


def three(mvc) -> list[str]:
    return [mvc.commit(n) for n in (1, 2, 3)]


def forgotten(mvc, id_: str) -> bool:
    return mvc("show", id_, "--json").json["forgotten"] is not None


def test_nobody_to_ask(mvc) -> None:
    ids = three(mvc)
    said = mvc("forget", ids[0], code=3)
    assert (said.out, said.err.splitlines()) == (
        "",
        [
            "mvc: what is forgotten is gone for good, and there is nobody to ask",
            "hint: look with -n, then add -f",
        ],
    )
    assert mvc("forget", ids[0], "--json", code=3).json["kind"] == "not-confirmed"
    assert not forgotten(mvc, ids[0])


def test_asks(mvc, answer) -> None:
    ids = three(mvc)
    for text, code in (("n\n", 1), ("\n", 1), ("", 130), ("y\n", 0)):
        assert not forgotten(mvc, ids[0])
        answer(text)
        said = mvc("forget", ids[0], code=code)
        assert "Forget 1 state for good?" in said.err
        assert said.out.splitlines()[0] == "1 state to forget:"
    assert forgotten(mvc, ids[0])


def test_it_says_what_goes(mvc) -> None:
    ids = three(mvc)
    mvc("deploy", ids[1], "prod")
    said = mvc("forget", ids[0], "HEAD~1", "-n").out.splitlines()
    assert said[0] == "2 states to forget:"
    assert said[1].split() == ["version", "time", "message", "live", "on"]
    assert said[2].split()[0] == ids[1][:10] and said[2].endswith("value 2  prod")
    assert said[3].split()[0] == ids[0][:10] and said[3].endswith("value 1")
    assert said[4] == "2 tensors go; 2 stay, because other versions have them"
    assert said[5] == f"{ids[1][:10]} is live on prod: it cannot be recovered from here"
    assert said[6].startswith("The next 'mvc gc' frees about ")
    assert not forgotten(mvc, ids[0])
    done = mvc("forget", ids[0], "HEAD~1", "-f")
    assert done.out.splitlines() == said
    assert done.err == "Forgot 2 states; 'mvc gc' removes the bytes\n"
    assert mvc("forget", "-q", ids[0], "-f", code=1).out == ""


def test_the_same_state_elsewhere_is_told(mvc) -> None:
    ids = three(mvc)
    again = mvc.commit(1)
    mvc.commit(4)
    said = mvc("forget", ids[0], "-n").out
    assert f"The state of {ids[0][:10]} is also that of {again[:10]}: there it stays" in said


def test_every_command_says_when(mvc) -> None:
    ids = three(mvc)
    mvc("branch", "old", ids[0])
    mvc("forget", ids[0], "-f")
    for collected in (False, True):
        if collected:
            mvc("gc", "--grace", 0)
        for arguments in (
            ("checkout", ids[0]),
            ("checkout", ids[0], "model.safetensors"),
            ("checkout", ids[0], "-o", "x"),
            ("switch", "old"),
            ("switch", "-c", f"new{collected}", ids[0]),
            ("cat", ids[0], "layer.weight"),
            ("ls", ids[0]),
            ("diff", ids[0], "HEAD"),
            ("diff", ids[0]),
            ("deploy", ids[0], "prod"),
        ):
            said = mvc(*arguments, code=3).err.splitlines()
            assert said[0].startswith(
                f"mvc: the state of version {ids[0][:10]} was forgotten on 20"
            )
        line = mvc("log", "--oneline").out.splitlines()[2]
        assert line.startswith(f"{ids[0][:10]} (old) value 1 (forgotten on 20")
        assert "\nState:    forgotten on 20" in mvc("log").out
        listed = mvc("log", "--json").json["commits"]
        assert [c["forgotten"] is not None for c in listed] == [False, False, True]
        said = mvc("show", ids[0])
        assert "\nState:    forgotten on 20" in said.out and "model.safetensors" not in said.out
        assert mvc("show", ids[0], "--json").json["files"] == []
        child = mvc("show", ids[1])
        assert "model.safetensors  safetensors, 3 tensors" in child.out
        assert "what it changed is not known: the state of its parent was" in child.err
        assert mvc("show", ids[1], "--json").json["files"][0]["changed"] is None
        assert "Versions:        3 (" in mvc("stats").out and "1 forgotten)" in mvc("stats").out
        found = mvc("fsck", "--full", "--json").json
        assert (found["sound"], found["versions"], found["forgotten"]) == (True, 3, 1)
        assert "3 versions (1 forgotten)" in mvc("fsck").out
        mvc.write(1)
        assert " had it (forgotten on 20" in mvc("identify", "model.safetensors").out
        mvc("checkout", "-f", "HEAD")
        assert mvc("status", "--json").json["changes"][0]["kind"] == "unchanged"
        assert "1 state forgotten" in mvc("oplog").out
        mvc("undo", 5, code=3)


def test_named_twice(mvc) -> None:
    ids = three(mvc)
    mvc("forget", ids[0], "-f")
    said = mvc("forget", ids[0], "-f", code=1)
    assert said.err.startswith(f"the state of {ids[0][:10]} was forgotten on ")
    assert mvc("forget", ids[0], "--json", code=1).json["already"] == [ids[0]]
    said = mvc("forget", ids[0], ids[1], "-f")
    assert "1 state to forget:" in said.out and "already" in said.err


def test_rules(mvc) -> None:
    ids = []
    for n in range(6):
        mvc.write(n)
        arguments = ("commit", "model.safetensors", "--json", "--metric", f"loss={n % 3}")
        ids.append(mvc(*arguments).json["commit"]["id"])
    mvc("tag", "v1", ids[0])
    plan = mvc("forget", "--keep-last", 2, "--keep-best", "-loss:1", "-n", "--json").json
    assert plan["schema"] == "mvc.forget/1"
    assert (plan["named"], plan["rules"]) == (False, "--keep-last 2 --keep-best -loss:1")
    assert [v["id"] for v in plan["versions"]] == [ids[2], ids[1]]
    assert (plan["number"], plan["dry_run"]) == (None, True)
    done = mvc("forget", "--keep-last", 2, "--keep-best", "-loss:1", "-f", "--json").json
    assert done["number"] == 8 and done["freed_bytes"] >= 0
    assert mvc("forget", "--keep-last", 2, "--keep-best", "-loss:1", "-f").out == (
        "Nothing to forget\n"
    )
    assert mvc("forget", "--keep-last", 2, "--keep-best", "-loss:1").out == "Nothing to forget\n"
    mvc("deploy", ids[3], "prod")
    assert [
        v["id"] for v in mvc("forget", "--unused", "prod", "-n", "--json").json["versions"]
    ] == [ids[4]]
    assert mvc("forget", "--keep-daily", 1, "--keep-hourly", 1, "-n", "--json").json["versions"]


def test_long_lists_are_cut(mvc) -> None:
    for n in range(13):
        mvc.commit(n)
    said = mvc("forget", "--keep-last", 1, "-n").out.splitlines()
    assert said[0] == "12 states to forget:"
    assert said[12] == "  ... and 2 more (-v lists all)"
    assert len(mvc("forget", "--keep-last", 1, "-n", "-v").out.splitlines()) == 16


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("HEAD~1", "--keep-last", 1), 2),
        (("--keep-last", 0), 2),
        (("--keep-best", "acc"), 2),
        (("HEAD",), 3),
        (("main",), 3),
        (("nothing",), 3),
        (("--unused", "nowhere"), 3),
    ],
)
def test_refusals(mvc, arguments: tuple, code: int) -> None:
    three(mvc)
    mvc("forget", *arguments, "-f", code=code)


def test_head_is_refused_with_advice(mvc) -> None:
    three(mvc)
    said = mvc("forget", "HEAD", "-f", code=3).err.splitlines()
    assert said[1] == "hint: commit something else or switch away first"


def test_as_a_process(mvc) -> None:
    ids = three(mvc)
    mvc.commit(4, secret=np.full(1000, 0.12345, np.float32))
    secret = mvc("rev-parse", "HEAD").out.strip()
    mvc.commit(5)
    assert spawn("forget", secret, cwd=mvc.folder).returncode == 3
    done = spawn("forget", secret, "-f", "--json", cwd=mvc.folder)
    assert json.loads(done.stdout)["versions"][0]["id"] == secret
    assert spawn("gc", cwd=mvc.folder).returncode == 0
    assert spawn("checkout", secret, cwd=mvc.folder).returncode == 3
    mvc("checkout", ids[2])


def test_metrics_that_no_version_has_or_too_few(mvc) -> None:
    for n in (1, 2, 3):
        mvc.write(n)
        metric = ("--metric", f"acc=0.{n}") if n == 2 else ()
        mvc("commit", "model.safetensors", *metric)
    said = mvc("forget", "--keep-best", "typo:1", "-f", code=3).err.splitlines()
    assert said == ["mvc: no version has the metric typo", "hint: there is: acc"]
    warning = (
        "mvc: warning: 1 version of the 5 to keep has the metric acc; "
        "1 version without it is to be forgotten\n"
    )
    assert mvc("forget", "--keep-best", "acc:5", "-n").err == warning
    found = mvc("forget", "--keep-best", "acc:5", "-n", "--json").json
    gone = [version["id"] for version in found["versions"]]
    assert found["short"] == [{"metric": "acc", "keep": 5, "have": 1, "without": gone}]
    assert mvc("forget", "--keep-best", "acc:1", "-n").err == ""
    assert mvc("forget", "-q", "--keep-best", "acc:5", "-f").err == warning


def test_files_without_tensors_are_counted(mvc) -> None:
    def commit(text: str, *more: str) -> None:
        (mvc.folder / "notes.bin").write_text(text)
        mvc("commit", "notes.bin", *more)

    def said(*revs: str) -> str:
        return mvc("forget", *revs, "-n").out.splitlines()[-2]

    commit("a")
    (mvc.folder / "same.bin").write_text("same")
    commit("b", "same.bin")
    mvc.write(1)
    commit("c", "model.safetensors")
    commit("d")
    mvc.write(2)
    mvc("commit", "model.safetensors")
    assert said("HEAD~4") == "1 file goes"
    assert said("HEAD~3") == "1 file goes; 1 stays, because other versions have it"
    assert said("HEAD~3", "HEAD~4") == "2 files go; 1 stays, because other versions have it"
    kept = "2 tensors and 1 file stay, because other versions have them"
    assert (
        said("HEAD~1", "HEAD~2") == f"1 tensor and 1 file go; {kept.replace('1 file', '2 files')}"
    )
    found = mvc("forget", "HEAD~2", "HEAD~1", "HEAD~3", "-n", "--json").json
    counts = [found[name] for name in ("tensors", "shared", "files", "shared_files")]
    assert counts == [1, 2, 2, 2]
