"""Records the environment of a training, and compares environments.

The environment is the software, hardware and settings that affect the bits of the weights: for
example the versions of packages, the CPU, and the number of threads. It is stored with the version
as the attachment ``environment.json``. ``capture`` starts no process and uses no network.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from mvc.documents import OtherSchema, decoded
from mvc.errors import DamagedData, MvcError
from mvc.limits import MIB
from mvc.system import FileSystem, host_name

NAME = "environment.json"
"""Name of the attachment with the environment."""

_SCHEMA = "mvc.environment/1"
_MOST = 4 * MIB  # limit of bytes of an environment; usually it has some 12 kB
_PROC = 1 << 16  # bytes read of a file in /proc

Grade: TypeAlias = Literal["exact", "compatible", "ignored"]
Value: TypeAlias = str | int | float | bool | list[str] | None
_Sections: TypeAlias = dict[str, dict[str, Value]]

_EXACT = (
    "python.implementation", "python.language", "torch", "cpu.machine", "cpu.capability",
    "threads.torch", "settings", "variables", "gpu.models", "platform.system",
)  # fmt: skip
_COMPATIBLE = (
    "python.release", "cpu.model", "threads.between_operations", "gpu.count", "gpu.driver",
    "platform.libc", "packages",
    # The effect of the first three variables is recorded as cpu.capability and threads.torch. A
    # hash seed affects only the order of sets.
    "variables.ATEN_CPU_CAPABILITY", "variables.MKL_NUM_THREADS", "variables.OMP_NUM_THREADS",
    "variables.PYTHONHASHSEED",
)  # fmt: skip
_IGNORED = ("platform.kernel", "platform.host", "variables.CUDA_VISIBLE_DEVICES")
_GRADES: dict[str, Grade] = {
    **dict.fromkeys(_EXACT, "exact"),
    **dict.fromkeys(_COMPATIBLE, "compatible"),
    **dict.fromkeys(_IGNORED, "ignored"),
}
"""Maps a field or a section to its grade. docs/commands/diff.md explains the grades."""

_VARIABLES = re.compile(
    # A replay of a training sets the recorded variables. So variables that name files are excluded.
    r"(?!OMP_TOOL|CUDNN_(?:HOME|PATH|ROOT|LOG|FRONTEND_LOG)|\w+_(?:FILE|DIR|DUMP|PROFILE))(?:"
    "ATEN_CPU_CAPABILITY|CUBLAS_WORKSPACE_CONFIG|CUDA_VISIBLE_DEVICES|CUDNN_[A-Z0-9_]+|"
    "(?:DNNL|KMP|MKL|OMP|ONEDNN)_[A-Z0-9_]+|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED|"
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)"
)
"""Variables that select kernels, threads or precision. No other variable is ever stored."""


SETTINGS = {
    "fill_uninitialized_memory": "utils.deterministic.fill_uninitialized_memory",
    "cudnn_deterministic": "backends.cudnn.deterministic",
    "cudnn_benchmark": "backends.cudnn.benchmark",
    "cudnn_tf32": "backends.cudnn.allow_tf32",
    "matmul_tf32": "backends.cuda.matmul.allow_tf32",
    "mkldnn": "backends.mkldnn.enabled",
}
"""Maps the names of torch's boolean settings to their attributes."""


class EnvironmentDifference(Struct, frozen=True):
    """A field that differs. ``recorded``, ``other``: its values, or None if it is missing."""

    field: str
    grade: Grade
    recorded: str | None
    other: str | None


class Comparison(Struct, frozen=True):
    """The differences between two environments, sorted by grade and field."""

    differences: tuple[EnvironmentDifference, ...]

    @property
    def verdict(self) -> Literal["exact", "compatible", "different"]:
        """``different`` if an exact field differs; otherwise ``compatible`` if a compatible field
        does.
        """
        grades = {difference.grade for difference in self.differences}
        if "exact" in grades:
            return "different"
        return "compatible" if "compatible" in grades else "exact"


