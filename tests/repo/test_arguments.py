"""What is no argument of a public method is refused with one clear line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.errors import NotARepository, WrongUsage

STATE = {"w": np.arange(6, dtype=np.float32)}


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(STATE, message="first", deploy="prod")
        repo.commit({"w": STATE["w"] + 1}, message="second")
        yield repo


WRONG: dict[str, Callable[[Any], object]] = {
    "commit(message=...) takes a text, not a value of type int": (
        lambda repo: repo.commit(STATE, message=3)
    ),
    "commit(metrics=...) takes a mapping with texts as keys or None, not a value of type list": (
        lambda repo: repo.commit(STATE, metrics=[1])
    ),
    "commit(metrics=...) takes a mapping with texts as keys or None, not a value of type dict": (
        lambda repo: repo.commit(STATE, metrics={1: 1.0})
    ),
    "commit(options=...) takes mvc.CommitOptions(...) or None, not a value of type str": (
        lambda repo: repo.commit(STATE, options="x")
    ),
    "CommitOptions(author=...) takes a text or None, not a value of type int": (
        lambda repo: repo.commit(STATE, options=mvc.CommitOptions(author=3))
    ),
    "CommitOptions(exact=...) takes a list of texts, not a value of type str": (
        lambda repo: repo.commit(STATE, options=mvc.CommitOptions(exact="w"))
    ),
    "commit(path=...) takes a text, not a value of type PosixPath": (
        lambda repo: repo.commit(STATE, path=Path("m"))
    ),
    "commit(deploy=...) takes a text or None, not a value of type int": (
        lambda repo: repo.commit(STATE, deploy=1)
    ),
    "commit(states=...) takes a mapping from paths to states or None, not a value of type dict": (
        lambda repo: repo.commit(states={"a": 1})
    ),
    "produced_by is empty: it names the lossy pipeline that made the state": (
        lambda repo: repo.commit(STATE, options=mvc.CommitOptions(produced_by=""))
    ),
    "commit(reset_point=...) takes True or False, not a value of type int": (
        lambda repo: repo.commit(STATE, reset_point=3)
    ),
    "retract(target=...) takes a text, not None": lambda repo: repo.retract(None, None),
    "deploy(target=...) takes a text, not None": lambda repo: repo.deploy("HEAD", None),
    "deploy(rev=...) takes a revision, not None": lambda repo: repo.deploy(None, "prod"),
    "version(rev=...) takes a revision, not None": lambda repo: repo.version(None),
    "branch(name=...) takes a text, not a value of type bytes": lambda repo: repo.branch(b"x"),
    "tag(name=...) takes a text, not a value of type int": lambda repo: repo.tag(name=1),
    "checkout(path=...) takes a text or a list of texts or None, not a value of type int": (
        lambda repo: repo.checkout(path=3)
    ),
    "log(limit=...) takes a whole number or None, not a value of type str": (
        lambda repo: repo.log(limit="3")
    ),
    "identify(path=...) takes a path, not a value of type int": lambda repo: repo.identify(3),
    "load(path=...) takes a text or None, not a value of type int": (
        lambda repo: repo.load(None, path=1)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_type_is_named_in_one_line(repo: Any, message: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        WRONG[message](repo)
    assert caught.value.message == message
    assert len(repo.log()) == 2


@pytest.mark.parametrize("rev", [3, b"HEAD", object(), ["HEAD"]])
def test_what_is_no_revision_is_refused(repo: Any, rev: object) -> None:
    for act in (repo.version, repo.manifest, repo.log, lambda r: repo.deploy(r, "prod")):
        with pytest.raises(WrongUsage, match="a revision is a text or a CommitId"):
            act(rev)


def test_results_are_revisions(repo: Any) -> None:
    made = repo.commit(STATE)
    entry = repo.log()[0]
    live = repo.deploy(made, "prod")
    for rev in (made, made.commit, entry, live, repo.head()):
        assert repo.find(rev) == made.id
        assert repo.version(rev) == made.commit
        assert (repo.checkout(rev)["w"] == STATE["w"]).all()
        assert repo.log(rev)[0].id == made.id
        assert repo.deployments_of(rev)[0].target == "prod"
        assert repo.diff("HEAD~1", rev).files
    assert repo.branch("b", made).commit == made.id
    assert repo.tag("t", entry).commit == made.id
    assert repo.retract(live, "prod").retracted
    assert [v.id for v, _ in repo.iter_versions(rev=entry)][-1] == made.id
    assert repo.storage.forget(repo.log()[2], dry_run=True).commits


def test_a_closed_repository_says_so(tmp_path: Path) -> None:
    repo = mvc.Repository.init(tmp_path / "r")
    repo.commit(STATE)
    repo.close()
    for name, method in inspect.getmembers(mvc.Repository, inspect.isfunction):
        if name.startswith("_") or name == "close":
            continue
        needed = [
            parameter
            for parameter in list(inspect.signature(method).parameters.values())[1:]
            if parameter.default is parameter.empty
            and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
        ]
        with pytest.raises(WrongUsage, match="this repository is closed"):
            getattr(repo, name)(*("x" for _ in needed))
    repo.close()
    assert repr(repo) == f"<mvc repository {tmp_path / 'r'} (closed)>"


def test_what_ends_with_a_repository_may_still_commit(tmp_path: Path) -> None:
    repo = mvc.Repository.init(tmp_path)
    repo.before_close(lambda: repo.commit(STATE))
    repo.close()
    with mvc.Repository.open(tmp_path) as repo:
        assert len(repo.log()) == 1


def test_commit_takes_ten_arguments_and_two_options_by_themselves(repo: Any) -> None:
    names = list(inspect.signature(mvc.Repository.commit).parameters)
    assert len(names) == 1 + 10 + 1  # self, and what was moved to the options
    at = "2026-11-20T10:00Z"
    for given in ({"at": at}, {"options": mvc.CommitOptions(at=at)}):
        live = repo.commit(STATE, deploy="prod", **given).deployment
        assert live.time_ns == repo.time(at)
    for given in ({"reset_point": True}, {"options": mvc.CommitOptions(reset_point=True)}):
        repo.commit({"w": STATE["w"] + 1}, **given)
        assert repo.log(limit=1, reset_points=True)[0].reset_point
    with pytest.raises(TypeError, match="unexpected keyword argument 'author'"):
        repo.commit(STATE, author="me")


def test_the_constructor_names_open() -> None:
    with pytest.raises(WrongUsage, match="not opened by its constructor") as caught:
        mvc.Repository("models")  # type: ignore[arg-type]
    assert "mvc.Repository.open(PATH)" in str(caught.value.hint)
    for act in (mvc.Repository.open, mvc.Repository.init, mvc.Repository.open_or_init):
        with pytest.raises(
            WrongUsage, match=r"\(path=\.\.\.\) takes a path, not a value of type int"
        ):
            act(3)  # type: ignore[arg-type]


def test_open_or_init_makes_a_repository_once(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    with mvc.Repository.open_or_init(folder, branch="trunk") as repo:
        made = repo.commit(STATE).id
        assert repo.head().branch == "trunk"
    with mvc.Repository.open_or_init(str(folder), branch="other") as repo:
        assert (repo.head().branch, repo.head().commit) == ("trunk", made)
    inside = folder / "part"
    with mvc.Repository.open_or_init(inside) as repo:  # no repository above it is meant
        assert repo.root == inside
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / ".mvc").write_text("")
    with pytest.raises(NotARepository):
        mvc.Repository.open_or_init(tmp_path / "file")


def test_an_empty_state_is_not_committed_by_mistake(repo: Any) -> None:
    for act in (lambda: repo.commit({}), lambda: repo.commit(states={"a": {}, "b": STATE})):
        with pytest.raises(
            WrongUsage, match="is empty, and would take the place of what may be stored there"
        ):
            act()
    assert len(repo.log()) == 2
    repo.commit({}, options=mvc.CommitOptions(allow_empty=True))
    assert repo.checkout() == {}


def test_short_texts_for_the_console(repo: Any) -> None:
    assert repr(repo) == f"<mvc repository {repo.root}>"
    assert repr(repo.manifest()) == "<mvc manifest of model.safetensors, tensors: 1>"
    assert repr(repo.manifest("HEAD~1")) == repr(repo.manifest())


def test_signatures_are_those_of_the_methods() -> None:
    assert list(inspect.signature(mvc.Repository.deploy).parameters) == [
        "self",
        "rev",
        "target",
        "at",
    ]
    assert inspect.getdoc(mvc.Repository.commit).startswith("Keeps a version")
