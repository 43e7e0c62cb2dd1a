"""``mvc commit --provenance``: a file with its recipe, proven by one replay."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mvc.api.repository import Repository
from tests.cli.program import Mvc

pytestmark = pytest.mark.usefixtures("prepared")

FINETUNE = """
import torch
from torch import nn


def model():
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def train(model, optimizer, data):
    print("noise on stdout")
    torch.manual_seed(3)
    x = torch.tensor([float(line) for line in open(data)])
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def several(model, optimizer, data):
    assert sorted(data) == ["numbers", "others"]
    train(model, optimizer, data["numbers"])


def differs(model, optimizer, data):
    train(model, optimizer, data)
    with torch.no_grad():
        model[2].bias[0] += 0.5


def fails(model, optimizer, data):
    raise ValueError("not today")


def sleeps(model, optimizer, data):
    import time
    time.sleep(300)


def takes_nothing(model):
    pass


class Service:
    def __init__(self, model, optimizer, data):
        pass


number = 3
"""


@pytest.fixture
def trained(mvc: Mvc, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mvc]:
    """A base in HEAD; ``model.safetensors`` was trained from it since, by an ordinary program."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(mvc.folder)])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (mvc.folder / "finetune.py").write_text(FINETUNE)
    (mvc.folder / "numbers.txt").write_text("1\n2\n3\n4\n5\n6\n")
    (mvc.folder / ".mvcignore").write_text("*.py\n*.txt\n")
    code: dict = {}
    exec(FINETUNE, code)
    torch.manual_seed(1)
    model = code["model"]()
    save_file(model.state_dict(), "model.safetensors")
    mvc("commit", "model.safetensors", "-m", "base")
    code["train"](model, code["optimizer"](model.parameters()), "numbers.txt")
    save_file(model.state_dict(), "model.safetensors")
    yield mvc
    sys.modules.pop("finetune", None)
    torch.set_num_threads(threads)


def commit(mvc: Mvc, *more: object, name: str = "", code: int = 0):
    script = f"finetune.py{name}"
    given = ("--provenance", script, "--data", "numbers.txt", "-m", "tuned")
    return mvc("commit", "model.safetensors", *given, *more, code=code)


def retrain(data: str) -> None:
    """Trains the file on, from what it is now, by an ordinary program."""
    code: dict = {}
    exec(FINETUNE, code)
    model = code["model"]()
    model.load_state_dict(load_file("model.safetensors"))
    code["train"](model, code["optimizer"](model.parameters()), data)
    save_file(model.state_dict(), "model.safetensors")


def is_given_up(folder: Path, rev: str = "HEAD") -> bool:
    with Repository.open(folder) as repo:
        (entry,) = repo.log(rev, limit=1)
        return entry.dropped is not None


def test_weights_are_kept_unless_it_is_asked_for(trained: Mvc) -> None:
    done = commit(trained)
    said = re.search(r"stored the weights .* reproduced them; '(mvc .*)' drops them", done.err)
    assert said is not None
    assert not is_given_up(trained.folder)
    assert "not proven" not in trained("show", "HEAD").out
    trained(*shlex.split(said[1])[1:])  # without training again: no code is trusted
    assert is_given_up(trained.folder)
    assert "stored the weights" in trained("retrain", "HEAD").err  # HEAD~1 or a file has them
    trained("config", "store.storage_weight", "1e12")  # then asked for by its price
    Path("numbers.txt").write_text("1\n2\n3\n4\n5\n7\n")
    retrain("numbers.txt")
    assert "dropped the weights" in commit(trained).err


def test_a_proven_version_gives_its_weights_up_and_keeps_the_file(trained: Mvc) -> None:
    before = Path("model.safetensors").read_bytes()
    given = ("--metric", "acc=0.5", "--param", "lr=0.1", "--deploy", "prod")
    done = commit(trained, *given)
    assert done.out.startswith("[main ")
    assert "noise on stdout" not in done.out
    trained("forget", "--weights", "HEAD")
    assert is_given_up(trained.folder)
    assert Path("model.safetensors").read_bytes() == before
    assert "Tracked files equal HEAD" in trained("status").out
    log = trained("log", "-n", 1).out
    assert "proven" in log and "acc" in log and "not proven" not in log
    trained("gc", "--grace", 0)
    trained("checkout", "HEAD", "-o", "again.safetensors", code=3)
    trained("retrain", "HEAD", "--trust-code")
    trained("checkout", "HEAD", "-o", "again.safetensors")
    assert Path("again.safetensors").read_bytes() == before
    assert not is_given_up(trained.folder)
    trained("fsck", "--full")
    Path("model.safetensors").unlink()
    trained("checkout", "-f", "HEAD")
    assert Path("model.safetensors").read_bytes() == before


