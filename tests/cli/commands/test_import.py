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
