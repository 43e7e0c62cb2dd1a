"""Reports as Markdown and as pictures, the paper's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..render import figure, grid, notes
from .workloads import WORKLOADS

__all__ = ["Mean", "markdown", "mean_of", "picture"]

_PAPER = json.loads(Path(__file__).with_name("paper.json").read_text())
_SPEEDUPS = {(ours, other): factors for ours, other, factors in _PAPER["speedups"]}
_SIZES = {int(x): shares for x, shares in _PAPER["sizes"].items()}
_RESAMPLES = 10_000

Group = Mapping[str, Any]
"""One experiment. ``setting``: its parameters; ``lines``: what was measured, row by row."""

_BASELINES = ("scar:0.05", "scar-round:0.05", "topn:0.05", "topn-coded:0.05")
_TITLES = {
    "rework": "Work done again after one failure",
    "sizes": "What a checkpoint takes",
    "buckets": "What each bucket is worth",
    "overhead": "What recording costs",
}
_READING = {
    "rework": (
        "bytes: mean and largest checkpoint, as shares of the state in full. Schemes that keep "
        "little can look small because little was sent: read them beside the rework.",
        "rework: iterations after the failure until the loss is at most what it was before; "
        "whole ones, and fractional ones (the crossing interpolated between the last two). "
        "Brackets: 95 % interval of the mean over trials, of which each is a training of its own.",
        "not back: trials given up after 100 iterations, which count as 100.",
        "paired: fractional rework of the other scheme less that of the first, in the same "
        "trials; above 0 the first is better. times: the other's mean rework over the first's, "
        "fractional and whole.",
    ),
    "sizes": (
        "Shares of a full checkpoint, mean and largest over all checkpoints. E: an index of so "
        "many bits for every weight, and the representatives; E+P: after promotion, x bits; "
        "E+P+H: encoded with Huffman's code, all bytes counted. entropy: of the symbols (order "
        "0), without representatives.",
        "The paper's E and E+P are means, its E+P+H is an upper bound.",
    ),
    "buckets": (
        "Relative error of the loss (Eq. 2) if the changes of one bucket of sign and exponent "
        "are left out, the largest exponent first. m: iterations of which the change is taken.",
    ),
    "overhead": (
        "Every iteration is an epoch. s an epoch: processor time of its training. all, thread: "
        "what the Recorder adds to it, in all threads and in the training thread. bytes: by which "
        "packs grow with a version. rework: epochs until the loss after epoch 7 is back if that "
        "version is restored; with full checkpoints every ten epochs it would be 7.",
    ),
}


class Mean(NamedTuple):
    """A mean with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean; the interval is that of the means of 10,000 resamples, always the same ones."""
    sample = np.asarray(values, np.float64)
    picks = np.random.default_rng(0).integers(0, len(sample), (_RESAMPLES, len(sample)))
    low, high = np.quantile(sample[picks].mean(1), (0.025, 0.975))
    return Mean(float(sample.mean()), float(low), float(high))


def markdown(report: Mapping[str, Any]) -> str:
    """All groups, then what to know when reading them."""
    kind = report["kind"]
    parts = [f"# {_TITLES[kind]}\n", report["machine"] + "\n"]
    tables = {"rework": _rework, "sizes": _sizes, "buckets": _buckets, "overhead": _overhead}
    for group in report["groups"]:
        parts.append(f"## {_name(group)}\n\n{_setting(group['setting'])}\n")
        parts.extend(f"{table}\n" for table in tables[kind](group))
    return "\n".join([*parts, notes(_READING[kind])])


def picture(report: Mapping[str, Any]) -> Any:
    """Rework over size, sizes by x, error by bucket, or shares of time."""
    drawing = {"rework": _points, "sizes": _bars, "buckets": _curves, "overhead": _shares}
    groups = report["groups"]
    whole, panels = figure(1, len(groups), (5.5 * len(groups), 4.5))
    for group, panel in zip(groups, panels[0], strict=True):
        drawing[report["kind"]](group, panel)
        panel.set_title(_name(group))
        panel.legend(fontsize=7)
    return whole


def _name(group: Group) -> str:
    setting = group["setting"]
    return f"{WORKLOADS[setting['model']].title} on {setting['data']}, {setting['optimizer']}"


def _setting(setting: Mapping[str, Any]) -> str:
    first, last = setting["window"]
    text = (
        f"{setting['parameters']:,} parameters, {setting['samples']:,} samples, batches of "
        f"{setting['batch_size']}, rate {setting['rate']}, loss over {setting['evaluated']:,} "
        "samples"
    )
    if "trials" in setting:
        text += (
            f"; {setting['trials']} trials, failures after iteration {first} to {last}, blocks of "
            f"{setting['block']}"
        )
    return text + "."


def _share(values: Sequence[float], group: Group) -> str:
    return f"{100 * sum(values) / len(values) / _full(group):.2f} %"


def _full(group: Group) -> int:
    return int(group["setting"]["state"])


def _rework(group: Group) -> Iterator[str]:
    titles = ("scheme", "bytes", "largest", "rework", "fractional", "not back")
    rows = []
    for line in group["lines"]:
        largest = max(line["largest"])
        lost = line["back"].count(False)
        rows.append(
            (
                line["scheme"],
                _share(line["mean"], group),
                _share([largest], group),
                str(mean_of(line["rework"])),
                str(mean_of(line["fractional"])),
                str(lost),
            )
        )
    yield grid(titles, rows)
    if pairs := list(_pairs(group)):
        titles = ("scheme", "against", "paired", "times", "times, whole", "paper")
        yield grid(titles, pairs)


def _pairs(group: Group) -> Iterator[tuple[str, ...]]:
    lines = {line["scheme"]: line for line in group["lines"]}
    ours = [name for name in lines if name.split(":")[0] not in _OTHERS]
    for name in ours:
        others = [other for one, other in _SPEEDUPS if one == name]
        for other in dict.fromkeys((*_BASELINES, *others)):
            if other in lines:
                stated = _SPEEDUPS.get((name, other))
                yield (
                    *(name, other, str(_difference(lines[name], lines[other]))),
                    *(_times(lines[name], lines[other], kind) for kind in ("fractional", "rework")),
                    "{} to {}".format(*stated) if stated else "",
                )


_COUNTS = ("x", "buckets")
_OTHERS = ("scar", "scar-round", "topn", "topn-coded", "full")


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mean:
    pairs = zip(other["fractional"], one["fractional"], strict=True)
    return mean_of([theirs - ours for theirs, ours in pairs])


def _times(one: Mapping[str, Any], other: Mapping[str, Any], kind: str) -> str:
    theirs, ours = sum(other[kind]), sum(one[kind])
    return f"{theirs / ours:.2f}" if ours else ""


def _sizes(group: Group) -> Iterator[str]:
    steps = [name for name in group["lines"][0] if name not in _COUNTS]
    rows = []
    for line in group["lines"]:
        stated = _SIZES.get(line["x"], {})
        shares = (f"{100 * line[name][0]:.2f} / {100 * line[name][1]:.2f} %" for name in steps)
        paper = ", ".join(f"{name} {100 * value:.2f} %" for name, value in stated.items())
        rows.append((f"x={line['x']}", f"{line['buckets']:.1f}", *shares, paper))
    yield grid(("promotion", "buckets", *steps, "paper"), rows)


def _buckets(group: Group) -> Iterator[str]:
    count = max(len(line["errors"]) for line in group["lines"])
    rows = [
        (f"m={line['m']}", *(f"{error:.2g}" for error in line["errors"]),
         *[""] * (count - len(line["errors"])))
        for line in group["lines"]
    ]  # fmt: skip
    yield grid(("change", *map(str, range(1, count + 1))), rows)


def _overhead(group: Group) -> Iterator[str]:
    titles = (
        *("pipeline", "epochs", "s an epoch", "all", "thread", "bytes", "rework"),
        *("paper, all", "paper, rework"),
    )
    rows = [
        (
            *(line["pipeline"], str(line["epochs"]), f"{line['epoch']:.3g}"),
            *(f"{100 * line[name]:.2f} %" for name in ("all", "thread")),
            *(_share([line["grown"]], group), str(line["rework"])),
            *(f"{100 * _PAPER['overhead']:.1f} %", "1"),
        )
        for line in group["lines"]
    ]
    yield grid(titles, rows)


def _points(group: Group, panel: Any) -> None:
    """As the paper's Fig. 3: rework over the share of bytes, with intervals."""
    for number, line in enumerate(group["lines"]):
        mean = mean_of(line["fractional"])
        share = 100 * sum(line["mean"]) / len(line["mean"]) / _full(group)
        bars = [[mean.value - mean.low], [mean.high - mean.value]]
        panel.errorbar(
            [share], [mean.value], bars, fmt="o^s*Dvx"[number // 10 % 7], color=f"C{number % 10}",
            capsize=3, label=line["scheme"],
        )  # fmt: skip
    panel.set(xlabel="% of a full checkpoint", ylabel="fractional rework, iterations")
    panel.set_ylim(bottom=0)


def _bars(group: Group, panel: Any) -> None:
    """As the paper's Fig. 4: sizes by x, and the paper's as crosses."""
    steps = [name for name in group["lines"][0] if name not in _COUNTS]
    width = 0.8 / len(steps)
    for number, name in enumerate(steps):
        places = [line["x"] + width * number - 0.4 for line in group["lines"]]
        shares = [100 * line[name][0] for line in group["lines"]]
        panel.bar(places, shares, width, align="edge", label=name, color=f"C{number}")
        stated = [
            (place + width / 2, 100 * _SIZES[line["x"]][name])
            for place, line in zip(places, group["lines"], strict=True)
            if name in _SIZES.get(line["x"], {})
        ]
        panel.plot(*zip(*stated, strict=True), "kx") if stated else None
    panel.set(xlabel="x; crosses: paper", ylabel="% of a full checkpoint", yscale="log")


def _curves(group: Group, panel: Any) -> None:
    for line in group["lines"]:
        panel.plot(range(1, len(line["errors"]) + 1), line["errors"], "o-", label=f"m={line['m']}")
    panel.set(xlabel="bucket left out", ylabel="relative error", yscale="log")


def _shares(group: Group, panel: Any) -> None:
    names = [line["pipeline"] for line in group["lines"]]
    for step in ("all", "thread"):
        panel.plot(names, [100 * line[step] for line in group["lines"]], "o", label=step)
    panel.axhline(100 * _PAPER["overhead"], color="k", linestyle=":", label="paper, all")
    panel.set(ylabel="% of an epoch")