def test_a_replay_that_makes_other_weights_keeps_them_and_says_how_far_off(trained: Mvc) -> None:
    failed = commit(trained, name=":differs", code=3)
    assert failed.out.startswith("[main ")
    error = next(line for line in failed.err.splitlines() if line.startswith("mvc: "))
    assert "produced other weights" in error and "1 of 4 tensors differ: 2.bias" in error
    assert "by at most 0.5" in error and error.endswith("is committed with its weights")
    assert not is_given_up(trained.folder)
    trained("gc", "--grace", 0)
    trained("checkout", "HEAD", "-o", "kept.safetensors")
    kept, wanted = load_file("kept.safetensors"), load_file("model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in wanted.items())


def test_without_a_replay_nothing_is_proven_and_nothing_given_up(trained: Mvc) -> None:
    done = commit(trained, "--no-verify", name=":differs")
    said = re.search(r"stored the weights .* is not proven; '(mvc .*)' proves it", done.err)
    assert said is not None
    assert not is_given_up(trained.folder)
    refused = trained(*shlex.split(said[1])[1:], code=3)
    assert "produced other weights" in refused.err
    assert not is_given_up(trained.folder)
    found = commit(trained, "--no-verify", "--json", name=":differs").json
    assert found["weights"] == "stored"
    Path("again.safetensors").unlink(missing_ok=True)
    trained("gc", "--grace", 0)
    trained("checkout", "HEAD", "-o", "again.safetensors")
    assert Path("again.safetensors").read_bytes() == Path("model.safetensors").read_bytes()


def test_a_replay_that_takes_too_long_is_ended(trained: Mvc) -> None:
    commit(trained, "--no-verify", name=":sleeps")
    failed = trained("retrain", "HEAD", "--trust-code", "--timeout", "8", code=3)
    error = next(line for line in failed.err.splitlines() if line.startswith("mvc: "))
    assert "took more than 8 s" in error
    assert not is_given_up(trained.folder)


def test_several_data_sets_have_names(trained: Mvc) -> None:
    Path("others.txt").write_text("7\n")
    data = ("--data", "numbers=numbers.txt", "--data", "others=others.txt")
    given = ("--provenance", "finetune.py:several", *data)
    trained("commit", "model.safetensors", *given)
    found = trained("ls", "--data", "--json").json["data_sets"]
    assert [each["name"] for each in found] == ["numbers", "others"]


def test_json(trained: Mvc) -> None:
    found = commit(trained, "--json").json
    assert found["schema"] == "mvc.commit/1"
    assert found["weights"] == "stored"
    assert found["paths"][0]["path"] == "model.safetensors"
    Path("numbers.txt").write_text("7\n")
    other = trained("commit", "model.safetensors", "--allow-empty", "--json").json
    assert other["weights"] == "stored"


def test_a_training_that_fails_and_one_that_does_not_fit_are_told(trained: Mvc) -> None:
    failed = commit(trained, name=":fails", code=3)
    assert "ValueError: not today" in failed.err
    assert "is committed with its weights" in failed.err
    head = trained("show", "--id", "HEAD").out
    for name, said in {
        ":takes_nothing": "the service does not accept these arguments",
        ":missing": "finetune.py has no missing",
        ":number": "service is of type int, which cannot train",
    }.items():
        refused = commit(trained, name=name, code=2)
        assert said in refused.err
    assert trained("show", "--id", "HEAD").out == head


def test_what_does_not_go_with_it_is_refused(trained: Mvc) -> None:
    for more in (["-a"], ["--reset-point"], ["--author", "me"], ["--pipeline", "lossless"]):
        assert (
            f"--provenance cannot be combined with {more[0]}" in commit(trained, *more, code=2).err
        )
    assert "needs --provenance" in trained("commit", "--no-verify", code=2).err
    assert "needs --provenance" in trained("commit", "--data", "x", code=2).err
    refused = trained("commit", "--provenance", "finetune.py", code=2)
    assert "name one PATH: the file that the training wrote" in refused.err
    refused = commit(trained, "--data", "a=numbers.txt", code=2)
    assert "several data sets need names" in refused.err
    refused = commit(trained, "--no-verify", name=":Service", code=2)
    assert "service is the class Service" in refused.err
    Path("json.py").write_text(FINETUNE)
    refused = trained("commit", "model.safetensors", "--provenance", "json.py", code=2)
    assert "another module has the name json" in refused.err
    assert (
        "there is no file none.py"
        in trained("commit", "model.safetensors", "--provenance", "none.py", code=3).err
    )


def test_a_file_that_is_not_the_state_of_the_model_is_refused(trained: Mvc) -> None:
    save_file({"w": torch.zeros(3)}, "model.safetensors")
    refused = commit(trained, code=3)
    assert "is not the state of this model: model.safetensors lacks 0.bias" in refused.err
    torch.save({"w": torch.zeros(3)}, "model.safetensors")
    assert "a recipe cannot reproduce" in commit(trained, code=3).err
    assert not is_given_up(trained.folder)


def test_the_first_version_has_no_base(mvc: Mvc, tmp_path: Path) -> None:
    Path("finetune.py").write_text(FINETUNE)
    save_file({"w": torch.zeros(3)}, "model.safetensors")
    given = ("--provenance", "finetune.py", "-m", "x")
    refused = mvc("commit", "model.safetensors", *given, code=3)
    assert "there is no version yet" in refused.err
    sys.modules.pop("finetune", None)
