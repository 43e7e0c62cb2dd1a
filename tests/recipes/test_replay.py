"""Versions that are trained again: bit-equal in fresh processes, or refused by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import mvc
import mvc.recipes as recipes
from mvc.errors import (
    CannotRetrain,
    DamagedData,
    MvcError,
    NotTrusted,
    RetrainingDiffers,
    UnknownPath,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.models.environment import variables
from mvc.names import ATTACHED
from mvc.recipes.recipe import recipe_of
from tests.cli.program import Mvc
from tests.recipes.recorded import recorded
from tests.recipes.trainings import (
    Conv,
    Images,
    ImageService,
    Tagger,
    careless,
    deaf,
    division,
    fails_elsewhere,
    slow,
    train_images,
    train_text,
)


def conv(repo: mvc.Repository, **arguments: Any) -> tuple[Conv, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = mvc.constructed(Conv, 2, dropout=0.5, **arguments)
    repo.commit(model.state_dict(), message="start")
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def same(state: Any, model: nn.Module) -> bool:
    there = model.state_dict()
    return list(state) == list(there) and all(torch.equal(state[n], there[n]) for n in there)


def left_behind(repo: mvc.Repository) -> list[Path]:
    return list((repo.root / ".mvc").glob("retraining*/*"))


def altered(
    repo: mvc.Repository,
    rev: CommitId,
    needs: tuple[CommitId, ...] | None = None,
    **changes: bytes,
) -> CommitId:
    """The version again, with something else in place of what it carries or needs."""
    carried: dict[str, Any] = {}
    for entry in repo.manifest(rev).attached:
        name = entry.path.removeprefix(ATTACHED)
        key = name.replace("/", "_").replace(".", "_")
        carried[name] = changes.get(key) or repo.attachment(rev, name)
    needs = repo.version(rev).needs if needs is None else needs
    options = mvc.CommitOptions(needs=needs)
    return repo.commit(repo.checkout(rev), attachments=carried, options=options).id


def test_a_conv_net_with_dropout_augmentation_and_shuffling(
    repo: mvc.Repository, images: Path
) -> None:
    model, optimizer = conv(repo)
    scheduler = mvc.constructed(torch.optim.lr_scheduler.StepLR, optimizer, 1, gamma=0.5)
    generator = torch.Generator().manual_seed(3)
    # The first training leaves objects with a state, and the second begins with it.
    for _ in range(2):
        recorded(
            repo,
            model,
            optimizer,
            data=images,
            service=train_images,
            epochs=2,
            scheduler=scheduler,
            generator=generator,
        )
    calls: list[tuple[int, int, str]] = []
    done = mvc.retrain(repo, trust=True, progress=lambda *a: calls.append(a))
    assert same(done.state, model)
    assert (done.steps, done.differences) == (4, ())
    assert any("s left" in text for _, _, text in calls)
    assert {total for _, total, _ in calls} == {4}
    assert same(mvc.retrain(repo, trust=True).state, model)
    assert not left_behind(repo)


def test_an_lstm_with_tied_weights_and_a_generator_of_numpy(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcdefghijkl" * 5)
    model = mvc.constructed(Tagger)
    repo.commit(model.state_dict())
    optimizer = torch.optim.SGD(
        [{"params": model.embed.parameters()}, {"params": model.lstm.parameters(), "lr": 0.5}],
        lr=0.1,
        momentum=0.9,
    )
    recorded(
        repo,
        model,
        optimizer,
        data=text,
        service=train_text,
        verify=True,
        rng=np.random.default_rng(5),
    )
    assert same(mvc.retrain(repo, trust=True).state, model)


@pytest.mark.usefixtures("prepared")
def test_a_service_of_objects_that_refer_to_each_other_and_frozen_layers(
    repo: mvc.Repository, images: Path
) -> None:
    model, _ = conv(repo)
    model.net[0].requires_grad_(False)
    model.net[1].eval()
    optimizer = torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=0.01)
    loader = mvc.constructed(
        DataLoader, mvc.constructed(Images, images), batch_size=4, shuffle=True
    )
    service = mvc.constructed(ImageService, optimizer, loader, mvc.constructed(nn.CrossEntropyLoss))
    recorded(repo, model, optimizer, data={"pictures": images}, service=service, epochs=1)
    assert same(mvc.retrain(repo, trust=True).state, model)


@pytest.mark.usefixtures("prepared")
def test_a_loader_with_worker_processes(repo: mvc.Repository, images: Path) -> None:
    model, optimizer = conv(repo)
    loader = mvc.constructed(
        DataLoader, mvc.constructed(Images, images), batch_size=4, shuffle=True, num_workers=2
    )
    service = mvc.constructed(ImageService, optimizer, loader, mvc.constructed(nn.CrossEntropyLoss))
    recorded(repo, model, optimizer, data={"pictures": images}, service=service, epochs=2)
    assert same(mvc.retrain(repo, trust=True).state, model)


TORCHRUN = """
import sys
from pathlib import Path
import torch
import mvc
from mvc.errors import CannotRecord
from tests.recipes.trainings import Conv, train_images

