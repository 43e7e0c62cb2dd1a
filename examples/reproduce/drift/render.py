"""Tables as Markdown, with the limits of their comparison; pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..render import figure, grid, notes
from . import bounds, timing
from .measure import normalised
from .thesis import IMPROVEMENTS, MODELS

__all__ = ["LIMITS", "markdown", "picture"]

Values = Mapping[str, Any]
Cell = Mapping[str, Sequence[float]]
"""Of every figure one for each label, none if it is not known."""

LIMITS = (
    "Seconds of the thesis are from another machine (GeForce GTX 970, i7-4790K, Windows, "
    "TensorFlow 2.10) and compare only with each other, as ours do.",
    "The thesis trains with TensorFlow on a GPU, where equal runs differ by about 0.04 points "
    "of accuracy; here every pipeline sees the same recorded weights, so differences are exact.",
    "Saving is durable here: processing, commit and flush to disk. Loading is checked against "
    "hashes. Seconds are of the clock: what else ran is in them, and `drift times` says how much.",
)

_RATIO = (
    "ratio: bytes of the folder of `{}` to bytes of this one's. R: versions between reset points."
)
_MEANINGS = (
    "accuracy: prequential accuracy of the deployed weights against the lossless run, in "
    "percentage points; the thesis prints it under 'Last Accuracy'.",
    "target: the same difference on the last batch, which holds the drifted label at its peak.",
    "Of several labels: the mean, and in brackets each of them.",
    "save, load: seconds a batch, mean / longest; load is of one version, from disk. x learning: "
    "mean seconds to save a batch by mean seconds to learn one.",
    "versions: how many were saved; bytes of deltas, of reset points (full), and of all else: "
    "manifests, headers, journal, index.",
)
_FRONTIER = (
    "frontier lines: bytes of deltas beside those of `vsol-...-fast` or `-slow` of the same "
    "bound, whichever has fewer; their ratio says nothing where accuracies differ."
)

_TITLES = (
    *("configuration", "R", "ratio", "thesis", "accuracy", "thesis", "target"),
    *("versions", "deltas MB", "full MB", "other MB"),
)
_SECONDS = (
    *("configuration", "save s", "x learning", "thesis save s", "x learning"),
    *("load s", "thesis load s"),
)
_BASELINES = ("configuration", "to zstd", "to lossless, R=28", "to raw")
_NAMED = 16  # points that still find room for their names


def markdown(report: Values) -> str:
    """The whole table, then what to know when reading it."""
    kinds = {"rows": _learning, "parts": _curve_table, "splits": _splits, "curves": _curves}
    kinds |= {"trainings": _trainings, "lines": _compared, "late": _late}
    kinds |= {"bounds": bounds.markdown, "times": timing.markdown}
    (kind,) = kinds.keys() & report.keys()
    return kinds[kind](report)


def _compared(report: Values) -> str:
    parts = [f"# Table {report['number']}: {report['title']}\n"]
    for role in report["setting"]:
        parts.extend(_part(report, role))
    lines = report["lines"]
    meanings = [_RATIO.format(lines[0]["name"]), *_MEANINGS]
    if any(line["name"].startswith("frontier-") for line in lines):
        meanings.append(_FRONTIER)
    return "\n".join([*parts, notes((*meanings, *LIMITS))])


def _part(report: Values, role: str) -> Iterator[str]:
    settings = report["setting"][role]
    first = settings[0]
    labels = ", ".join(str(setting["label"]) for setting in settings)
    yield (
        f"## {first['model']} on {first['data']}\n\n"
        f"Labels {labels}; {first['epochs']} epochs offline, then {first['batches']} batches of "
        f"{first['batch_size']}.\n"
    )
    if first["model"] != role:
        yield f"The thesis's columns are those of its {role} net: another net, other data.\n"
    lines = [line for line in report["lines"] if role in line["cells"] or line["missing"]]
    yield grid(_TITLES, (_row(line, role) for line in lines))
    yield ""
    known = [line for line in lines if line["cells"]]
    if any(line["cells"][role]["save"] for line in known):
        yield (
            f"One batch takes {_pair(*report['learning'][role])} s to learn "
            f"(thesis, its {role}: {_pair(*report['learning_stated'][role])} s).\n"
        )
        yield grid(_SECONDS, (_seconds(report, line, role) for line in known))
        yield ""
    if role in report["plain"]:
        deltas, seconds = report["plain"][role]
        yield (
            f"{deltas} deltas of `vsol` decoded one after the other in plain numpy: "
            f"{seconds:.3f} s.\n"
        )
    if any(line["cells"][role]["to_raw"] for line in known):
        yield grid(_BASELINES, (_baselines(line, role) for line in known))
        yield ""
    if beside := "".join(_frontier(report, role)):
        yield beside
    yield "Pipelines:\n"
    yield "\n".join(f"- {line['name']}: `{line['pipeline']}`" for line in lines) + "\n"


def _row(line: Values, role: str) -> tuple[str, ...]:
    name, interval = line["name"], str(line["interval"])
    if line["missing"] is not None:
        return (f"{name} ({line['missing']})", interval, *("",) * 9)
    cell, stated = line["cells"][role], line["stated"].get(role, {})
    return (
        *(name, interval),
        *(_each(cell["ratio"], _ratio), _number(stated.get("ratio"))),
        *(_each(cell["accuracy"], _points), _number(stated.get("accuracy"), "+.2f")),
        _each(cell["target"], _points),
        _each(cell["saved"], "{:.4g}".format),
        *(_each(cell["delta_bytes"], _megabytes), _megabytes_of(cell, "full_bytes")),
        _megabytes_of(cell, "other_bytes"),
    )


def _seconds(report: Values, line: Values, role: str) -> tuple[str, ...]:
    cell, stated = line["cells"][role], line["stated"].get(role, {})
    save, theirs = _mean(cell, "save"), stated.get("save")
    learning, learning_stated = report["learning"][role], report["learning_stated"][role]
    return (
        line["name"],
        _pair(save, _mean(cell, "save_max")),
        "" if save is None else f"{save / learning[0]:.2f}",
        _pair(theirs, stated.get("save_max")),
        "" if theirs is None else f"{theirs / learning_stated[0]:.2f}",
        _pair(_mean(cell, "load"), _mean(cell, "load_max")),
        _pair(stated.get("load"), stated.get("load_max")),
    )


def _baselines(line: Values, role: str) -> tuple[str, ...]:
    cell = line["cells"][role]
    return (line["name"], *(_number(_mean(cell, n)) for n in ("to_zstd", "to_lossless", "to_raw")))


def _frontier(report: Values, role: str) -> Iterator[str]:
    """Each of our lossy presets beside the better one of the thesis's for the same bound."""
    cells = {line["name"]: line["cells"][role] for line in report["lines"] if role in line["cells"]}
    sizes = {name: _mean(cell, "delta_bytes") for name, cell in cells.items()}
    deltas = {name: size for name, size in sizes.items() if size is not None}
    for name in deltas:
        bound = name.removeprefix("frontier-")
        base = bound.removesuffix("-slow")
        rivals = [r for r in (f"vsol-{base}-fast", f"vsol-{base}-slow") if r in deltas]
        if bound == name or not rivals:
            continue
        best = min(rivals, key=lambda rival: deltas[rival])
        beside = f"{deltas[name] / 1e3:.1f} kB of deltas, {best} none"
        if deltas[best]:  # else it found no version worth saving after the first
            beside = f"{deltas[name] / deltas[best]:.3f} x the bytes of deltas of {best}"
        accuracy, target = (
            " and ".join(_points(_mean(cells[each], kind) or 0.0) for each in (name, best))
            for kind in ("accuracy", "target")
        )
        yield f"- {name}: {beside}, accuracy {accuracy}, target {target} points\n"


