from __future__ import annotations

import os
from datetime import UTC, datetime


def checkpoints(mvc, count: int = 3) -> None:
    for day in range(1, count + 1):
        path = mvc.write(day, f"runs/model-2026-11-0{day}.safetensors")
        moment = datetime(2026, 11, day, 12, tzinfo=UTC).timestamp()
        os.utime(path, (moment, moment))


def test_history_in_time_order(mvc) -> None:
    checkpoints(mvc)
    out = mvc("import", "runs", "--deploy", "prod").out
    assert out.startswith("3 versions imported (2026-11-01 to 2026-11-03), ")
    commits = mvc("log", "--json").json["commits"]
    assert [c["time"][:13] for c in commits] == [
        "2026-11-03T12",
        "2026-11-02T12",
        "2026-11-01T12",
    ]
    assert mvc("ls", "--name-only").out == "model.safetensors\n"
    mvc("checkout", "--at", "2026-11-02T13:00Z", "-o", "live")
    wanted = (mvc.folder / "runs/model-2026-11-02.safetensors").read_bytes()
    assert (mvc.folder / "live").read_bytes() == wanted


def test_again_adds_nothing(mvc) -> None:
    checkpoints(mvc)
    mvc("import", "runs")
    assert "0 versions imported" in mvc("import", "runs").out
    assert "3 there already" in mvc("import", "runs").out
    assert len(mvc("log", "--json").json["commits"]) == 3


def test_one_undo_takes_back_one_version(mvc) -> None:
    checkpoints(mvc)
    mvc("import", "runs", "--deploy", "prod")
    for left in (2, 1):
        said = mvc("undo")
        assert "stays on record" in said.out + said.err
        assert len(mvc("log", "--json").json["commits"]) == left
    assert len(mvc("deployments", "prod", "--json").json["deployments"]) == 3


def test_times_from_names(mvc) -> None:
    checkpoints(mvc)
    found = mvc(
        "import", "runs", "--time", "name:model-%Y-%m-%d.safetensors", "--path", "net.safetensors",
        "-m", "nightly", "--json",
    ).json  # fmt: skip
    assert found["schema"] == "mvc.import/1"
    assert [v["time"] for v in found["versions"]] == [
        f"2026-11-0{day}T00:00:00+00:00" for day in (1, 2, 3)
    ]
    assert mvc("ls", "--name-only").out == "net.safetensors\n"
    assert mvc("log", "--json").json["commits"][0]["message"] == "nightly"


def test_verbose_lists_each(mvc) -> None:
    checkpoints(mvc)
    out = mvc("import", "-v", "runs").out
    assert out.count("model-2026-11-0") == 3


def test_refusals(mvc) -> None:
    (mvc.folder / "empty").mkdir()
    assert "no model files" in mvc("import", "empty", code=2).err
    assert "no file or folder" in mvc("import", "nowhere", code=3).err
    checkpoints(mvc)
    assert "ctime" in mvc("import", "runs", "--time", "ctime", code=2).err


def test_quiet_says_nothing(mvc, tmp_path) -> None:
    mvc.write(1, "runs/a.safetensors")
    result = mvc("-q", "import", mvc.folder / "runs")
    assert (result.out, result.err) == ("", "")


def test_an_interruption_says_what_was_kept(mvc, monkeypatch) -> None:
    for i in range(3):
        mvc.write(i, f"runs/{i}.safetensors")
    from mvc.repo.importing import importing

    take, calls = importing._Run.take, []

    def interrupted(self, checkpoint):
        calls.append(checkpoint)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return take(self, checkpoint)

    monkeypatch.setattr(importing._Run, "take", interrupted)
    err = mvc("import", mvc.folder / "runs", code=130).err
    assert "2 versions imported so far, and kept; the same command again goes on" in err
    assert "1 version imported" in mvc("import", mvc.folder / "runs").out


def test_every_format_is_imported_and_the_rest_is_named(mvc) -> None:
    run = mvc.folder / "runs"
    for name in ("a.onnx", "b.onnx", "c.txt", ".hidden"):
        run.mkdir(exist_ok=True)
        (run / name).write_bytes(name.encode() * 50)
    (run / "logs").mkdir()
    (run / "logs/events.1").write_bytes(b"events")
    result = mvc("import", run)
    assert result.out.startswith("2 versions imported")
    (line,) = (line for line in result.err.splitlines() if "left out" in line)
    assert line == (
        f"left out, no models by their names: {run / 'c.txt'}, {run / 'logs'}; "
        "name a file to import it"
    )
    assert mvc("ls", "--name-only").out == "model.onnx\n"
    (run / "d.jit").write_bytes(b"jit")
    assert ".jit, .onnx" in mvc("import", run, code=2).err
    mvc("import", run / "d.jit")
    mvc("import", run / "c.txt")
    assert mvc("ls", "--name-only").out.split() == ["model.jit", "model.onnx", "model.txt"]
    assert len(mvc("import", run / "a.onnx", run, "--path", "m", "--json").json["left_out"]) == 2
