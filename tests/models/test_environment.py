"""The environment: what is recorded, when two count as the same, what capturing costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import mvc
from mvc.errors import DamagedData, UnsupportedFormat
from mvc.models import environment
from mvc.models.environment import Environment, capture


def test_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    found = capture().fields()
    assert found["torch.version"] == str(torch.__version__)
    assert found["cpu.capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["threads.torch"] == str(torch.get_num_threads())
    assert found["python.language"] == f"3.{sys.version_info.minor}"
    assert found["settings.deterministic"] == "False"
    assert found["variables.OMP_NUM_THREADS"] == "3" and found["variables.MKL_CBWR"] == "AVX2"
    assert found["packages.numpy"] and "secret" not in capture().encoded.decode()


def test_the_same_environment_has_the_same_bytes_in_another_process() -> None:
    script = (
        "import sys, torch; torch.set_num_threads(int(sys.argv[1])); "
        "from mvc.models.environment import capture; "
        "sys.stdout.buffer.write(capture().encoded)"
    )
    command = [sys.executable, "-c", script, "1"]
    here, there = (  # both in new processes: other tests change the state of this one
        subprocess.run(
            command, capture_output=True, check=True, cwd=Path(mvc.__file__).parents[1]
        ).stdout
        for _ in range(2)
    )
    assert here == there == Environment.decode(there).encoded
    assert Environment.decode(here).compare(Environment.decode(there)).verdict == "exact"


def test_no_process_is_started_and_little_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process is started")

    for cached in vars(environment).values():
        getattr(cached, "cache_clear", lambda: None)()
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    capture()
    begun = time.process_time()
    for _ in range(10):
        capture().encoded  # noqa: B018 - made when asked for
    assert (time.process_time() - begun) / 10 < 0.02


def _changed(**fields: object) -> Environment:
    made = json.loads(capture().encoded)
    del made["schema"]
    for name, value in fields.items():
        section, _, field = name.partition("__")
        made[section][field.replace("_dot_", ".")] = value
    return Environment(made)


GRADES = {
    "python__language": "exact", "python__release": "compatible", "torch__version": "exact",
    "cpu__capability": "exact", "cpu__model": "compatible", "threads__torch": "exact",
    "threads__between_operations": "compatible", "settings__cudnn_benchmark": "exact",
    "variables__MKL_CBWR": "exact", "variables__OMP_NUM_THREADS": "compatible",
    "variables__CUDA_VISIBLE_DEVICES": "ignored", "gpu__models": "exact",
    "gpu__driver": "compatible", "platform__host": "ignored", "platform__kernel": "ignored",
    "platform__system": "exact", "packages__click": "compatible", "packages__gone": "compatible",
    "packages__numpy": "exact", "later__unknown": "compatible",
}  # fmt: skip


@pytest.mark.parametrize("field", GRADES)
def test_grades(field: str) -> None:
    other = _changed(**{} if field.startswith("later") else {field: ["x"]})
    if field.startswith("later"):
        other = Environment({**other.sections, "later": {"unknown": 1}})
    mine = Environment(capture().sections, used=("NumPy",))
    (difference,) = mine.compare(other).differences
    assert (difference.field, difference.grade) == (field.replace("__", "."), GRADES[field])
    verdicts = {"exact": "different", "compatible": "compatible", "ignored": "exact"}
    assert mine.compare(other).verdict == verdicts[difference.grade]
    assert other.compare(mine).verdict == verdicts[difference.grade]


def test_an_environment_without_torch_differs_from_one_with_it() -> None:
    made = capture()
    without = Environment({k: v for k, v in made.sections.items() if k not in {"torch", "threads"}})
    assert made.compare(without).verdict == "different"
    assert without.compare(without).verdict == "exact"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"schema":3}', b"{}", b"\xff", b"[" * 100_000,
     b'{"schema":"mvc.environment/1","a":1}',
     b'{"schema":"mvc.environment/1","a":{"b":{}}}',
     b'{"schema":"mvc.environment/1","a":{"b":[1]}}',
     b'{"schema":"mvc.environment/1","variables":{"A=B":"x"}}',
     b'{"schema":"mvc.environment/1","variables":{"A\\u0000B":"x"}}',
     b'{"schema":"mvc.environment/1","variables":{"OMP_PLACES":"x\\u0000"}}',
     b'{"schema":"mvc.environment/1","variables":{"OMP_PLACES":"\\ud800"}}',
     b'{"schema":"mvc.environment/1","a":{"b":"' + bytes([65]) * (5 << 20) + b'"}}'],
)  # fmt: skip
def test_what_is_no_environment_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedData, match="is not an environment"):
        Environment.decode(data)


def test_variables_that_lead_to_libraries_and_files_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_TOOL_LIBRARIES", "CUDNN_PATH", "CUDNN_LOGDEST_DBG", "MKL_X_FILE"):
        monkeypatch.setenv(name, "/x")
        assert not environment.chooses_kernels(name)
        assert name not in capture().sections["variables"]


def test_a_newer_form_is_named() -> None:
    with pytest.raises(UnsupportedFormat, match=r"mvc\.environment/2"):
        Environment.decode(b'{"schema": "mvc.environment/2"}')