def _mean(cell: Cell, name: str) -> float | None:
    """The mean over labels of a figure; None if it is not known."""
    return fmean(cell[name]) if cell[name] else None


def _each(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The mean over labels, and each label's figure unless they print alike."""
    texts = [text(value) for value in values]
    if len(set(texts)) <= 1:
        return texts[0] if texts else ""
    return f"{text(fmean(values))} ({', '.join(texts)})"


def _megabytes_of(cell: Cell, name: str) -> str:
    size = _mean(cell, name)
    return "" if size is None else _megabytes(size)


def _ratio(value: float) -> str:
    """Four digits, without zeros at the end: published ratios may have fewer."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _points(value: float) -> str:
    """A difference with its sign; what rounds to nothing has a plus."""
    return f"{round(value, 3) + 0.0:+.3f}"


def _megabytes(size: float) -> str:
    """Small nets store kilobytes: these keep their digits."""
    return f"{size / 1e6:.2f}" if size >= 1e6 or not size else f"{size / 1e6:.4f}"


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)


def _pair(mean: float | None, longest: float | None) -> str:
    return " / ".join(f"{value:.3f}" for value in (mean, longest) if value is not None)


def _splits(report: Values) -> str:
    """Parameter by parameter, split by split."""
    parts = (
        "\n".join(f"{name:<17} {_text(value)}" for name, value in split.items())
        for split in report["splits"]
    )
    return "\n\n".join(parts)


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _trainings(report: Values) -> str:
    return _figures(report["trainings"], 4)


def _curves(report: Values) -> str:
    """The ends of each curve and its mean."""
    return _figures(
        [
            {"training": row["training"], "first": row["curve"][0], "last": row["curve"][-1],
             "mean": fmean(row["curve"])}
            for row in report["curves"]
        ],
        4,
    )  # fmt: skip


def _late(report: Values) -> str:
    """What late weights cost: by a fixed delay, then by pace."""
    rows = report["late"]
    delays = [f"{each['batches']:g}" for each in rows[0]["delays"]]
    paces = [f"{each['pace']:g}" for each in rows[0]["paces"]]
    names = ("training", "pipeline")
    fixed = ((*(row[name] for name in names), *map(_both, row["delays"])) for row in rows)
    parts = [
        "# What late deployment costs\n",
        "Samples that are misclassified, in per cent: of all, and of the drifting label. Each "
        "version is live so many batches late:\n",
        grid((*names, *delays), fixed),
        "\nPercentage points more than with time halted, where the next batch comes so many times "
        "the mean time to learn later, and weights are live when they are saved:\n",
    ]
    stages = ("learn", "process", "save")
    titles = (*names, *(f"{name} s" for name in stages), *paces)
    for moment in ("saved", "processed"):
        lines = (
            (
                *(row[name] for name in names),
                *(f"{row[name]:.3f}" for name in stages),
                *(_more(each[moment], row["delays"][0]) for each in row["paces"]),
            )
            for row in rows
        )
        parts.append(grid(titles, lines))
        if moment == "saved":
            parts.append("\nThe same, live as soon as the lossy stages are through:\n")
    parts.append("\nbehind: some weights are more than 4 batches late.\n")
    return "\n".join(parts)


def _both(wrong: Values) -> str:
    return f"{100 * wrong['all']:.2f}, {100 * wrong['label']:.2f}"


def _more(wrong: Values, halted: Values) -> str:
    """Percentage points more errors than with time halted."""
    if wrong["all"] is None:
        return "behind"
    return ", ".join(f"{100 * (wrong[name] - halted[name]):+.2f}" for name in ("all", "label"))


def _learning(report: Values) -> str:
    table = _figures(report["rows"], 3)
    return f"# Table {report['number']}: one batch of training\n\n{table}\n\n{LIMITS[0]}\n"


def _figures(rows: Sequence[Values], digits: int) -> str:
    """Rows of figures by title."""
    cells = (
        [f"{each:.{digits}f}" if isinstance(each, float) else str(each) for each in row.values()]
        for row in rows
    )
    return grid(tuple(rows[0]), cells)


def _curve_table(report: Values) -> str:
    """One of tables 4.3 to 4.5, or the range of their differences (table 4.6)."""
    if report["number"] == "4.6":
        title = "# Table 4.6: what each setting of the split is good for\n"
        parts = [title, _ranges(report["parts"])]
    else:
        (one,) = report["parts"]
        names = {role: list(one["lines"][0][role]) for role in MODELS}
        titles = (
            f"{one['networks'][role]['model']} {name}" for role in MODELS for name in names[role]
        )
        rows = (_cells(line) for line in one["lines"])
        parts = [
            f"# Table {one['number']}: {one['title']}\n",
            grid((*titles, "ours", "thesis"), rows),
        ]
    parts.append("")
    parts.extend(_common(one) for one in report["parts"])
    parts.append(
        "\nMean difference of the normalised accuracy on the last batch between the two networks "
        "(NLAccDiff), over all pairs of labels. Data and frameworks are not the thesis's.\n"
    )
    return "\n".join(parts)


def _ranges(parts: Sequence[Values]) -> str:
    titles = (
        *("setting", "least", "most", "most / least"),
        *("thesis least", "thesis most", "thesis"),
    )
    rows = []
    for one in sorted(parts, key=lambda one: list(IMPROVEMENTS).index(one["number"])):
        least, most, percent = IMPROVEMENTS[one["number"]]
        ours = [line["difference"] for line in one["lines"]]
        low, high = min(ours), max(ours)
        share = f"{high / low:.0%}" if low else ""
        stated = (f"{least:.3f}", f"{most:.3f}", f"{percent}%")
        rows.append((one["title"], f"{low:.3f}", f"{high:.3f}", share, *stated))
    return grid(titles, rows)


def _common(one: Values) -> str:
    """What all rows of a table share: it is not what makes their figures differ."""
    labels = ", ".join(map(str, one["labels"]))
    networks = "; ".join(
        f"{own['model']} on {own['data']}, {own['epochs']} epochs, batches of "
        f"{own['batch_size']}, {own['others_offline']} offline samples of other labels"
        for own in one["networks"].values()
    )
    return f"- Table {one['number']}, all rows: labels {labels}; {networks}."


def _cells(line: Values) -> tuple[str, ...]:
    own = (str(value) for role in MODELS for value in line[role].values())
    return (*own, f"{line['difference']:.3f}", f"{line['stated']:.3f}")


def picture(report: Values) -> Any:
    """Accuracy over ratio and bytes for tables that compare pipelines, or over batches.

    Of several intervals between reset points their ratios and loads (figure 4.5 of the thesis).
    """
    if report.get("number") == "intervals":
        return _intervals(report)
    if "lines" in report:
        return _scatter(report)
    return _accuracy(report["curves"]) if "curves" in report else None


def _scatter(report: Values) -> Any:
    """A row for each network: accuracy over ratio, and over bytes of deltas.

    Right and up is better. Hollow points are the thesis's own figures. The second panel
    leaves reset points out. Points have their names, or numbers in the order of the table if
    there are many.
    """
    roles, lines = list(report["setting"]), report["lines"]
    drawing, panels = figure(len(roles), 2, (16, 6 * len(roles)))
    few = len(lines) <= _NAMED
    for role, (whole, deltas) in zip(roles, panels, strict=True):
        named = [
            (line["name"] if few else str(number), line["cells"][role], line["stated"].get(role))
            for number, line in enumerate(lines, start=1)
            if role in line["cells"]
        ]
        cells = [
            (name, cell, fmean(cell["accuracy"])) for name, cell, _ in named if cell["accuracy"]
        ]
        ratios = ((name, _mean(cell, "ratio"), y) for name, cell, y in cells)
        sizes = ((name, (_mean(cell, "delta_bytes") or 0) / 1e6, y) for name, cell, y in cells)
        for panel, points in ((whole, ratios), (deltas, sizes)):
            _points_of(panel, [(name, x, y) for name, x, y in points if x])
        for _, _, stated in named:
            if stated and None not in (stated.get("ratio"), stated.get("accuracy")):
                place = stated["ratio"], stated["accuracy"]
                whole.plot(*place, "o", color="grey", fillstyle="none")
        setting = report["setting"][role][0]
        whole.set(
            xlabel=f"ratio to {lines[0]['name']}",
            ylabel="accuracy against lossless, points",
            title=f"{setting['model']} on {setting['data']} (hollow: the thesis's own figures)",
        )
        deltas.set(xlabel="MB of deltas (smaller to the right)", title="without reset points")
        deltas.invert_xaxis()
    if not few:
        text = "\n".join(f"{n}  {line['name']}" for n, line in enumerate(lines, start=1))
        drawing.text(1.005, 0.98, text, va="top", size=8)
    drawing.suptitle(f"Table {report['number']}: {report['title']}")
    return drawing


def _points_of(panel: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Points with their names; those that print at one place share a label."""
    panel.set_xscale("log")
    panel.margins(x=0.15)  # for names beside the outermost points
    panel.grid(alpha=0.3, which="both")
    places: dict[tuple[float, float], list[str]] = {}
    for name, x, y in points:
        panel.plot(x, y, "o", color="tab:blue" if "frontier" in name else "tab:grey")
        place = (float(f"{math.log10(x):.2f}"), float(f"{y:.2f}"))
        places.setdefault(place, []).append(name)
    for (x, y), names in places.items():
        text = ", ".join(names)
        panel.annotate(text, (10**x, y), xytext=(5, 4), textcoords="offset points", size=8)


def _intervals(report: Values) -> Any:
    """A row for each network: ratio, and seconds of the longest load, over the interval."""
    roles = list(report["setting"])
    drawing, panels = figure(len(roles), 2, (14, 4.5 * len(roles)))
    for role, (ratios, loads) in zip(roles, panels, strict=True):
        cells = [
            (line["pipeline"], line["interval"], line["cells"][role])
            for line in report["lines"][1:]
            if role in line["cells"]
        ]
        for pipeline in dict.fromkeys(text for text, *_ in cells):
            own = [(interval, cell) for text, interval, cell in cells if text == pipeline]
            for panel, name in ((ratios, "ratio"), (loads, "load_max")):
                points = [(interval, _mean(cell, name)) for interval, cell in own]
                panel.plot(*zip(*points, strict=True), "o-", label=pipeline)
        setting = report["setting"][role][0]
        title = f"{setting['model']} on {setting['data']}"
        ratios.set(xlabel="versions between reset points", ylabel="ratio", title=title)
        loads.set(xlabel="versions between reset points", ylabel="s, longest load", title=title)
        ratios.legend(fontsize=7)
    return drawing


def _accuracy(rows: Sequence[Values]) -> Any:
    """Accuracy on the last batch after each batch, as it is and normalised."""
    drawing, ((plain, scaled),) = figure(1, 2, (14, 5))
    for row in rows:
        name, curve = row["training"], row["curve"]
        batches = range(1, len(curve) + 1)
        plain.plot(batches, curve, label=name)
        scaled.plot(batches, normalised(curve), label=name)
    plain.set(xlabel="batch", ylabel="accuracy on the last batch")
    scaled.set(xlabel="batch", ylabel="normalised")
    plain.legend(fontsize=7)
    return drawing
