"""Arguments and values that ended in an error of Python, or were taken for something else."""

from __future__ import annotations

import io
import re
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
    ReadOnly,
    UnknownMetric,
    UnknownPath,
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
        yield repo


@pytest.fixture
def mvc_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Mvc:
    monkeypatch.chdir(tmp_path)
    made = Mvc(tmp_path, capsys)
    made("init")
    return made


def options(**values: Any) -> mvc.CommitOptions:
    return mvc.CommitOptions(**values)


def read_only(repo: Any) -> Any:
    return (repo.root / "notes.txt").open("rb")


def closed() -> io.BytesIO:
    stream = io.BytesIO()
    stream.close()
    return stream


def record(repo: Any, metrics: Any, every: Any = None) -> None:
    with mvc.Recorder(repo, torch.nn.Linear(2, 2), metrics=every) as recorder:
        recorder.step(metrics=metrics)


WRONG: dict[str, Callable[[Any], object]] = {
    "picture(file=...) takes a text or a path, not a value of type int": (
        lambda repo: repo.plot().picture(5)
    ),
    "text(width=...) takes a whole number": lambda repo: repo.plot().text("x"),
    "plot(metrics=...) takes a text, not a value of type list": lambda repo: repo.plot(["acc"]),
    "plot(metrics=...) takes a text, not None": lambda repo: repo.plot("acc", None),
    "plot(metrics=...) takes a text, not a value of type int": lambda repo: repo.plot(0),
    "seconds is a number of seconds, 0 or more, not nan": (
        lambda repo: repo.plot("acc", seconds=float("nan"))
    ),
    "layer_seconds is a number of seconds, 0 or more, not inf": (
        lambda repo: repo.report(layer_seconds=float("inf"))
    ),
    "commit(message=...) holds a lone surrogate": lambda repo: repo.commit(STATE, message=LONE),
    "commit(params=...) holds a lone surrogate": (
        lambda repo: repo.commit(STATE, params={"a": LONE})
    ),
    "find(rev=...) holds a lone surrogate": lambda repo: repo.find(LONE),
    "switch(branch=...) holds a lone surrogate": lambda repo: repo.switch(LONE),
    "delete_tag(name=...) holds a lone surrogate": lambda repo: repo.delete_tag(LONE),
    "log(target=...) holds a lone surrogate": lambda repo: repo.log(target=LONE),
    "identify(path=...) holds a lone surrogate": lambda repo: repo.identify(LONE),
    "open(path=...) holds a lone surrogate": lambda repo: mvc.Repository.open(LONE),
    "import_checkpoints(sources=...) holds a lone surrogate": (
        lambda repo: repo.import_checkpoints([Path(LONE)])
    ),
    "message holds a lone surrogate": lambda repo: mvc.Recorder(
        repo, torch.nn.Linear(2, 2), message=LONE
    ),
    "gc(grace=...) takes a timedelta or a text or None": lambda repo: repo.storage.gc(grace=0),
    "forget(unqueried=...) takes True or False, not a value of type float": (
        lambda repo: repo.storage.forget(unqueried=1.5)
    ),
    "metrics is of type int: it must be a mapping": lambda repo: record(repo, 5),
    "metrics is of type list: it must be a mapping": (
        lambda repo: record(repo, None, every=lambda: ["acc"])
    ),
    "CommitOptions(progress=...) takes a function or None": lambda repo: options(progress=5),
    "checkout(progress=...) takes a function": lambda repo: repo.checkout(progress=5, to=repo.root),
    "open(config=...) takes a function": lambda repo: mvc.Repository.open(repo.root, config=5),
    "the output takes no bytes: I/O operation on closed file": (
        lambda repo: repo.checkout(to=closed())
    ),
    "the output takes no bytes: string argument expected": (
        lambda repo: repo.checkout(to=io.StringIO())
    ),
    "the output takes no bytes: write": lambda repo: repo.checkout(to=read_only(repo)),
    "the output takes no bytes: 'int' object": lambda repo: repo.checkout(to=5),
    "commit(reset_point=...) takes True or False": lambda repo: repo.commit(STATE, reset_point="x"),
    "CommitOptions(opaque=...) takes True or False": lambda repo: options(opaque="yes"),
    "CommitOptions(new_branch=...) takes True or False": lambda repo: options(new_branch=5),
    "CommitOptions(cwd=...) takes a path or None": lambda repo: options(cwd=5),
    "CommitOptions(output=...) takes a text or a path": lambda repo: options(output=5),
    "accuracy_drop is 1, but without lossy": lambda repo: mvc.Requirements(accuracy_drop=1),
}


@pytest.mark.parametrize("message", WRONG)
def test_it_is_refused_in_one_line(repo: Any, message: str) -> None:
    before = repo.find()
    with pytest.raises(WrongUsage, match=re.escape(message)) as caught:
        WRONG[message](repo)
    assert "\n" not in caught.value.message
    caught.value.message.encode()  # can be printed
    assert repo.find() == before


