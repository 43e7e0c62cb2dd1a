"""Figures of derived models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from .sources import Claim, Stated, report

__all__ = ["CLAIMS", "STATED"]

README = "examples/reproduce/derived/README.md"
NETWORKS = {"mobilenetv2": "MobileNetV2", "resnet18": "ResNet-18", "resnet152": "ResNet-152"}
SAVED = (
    ("U1",),
    ("U3.1.1", "U3.2.1"),
    ("U3.1.2", "U3.1.3", "U3.2.2", "U3.2.3"),
    ("U3.1.4", "U3.2.4"),
)
RECOVERED = (SAVED[0], SAVED[1], SAVED[3])


def middle(cells: dict[str, Any], models: Sequence[str], *path: str) -> float:
    """Milliseconds of a step, the median over models."""
    return float(1e3 * median(cells[model][path[0]][path[1]] for model in models))


def _processor(cells: dict[str, Any]) -> list[float]:
    return [
        *(middle(cells, models, "processor", "save") for models in SAVED),
        *(middle(cells, models, "processor", "recover") for models in RECOVERED),
    ]


def _steps(cells: dict[str, Any]) -> list[float]:
    steps = ("load", "check environment", "recover", "check hash")
    return [middle(cells, list(cells), "recover", step) for step in steps]


def _rows(
    name: str, values: Callable[[dict[str, Any]], list[float]], count: int
) -> Iterator[Claim]:
    for group in report(name)["groups"]:
        if group["architecture"] in NETWORKS:
            for line in group["lines"]:
                row = f"| {NETWORKS[group['architecture']]}, {group['relation']}: {line['title']} |"
                yield Claim(README, row + " {} |" * count, partial(values, line["cells"]))


def _determinism() -> list[float]:
    """What the slowest epoch of deterministic kernels takes more than one of any, in per cent."""
    epochs = [each["epoch"] for each in report("derived-determinism")["determinism"]]
    return [100 * max(e["deterministic"]["epoch"] / e["any"]["epoch"] - 1 for e in epochs)]


def _served(cells: dict[str, Any]) -> list[float]:
    """Seconds through a server: saved, of it pushed, recovered, U1 fetched by a node."""
    later = [cells[model] for models in SAVED[1:] for model in models]
    recovered = [
        median(sum(cells[model]["recover"].values()) for model in models) for models in RECOVERED
    ]
    return [
        median(sum(cell["save"].values()) for cell in later),
        median(cell["save"]["push"] for cell in later),
        *recovered,
        sum(cells["U1"]["deploy"].values()),
    ]


def _server() -> list[float]:
    lines = report("derived-server")["groups"][0]["lines"]
    return [value for line in lines for value in _served(line["cells"])]


_SERVER = "| U1 to a node | |---|--:|--:|--:|--:|--:|--:|" + "".join(
    f" | {title} |" + " {} |" * 6 for title in ("B", "U'_P", "mvc")
)


CLAIMS: tuple[Claim, ...] = (
    *_rows("derived", _processor, 7),
    *_rows("derived-resnet152", _processor, 7),
    *_rows("derived", _steps, 4),
    Claim(README, _SERVER, _server),
    Claim(README, "deterministic kernels cost up to {} % of an epoch", _determinism),
)
STATED: tuple[Stated, ...] = ()
