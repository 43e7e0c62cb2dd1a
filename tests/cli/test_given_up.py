"""Commands on versions whose weights were given up, and are gone."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mvc as library
from mvc.recipes.verbs import record, retraining
from tests.cli.program import Mvc, Result
from tests.recipes.by_hand import drop, mark_dropped, prove
from tests.recipes.trainings import Conv, nothing, shift

pytestmark = pytest.mark.usefixtures("prepared")

WITH = ("--trust-code",)


@pytest.fixture
def gone(mvc: Mvc, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mvc]:
    """The weights of HEAD were given up and collected; HEAD~1 is what they were trained from."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with library.Repository.open(mvc.folder) as repo:
        model = library.constructed(Conv, 2)
        repo.commit(model.state_dict(), message="base")
        with record(repo, model, service=shift, verify=False, message="shifted") as run:
            run.train()
        assert run.result is not None
        repo.storage.repack(interval=1)  # no delta needs what is given up
        drop(repo, run.result.id)
        repo.storage.gc(grace="0")
    yield mvc
    torch.set_num_threads(threads)


def hint(result: Result) -> str:
    return next(line for line in result.err.splitlines() if line.startswith("hint: "))


def is_gone(mvc: Mvc) -> bool:
    return mvc("log", "-n", 1, "--json").json["commits"][0]["dropped"] is not None


def test_diff_compares_by_hashes(gone: Mvc) -> None:
    said = gone("diff", "HEAD~1", "HEAD")
    assert "only hashes are compared" in said.err
    gone(*shlex.split(hint(said).split("'")[1].replace("REV", "HEAD"))[1:])
    assert not gone("diff", "HEAD~1", "HEAD", "--json").json["unmeasured"]


def test_nothing_runs_without_a_word_and_nothing_runs_twice(gone: Mvc) -> None:
    assert "would run code: code/" in gone("retrain", "HEAD", code=3).err
    assert is_gone(gone)
    assert gone("retrain", "HEAD", *WITH, "--json").json["versions"][0]["made"] == "stored"
    assert gone("retrain", "HEAD", *WITH, "--json").json["versions"][0]["made"] == "proven"
    written = gone("checkout", "HEAD", "-o", "all", "--model").err
    assert "all/load.py loads the model" in written


NET = """
import torch
from tests.recipes.trainings import Conv


def model():
    return Conv(2)


def inputs():
    return torch.ones(1, 1, 8, 8)
"""


def test_the_commands_of_the_hint_work(gone: Mvc) -> None:
    head = gone("show", "--id", "HEAD").out.strip()
    for words in (("checkout", "-f", "HEAD"), ("show", "HEAD", "net.0.weight")):
        command = hint(gone(*words, code=3)).split("'")[1]
        assert command == f"mvc retrain {head[:10]} --trust-code"
    gone(*shlex.split(command)[1:])
    assert not is_gone(gone)
    gone("show", head, "net.0.weight")


def test_every_other_command_says_what_is_missing_or_does_without(gone: Mvc) -> None:
    Path("net.py").write_text(NET)
    for words in (
        ("log",), ("show", "HEAD"), ("ls", "HEAD"),
        ("log",), ("stats",), ("status",), ("fsck", "--full"), ("undo", "--list"),
        ("diff", "--environment", "HEAD"), ("gc", "-n"),
        ("report", "-o", "page.html"), ("repack", "-n"),
        ("show", "--code", "HEAD"), ("show", "--id", "HEAD"), ("deploy",), ("ls", "--data"),
        ("diff", "HEAD~1", "HEAD", "--stat"),
        ("deploy", "HEAD", "prod", "--at", "2020-01-01"),  # what was live then is a fact
    ):  # fmt: skip
        gone(*words)
    for words in (
        ("checkout", "HEAD", "-o", "x.safetensors"), ("checkout", "--model", "HEAD", "-o", "x"),
        ("show", "HEAD", "net.0.weight"), ("probe", "net.py", "--rev", "HEAD"),
        ("checkout", "--target", "prod", "-o", "x.safetensors"), ("deploy", "HEAD", "prod"),
    ):  # fmt: skip
        refused = gone(*words, code=3)
        assert "were dropped" in refused.err, words
        assert "mvc retrain" in hint(refused), words


def test_undo_after_giving_up_is_refused_with_the_way_back(gone: Mvc) -> None:
    refused = gone("undo", code=3)
    first = refused.err.splitlines()[0]
    assert first.endswith("undo does not restore dropped weights")
    assert "'mvc retrain --trust-code " in hint(refused)
    number = hint(refused).rpartition("'mvc undo ")[2].partition("'")[0]
    command = hint(refused).split("'")[1]
    gone(*shlex.split(command)[1:])
    assert not is_gone(gone)
    assert f"Undid operation {number} (commit)" in gone("undo").out  # nothing is given up any more


def test_forget_stores_weights_again_that_are_still_there(mvc: Mvc) -> None:
    torch.manual_seed(0)
    with library.Repository.open(mvc.folder) as repo:
        model = library.constructed(Conv, 2)
        base = repo.commit(model.state_dict(), message="base").id
        with record(repo, model, service=shift, verify=False) as run:
            run.train()
        assert run.result is not None
        state = {name: value.clone() for name, value in model.state_dict().items()}
        drop(repo, run.result.id)
        repo.storage.gc(grace="0")
        held = repo.commit(state, message="the same weights").id
        assert held != run.result.id
    said = mvc("forget", str(base), "-f")
    assert f"{run.result.id.short} become stored again" in said.err
    mvc("gc", "--grace", 0)
    assert mvc("log", "--json").json["commits"][1]["dropped"] is None
    mvc("checkout", run.result.id, "-o", "again.safetensors")
    written = load_file("again.safetensors")
    assert all(torch.equal(written[name], value) for name, value in state.items())
    mvc("fsck", "--full")


