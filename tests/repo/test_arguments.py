"""What is no argument of a public method is refused with one clear line."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import (
    InvalidPipeline,
    IoFailed,
    MvcError,
    NotARepository,
    ReadOnly,
    UnknownMetric,
    WrongUsage,
)
from mvc.testing import HookedFS
from tests.cli.program import Mvc

STATE = {"w": np.arange(6, dtype=np.float32)}
LONE = "a\ud800b"


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with mvc.Repository.init(tmp_path / "models") as repo:
        (repo.root / "notes.txt").write_text("x")
        repo.commit(STATE, message="first", metrics={"acc": 0.5}, deploy="prod")
        repo.commit({"w": STATE["w"] + 1}, message="second")
        yield repo


@pytest.fixture
def mvc_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Mvc:
    monkeypatch.chdir(tmp_path)
    made = Mvc(tmp_path, capsys)
    made("init")
    return made


def read_only(repo: Any) -> Any:
    return (repo.root / "notes.txt").open("rb")


def closed() -> io.BytesIO:
    stream = io.BytesIO()
    stream.close()
    return stream


def record(repo: Any, metrics: Any, every: Any = None) -> None:
    with mvc.Recorder(repo, torch.nn.Linear(2, 2), metrics=every) as recorder:
        recorder.step(metrics=metrics)


LONELY: dict[str, Callable[[Any], object]] = {
    "message": lambda repo: repo.commit(STATE, message=LONE),
    "params": lambda repo: repo.commit(STATE, params={"a": LONE}),
    "rev": lambda repo: repo.find(LONE),
    "branch": lambda repo: repo.switch(LONE),
    "tag": lambda repo: repo.delete_ref("tag", LONE),
    "target": lambda repo: repo.log("HEAD", mvc.LogOptions(target=LONE)),
    "note": lambda repo: repo.annotate("HEAD", note=LONE),
    "reason": lambda repo: repo.deploy("HEAD", "prod", reason=LONE),
    "author": lambda repo: repo.commit(STATE, options=mvc.CommitOptions(author=LONE)),
    "recorder": lambda repo: mvc.Recorder(repo, torch.nn.Linear(2, 2), message=LONE),
    "file": lambda repo: repo.identify(LONE),
    "folder": lambda repo: mvc.Repository.open(LONE),
    "source": lambda repo: mvc.import_checkpoints(repo, [Path(LONE)]),
}

OTHERS: dict[str, Callable[[Any], object]] = {
    "produced_by is empty: it names the lossy pipeline that produced the state": (
        lambda repo: repo.commit(STATE, options=mvc.CommitOptions(produced_by=""))
    ),
    "layer_seconds is a number of seconds, 0 or more, not nan": (
        lambda repo: mvc.write_report(repo, layer_seconds=float("nan"))
    ),
    "layer_seconds is a number of seconds, 0 or more, not inf": (
        lambda repo: mvc.write_report(repo, layer_seconds=float("inf"))
    ),
    "metrics is of type int: it must be a mapping": lambda repo: record(repo, 5),
    "metrics is of type list: it must be a mapping": (
        lambda repo: record(repo, None, every=lambda: ["acc"])
    ),
    "the output is not a writable binary stream: I/O operation on closed file": (
        lambda repo: repo.checkout(to=closed())
    ),
    "the output is not a writable binary stream: string argument expected": (
        lambda repo: repo.checkout(to=io.StringIO())
    ),
    "the output is not a writable binary stream: write": lambda repo: repo.checkout(
        to=read_only(repo)
    ),
    "the output is not a writable binary stream: 'int' object": lambda repo: repo.checkout(to=5),
    "accuracy_drop is 1, but without lossy": lambda repo: mvc.Requirements(accuracy_drop=1),
}


def refused(repo: Any, act: Callable[[], object]) -> str:
    """What is said of a call that changes nothing."""
    before = repo.find()
    with pytest.raises(WrongUsage) as caught:
        act()
    said = caught.value.message
    assert "\n" not in said and said.encode()  # can be printed
    assert repo.find() == before and len(repo.log()) == 2
    return said


@pytest.mark.parametrize("what", LONELY)
def test_no_text_holds_a_lone_surrogate(repo: Any, what: str) -> None:
    before = repo.find()
    with pytest.raises(MvcError) as caught:
        LONELY[what](repo)
    assert "\n" not in caught.value.message and caught.value.message.encode()  # can be printed
    assert repo.find() == before and len(repo.log()) == 2


@pytest.mark.parametrize("message", OTHERS)
def test_it_is_refused_in_one_line(repo: Any, message: str) -> None:
    assert message in refused(repo, lambda: OTHERS[message](repo))


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
        assert repo.deployments(rev=rev)[0].target == "prod"
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
    acts = (
        repo.find, repo.log, repo.live, repo.status, repo.refs, repo.storage.stats,
        lambda: repo.commit(STATE), lambda: repo.deploy("HEAD", "prod"),
    )  # fmt: skip
    for act in acts:
        with pytest.raises(WrongUsage, match="this repository is closed"):
            act()
    repo.close()
    assert repr(repo) == f"<mvc repository {tmp_path / 'r'} (closed)>"


def test_what_ends_with_a_repository_may_still_commit(tmp_path: Path) -> None:
    repo = mvc.Repository.init(tmp_path)
    repo.before_close(lambda: repo.commit(STATE))
    repo.close()
    with mvc.Repository.open(tmp_path) as repo:
        assert len(repo.log()) == 1


def test_the_constructor_names_open() -> None:
    with pytest.raises(WrongUsage, match="does not open a repository") as caught:
        mvc.Repository("models")  # type: ignore[arg-type]
    assert "mvc.Repository.open(PATH)" in str(caught.value.hint)


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
        with pytest.raises(WrongUsage, match="is empty and would replace a stored one"):
            act()
    assert len(repo.log()) == 2
    repo.commit({}, options=mvc.CommitOptions(allow_empty=True))
    assert repo.checkout() == {}


def test_short_texts_for_the_console(repo: Any) -> None:
    assert repr(repo) == f"<mvc repository {repo.root}>"
    assert repr(repo.manifest()) == "<mvc manifest of model.safetensors, tensors: 1>"
    assert repr(repo.manifest("HEAD~1")) == repr(repo.manifest())


def test_signatures_are_those_of_the_methods() -> None:
    parameters = inspect.signature(mvc.Repository.deploy).parameters
    assert " ".join(parameters) == "self rev target at reason sign anyway push"
    assert inspect.getdoc(mvc.Repository.commit).startswith("Stores a version")


def test_what_is_right_is_still_taken(repo: Any, tmp_path: Path) -> None:
    repo.commit(
        STATE, message="undecodable \udcff", options=mvc.CommitOptions(reset_point=np.bool_(True))
    )
    repo.commit(
        "notes.txt",
        files=mvc.FileOptions(cwd=repo.root),
        options=mvc.CommitOptions(progress=lambda *_: None),
    )
    repo.storage.gc(grace=timedelta(days=1), dry_run=True)
    stream = io.BytesIO()
    repo.checkout(path=["notes.txt"], to=stream)
    assert stream.getvalue() == b"x"


def test_an_empty_pipeline_is_none(repo: Any) -> None:
    with pytest.raises(InvalidPipeline, match="the pipeline is empty"):
        repo.commit(STATE, pipeline="")


def test_a_name_that_no_file_can_have(repo: Any) -> None:
    with pytest.raises(IoFailed, match="a name cannot contain a lone surrogate"):
        repo.handle.store.fs.stat(repo.root / LONE)


# -- the command line ----------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_seconds_on_the_command_line_are_finite(mvc_: Mvc, seconds: str) -> None:
    assert "number of seconds" in mvc_("report", "--layers", seconds, code=2).err
    assert not (mvc_.folder / "report.html").exists()


@pytest.mark.parametrize("what", ["param", "metric"])
def test_a_name_is_given_once(mvc_: Mvc, what: str) -> None:
    pairs = (f"--{what}", "x=1", f"--{what}", "x=2")
    said = mvc_("commit", "--allow-empty", *pairs, code=2).err
    assert f"the {what} 'x' is set twice" in said


@pytest.mark.parametrize("what", ["param", "metric"])
def test_a_bad_name_is_called_what_it_is(mvc_: Mvc, what: str) -> None:
    said = mvc_("commit", "--allow-empty", f"--{what}", "a\u200b=1", code=3).err
    assert f"a {what}'s name contains a control character" in said


def test_a_folder_whose_place_a_file_takes_is_named(mvc_: Mvc) -> None:
    mvc_.write(1, "sub/m.safetensors")
    mvc_("commit", "sub", "-m", "x")
    (mvc_.folder / "oo").mkdir()
    (mvc_.folder / "oo/sub").write_text("mine")
    place = mvc_.folder / "oo/sub"
    assert f"{place} is not a folder" in mvc_("checkout", "HEAD", "-o", "oo", code=3).err
    for output in ("oo/sub/y", "oo/sub/y/"):
        assert "oo/sub is not a folder" in mvc_("checkout", "HEAD", "-o", output, code=3).err
    assert place.read_text() == "mine"


def test_an_empty_version_to_stdout(mvc_: Mvc, repo: Any) -> None:
    mvc_("commit", "--allow-empty", "-m", "x")
    with mvc.Repository.open(mvc_.folder) as empty, pytest.raises(WrongUsage) as caught:
        empty.checkout(to=io.BytesIO())
    assert "but 0 match" in caught.value.message


# -- values that are not finite, and names of temporary files ------------------------------


def test_a_metric_that_is_nan_everywhere(mvc_: Mvc) -> None:
    for i in range(2):
        mvc_("commit", "--allow-empty", "-m", str(i), "--metric", "n=nan", "--metric", "y=1")
    for arguments in (("log", "--sort", "n"),):
        said = mvc_(*arguments, code=3).err
        assert "no version has a number for the metric n" in said and "hint: " in said
    with (
        mvc.Repository.open(mvc_.folder) as repo,
        pytest.raises(UnknownMetric, match="no version has a number"),
    ):
        repo.storage.forget(keep_best=["n:1"])


@pytest.mark.parametrize("verb", ["report", "restore"])
def test_an_error_of_writing_names_the_file_that_was_asked_for(
    repo: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int, op: str, path: Path) -> None:
        if op == "open_write" and path.name.startswith(".mvc-tmp-"):
            raise ReadOnly(f"cannot write {path}: Permission denied", hint="check the permissions")

    output = repo.root / "out.html"
    monkeypatch.setattr("mvc.report.page.FileSystem", lambda: HookedFS(refuse))
    with (
        mvc.Repository.open(repo.root, fs=HookedFS(refuse)) as other,
        pytest.raises(MvcError) as caught,
    ):
        mvc.write_report(other, output) if verb == "report" else other.checkout(to=output)
    assert caught.value.message == f"cannot write {output}: Permission denied"
    assert isinstance(caught.value, ReadOnly) and caught.value.hint == "check the permissions"


def test_a_missing_folder_is_named(mvc_: Mvc) -> None:
    mvc_("commit", "--allow-empty", "-m", "x", "--metric", "y=1")
    said = mvc_("report", "-o", "nofolder/p.svg", code=3).err
    assert "nofolder/p.svg" in said and ".mvc-tmp" not in said
