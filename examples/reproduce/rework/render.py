"""Reports as Markdown and as pictures, the paper's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..render import figure, grid, notes
from .failure import FAILURE
from .workloads import WORKLOADS

__all__ = ["Mean", "markdown", "mean_of", "picture"]

_PAPER = json.loads(Path(__file__).with_name("paper.json").read_text())
_SPEEDUPS = {(ours, other): factors for ours, other, factors in _PAPER["speedups"]}
_SIZES = {int(x): shares for x, shares in _PAPER["sizes"].items()}
_RESAMPLES = 10_000

Group = Mapping[str, Any]
"""One experiment. ``setting``: its parameters; ``lines``: what was measured, row by row."""

_BASELINES = ("scar:0.05", "scar-round:0.05", "topn:0.05", "topn-coded:0.05")
_OTHERS = ("scar", "scar-round", "topn", "topn-coded", "full")
_TITLES = {
    "rework": "Work done again after one failure",
    "sizes": "What a checkpoint takes",
    "tables": "What a cache of Huffman codes saves",
    "exponents": "How large changes are",
    "buckets": "What each bucket is worth",
    "noise": "What is left out, beside the noise of SGD",
    "overhead": "What recording costs",
    "failure": "A failure after epoch 7",
}
_READING = {
    "rework": (
        "bytes: mean and largest checkpoint, as shares of the state in full. Schemes that keep "
        "little can look small because little was sent: read them beside the rework.",
        "rework: iterations after the failure until the loss is at most what it was before; "
        "whole ones, and fractional ones (the crossing interpolated between the last two). "
        "Brackets: 95 % interval of the mean over trials, of which each is a training of its own.",
        "not back: trials given up after 100 iterations, which count as 100.",
        "Less rework than others: the other's mean rework over the scheme's, fractional / whole; "
        "and the other's fractional rework less the scheme's in the same trials, above 0 if the "
        "scheme is better.",
        "scar:PIPELINE, topn:PIPELINE, topn-coded:PIPELINE: at every checkpoint as many bytes as "
        "the pipeline takes.",
    ),
    "tables": (
        "Bytes of a checkpoint's symbols, mean: rebuilt: under a code of their own; cached: under "
        "the lengths of the first checkpoint with as many buckets; larger: the most by which one "
        "is larger. table: bytes of the lengths; order: of the order that is stored in place of "
        "them. reused: checkpoints for which the cache had a code. build: the share of the coder's "
        "processor time that making a code takes.",
    ),
    "exponents": (
        "Entries of the last convolution's kernel (of all weights, if there is none) by the "
        "exponent of their change to what is saved; kept: those that three bits of promotion send, "
        "of all weights together; zero: those that they do not.",
    ),
    "noise": (
        "f: what is saved less the training's weights; e: the noise of a step of SGD. noise: the "
        "variance of f over that of e; below 1 the paper's model calls a training undisturbed. "
        "lean: the sum of f over the sum of its sizes, 0 if it has no preferred sign. excess: the "
        "loss of what is saved less the training's.",
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
    "failure": (
        "Root of the mean squared error after each epoch. After epoch 7 the training dies. LC goes "
        "on from what it stored then. Full checkpoints every ten epochs have nothing but the "
        "start, from which the training is the undisturbed one again, seven epochs later.",
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
    tables = {
        "rework": _rework,
        "sizes": _sizes,
        "tables": _tables,
        "exponents": _exponents,
        "buckets": _buckets,
        "noise": _noise,
        "overhead": _overhead,
        "failure": _failure,
    }
    for group in report["groups"]:
        parts.append(f"## {_name(group)}\n\n{_setting(group['setting'])}\n")
        parts.extend(f"{table}\n" for table in tables[kind](group))
    together = {"rework": _comparison, "noise": _noises}
    if kind in together:
        parts.extend(together[kind](report["groups"]))
    return "\n".join([*parts, notes(_READING[kind])])


def picture(report: Mapping[str, Any]) -> Any:
    """Rework over size, sizes by x, error by bucket, and so on; None for a kind without one."""
    drawing = {
        "rework": _points,
        "sizes": _bars,
        "exponents": _histogram,
        "buckets": _curves,
        "overhead": _shares,
        "failure": _courses,
    }
    groups = report["groups"]
    if report["kind"] not in drawing:
        return None
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


def _comparison(groups: Sequence[Group]) -> Iterator[str]:
    """Each scheme of LC beside the others, in all groups."""
    lines = [{line["scheme"]: line for line in group["lines"]} for group in groups]
    pairs = dict.fromkeys(pair for schemes in lines for pair in _pairs(list(schemes)))
    rows = [
        (ours, other, *(_compared(each.get(ours), each.get(other)) for each in lines),
         "{} to {}".format(*_SPEEDUPS[ours, other]) if (ours, other) in _SPEEDUPS else "")
        for ours, other in pairs
    ]  # fmt: skip
    if rows:
        yield "## Less rework than others\n"
        yield grid(("scheme", "against", *map(_name, groups), "paper"), rows) + "\n"


def _pairs(schemes: Sequence[str]) -> Iterator[tuple[str, str]]:
    for ours in schemes:
        if ours.split(":")[0] not in _OTHERS:
            stated = [other for one, other in _SPEEDUPS if one == ours]
            equal = [f"{kind}:{ours}" for kind in _OTHERS]
            for other in dict.fromkeys((*_BASELINES, *stated, *equal)):
                if other in schemes:
                    yield ours, other


def _compared(ours: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    if ours is None or other is None:
        return ""
    times = " / ".join(_times(ours, other, kind) for kind in ("fractional", "rework"))
    return f"{times}; {_difference(ours, other)}"


_COUNTS = ("x", "buckets")


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mean:
    pairs = zip(other["fractional"], one["fractional"], strict=True)
    return mean_of([theirs - ours for theirs, ours in pairs])


def _times(one: Mapping[str, Any], other: Mapping[str, Any], kind: str) -> str:
    theirs, ours = sum(other[kind]), sum(one[kind])
    return f"{theirs / ours:.3g}" if ours else "-"


def _sizes(group: Group) -> Iterator[str]:
    steps = [name for name in group["lines"][0] if name not in _COUNTS]
    rows = []
    for line in group["lines"]:
        stated = _SIZES.get(line["x"], {})
        shares = (f"{100 * line[name][0]:.2f} / {100 * line[name][1]:.2f} %" for name in steps)
        paper = ", ".join(f"{name} {100 * value:.2f} %" for name, value in stated.items())
        rows.append((f"x={line['x']}", f"{line['buckets']:.1f}", *shares, paper))
    yield grid(("promotion", "buckets", *steps, "paper"), rows)


def _tables(group: Group) -> Iterator[str]:
    titles = ("promotion", "rebuilt", "cached", "larger", "table", "order", "reused", "build")
    rows = [
        (
            *(f"x={line['x']}", *(f"{line[name]:,.0f}" for name in ("rebuilt", "cached"))),
            f"{100 * line['larger']:.2f} %",
            *(f"{line[name]:.1f}" for name in ("table", "order")),
            *(f"{100 * line[name]:.1f} %" for name in ("reused", "build")),
        )
        for line in group["lines"]
    ]
    yield grid(titles, rows)


def _exponents(group: Group) -> Iterator[str]:
    for line in group["lines"]:
        rows = [
            (str(exponent), f"{count:,}", f"{kept:,}")
            for exponent, count, kept in zip(
                line["exponents"], line["counts"], line["kept"], strict=True
            )
        ]
        rows.append(("zero", "", f"{line['zeros']:,}"))
        yield f"After iteration {line['iteration']}:\n"
        yield grid(("exponent", "entries", "kept"), rows)


def _noise(group: Group) -> Iterator[str]:
    rows = [
        (
            *(line["scheme"], _share([line["bytes"]], group), f"{line['noise']:.3g}"),
            *(f"{line['lean']:.2f}", f"{line['excess']:.2g}"),
        )
        for line in group["lines"]
    ]
    yield grid(("scheme", "bytes", "noise", "lean", "excess"), rows)


def _noises(groups: Sequence[Group]) -> Iterator[str]:
    """The noise of all schemes in all groups."""
    lines = [{line["scheme"]: line for line in group["lines"]} for group in groups]
    rows = [(scheme, *(f"{each[scheme]['noise']:.3g}" for each in lines)) for scheme in lines[0]]
    yield "## Noise\n"
    yield grid(("scheme", *map(_name, groups)), rows) + "\n"


def _failure(group: Group) -> Iterator[str]:
    courses = list(_by_epoch(group))
    epochs = max(first + len(errors) for _, first, errors in courses)
    rows = [
        (title, *([""] * first), *(f"{error:.4f}" for error in errors),
         *([""] * (epochs - first - len(errors))))
        for title, first, errors in courses
    ]  # fmt: skip
    yield grid(("epoch", *map(str, range(epochs))), rows)


def _by_epoch(group: Group) -> Iterator[tuple[str, int, Sequence[float]]]:
    """By scheme: the epochs that it has computed at its first error, and the errors after each."""
    undisturbed = np.sqrt(group["lines"][0]["undisturbed"])
    yield "no failure", 0, undisturbed
    yield "full checkpoints", FAILURE, undisturbed[: len(undisturbed) - FAILURE + 1]
    for line in group["lines"]:
        yield line["pipeline"], FAILURE, np.sqrt(line["restored"])


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


def _histogram(group: Group, panel: Any) -> None:
    """As the paper's Fig. 2: entries by exponent after the last iteration, and those kept."""
    line = group["lines"][-1]
    panel.bar(line["exponents"], line["counts"], 0.8, label="all", color="C7")
    panel.bar(line["exponents"], line["kept"], 0.8, label="kept by three bits", color="C0")
    panel.set(xlabel=f"exponent of a change, iteration {line['iteration']}", ylabel="entries")


def _courses(group: Group, panel: Any) -> None:
    """As the paper's Fig. 6: the error over the epochs that were computed."""
    for number, (title, first, errors) in enumerate(_by_epoch(group)):
        epochs = range(first, first + len(errors))
        panel.plot(epochs, errors, "o^s*Dvx"[number % 7] + "-", label=title, alpha=0.7)
    panel.set(xlabel="epochs computed", ylabel="RMSE")


def _shares(group: Group, panel: Any) -> None:
    names = [line["pipeline"] for line in group["lines"]]
    for step in ("all", "thread"):
        panel.plot(names, [100 * line[step] for line in group["lines"]], "o", label=step)
    panel.axhline(100 * _PAPER["overhead"], color="k", linestyle=":", label="paper, all")
    panel.set(ylabel="% of an epoch")
