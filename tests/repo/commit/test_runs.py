"""Trainings whose versions follow each other by an optimizer's steps: runs, and what ends them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import mvc
from mvc.errors import SourceChanged
from mvc.repo.lookup import manifests
from mvc.store.graph.plan import plan
from mvc.store.recovery.rates import Rates
from mvc.store.writing.layout import RUN
from tests.store.sizes import shrink

OPTIMIZERS = {
    "adam": lambda ps: torch.optim.Adam(ps, lr=1e-2, weight_decay=1e-2),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-2, amsgrad=True),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-2, momentum=0.9),
}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path / "work") as repo:
        yield repo


class Training:
    """A small network that learns; ``states`` are copies of what was committed."""

    def __init__(self, kind: str = "adam", width: int = 48) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 8))
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.states: list[dict[str, Any]] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = torch.randn(32, 16)
        (self.model(x) - x[:, :8]).square().mean().backward()
        self.optimizer.step()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def commit(self, repo: mvc.Repository, count: int = 1, **given: Any) -> list[mvc.CommitResult]:
        made = []
        for _ in range(count):
            self.step()
            made.append(repo.commit(self.state, **given))
            self.states.append(copied(self.state))
        return made


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def predicted(repo: mvc.Repository, version: mvc.CommitResult) -> int:
    """How many of a version's tensors an optimizer's step predicts."""
    manifest = manifests.of_commit(repo.handle.store, version.id)
    ids = {content.id for entry in manifest.entries for content in entry.contents}
    codings = [repo.handle.store.graph.codings(id_) for id_ in ids]
    return sum(any(step.member.coding.predicted for step in steps) for steps in codings)


def check(folder: Path, versions: list[mvc.CommitResult], states: list[dict[str, Any]]) -> None:
    with mvc.Repository.open(folder) as again:
        for version, state in zip(versions, states, strict=True):
            assert same(again.checkout(version.id), state)


@pytest.mark.parametrize("budget", ["auto", "none"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_version_of_a_run_comes_back(tmp_path, kind, budget):
    mvc.Repository.init(tmp_path).close()
    (tmp_path / ".mvc/config.yaml").write_text(f"python:\n  keep_base: {budget}\n")
    training = Training(kind)
    with mvc.Repository.open(tmp_path) as repo:
        versions = training.commit(repo, 6)
        assert all(predicted(repo, version) >= 6 for version in versions[2:])
    check(tmp_path, versions, training.states)


def test_a_run_is_followed_by_a_plain_version_that_goes_on_from_before_it(repo):
    training = Training(width=8)
    versions = training.commit(repo, RUN + 4)
    assert [i for i, v in enumerate(versions) if not predicted(repo, v)] == [0, RUN + 1]
    graph = repo.handle.store.graph
    (entry,) = manifests.of_commit(repo.handle.store, versions[RUN + 1].id).entries
    largest = max(entry.contents, key=lambda content: content.spec.nbytes)
    assert not any(link.predicted for link in graph.chain(largest.id))
    check(repo.root, versions, training.states)


def test_runs_of_many_short_tensors_are_shorter(repo):
    training = Training(width=4)
    training.model = nn.ModuleList(nn.Linear(16, 8) for _ in range(300))
    training.model.forward = lambda x: sum(layer(x) for layer in training.model)
    training.optimizer = torch.optim.Adam(training.model.parameters())
    versions = training.commit(repo, 7)
    plain = [i for i, version in enumerate(versions) if not predicted(repo, version)]
    assert plain == [0, 5]
    check(repo.root, versions, training.states)


def test_a_run_takes_less_than_half_of_what_deltas_take(repo):
    training = Training(width=512)
    versions = training.commit(repo, 4)
    training.step()
    (apart,) = training.commit(repo)
    assert not predicted(repo, apart)
    assert max(version.stored_bytes for version in versions[2:]) < 0.5 * apart.stored_bytes


def test_after_a_gap_a_version_is_stored_as_before_and_a_run_begins_anew(repo):
    training = Training()
    versions = training.commit(repo, 3)
    training.step()
    versions += training.commit(repo, 3)
    counts = [predicted(repo, version) > 0 for version in versions]
    assert counts == [False, True, True, False, True, True]
    check(repo.root, versions, training.states)


def test_a_reset_point_inside_a_run_has_no_base(repo):
    training = Training()
    versions = training.commit(repo, 3)
    versions += training.commit(repo, options=mvc.CommitOptions(reset_point=True))
    versions += training.commit(repo, 2)
    assert [predicted(repo, version) > 0 for version in versions] == [
        False, True, True, False, True, True,
    ]  # fmt: skip
    check(repo.root, versions, training.states)


def test_a_bound_for_recovery_ends_runs(repo):
    training = Training(width=8)
    (first, second) = training.commit(repo, 2)
    bound = 1.5 * seconds(repo, second)
    options = mvc.CommitOptions(max_recovery=bound)
    versions = [first, second, *training.commit(repo, 20, options=options)]
    assert 2 <= sum(not predicted(repo, version) for version in versions) < 20
    assert all(seconds(repo, version) <= bound for version in versions)
    check(repo.root, versions, training.states)


def seconds(repo: mvc.Repository, version: mvc.CommitResult) -> float:
    """An estimate of how long the version takes to recover."""
    rates, graph = Rates(), repo.handle.store.graph
    entries = manifests.of_commit(repo.handle.store, version.id).entries
    contents = [content for entry in entries for content in entry.contents]
    walks = [(c.spec.nbytes, c.spec, plan(graph, [c.id]).steps) for c in contents]
    return rates.version(rates.works(walks), 1, sum(entry.size for entry in entries))


@pytest.mark.parametrize("form", ["checkpoint", "two files"])
def test_files_of_a_training_are_runs_too(repo, form):
    training, versions, data = Training(), [], []
    folder = repo.root
    for i in range(5):
        training.step()
        if form == "checkpoint":
            torch.save({**training.state, "epoch": i}, folder / "last.pt")
            paths = [folder / "last.pt"]
        else:
            save_file(training.model.state_dict(), folder / "model.safetensors")
            torch.save(training.optimizer.state_dict(), folder / "optimizer.pt")
            paths = [folder / "model.safetensors", folder / "optimizer.pt"]
        versions.append(repo.commit(paths))
        data.append([path.read_bytes() for path in paths])
    assert all(predicted(repo, version) >= 8 for version in versions[2:])
    for version, files in zip(versions, data, strict=True):
        repo.checkout(version.id, to=folder / "again", force=True)
        assert [(folder / "again" / path.name).read_bytes() for path in paths] == files


def test_tensors_that_are_equal_to_each_other_lead_in_no_circle(repo):
    """What one parameter's moment is, another's weights are, and the other way round."""
    training, a, b = Training(), torch.randn(300), torch.randn(300)
    group = {**training.optimizer.state_dict()["param_groups"][0], "params": [0, 1]}
    versions, states = [], []
    for step in range(1, 5):
        moments = [(b, a.square()), (a, b.square())]
        state = {
            i: {"step": torch.tensor(float(step)), "exp_avg": m.clone(), "exp_avg_sq": v}
            for i, (m, v) in enumerate(moments)
        }
        given = {
            "model": {"0": a.clone(), "1": b.clone()},
            "optimizer": {"state": state, "param_groups": [dict(group)]},
        }
        versions.append(repo.commit(given))
        states.append(given)
        a, b = 0.9 * a, 0.9 * b
    check(repo.root, versions, states)


def test_more_codings_than_a_record_can_name(repo):
    weights = [nn.Parameter(torch.randn(64)) for _ in range(130)]
    groups = [{"params": [w], "lr": 1e-3 * (1 + i)} for i, w in enumerate(weights)]
    optimizer = torch.optim.Adam(groups)
    versions, states = [], []
    for _ in range(3):
        for w in weights:
            w.grad = torch.randn(64)
        optimizer.step()
        model = {str(i): w.detach() for i, w in enumerate(weights)}
        given = {"model": model, "optimizer": optimizer.state_dict()}
        versions.append(repo.commit(given))
        states.append(copied(given))
    assert predicted(repo, versions[-1]) > 256
    check(repo.root, versions, states)


def test_the_work_of_a_run_grows_as_its_tensors_do(repo):
    """Counted in calls, because times depend on the machine."""

    def calls(count: int) -> int:
        parameters = [nn.Parameter(torch.randn(64)) for _ in range(count)]
        optimizer, made = torch.optim.Adam(parameters), 0

        def count_call(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal made
            made += event == "call"

        for step in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn(64)
            optimizer.step()
            model = {str(i): parameter.data for i, parameter in enumerate(parameters)}
            state = copied({"model": model, "optimizer": optimizer.state_dict()})
            sys.setprofile(count_call if step == 2 else None)
            try:
                repo.commit(state, path=f"{count}.safetensors")
            finally:
                sys.setprofile(None)
        return made

    few = calls(50)
    assert calls(200) < 5 * few


def test_a_tensor_that_changes_during_the_commit_is_noticed(repo):
    training = Training()
    training.commit(repo, 2)
    training.step()
    moment = training.optimizer.state[training.model[0].weight]["exp_avg"]

    def disturb(done: int, total: int, path: str) -> None:
        moment.add_(1)

    with pytest.raises(SourceChanged):
        repo.commit(training.state, options=mvc.CommitOptions(progress=disturb))
    (made,) = training.commit(repo)
    check(repo.root, [made], training.states[-1:])


@pytest.mark.parametrize("budget", ["auto", "none"])
def test_a_stored_tensor_that_a_step_is_predicted_from_is_proven(tmp_path, budget):
    """The moments are stored already, so only the prediction of the weights reads them."""
    mvc.Repository.init(tmp_path).close()
    (tmp_path / ".mvc/config.yaml").write_text(f"python:\n  keep_base: {budget}\n")
    training = Training()
    with mvc.Repository.open(tmp_path) as repo:
        versions = training.commit(repo, 3)
        training.step()
        side = repo.commit(training.state["optimizer"], path="moments", options=_on("side"))
        assert side.branch == "side"
        moment = training.optimizer.state[training.model[0].weight]["exp_avg"]

        def disturb(done: int, total: int, path: str) -> None:
            moment.add_(1)

        with pytest.raises(SourceChanged, match="exp_avg"):
            repo.commit(training.state, options=mvc.CommitOptions(progress=disturb))
        versions += training.commit(repo)
        assert repo.storage.fsck(full=True).sound
    check(tmp_path, versions, training.states)


def _on(branch: str) -> mvc.CommitOptions:
    return mvc.CommitOptions(branch=branch, new_branch=True)


def test_versions_committed_beside_a_thread_that_trains_are_sound_or_refused(repo):
    """``max_exp_avg_sq`` of amsgrad often stays as it is, and the weights are predicted from it."""
    training, end = Training("adamw", width=512), threading.Event()
    training.commit(repo, 2)

    def train() -> None:
        while not end.is_set():
            training.step()

    thread = threading.Thread(target=train)
    thread.start()
    versions, refused = [], 0
    try:
        for _ in range(40):
            try:
                versions.append(repo.commit(training.state).id)
            except SourceChanged:
                refused += 1
    finally:
        end.set()
        thread.join()
    assert refused
    assert repo.storage.fsck(full=True).sound
    with mvc.Repository.open(repo.root) as again:
        for version in versions:
            again.checkout(version)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, 1e-40])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_extreme_weights_raise_no_warning_of_numpy(repo, kind, value):
    """The parameters are in two groups and have one shape, so the data say which is which."""
    parameters = [nn.Parameter(torch.randn(16, 16)) for _ in range(4)]
    optimizer = OPTIMIZERS[kind](parameters[::-1])
    optimizer.add_param_group({"params": [nn.Parameter(torch.randn(16, 16))]})
    parameters.append(optimizer.param_groups[1]["params"][0])
    versions, states = [], []
    for step in range(4):
        for parameter in parameters:
            parameter.grad = torch.randn(16, 16)
        optimizer.step()
        for tensor in (parameters[0].data, *optimizer.state[parameters[1]].values()):
            if torch.is_tensor(tensor) and tensor.numel() > 1:
                tensor.view(-1)[:9] = -value if step == 2 else value
        model = {str(i): parameter.data for i, parameter in enumerate(parameters)}
        states.append(copied({"model": model, "optimizer": optimizer.state_dict()}))
        versions.append(repo.commit(states[-1]))
    check(repo.root, versions, states)


@pytest.mark.parametrize("form", ["state", "file"])
def test_tensors_of_several_pieces(repo, monkeypatch, form):
    shrink(monkeypatch, PIECE=4096, CHUNK=1024)
    training, versions, data = Training(width=75), [], []
    for _ in range(4):
        if form == "state":
            versions += training.commit(repo)
        else:
            training.step()
            torch.save(training.state, repo.root / "last.pt")
            versions.append(repo.commit([repo.root / "last.pt"]))
            data.append((repo.root / "last.pt").read_bytes())
    assert all(predicted(repo, version) >= 8 for version in versions[2:])
    if form == "state":
        check(repo.root, versions, training.states)
    for version, given in zip(versions, data, strict=False):
        repo.checkout(version.id, to=repo.root / "again", force=True)
        assert (repo.root / "again" / "last.pt").read_bytes() == given


def test_a_recorder_stores_runs(repo):
    training, models = Training("adamw"), []
    with mvc.Recorder(repo, training.model, training.optimizer) as recorder:
        for _ in range(5):
            training.step()
            models.append(copied(training.model.state_dict()))
            recorder.step()
    versions = list(repo.log())[::-1]
    assert all(predicted(repo, version) >= 10 for version in versions[2:])
    with mvc.Repository.open(repo.root) as again:
        for version, model in zip(versions, models, strict=True):
            assert same(dict(again.checkout(version.id, path="model.safetensors")), model)