def test_data_outside_keep_the_weights(mvc: Mvc) -> None:
    from tests.recipes.trainings import nothing

    Path("outside").mkdir()
    Path("outside/a.txt").write_text("apple")
    mvc("import", "--data", "outside", "--reference")
    with library.Repository.open(mvc.folder) as repo:
        model = library.constructed(Conv, 2)
        repo.commit(model.state_dict())
        with record(repo, model, data="outside", service=nothing, verify=False) as run:
            run.train()
    mvc("retrain", "HEAD", "--trust-code")
    refused = mvc("forget", "--weights", "HEAD", code=3)
    assert "stored outside of mvc: outside" in refused.err
    assert not is_gone(mvc)


def test_a_forged_commit_with_marks_breaks_no_command(gone: Mvc) -> None:
    """A commit that carries a recipe but names no needs, with marks: refused in one line."""
    from mvc.names import RECIPE

    with library.Repository.open(gone.folder) as repo:
        head = repo.find()
        carried = {RECIPE: repo.attachment(head, RECIPE)}
        with retraining(repo, trust=True):
            state = repo.checkout()
        made = repo.commit(state, message="forged", attachments=carried).id
        prove(repo.handle, made, "model.safetensors")
        mark_dropped(repo.handle, made)
    gone("log")
    words: tuple[object, ...]
    for words in (
        ("show", "HEAD"), ("show", "--code", "HEAD"), ("stats",),
        ("status",), ("fsck",), ("fsck", "--full"), ("undo", "--list"), ("diff", "HEAD~1", "HEAD"),
        ("log",), ("diff", "--environment", "HEAD"),
        ("repack", "-n"),
        ("report", "-o", "page.html"), ("gc", "--grace", "0"),
        ("checkout", "HEAD", "-o", "x.safetensors"), ("show", "HEAD", "net.0.weight"),
        ("switch", "-c", "other"), ("retrain", "HEAD", *WITH), ("forget", "--weights", "HEAD"),
        ("undo",), ("forget", "HEAD~2", "-f"), ("repack", "--add", "HEAD"),
        ("repack",), ("fsck", "--full"), ("log",),
    ):  # fmt: skip
        result = gone(*words, code=None)
        code, said = result.code, result.out + result.err
        assert code in {0, 1, 3, 4}, words
        assert "internal error" not in said and "Traceback" not in said, (words, said)
        assert code < 3 or any(line.startswith("mvc: ") for line in said.splitlines()), words


def test_gc_frees_weights_that_are_a_small_part_of_a_pack(mvc: Mvc) -> None:
    torch.manual_seed(0)
    with library.Repository.open(mvc.folder) as repo:
        repo.commit({"large": torch.randn(400_000)}, path="large.safetensors")
        model = library.constructed(Conv, 2)
        repo.commit(model.state_dict())
        with record(repo, model, service=shift, verify=False) as run:
            run.train()
        assert run.result is not None
        repo.commit({"model": torch.zeros(3)})
        repo.storage.repack(interval=1)
        before = repo.storage.gc(grace="0")
        assert repo.storage.gc(grace="0").packs == 0
        drop(repo, run.result.id)
        done = repo.storage.gc(grace="0")
        entry = repo.manifest(run.result.id).by_path["model.safetensors"]
        assert 0 < sum(c.spec.nbytes for c in entry.contents) < 0.05 * before.before
        assert done.packs == 1
        assert done.freed > 0
        assert repo.storage.gc(grace="0").packs == 0
        payload = bytes(model.state_dict()["net.5.weight"].numpy().tobytes())
        stored = b"".join(p.read_bytes() for p in (repo.root / ".mvc/packs").iterdir())
        assert payload[:64] not in stored
        assert repo.storage.fsck(full=True).sound


# -- given up in a file ------------------------------------------------------------------


@pytest.fixture
def dropped(mvc: Mvc) -> Iterator[str]:
    """A version that gave up its weights."""
    from tests.recipes.by_hand import drop

    torch.manual_seed(0)
    model = library.constructed(Conv, 2)
    with library.Repository.open(mvc.folder) as repo:
        repo.commit(model.state_dict())
        with record(repo, model, service=nothing, verify=False) as run:
            run.train()
        assert run.result is not None
        drop(repo, run.result.id)
        yield str(run.result.id)


def test_given_up_weights_are_told_and_need_a_word_to_be_trained(mvc: Mvc, dropped: str) -> None:
    assert "recoverable by retraining" in mvc("log", "-n", 1, "--oneline").out
    assert "dropped; recoverable by retraining" in mvc("show", dropped).out
    assert mvc("log", "-n", 1, "--json").json["commits"][0]["dropped"]["path"] == (
        "model.safetensors"
    )
    assert "1 by replay" in mvc("stats").out
    assert mvc("stats", "--json").json["dropped"] == 1
    assert "recoverable by retraining" in mvc("fsck").err
    assert "dropped" in mvc("undo", "--list").out
    mvc("retrain", dropped)  # the base has the same weights here: nothing is trained
    assert "retraining" not in mvc("log", "-n", 1, "--oneline").out
    mvc("retrain", dropped, *WITH)
    assert "dropped: the weights of" in mvc("forget", "--weights", dropped).err


def test_versions_without_a_recipe_are_refused(mvc: Mvc) -> None:
    mvc.commit()
    assert "has no recipe" in mvc("forget", "--weights", "HEAD", code=3).err
