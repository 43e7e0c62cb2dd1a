"""Every public method that takes a revision takes the id that ``commit`` returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mvc.api.recipes import Recipes
from mvc.api.repository import Repository
from mvc.api.storage import Storage
from mvc.errors import CannotResume, Unattainable, UnknownPath, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.repo.commit.request import CommitOptions

Use = Callable[[Repository, Any], object]


def removed(repo: Repository, rev: Any) -> object:
    """Takes the only reset point away, which is refused with the name of the version."""
    with pytest.raises(Unattainable) as caught:
        repo.storage.repack(remove=[rev], dry_run=True)
    return caught.value.message


def tensor_bytes(repo: Repository, rev: Any) -> bytes:
    (entry,) = repo.manifest(rev).entries
    return bytes(repo.tensor_bytes(entry, entry.tensors[0], rev))


def loaded(repo: Repository, rev: Any) -> list[float]:
    model = nn.ParameterDict({"w": torch.zeros(3)})
    repo.load(model, rev)
    return model["w"].tolist()


def retraining(repo: Repository, rev: Any) -> list[float]:
    with repo.recipes.retraining(rev):
        return repo.checkout(rev)["w"].tolist()


def refused(use: Callable[[], object]) -> str:
    """The version carries neither code nor a training state; with its name in the message."""
    with pytest.raises((UnknownPath, CannotResume)) as caught:
        use()
    return caught.value.message


# By the method and the parameter that takes the revision.
USES: dict[tuple[str, str], Use] = {
    ("annotate", "rev"): lambda repo, rev: repo.annotate(rev, note="good").note,
    ("annotations", "rev"): lambda repo, rev: repo.annotations(rev),
    ("branch", "rev"): lambda repo, rev: repo.branch("side", rev).commit,
    ("checkout", "rev"): lambda repo, rev: repo.checkout(rev)["w"].tolist(),
    ("deploy", "rev"): lambda repo, rev: repo.deploy(rev, "test").commit,
    ("deployments_of", "rev"): lambda repo, rev: [d.target for d in repo.deployments_of(rev)],
    ("diff", "a"): lambda repo, rev: [f.kind for f in repo.diff(rev, "HEAD").files],
    ("diff", "b"): lambda repo, rev: [f.kind for f in repo.diff("HEAD", rev).files],
    ("family", "rev"): lambda repo, rev: [m.path for m in repo.family(rev).members],
    ("find", "rev"): lambda repo, rev: repo.find(rev),
    ("forget", "revs"): lambda repo, rev: repo.storage.forget(rev).commits,
    ("forgotten_ns", "rev"): lambda repo, rev: repo.forgotten_ns(rev),
    ("way_to_state", "rev"): lambda repo, rev: repo.way_to_state(rev),
    ("is_absent", "rev"): lambda repo, rev: repo.is_absent(rev),
    ("iter_versions", "rev"): lambda repo, rev: [v for v, _ in repo.iter_versions(rev=rev)],
    ("load", "rev"): loaded,
    ("load_model", "rev"): lambda repo, rev: refused(lambda: repo.load_model(rev, trust=True)),
    ("resume", "rev"): lambda repo, rev: refused(lambda: repo.resume(nn.Linear(1, 1), rev=rev)),
    ("calls", "rev"): lambda repo, rev: repo.recipes.calls(rev),
    ("code", "rev"): lambda repo, rev: repo.recipes.code(rev),
    ("environment", "rev"): lambda repo, rev: refused(lambda: repo.recipes.environment(rev)),
    ("model", "rev"): lambda repo, rev: refused(lambda: repo.recipes.model(rev)),
    ("retrain", "rev"): lambda repo, rev: refused(lambda: repo.recipes.retrain(rev, trust=True)),
    ("retraining", "rev"): lambda repo, rev: retraining(repo, rev),
    ("patch", "rev"): lambda repo, rev: refused(lambda: repo.recipes.patch(rev)),
    ("log", "rev"): lambda repo, rev: [entry.id for entry in repo.log(rev)],
    ("manifest", "rev"): lambda repo, rev: repo.manifest(rev).id,
    ("repack", "add"): lambda repo, rev: str(
        repo.storage.repack(add=[rev], dry_run=True).plan.goal
    ),
    ("repack", "remove"): lambda repo, rev: removed(repo, rev),
    ("checkout to", "rev"): lambda repo, rev: repo.checkout(rev, to=repo.root).commit,
    ("retract", "rev"): lambda repo, rev: repo.retract(rev, "prod").commit,
    ("switch", "start"): lambda repo, rev: repo.switch("side", create=True, start=rev),
    ("tag", "rev"): lambda repo, rev: repo.tag("v1", rev).commit,
    ("tensor_bytes", "rev"): lambda repo, rev: tensor_bytes(repo, rev),
    ("version", "rev"): lambda repo, rev: repo.version(rev).id,
}
NAMES = {"rev", "revs", "start", "a", "b", "add"}
CASES = pytest.mark.parametrize("use", USES.values(), ids=[f"{m}-{p}" for m, p in USES])


def versions(root: Path) -> tuple[Repository, CommitId]:
    """A repository of two versions and the id of the first, which was deployed."""
    repo = Repository.init(root)
    first = repo.commit(
        {"w": np.ones(3, np.float32)}, deploy="prod", options=CommitOptions(time=1000, author="me")
    )
    repo.commit({"w": np.zeros(3, np.float32)}, options=CommitOptions(time=2000, author="me"))
    return repo, first.id


def test_no_method_that_takes_a_revision_is_forgotten_here() -> None:
    methods = [
        m for c in (Repository, Storage, Recipes) for m in inspect.getmembers(c, inspect.isfunction)
    ]
    takes = {
        (name, parameter)
        for name, method in methods
        if not name.startswith("_")
        for parameter in inspect.signature(method).parameters
        if parameter in NAMES
    }
    assert takes <= USES.keys()


@CASES
def test_an_id_means_what_its_digits_mean(tmp_path: Path, use: Use) -> None:
    (by_id, first), (by_text, same) = versions(tmp_path / "id"), versions(tmp_path / "text")
    assert first == same
    assert use(by_id, first) == use(by_text, str(same))


@CASES
def test_an_id_of_another_repository_is_unknown(tmp_path: Path, use: Use) -> None:
    repo, _ = versions(tmp_path)
    with pytest.raises(UnknownRevision):
        use(repo, CommitId(bytes(32)))
    assert len(list(repo.oplog())) == 3, "nothing was recorded"


@CASES
@pytest.mark.parametrize("given", [7, b"main", object()], ids=["number", "bytes", "object"])
def test_what_is_no_revision_is_wrong_usage(tmp_path: Path, use: Use, given: object) -> None:
    repo, _ = versions(tmp_path)
    with pytest.raises(WrongUsage, match="a revision is a text or a CommitId, not"):
        use(repo, given)


@CASES
def test_what_has_an_id_means_its_version(tmp_path: Path, use: Use) -> None:
    (by_id, first), (by_entry, _), (by_deployment, _) = (versions(tmp_path / n) for n in "abc")
    by_both = [
        use(by_entry, by_entry.log()[1]),
        use(by_deployment, by_deployment.live("prod")),
    ]
    assert by_both == [use(by_id, first)] * 2


def test_the_result_of_commit_is_a_revision(tmp_path: Path) -> None:
    repo, _ = versions(tmp_path)
    done = repo.commit({"w": np.ones(3, np.float32)})
    assert repo.tag("v1", done).commit == done.id
