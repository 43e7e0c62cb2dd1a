from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import mvc.recipes as recipes
from mvc.api.repository import Repository
from mvc.api.storage import Storage
from mvc.errors import (
    AmbiguousName,
    AmbiguousRevision,
    CannotResume,
    InvalidTime,
    MvcError,
    NoDeployment,
    StateForgotten,
    Unattainable,
    UnknownPath,
    UnknownRevision,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.models.models import load_model
from mvc.recipes.verbs import retrain, retraining
from mvc.repo import refs
from mvc.repo.commit.request import CommitOptions
from mvc.repo.handle import Handle
from mvc.repo.revisions import resolve, resolve_ref
from mvc.repo.statements.record import deploy, retract
from mvc.state import StateFile
from mvc.times import format_time
from mvc.training.resume import load, resume
from tests.repo.publishing import START, advance, commit, set_ref


@pytest.fixture
def line(context: Handle) -> list[CommitId]:
    """Five versions on main, a minute apart."""
    made = []
    for _ in range(5):
        made.append(commit(context))
        advance(context, 60)
    return made


def test_names(context: Handle, line: list[CommitId]) -> None:
    refs.create_tag(context.store, "v1", "HEAD~2")
    refs.create_branch(context.store, "side", "v1")
    assert resolve_ref(context.store, "HEAD") == (line[4], "main")
    assert resolve_ref(context.store, "main") == (line[4], "main")
    assert resolve_ref(context.store, "heads/main") == (line[4], "main")
    assert resolve_ref(context.store, "side") == (line[2], "side")
    assert resolve_ref(context.store, "v1") == (line[2], None)
    assert resolve_ref(context.store, "tags/v1") == (line[2], None)
    assert resolve_ref(context.store, "main~0") == (line[4], None)
    set_ref(context, "HEAD", line[0])
    assert resolve_ref(context.store, "HEAD") == (line[0], None)


def test_ids(context: Handle, line: list[CommitId]) -> None:
    for id_ in line:
        with pytest.raises(UnknownRevision) as caught:
            resolve(context.store, id_.hex()[:3])
        assert caught.value.hint == "write at least four digits of an id"
        for digits in (4, 5, 10, 16, 17, 33, 63, 64):
            same = [i for i in line if i.hex().startswith(id_.hex()[:digits])]
            if len(same) == 1:
                assert resolve_ref(context.store, id_.hex()[:digits]) == (id_, None)
                assert resolve(context.store, id_.hex()[:digits].upper()) == id_


def test_steps(context: Handle, line: list[CommitId]) -> None:
    side = commit(context, line[1], branch="side")
    merge = commit(context, line[4], side)
    assert resolve(context.store, "HEAD~") == resolve(context.store, "HEAD^") == line[4]
    assert resolve(context.store, "HEAD^0") == resolve(context.store, "HEAD~0") == merge
    assert resolve(context.store, "HEAD^2") == side
    assert resolve(context.store, "HEAD^2~1") == line[1]
    assert resolve(context.store, "HEAD~3") == resolve(context.store, "HEAD~1~~") == line[2]
    assert resolve(context.store, "HEAD^^^") == line[2]
    assert resolve(context.store, f"{line[3].hex()[:12]}~3") == line[0]


def test_steps_beyond_the_beginning(context: Handle, line: list[CommitId]) -> None:
    with pytest.raises(UnknownRevision, match=line[0].short):
        resolve(context.store, "main~5")
    with pytest.raises(UnknownRevision, match="one parent"):
        resolve(context.store, "main^2")
    with pytest.raises(UnknownRevision, match="no parent"):
        resolve(context.store, "main~4^1")


def test_moments(context: Handle, line: list[CommitId]) -> None:
    at = [format_time(START + i * 60 * 10**9, 0) for i in range(5)]
    for i in range(5):
        assert resolve_ref(context.store, f"main@{{{at[i]}}}") == (line[i], None)
        assert resolve(context.store, f"HEAD@{{{at[i]}}}") == line[i]
    assert resolve(context.store, f"main@{{{at[3]}}}~2") == line[1]
    assert resolve(context.store, "main@{90 seconds ago}") == line[3]
    assert resolve(context.store, "main@{now}") == line[4]
    with pytest.raises(UnknownRevision, match="pointed to no version") as caught:
        resolve(context.store, "main@{1 day ago}")
    assert format_time(START) in (caught.value.hint or "")
    with pytest.raises(InvalidTime):
        resolve(context.store, "main@{whenever}")
    with pytest.raises(UnknownRevision):
        resolve(context.store, "nothing@{now}")


def test_head_at_a_moment_is_that_of_the_branch_it_was_on(
    context: Handle, line: list[CommitId]
) -> None:
    refs.create_branch(context.store, "side", "main~3")
    set_ref(context, "HEAD", "side")
    advance(context, 60)
    side = commit(context, branch="side")
    advance(context, 60)
    set_ref(context, "HEAD", line[2])
    assert resolve(context.store, "HEAD@{now}") == line[2]
    assert resolve(context.store, "HEAD@{60 seconds ago}") == side
    assert resolve(context.store, "HEAD@{61 seconds ago}") == line[1]
    assert resolve(context.store, "HEAD@{121 seconds ago}") == line[4]


def test_a_deleted_branch_is_still_found_in_the_past(context: Handle, line: list[CommitId]) -> None:
    refs.create_branch(context.store, "side", "main~3")
    advance(context, 60)
    refs.delete_branch(context.store, "side")
    assert resolve(context.store, "side@{30 seconds ago}") == line[1]
    with pytest.raises(UnknownRevision):
        resolve(context.store, "side@{now}")
    with pytest.raises(UnknownRevision):
        resolve(context.store, "side")


def test_close_names_are_listed(context: Handle, line: list[CommitId]) -> None:
    refs.create_branch(context.store, "experiment")
    with pytest.raises(UnknownRevision) as caught:
        resolve(context.store, "experimnt")
    assert "experiment" in (caught.value.hint or "")
    missing = next(
        f"{i:04x}" for i in range(16) if not any(c.hex().startswith(f"{i:04x}") for c in line)
    )
    with pytest.raises(UnknownRevision):
        resolve(context.store, missing)


def test_an_ambiguous_id_lists_the_candidates(
    context: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: dict[str, CommitId] = {}
    while True:  # a pair whose ids begin alike, by the birthday bound in some 300 attempts
        id_ = commit(context, message="hello")
        if (other := ids.get(id_.hex()[:4])) is not None:
            break
        ids[id_.hex()[:4]] = id_
    with pytest.raises(AmbiguousRevision) as caught:
        resolve(context.store, id_.hex()[:4])
    assert id_.short in caught.value.message and other.short in caught.value.message
    assert resolve(context.store, id_.hex()[:20]) == id_


def test_a_name_comes_before_an_id(context: Handle, line: list[CommitId]) -> None:
    digits = line[0].hex()[:6]
    refs.create_branch(context.store, digits, "main~2")
    assert resolve(context.store, digits) == line[2]
    assert resolve(context.store, line[0].hex()[:7]) == line[0]


def test_a_target_means_what_is_live_there(context: Handle, line: list[CommitId]) -> None:
    for target, id_ in (("prod", line[1]), ("edge/berlin", line[2]), ("2026", line[3])):
        deploy(context.store, context.config, id_, target)
        for name in (target, f"target:{target}", f"{target}@{{now}}", f"target:{target}@{{now}}"):
            assert resolve_ref(context.store, name) == (id_, None)
            assert resolve(context.store, f"{name}~1") == line[line.index(id_) - 1]
    advance(context, 60)
    deploy(context.store, context.config, line[3], "prod")
    assert resolve(context.store, "prod") == line[3]
    assert resolve(context.store, "prod@{60 seconds ago}") == line[1]
    assert resolve(context.store, "target:prod@{1 second ago}~") == line[0]
    deploy(context.store, context.config, resolve(context.store, "prod~2"), "nodes-of/a")
    assert resolve(context.store, "nodes-of/a") == line[1]


def test_a_target_on_which_nothing_is_live(context: Handle, line: list[CommitId]) -> None:
    deploy(context.store, context.config, line[1], "prod")
    with pytest.raises(NoDeployment, match="nothing was live on prod at"):
        resolve(context.store, "prod@{1 hour ago}")
    retract(context.store, context.config, None, "prod")
    for name in ("prod", "target:prod", "target:prod@{now}~1"):
        with pytest.raises(NoDeployment, match="nothing is live on prod: every deployment was"):
            resolve(context.store, name)
    with pytest.raises(UnknownTarget, match="nothing was ever deployed on main"):
        resolve(context.store, "target:main")
    with pytest.raises(UnknownRevision, match="no version, branch, tag or target prd") as caught:
        resolve(context.store, "prd")
    assert caught.value.hint == "did you mean prod?"


def test_what_is_live_was_forgotten(context: Handle, line: list[CommitId]) -> None:
    deploy(context.store, context.config, line[1], "prod")
    repo = Repository(context)
    repo.storage.forget(line[1], reason="row 17")
    assert repo.find("prod") == line[1] and repo.version("prod").id == line[1]
    assert repo.find("prod~1") == line[0]
    with pytest.raises(StateForgotten):
        repo.manifest("prod")


def test_a_branch_a_tag_and_an_id_come_before_a_target(
    context: Handle, line: list[CommitId]
) -> None:
    digits = line[0].hex()[:8]
    refs.create_branch(context.store, "prod", "main~1")
    refs.create_tag(context.store, "v1", "main~2")
    set_ref(context, "remotes/origin/prod", line[2])
    used = {
        "prod": (line[3], "a branch", "heads/prod"),
        "v1": (line[2], "a tag", "tags/v1"),
        "origin/prod": (line[2], "a remote's branch or tag", "remotes/origin/prod"),
        digits: (line[0], "a version's id", line[0].short),
    }
    for name, (id_, kind, full) in used.items():
        deploy(context.store, context.config, line[4], name)
        said = f"^{name} is {kind} and a target: using {full}; target:{name} means the live version"
        with pytest.warns(AmbiguousName, match=said):
            assert resolve(context.store, name) == id_
        assert resolve(context.store, f"target:{name}") == line[4]
        assert resolve(context.store, full) == id_
    with pytest.warns(AmbiguousName):
        assert resolve(context.store, "prod@{now}") == line[3]
    with pytest.warns(AmbiguousName):
        assert resolve_ref(context.store, "prod") == (line[3], "prod")
    advance(context, 60)
    refs.delete_branch(context.store, "prod", force=True)
    with pytest.warns(AmbiguousName):  # the branch has a past
        assert resolve(context.store, "prod@{1 second ago}") == line[3]
    assert resolve(context.store, "prod") == line[4]


@pytest.mark.parametrize(
    "text", ["", " ", "~1", "^", "@{now}", "main~x", "main@", "main@{now", "main}", "main@{now}x",
             "main~2@{now}", "a" * 300, "main~" + "1" * 40, "\x00", "main^-1", "abc", "..", "x\ny"],
)  # fmt: skip
def test_what_is_no_revision(context: Handle, line: list[CommitId], text: str) -> None:
    with pytest.raises(UnknownRevision) as caught:
        resolve(context.store, text)
    assert "\x00" not in caught.value.message and "\n" not in caught.value.message
    assert caught.value.hint


def test_nothing_committed_yet(context: Handle) -> None:
    for text in ("HEAD", "HEAD~1"):
        with pytest.raises(UnknownRevision, match="main"):
            resolve(context.store, text)
    with pytest.raises(UnknownRevision):
        resolve(context.store, "HEAD@{now}")
    with pytest.raises(UnknownRevision):
        resolve(context.store, os.urandom(32).hex())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.text(max_size=30) | st.text("HEADmain~^@{}0123456789abcdef now", max_size=30))
def test_any_text_resolves_or_is_refused(context: Handle, text: str) -> None:
    if refs.head(context.store.fresh()).commit is None:
        commit(context)
    try:
        resolve(context.store, text)
    except MvcError as e:
        assert e.message and "\n" not in e.message


# -- revisions as arguments --------------------------------------------------------------


Use = Callable[[Repository, Any], object]


def removed(repo: Repository, rev: Any) -> object:
    """Takes the only reset point away, which is refused with the name of the version."""
    with pytest.raises(Unattainable) as caught:
        repo.storage.repack(remove=[rev], dry_run=True)
    return caught.value.message


def loaded(repo: Repository, rev: Any) -> list[float]:
    model = nn.ParameterDict({"w": torch.zeros(3)})
    load(repo, model, rev)
    return model["w"].tolist()


def made_again(repo: Repository, rev: Any) -> list[float]:
    with retraining(repo, rev):
        return repo.checkout(rev)["w"].tolist()


def provided(repo: Repository, rev: Any) -> list[float]:
    with repo.providing(rev, "model.safetensors", StateFile.of(repo.checkout(rev))):
        return repo.checkout(rev)["w"].tolist()


def refused(use: Callable[[], object]) -> str:
    """The version carries neither code nor a training state; with its name in the message."""
    with pytest.raises((UnknownPath, CannotResume)) as caught:
        use()
    return caught.value.message


def averaged(repo: Repository, rev: Any) -> list[float]:
    repo.average([rev, "HEAD"])
    return repo.checkout("HEAD")["w"].tolist()


# By the method and the parameter that takes the revision.
USES: dict[tuple[str, str], Use] = {
    ("annotate", "rev"): lambda repo, rev: repo.annotate(rev, note="good").note,
    ("annotations", "rev"): lambda repo, rev: repo.annotations(rev),
    ("attachment", "rev"): lambda repo, rev: refused(lambda: repo.attachment(rev, "none")),
    ("availability", "rev"): lambda repo, rev: repo.availability(rev),
    ("average", "revs"): averaged,
    ("branch", "rev"): lambda repo, rev: repo.branch("side", rev).commit,
    ("checkout", "rev"): lambda repo, rev: repo.checkout(rev)["w"].tolist(),
    ("cost", "rev"): lambda repo, rev: repo.storage.cost(rev).nbytes,
    ("deploy", "rev"): lambda repo, rev: repo.deploy(rev, "test").commit,
    ("deployments", "rev"): lambda repo, rev: [d.target for d in repo.deployments(rev=rev)],
    ("diff", "a"): lambda repo, rev: [f.kind for f in repo.diff(rev, "HEAD").files],
    ("diff", "b"): lambda repo, rev: [f.kind for f in repo.diff("HEAD", rev).files],
    ("find", "rev"): lambda repo, rev: repo.find(rev),
    ("forget", "revs"): lambda repo, rev: repo.storage.forget(rev).commits,
    ("iter_versions", "rev"): lambda repo, rev: [v for v, _ in repo.iter_versions(rev=rev)],
    ("load", "rev"): loaded,
    ("load_model", "rev"): lambda repo, rev: refused(lambda: load_model(repo, rev, trust=True)),
    ("resume", "rev"): lambda repo, rev: refused(lambda: resume(repo, nn.Linear(1, 1), rev=rev)),
    ("calls", "rev"): lambda repo, rev: recipes.calls(repo, rev),
    ("code", "rev"): lambda repo, rev: recipes.code(repo, rev),
    ("steps", "rev"): lambda repo, rev: recipes.steps(repo, rev),
    ("environment", "rev"): lambda repo, rev: refused(lambda: recipes.environment(repo, rev)),
    ("model", "rev"): lambda repo, rev: refused(lambda: recipes.model(repo, rev)),
    ("retrain", "rev"): lambda repo, rev: refused(lambda: retrain(repo, rev, trust=True)),
    ("drop_weights", "revs"): lambda repo, rev: refused(lambda: recipes.drop_weights(repo, [rev])),
    ("store_weights", "rev"): lambda repo, rev: recipes.store_weights(repo, rev),
    ("retraining", "rev"): lambda repo, rev: made_again(repo, rev),
    ("log", "rev"): lambda repo, rev: [entry.id for entry in repo.log(rev)],
    ("manifest", "rev"): lambda repo, rev: repo.manifest(rev).id,
    ("merge", "rev"): lambda repo, rev: repo.merge(rev).new,
    ("predicted", "rev"): lambda repo, rev: repo.storage.predicted(rev),
    ("repack", "add"): lambda repo, rev: str(
        repo.storage.repack(add=[rev], dry_run=True).plan.goal
    ),
    ("repack", "remove"): lambda repo, rev: removed(repo, rev),
    ("checkout to", "rev"): lambda repo, rev: repo.checkout(rev, to=repo.root).commit,
    ("open_file", "rev"): lambda repo, rev: repo.open_file(rev, "model.safetensors").read(),
    ("providing", "rev"): provided,
    ("retract", "rev"): lambda repo, rev: repo.retract(rev, "prod").commit,
    ("switch", "start"): lambda repo, rev: repo.switch("side", create=True, start=rev),
    ("tag", "rev"): lambda repo, rev: repo.tag("v1", rev).commit,
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
    methods = [m for c in (Repository, Storage) for m in inspect.getmembers(c, inspect.isfunction)]
    methods += [(name, getattr(recipes, name)) for name in recipes.__all__]
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
    assert len(list(repo.operations())) == 3, "nothing was recorded"


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