torch.manual_seed(1)
model = mvc.constructed(Conv, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with mvc.Repository.open(sys.argv[1]) as repo:
    repo.commit(model.state_dict())
    with mvc.record(repo, model, optimizer, data=Path(sys.argv[2]), service=train_images) as run:
        run.train()
    torch.distributed.init_process_group("gloo")
    try:
        with mvc.record(repo, model, optimizer, data=Path(sys.argv[2]), service=train_images):
            raise AssertionError
    except CannotRecord as error:
        print(error)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.usefixtures("prepared")
def test_one_process_of_torchrun_and_no_process_group(
    repo: mvc.Repository, images: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN)
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
         str(script), str(repo.root), str(images)],
        env={**os.environ, "PYTHONPATH": str(folder)}, cwd=tmp_path, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is in a torch.distributed process group" in done.stdout
    recorded = repo.find("HEAD")
    assert recipe_of(repo, recorded).steps == 2
    assert mvc.retrain(repo, trust=True).replayed == (recorded,)  # also without torchrun


def test_nothing_runs_without_trust_and_without_a_recipe(
    repo: mvc.Repository, images: Path
) -> None:
    model, optimizer = conv(repo)
    with pytest.raises(UnknownPath, match="has no recipe"):
        mvc.retrain(repo, trust=True)
    with mvc.record(repo, model, optimizer, data=images, service=train_images, verify=False) as run:
        run.train()
    with pytest.raises(NotTrusted, match=r"would run code: .*code/tests/recipes/trainings\.py"):
        mvc.retrain(repo)


