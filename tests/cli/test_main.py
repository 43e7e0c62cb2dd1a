from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from mvc import __version__, errors
from mvc.cli.catalog import COMMANDS
from mvc.cli.main import describe, report, run
from mvc.cli.output import Output
from mvc.cli.session import Session
from mvc.repo.config import user_file
from tests.cli.program import ROOT, Mvc, imports, python, spawn


def test_help_lists_every_command_without_importing_one(tmp_path: Path) -> None:
    done = python(
        "import sys; from mvc.cli.main import run; run(['--help']); "
        "bad = [m for m in sys.modules if m.startswith('mvc.cli.commands') "
        "or m.split('.')[0] in ('torch', 'numpy', 'rich', 'lmdb', 'blake3')]; "
        "print(bad, file=sys.stderr)"
    )
    assert done.stderr.strip() == "[]"
    for word in ("commit", "checkout", "train-distributed", "mvc help --all"):
        assert word in done.stdout


def test_import_of_the_package_is_light() -> None:
    done = python(
        "import sys, mvc; print([m for m in ('torch', 'numpy', 'click') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]"


def test_no_arguments_means_help(tmp_path: Path) -> None:
    assert "Usage: mvc" in spawn(cwd=tmp_path).stdout


def test_the_version_says_which_loops_run(mvc: Mvc, monkeypatch: pytest.MonkeyPatch) -> None:
    for loops, found in (("numpy", None), ("C", "kernels")):
        monkeypatch.setattr("importlib.util.find_spec", {"mvc.codecs._kernels": found}.get)
        expected = f"mvc {__version__} (kernels in {loops})\n"
        assert mvc("--version").out == mvc("-V").out == expected


def test_help(mvc: Mvc) -> None:
    assert mvc("help").out == mvc("--help").out
    assert mvc("help", "log").out == mvc("log", "--help").out
    assert "no command or topic 'nope'" in mvc("help", "nope", code=2).err


def test_help_fits_one_screen(mvc: Mvc, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = mvc("--help").out.splitlines()
    assert len(lines) < 24  # and the next prompt
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).replace(",", "").split()
    assert [name for name in COMMANDS if name not in words] == []


def test_unknown_command_suggests(capsys) -> None:
    assert run(["comit"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "mvc: there is no command 'comit': did you mean 'commit'?",
        "hint: see 'mvc --help'",
    ]


def test_wrong_option_is_one_line(capsys) -> None:
    assert run(["log", "--nope"]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert message.startswith("mvc: no such option '--nope'")
    assert hint == "hint: see 'mvc log --help'"


def test_outside_a_repository(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["log"]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("mvc: not a repository")
    assert "hint: create one with 'mvc init'" in captured.err


def test_errors_as_json_are_one_object_on_stdout(tmp_path, monkeypatch, capsys) -> None:
    import json

    monkeypatch.chdir(tmp_path)
    assert run(["log", "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    assert found["schema"] == "mvc.error/1"
    assert found["kind"] == "not-a-repository"
    assert found["exit_code"] == 3


def test_usage_errors_as_json(capsys) -> None:
    import json

    assert run(["diff", "--json", "--nope"]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "wrong-usage"


def test_internal_errors_show_a_traceback_only_with_debug(mvc: Mvc, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("mvc.repo.lookup.refs.branches", broken)
    plain = mvc("branch", code=3)
    assert plain.err.splitlines()[0] == "mvc: internal error: ZeroDivisionError: by nothing"
    assert "Traceback" not in plain.err
    assert "Traceback" in mvc("branch", "--debug", code=3).err


def test_directory_option(mvc: Mvc, monkeypatch, tmp_path) -> None:
    id_ = mvc.commit()
    monkeypatch.chdir(tmp_path)
    assert mvc("-C", mvc.folder, "show", "--id", "HEAD").out == id_ + "\n"
    assert Path.cwd() == tmp_path
    assert "cannot work in" in mvc("-C", "nowhere", "log", code=2).err


def test_data_and_talk_are_apart(mvc: Mvc) -> None:
    mvc.write()
    done = spawn("commit", "model.safetensors", "-m", "x", cwd=mvc.folder)
    assert done.returncode == 0
    assert done.stdout.startswith("[main ")
    assert done.stderr == ""
    again = spawn("commit", "-a", cwd=mvc.folder)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("mvc: nothing to commit")


def test_message_from_stdin(mvc: Mvc) -> None:
    mvc.write()
    done = spawn("commit", "model.safetensors", "-m", "-", cwd=mvc.folder, input="from stdin\n")
    assert done.returncode == 0, done.stderr
    assert mvc("log", "--json").json["commits"][0]["message"] == "from stdin\n"


def test_broken_pipe_is_quiet(mvc: Mvc) -> None:
    for value in range(3):
        mvc.commit(value)
    command = f"'{sys.executable}' -c 'from mvc.cli.main import main; main()' log --json"
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"],
        cwd=mvc.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() in {"141", "0"}
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_full_disk_behind_stdout_is_one_line(mvc: Mvc, options: list[str]) -> None:
    mvc.commit()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from mvc.cli.main import main; main()", "log", *options],
            cwd=mvc.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 3
    assert done.stderr.splitlines()[0].startswith("mvc: no space left to use the output")
    assert "Traceback" not in done.stderr


def test_interrupt(mvc: Mvc) -> None:
    script = (
        "import time, mvc.repo.lookup.refs as refs\n"
        "def slow(*_): print('ready', flush=True); time.sleep(60)\n"
        "refs.branches = slow\n"
        "import sys; sys.argv = ['mvc', 'branch']\n"
        "from mvc.cli.main import main; main()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=mvc.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in its background with interrupts ignored; that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert said == "mvc: interrupted\n"


_SLOW = ("torch", "numpy", "rich", "logging", "concurrent.futures", "mvc.store.graph.search")


@pytest.mark.parametrize("command", [["log", "-n", "20"], ["show", "--id", "HEAD"], ["branch"]])
def test_light_commands_import_nothing_that_is_slow_to_import(mvc: Mvc, command: list[str]) -> None:
    mvc.commit()
    assert imports(_SLOW, command, mvc.folder) == "0 []"


def test_a_start_leaves_out_what_click_and_msgspec_import_for_other_uses(mvc: Mvc) -> None:
    mvc.commit()
    done = spawn("log", cwd=mvc.folder, env={"PYTHONPROFILEIMPORTTIME": "1"})
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "click" in modules and "inspect" not in modules
    assert "Example:" in spawn("log", "--help", cwd=mvc.folder).stdout  # which uses inspect


@pytest.mark.parametrize("command", [["undo", "--list"], ["undo"]])
def test_operations_need_no_arrays(mvc: Mvc, command: list[str]) -> None:
    mvc.commit(1)
    assert imports(("torch", "numpy", "rich"), ["-q", *command], mvc.folder) == "0 []"


@pytest.mark.parametrize(
    "command",
    [["repack", "-n", "--interval", "2"], ["repack"], ["stats"], ["gc"], ["log"], ["fsck"],
     ["forget", "HEAD~1", "--force"], ["show", "--code"], ["show", "HEAD", "layer.weight"]],
)  # fmt: skip
def test_commands_that_train_nothing_work_without_torch(mvc: Mvc, command: list[str]) -> None:
    mvc.commit(1)
    mvc.commit(2)
    done = python(
        "import sys; sys.modules['torch'] = None; from mvc.cli.main import run; "
        f"code = run({command!r}); print(code, 'mvc.recipes.weights' in sys.modules)",
        cwd=mvc.folder,
    )
    assert done.stdout.splitlines()[-1:] == ["0 False"], done.stderr


def test_settings_come_from_the_environment(mvc: Mvc, monkeypatch) -> None:
    monkeypatch.setenv("MVC_STORE_RESET_INTERVAL", "5")
    assert mvc("config", "store.reset_interval").out == "5\n"
    monkeypatch.setenv("MVC_STORE_RESET_INTERVAL", "0")
    assert "MVC_STORE_RESET_INTERVAL" in mvc("log", code=3).err


# -- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (errors.UnknownRevision("no such"), "unknown-revision", 3),
        (errors.NothingToCommit("no"), "nothing-to-commit", 1),
        (errors.DamagedData("bad"), "damaged-data", 4),
        (errors.Busy("later"), "busy", 5),
        (errors.WrongUsage("no"), "wrong-usage", 2),
        (click.UsageError("No such option: --x."), "wrong-usage", 2),
        (KeyboardInterrupt(), "interrupted", 130),
        (click.Abort(), "interrupted", 130),
        (MemoryError(), "out-of-memory", 3),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "storage-full", 3),
        (ZeroDivisionError("division by zero"), "internal-error", 3),
    ],
)
def test_kinds_and_codes(error: BaseException, kind: str, code: int) -> None:
    failure = describe(error)
    assert (failure.kind, failure.exit_code) == (kind, code)
    assert "\n" not in failure.message


def test_full_disk_says_where_and_what_to_do() -> None:
    failure = describe(OSError(errno.ENOSPC, "No space left on device", "/x/y"))
    assert failure.message.startswith("no space left to use /x/y")
    assert "free" in (failure.hint or "")


def test_internal_errors_point_to_debug() -> None:
    failure = describe(ZeroDivisionError("division by zero"))
    assert failure.message == "internal error: ZeroDivisionError: division by zero"
    assert "--debug" in (failure.hint or "")


def test_report(capsys) -> None:
    failure = describe(errors.UnknownRevision("no version 'x'", hint="see 'mvc log'"))
    report(failure, Output("never"), as_json=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "mvc: no version 'x'\nhint: see 'mvc log'\n"


def test_messages_are_printable(capsys) -> None:
    report(describe(errors.UnknownPath("no \x1b[31m\nfile")), Output("never"), as_json=False)
    assert capsys.readouterr().err == "mvc: no \\x1b[31m\\nfile\n"


# -- session -----------------------------------------------------------------------------


def test_user_file() -> None:
    assert user_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/mvc/config.yaml")
    home = Path.home() / ".config/mvc/config.yaml"
    assert user_file({}) == home
    assert user_file({"XDG_CONFIG_HOME": "relative"}) == home


def test_names_are_relative_to_the_working_folder(mvc, monkeypatch) -> None:
    (mvc.folder / "sub").mkdir()
    monkeypatch.chdir(mvc.folder / "sub")
    session = Session()
    try:
        assert session.names(["a.pt", "../b.pt", "..", str(mvc.folder / "c.pt")]) == [
            "sub/a.pt",
            "b.pt",
            ".",
            "c.pt",
        ]
    finally:
        session.close()


@pytest.mark.parametrize(
    "line",
    [
        ["commit", "", "-m", "x"],
        ["import", ""],
        ["serve", ""],
        ["checkout", "HEAD", "-o", ""],
        ["checkout", "HEAD", ""],
        ["backup", ""],
        ["follow", ".", "prod", "-o", ""],
        ["clone", ".", ""],
        ["diff", "", "HEAD"],
    ],
)
def test_an_empty_string_is_no_path(mvc, line: list[str]) -> None:
    mvc.commit(1)
    mvc.write(2)
    before = mvc("log", "--json").out
    assert "a path is empty" in mvc(*line, code=2).err
    assert mvc("log", "--json").out == before


@pytest.mark.parametrize("place", [".", "/", ".."])
def test_follow_keeps_no_place_without_a_name(mvc, place: str) -> None:
    mvc.commit(1)
    said = mvc("follow", ".", "prod", "-o", place, code=2).err
    assert f"mvc: {place} cannot be replaced\n" in said