class Environment(Struct, frozen=True):
    """An environment: sections of fields, such as ``{"torch": {"version": "2.13.0"}}``.

    ``used``: packages that the model imports. Different versions of such a package have the grade
    ``exact``.
    """

    sections: Mapping[str, Mapping[str, Value]]
    used: Collection[str] = ()

    @classmethod
    def current(cls) -> Environment:
        return capture()

    @property
    def encoded(self) -> bytes:
        """Canonical JSON: equal fields give equal bytes."""
        fields = {"schema": _SCHEMA, **self.sections}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, used: Collection[str] = ()) -> Environment:
        """Raises DamagedData for invalid bytes, UnsupportedFormat for a newer format."""
        damaged = DamagedData(f"the stored {NAME} is not an environment")
        if len(data) > _MOST:
            raise damaged
        try:
            sections = decoded(data, _Sections, _SCHEMA)
        except OtherSchema as error:
            raise error.unsupported("the environment") or damaged from None
        except ValueError:
            raise damaged from None
        if not all(starmap(_is_variable, sections.get("variables", {}).items())):
            raise damaged
        return cls(sections, used)

    def fields(self) -> dict[str, str]:
        """Maps ``section.field`` to the value as text, sorted by section and field."""
        return {
            f"{section}.{name}": ", ".join(value) if isinstance(value, list) else str(value)
            for section, fields in sorted(self.sections.items())
            for name, value in sorted(fields.items())
            if value is not None
        }

    def compare(self, other: Environment) -> Comparison:
        mine, theirs = self.fields(), other.fields()
        used = {distribution_name(name) for name in (*self.used, *other.used)}
        differences = [
            EnvironmentDifference(name, _grade(name, used), mine.get(name), theirs.get(name))
            for name in {**mine, **theirs}
            if mine.get(name) != theirs.get(name)
        ]
        order = ("exact", "compatible", "ignored")
        return Comparison(tuple(sorted(differences, key=lambda d: (order.index(d.grade), d.field))))


def _is_variable(name: str, value: Value) -> bool:
    """Whether name and value are valid for an environment variable of a process."""
    try:
        return "=" not in name and b"\0" not in os.fsencode(name) + os.fsencode(str(value))
    except UnicodeEncodeError:
        return False


def chooses_kernels(variable: str) -> bool:
    """Whether mvc records this environment variable, because it selects kernels, threads or
    precision.
    """
    return _VARIABLES.fullmatch(variable) is not None


def variables(recorded: Environment, present: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for a process that replays a training.

    Variables that select kernels have the ``recorded`` values, and are absent if none is recorded.
    All other variables, and ``CUDA_VISIBLE_DEVICES``, have the values in ``present``.
    """
    wanted = recorded.sections.get("variables", {})
    present_values = {name: value for name, value in present.items() if not _is_set(name)}
    return present_values | {name: str(value) for name, value in wanted.items() if _is_set(name)}


def _is_set(variable: str) -> bool:
    return chooses_kernels(variable) and variable != "CUDA_VISIBLE_DEVICES"


def _grade(field: str, used: Collection[str]) -> Grade:
    section, _, name = field.partition(".")
    if section == "packages" and name in used:
        return "exact"
    return _GRADES.get(field) or _GRADES.get(section, "compatible")


def distribution_name(name: str) -> str:
    """A package's normalized name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def capture(*, with_torch: bool = True) -> Environment:
    """The environment of this process; imports torch if ``with_torch``."""
    sections: dict[str, Mapping[str, Value]] = {
        "python": _python(),
        "cpu": {"machine": platform.machine(), "model": _processor()},
        "gpu": _graphics(),
        "platform": _platform(),
        "variables": {k: v for k, v in os.environ.items() if chooses_kernels(k)},
        "packages": dict(_packages()),
    }
    if with_torch or "torch" in sys.modules:
        try:
            import torch
        except ImportError:
            return Environment(sections)
        sections |= _of_torch(torch)
        sections["cpu"] = {
            **sections["cpu"],
            "capability": str(torch.backends.cpu.get_cpu_capability()),
        }
    return Environment(sections)


@cache
def _python() -> dict[str, Value]:
    major, minor = sys.version_info[:2]
    return {
        "implementation": platform.python_implementation(),
        "language": f"{major}.{minor}",
        "release": platform.python_version(),
    }


@cache
def _platform() -> dict[str, Value]:
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(filter(None, platform.libc_ver())) or None,
        "host": host_name(),
    }