def test_what_runs_of_installed_code_is_shown_before(
    repo: mvc.Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    marker = tmp_path / "ran"
    model, optimizer = conv(repo)
    run = recorded(repo, model, optimizer, service=slow, steps=1)
    recipe = json.loads(repo.attachment(run.result.id, "recipe.json"))
    recipe["model"]["made"] = {"partial": [{"code": "os:mkdir"}, [str(marker)], []]}
    forged = altered(repo, run.result.id, recipe_json=json.dumps(recipe).encode())
    call = f"model = os:mkdir('{marker}')"
    with pytest.raises(NotTrusted) as caught:
        mvc.retrain(repo, forged)
    assert call in caught.value.message
    assert [each.stored for each in recipes.calls(repo, forged)] == [False, False, True]
    assert recipes.calls(repo, "HEAD~2") == []
    monkeypatch.chdir(repo.root)
    program = Mvc(repo.root, capsys)
    lines = program("show", "--code", forged.hex()).out.splitlines()
    assert f"* {call}" in lines
    assert any(line.startswith("* optimizer = torch.optim.adam:Adam(model, ") for line in lines)
    assert "  tests.recipes.trainings:slow(model, optimizer=optimizer, steps=1)" in lines
    found = program("show", "--code", "--json", forged.hex()).json
    assert {"text": call, "stored": False} in found["calls"]
    assert not marker.exists()


def test_variables_that_lead_to_other_code_are_not_set(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    model, optimizer = conv(repo)
    run = recorded(repo, model, optimizer, service=slow, steps=1)
    there = json.loads(repo.attachment(run.result.id, "environment.json"))
    for name in (
        "PYTHONPATH", "LD_PRELOAD", "PATH", "OMP_TOOL_LIBRARIES", "ONEDNN_JIT_PROFILE",
        "DNNL_JIT_DUMP", "KMP_STATS_FILE",
    ):  # fmt: skip
        there["variables"] = {name: str(tmp_path)}
        other = altered(repo, run.result.id, environment_json=json.dumps(there).encode())
        assert name not in variables(recipes.environment(repo, other), {})
    there["variables"] = {"PYTHONPATH": str(tmp_path)}
    other = altered(repo, run.result.id, environment_json=json.dumps(there).encode())
    with pytest.raises(CannotRetrain, match=r"variables\.PYTHONPATH"):
        mvc.retrain(repo, other, trust=True)
    there["variables"] = {"OMP_WAIT_POLICY": "x" * (1 << 20)}  # more than a process can be given
    other = altered(repo, run.result.id, environment_json=json.dumps(there).encode())
    with pytest.raises(CannotRetrain, match="no process can be started"):
        mvc.retrain(repo, other, trust=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_the_service_leaves_behind_is_not_waited_for(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    model, _ = conv(repo)
    left = tmp_path / "left"
    recorded(repo, model, service=division, pid=os.getpid(), left=str(left))
    mvc.retrain(repo, trust=True)
    child = int(left.read_text())
    try:
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("prepared")
def test_broken_replays_are_caught_and_named(repo: mvc.Repository, images: Path) -> None:
    model, optimizer = conv(repo)
    recipes.add_data(repo, images, reference=True)
    run = recorded(repo, model, optimizer, data=images, service=train_images)
    good = run.result.id
    # another number of threads
    with pytest.raises(CannotRetrain, match=r"another environment: threads\.torch: 1, here 2"):
        mvc.retrain(repo, trust=True, threads=2)
    # another version of a library
    there = json.loads(repo.attachment(good, "environment.json"))
    there["torch"]["version"] = "1.13.1"
    other = altered(repo, good, environment_json=json.dumps(there).encode())
    with pytest.raises(CannotRetrain, match=r"torch\.version: 1\.13\.1, here 2"):
        mvc.retrain(repo, other, trust=True)
    # other code
    code = recipes.code(repo, good)["code/tests/recipes/trainings.py"].replace(b"epochs", b"rounds")
    other = altered(repo, good, code_tests_recipes_trainings_py=code)
    with pytest.raises(DamagedData, match=r"code/tests/recipes/trainings\.py of .* does not match"):
        mvc.retrain(repo, other, trust=True)
    # other versions than the commit needs: nothing would keep them
    other = altered(repo, good, needs=repo.version(good).needs[:1])
    with pytest.raises(DamagedData, match="and its commit need different versions"):
        mvc.retrain(repo, other, trust=True)
    # other data
    before = (images / "labels.npy").read_bytes()
    np.save(images / "labels.npy", np.zeros(16, np.int64))
    with pytest.raises(
        CannotRetrain, match=r"data set images has changed: labels\.npy has other content"
    ):
        mvc.retrain(repo, good, trust=True)
    (images / "labels.npy").unlink()
    with pytest.raises(CannotRetrain, match=r"data set images has changed: labels\.npy is missing"):
        mvc.retrain(repo, good, trust=True)
    (images / "labels.npy").write_bytes(before)
    with pytest.raises(CannotRetrain, match=r"threads\.torch"):  # the data are as they were
        mvc.retrain(repo, good, trust=True, threads=3)
    assert not left_behind(repo)


@pytest.mark.usefixtures("prepared")
def test_other_weights_are_never_returned_and_the_distance_is_told(repo: mvc.Repository) -> None:
    model, optimizer = conv(repo)
    with (
        pytest.raises(RetrainingDiffers, match=r"of 9 tensors differ: .*net\.") as caught,
        mvc.record(repo, model, optimizer, service=careless) as run,
    ):
        run.train()
    assert "of it, by at most" in caught.value.message
    assert "mvc probe" in str(caught.value.hint)
    assert run.result is not None  # the version is there, with its weights
    assert same(repo.checkout(run.result.id), model)


@pytest.mark.parametrize(
    ("how", "begins"), [(signal.SIGKILL, True), (signal.SIGTERM, True), (signal.SIGTERM, False)]
)
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups")
def test_a_replay_that_is_killed_leaves_nothing_and_begins_again(
    repo: mvc.Repository, how: signal.Signals, begins: bool
) -> None:
    model, optimizer = conv(repo)
    recorded(repo, model, optimizer, service=slow, steps=3)
    program = (
        "import sys, mvc\n"
        "tell = lambda done, total, text: print(done, text, flush=True)\n"
        "mvc.retrain(mvc.Repository.open(sys.argv[1]), trust=True, progress=tell)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(repo.root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "left" in line:
            break
    workers = workers_of(child.pid)
    assert workers
    child.send_signal(how)
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))
    assert left_behind(repo)
    if begins:
        assert same(mvc.retrain(repo, trust=True).state, model)
    else:
        repo.storage.gc()
    assert not left_behind(repo)


@pytest.mark.usefixtures("prepared")
def test_a_replay_that_hangs_is_told_of_and_ended(repo: mvc.Repository) -> None:
    model, _ = conv(repo)
    recorded(repo, model, service=deaf, pid=os.getpid())
    texts: list[str] = []
    with pytest.raises(CannotRetrain, match="took more than 8 s: its process was ended"):
        mvc.retrain(repo, trust=True, timeout=8, progress=lambda *given: texts.append(given[2]))
    (said, *_) = [text for text in texts if "waits for process" in text]
    assert not alive(int(said.partition("process ")[2].partition(",")[0]))
    assert not left_behind(repo)
    with pytest.raises(WrongUsage, match="timeout is a number of seconds"):
        mvc.retrain(repo, trust=True, timeout=-1)


@pytest.mark.skipif(sys.platform != "linux", reason="it asks Linux")
def test_a_process_that_keeps_the_lock_of_python_ends_with_its_parent(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    model, _ = conv(repo)
    recorded(repo, model, service=deaf, pid=os.getpid(), begun=str(tmp_path / "begun"))
    program = "import sys, mvc\nmvc.retrain(mvc.Repository.open(sys.argv[1]), trust=True)\n"
    child = subprocess.Popen([sys.executable, "-c", program, str(repo.root)])
    deadline = time.monotonic() + 120
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = workers_of(child.pid)
    assert len(workers) == 2  # the one that forks, and its fork
    child.kill()
    child.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))


def workers_of(pid: int) -> list[int]:
    """The processes that a process started, and those that these did."""
    found: list[int] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                stat = (each / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found += [int(each.name), *workers_of(int(each.name))]
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("prepared")
def test_a_training_that_fails_says_why(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the interpreter starts')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model, _ = conv(repo)
    recorded(repo, model, service=fails_elsewhere, pid=os.getpid())
    with pytest.raises(CannotRetrain, match="cannot be retrained: ValueError: another process"):
        mvc.retrain(repo, trust=True)


def test_a_recipe_names_what_it_needs(repo: mvc.Repository, images: Path) -> None:
    model, optimizer = conv(repo)
    recorded(repo, model, optimizer, data=images, service=train_images)
    recipe = recipe_of(repo, repo.find("HEAD"))
    assert repo.version().needs == recipe.needs
    assert recipe.base.version == repo.find("HEAD~1")
    with pytest.raises(MvcError):
        mvc.retrain(repo, "HEAD~1", trust=True)