def test_what_is_right_is_still_taken(repo: Any, tmp_path: Path) -> None:
    drawn = repo.plot("acc")
    assert drawn.picture("x.svg") == drawn.picture(Path("x.svg"))
    assert repo.plot("acc").text(np.int64(60))
    repo.commit(STATE, reset_point=np.bool_(True), message="undecodable \udcff")
    repo.commit("notes.txt", options=options(cwd=repo.root, progress=lambda *_: None))
    repo.storage.gc(grace=timedelta(days=1), dry_run=True)
    stream = io.BytesIO()
    repo.checkout(path=["notes.txt"], to=stream)
    assert stream.getvalue() == b"x"


def test_an_empty_pipeline_is_none(repo: Any) -> None:
    with pytest.raises(InvalidPipeline, match="the pipeline is empty"):
        repo.commit(STATE, pipeline="")


def test_a_name_that_no_file_can_have(repo: Any) -> None:
    with pytest.raises(IoFailed, match="no name holds a lone surrogate"):
        repo.context.store.fs.stat(repo.root / LONE)


# -- the command line ----------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_seconds_on_the_command_line_are_finite(mvc_: Mvc, seconds: str) -> None:
    assert "number of seconds" in mvc_("report", "--layer-seconds", seconds, code=2).err
    assert not (mvc_.folder / "report.html").exists()


@pytest.mark.parametrize("what", ["param", "metric"])
def test_a_name_is_given_once(mvc_: Mvc, what: str) -> None:
    pairs = (f"--{what}", "x=1", f"--{what}", "x=2")
    said = mvc_("commit", "--allow-empty", *pairs, code=2).err
    assert f"the {what} 'x' is given twice" in said


@pytest.mark.parametrize("what", ["param", "metric"])
def test_a_bad_name_is_called_what_it_is(mvc_: Mvc, what: str) -> None:
    said = mvc_("commit", "--allow-empty", f"--{what}", "a\u200b=1", code=3).err
    assert f"a {what}'s name holds a control character" in said


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
    with mvc.Repository.open(mvc_.folder) as empty, pytest.raises(UnknownPath) as caught:
        empty.checkout(to=io.BytesIO())
    assert "has no file to write" in caught.value.message


# -- values that are not finite, and names of temporary files ------------------------------


def test_a_metric_that_is_nan_everywhere(mvc_: Mvc) -> None:
    for i in range(2):
        mvc_("commit", "--allow-empty", "-m", str(i), "--metric", "n=nan", "--metric", "y=1")
    for arguments in (("log", "--best", "n"), ("log", "--sort", "n")):
        said = mvc_(*arguments, code=3).err
        assert "the metric n is NaN in every version that has it" in said and "hint: " in said
    with mvc.Repository.open(mvc_.folder) as repo, pytest.raises(UnknownMetric, match="is NaN"):
        repo.storage.forget(keep_best=["n:1"])


def test_a_plot_leaves_gaps_where_values_are_not_finite(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for i, value in enumerate([1, 2, float("nan"), 3, float("inf")]):
            at = f"2026-01-0{i + 1}T00:00Z"
            metrics = {"acc": value, "none": float("-inf")}
            repo.commit(STATE, metrics=metrics, options=mvc.CommitOptions(time=at))
        drawn = repo.plot("acc", "none")
        text, svg = drawn.text(60), drawn.svg()
    assert text[0] == "acc, highest 3, lowest 1" and "none, no finite value" in text
    assert sum(line.count("*") for line in text) == 3
    (line,) = re.findall(r'class="l" d="([^"]*)"', svg)
    assert re.sub(r"[\d. ]+", "", line.replace("h0", "")) == "MLM"


def test_the_extremes_of_float64_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with mvc.Repository.init(tmp_path) as repo:
        for value in (1e308, -1e308, 5e-324, float("nan")):
            repo.commit(STATE, metrics={"acc": value, "gone": float("nan")})
        drawn = repo.plot("acc", "gone")
        assert drawn.picture("x.png").startswith(b"\x89PNG")
        assert "nan" not in drawn.svg() and "inf" not in drawn.svg()


@pytest.mark.parametrize("verb", ["report", "restore"])
def test_an_error_of_writing_names_the_file_that_was_asked_for(repo: Any, verb: str) -> None:
    def refuse(_: int, op: str, path: Path) -> None:
        if op == "open_write" and path.name.startswith(".mvc-tmp-"):
            raise ReadOnly(f"cannot write {path}: Permission denied", hint="check the permissions")

    output = repo.root / "out.html"
    with (
        mvc.Repository.open(repo.root, fs=HookedFS(refuse)) as other,
        pytest.raises(MvcError) as caught,
    ):
        other.report(output) if verb == "report" else other.checkout(to=output)
    assert caught.value.message == f"cannot write {output}: Permission denied"
    assert isinstance(caught.value, ReadOnly) and caught.value.hint == "check the permissions"


def test_a_missing_folder_is_named(mvc_: Mvc) -> None:
    mvc_("commit", "--allow-empty", "-m", "x", "--metric", "y=1")
    said = mvc_("plot", "-o", "nofolder/p.svg", code=3).err
    assert "nofolder/p.svg" in said and ".mvc-tmp" not in said