@cache
def _processor() -> str | None:
    """The name of the CPU; None if it is not in /proc/cpuinfo."""
    return _first_match(_read(Path("/proc/cpuinfo")), r"^model name\s*:\s*(.+)$")


@cache
def _graphics() -> dict[str, Value]:
    """NVIDIA's cards and driver, from files of the driver. CUDA is not initialised."""
    driver = Path("/proc/driver/nvidia")
    version = _first_match(_read(driver / "version"), r"Kernel Module(?: for \S+)?\s+([0-9.]+)")
    cards: Collection[str] = ()
    with suppress(MvcError):
        cards = FileSystem().list(driver / "gpus")
    texts = [_read(driver / "gpus" / card / "information") for card in cards]
    names = [_first_match(text, r"^Model:\s*(.+)$") or "unknown" for text in texts]
    return {"models": sorted(set(names)), "count": len(names), "driver": version}


def _read(path: Path) -> str:
    try:
        with FileSystem().open_read(path) as file:
            return file.read(0, _PROC).decode("utf-8", "replace")
    except MvcError:
        return ""


def _first_match(text: str, pattern: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


def _packages() -> Iterator[tuple[str, str]]:
    """Yields the installed packages and their versions, from the names of metadata folders.

    If several folders of ``sys.path`` have a package, the first folder counts, as for ``import``.
    """
    fs, packages = FileSystem(), dict[str, str]()
    for folder in sys.path:
        identity = fs.stat(Path(folder)) if folder.startswith("/") else None
        if identity is None or not identity.is_dir:
            continue
        in_folder = dict(filter(None, map(_package, fs.list(Path(folder)))))
        packages = {**in_folder, **packages}
    yield from sorted(packages.items())


def _package(name: str) -> tuple[str, str] | None:
    stem, dot, kind = name.rpartition(".")
    if not dot or kind not in {"dist-info", "egg-info"}:
        return None
    package, _, version = stem.partition("-")
    return distribution_name(package), version.partition("-py")[0]


def _of_torch(torch: Any) -> dict[str, dict[str, Value]]:
    return {
        "torch": _torch_build(),
        "threads": {
            "torch": torch.get_num_threads(),
            "between_operations": torch.get_num_interop_threads(),
        },
        "settings": {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "deterministic_warns_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "matmul_precision": _setting(torch.get_float32_matmul_precision),
            **{
                name: _setting(partial(attrgetter(place), torch))
                for name, place in SETTINGS.items()
            },
            "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        },
    }


@cache
def _torch_build() -> dict[str, Value]:
    import torch

    version: Any = torch.version
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()[1:]]
    libraries = [
        line for line in lines if not line.startswith(("CPU capability", "Build settings"))
    ]
    cudnn = _setting(torch.backends.cudnn.version) if version.cuda else None
    return {
        "version": str(torch.__version__),
        "git": version.git_version,
        "cuda": version.cuda,
        "hip": getattr(version, "hip", None),
        "cudnn": cudnn,
        "libraries": libraries,
    }


def _setting(read: Callable[[], Any]) -> Any:
    """Calls ``read``, which reads a setting of torch. None if torch raises an error."""
    try:
        return read()
    except (AttributeError, RuntimeError):
        return None
