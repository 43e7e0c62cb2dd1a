"""The report as Markdown and as a picture, the thesis's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..render import figure, grid, notes
from .architectures import ARCHITECTURES
from .flow import BASES, RELATIONS

__all__ = ["THESIS", "markdown", "picture"]

THESIS = json.loads(Path(__file__).with_name("thesis.json").read_text())

Values = Mapping[str, Any]

_STORED = (
    *("approach", "U1", "U2", "U3", "thesis U1", "thesis U2", "thesis U3"),
    *("weights U3", "metadata U3", "all ten"),
)
_WIRE = (
    *("approach", "stored U1", "stored U2", "stored U3", "wire U3", "wire U3.1.1"),
    *("stored, all ten", "wire, all ten", "wire, U1 to a node", "U2 to a node"),
    *("wire, U1 recovered", "U2 recovered", "U3 recovered"),
)
_SERVED = (
    "stored: bytes by which the server's repository grows with one model. wire: bytes between the "
    "server and the one who asks, both ways, with TLS and HTTP. Of U3 a middle one of the eight "
    "models; U3.1.1 is the first that a node pushes, and brings the images that recipes need. U1 "
    "and U2 are saved on the server's own machine, so nothing travels.",
    "push: the last step of saving; it ends when no crash of the server loses the model.",
    "clone: the history and what the server says of it, without states; the state of the version "
    "comes in the step load (retrain: the state of U1 and the images, before the trainings).",
    "to a node: 'clone --states last:1', by which a node gets the model that it begins with.",
)
_LOCAL = (
    "stored: bytes by which everything below `.mvc` grows with one model; of U3 a middle one of "
    "the eight models. weights: encoded tensors among these, full or as deltas; metadata: all "
    "else (headers, manifest, journal).",
    "The thesis's B and U also hold the network's source file, the environment and, for every "
    "tensor, hashes as JSON; mvc's versions here hold weights and hashes.",
    "processor: time of the processor, all threads together. It hardly depends on what else "
    "the machine does, as the other seconds do. The processes of M_Prov that train again are not "
    "in it.",
    "Seconds of the thesis are of other machines, with the database and the files on the network.",
)
_READING = (
    "A model is saved when no crash loses it: seconds to save include the flush to disk.",
    "load reads, decodes and proves every tensor by its hash; recover puts the tensors into a "
    "network; check hash computes the Merkle root of that network once more. mvc decodes a chain "
    "of deltas at once and has no step in which a base is recovered.",
    "M_Prov: train is the training itself, which all approaches need and only this one counts; "
    "retrain starts a process for each version after the last one that is stored, and verifies "
    "the root.",
)


def markdown(report: Values) -> str:
    """All groups, then what to know when reading them; or the table of the networks."""
    if "networks" in report:
        return _networks(report["networks"])
    if "determinism" in report:
        return _determinism(report)
    parts = ["# MMlib: ten models derived from one another\n", report["machine"] + "\n"]
    for group in report["groups"]:
        parts.extend(_group(group))
    served = _is_served(report["groups"][0])
    abouts = {line["title"]: line["about"] for each in report["groups"] for line in each["lines"]}
    relations = dict.fromkeys(group["relation"] for group in report["groups"])
    parts.append(
        notes(
            (
                *(f"{title}: {about}." for title, about in abouts.items()),
                *(f"{relation}: {RELATIONS[relation]}." for relation in relations),
                *_READING,
                *(_SERVED if served else (*_LOCAL, *THESIS["notes"])),
            )
        )
    )
    return "\n".join(parts)


def _networks(rows: Sequence[Values]) -> str:
    """What the networks count to here, and the thesis's figures, which must be equal."""
    titles = (
        *("network", "parameters", "last layer", "tensors", "bytes"),
        *("thesis parameters", "thesis fine-tuned", "thesis size"),
    )
    lines = []
    for row in rows:
        name = row["architecture"]
        *stated, size = THESIS["networks"][name]
        counts = (f"{count:,}" for count in (*row["counts"], *stated))
        lines.append((f"{ARCHITECTURES[name].title} ({name})", *counts, size))
    return grid(titles, lines)


def _determinism(report: Values) -> str:
    """Milliseconds of a batch and seconds of an epoch by kernels, and the slow layers."""
    titles = (
        *("network", "forward, any kernels", "deterministic", "backward, any kernels"),
        *("deterministic", "epoch, any kernels", "deterministic", "thesis", "slow layers"),
    )
    lines = []
    for row in report["determinism"]:
        free, strict = row["epoch"]["any"], row["epoch"]["deterministic"]
        name = row["architecture"]
        slow = ", ".join(f"{each['layer']} ({each['type']})" for each in row["slow"])
        more = row["slow_layers"] - len(row["slow"])
        lines.append(
            (
                ARCHITECTURES[name].title,
                *(f"{1000 * each['forward']:,.0f}" for each in (free, strict)),
                *(f"{1000 * each['backward']:,.0f}" for each in (free, strict)),
                *(f"{each['epoch']:.1f}" for each in (free, strict)),
                f"{THESIS['epochs'][name][1]:.2f}",
                f"{row['slow_layers']} of {row['layers']}"
                + (f": {slow}" if slow else "")
                + (f" and {more} more" if more > 0 else ""),
            )
        )
    setting = report["setting"]
    return (
        f"# MMlib: what deterministic kernels cost\n\n{report['machine']} An epoch is "
        f"{setting['images']} images in batches of {setting['batch_size']}, "
        f"{setting['size']} x {setting['size']}.\n\n"
        + grid(titles, lines)
        + "\n\n"
        + notes(
            (
                "forward, backward: milliseconds of a batch, medians of an epoch. epoch: seconds "
                "with the optimizer. thesis: its table 3, an epoch of 512 images (CF-512), "
                "deterministic, on an A100.",
                "slow layers: those that `mvc.probe` finds slower with deterministic kernels in at "
                f"least 90 % of {setting['pairs']} pairs of runs, the one that costs most first.",
            )
        )
    )


def _title(group: Values) -> str:
    return f"{ARCHITECTURES[group['architecture']].title}, {group['relation']}"


def _thesis(group: Values, approach: str | None) -> Sequence[int]:
    """The thesis's bytes of U1, U2 and each U3; none if it does not state them."""
    kind = "version" if group["relation"] == "version" else "fine-tuned"
    networks: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]] = THESIS["storage"]
    return networks.get(group["architecture"], {}).get(kind, {}).get(approach or "", ())


def _group(group: Values) -> Iterator[str]:
    setting, lines = group["setting"], group["lines"]
    first = lines[0]["cells"]
    weights = "trained" if setting["trained"] else "random"
    yield (
        f"## {_title(group)}\n\n"
        f"U1 has {weights} weights; U3 then {setting['batches']} and U2 "
        f"{2 * setting['batches']} batches of {setting['batch_size']} images of "
        f"{setting['data']}, {setting['size']} x {setting['size']}. From one U3 to the next "
        f"{first['U3.1.2']['tensors']} of {first['U1']['tensors']} tensors change, "
        f"{first['U3.1.2']['changed']:,} bytes.\n"
    )
    if _is_served(group):
        yield "Bytes stored, and on the wire:\n"
        yield grid(_WIRE, map(_wire, lines))
    else:
        yield "Bytes stored:\n"
        yield grid(_STORED, (_stored(group, line) for line in lines))
    until, alone = ("until the server has it", " from it alone") if _is_served(group) else ("", "")
    for what, name in ((until or "to save", "save"), (f"to recover{alone}", "recover")):
        yield f"\nMilliseconds {what}:\n"
        titles = ("approach", *BASES)
        yield grid(titles, (row for line in lines for row in _seconds(line, name)))
    yield ""


def _is_served(group: Values) -> bool:
    """Whether the models went to a server."""
    return "wire" in group["lines"][0]["cells"]["U1"]


def _wire(line: Values) -> tuple[str, ...]:
    cells = line["cells"]

    def middle(figure: str) -> int:
        third = sorted(cells[name][figure] for name in BASES if name.startswith("U3"))
        return int(third[len(third) // 2])

    numbers = (
        *(cells["U1"]["stored"], cells["U2"]["stored"], middle("stored")),
        *(middle("wire"), cells["U3.1.1"]["wire"]),
        *(sum(cell[figure] for cell in cells.values()) for figure in ("stored", "wire")),
        *(cells[name]["deployed"] for name in ("U1", "U2")),
        *(cells["U1"]["fetched"], cells["U2"]["fetched"], middle("fetched")),
    )
    return (line["title"], *(f"{number:,}" for number in numbers))


def _stored(group: Values, line: Values) -> tuple[str, ...]:
    cells = line["cells"]
    third = [cells[name] for name in BASES if name.startswith("U3")]
    middle = sorted(third, key=lambda cell: cell["stored"])[len(third) // 2]
    numbers = (
        *(cells["U1"]["stored"], cells["U2"]["stored"], middle["stored"]),
        *(_thesis(group, line["thesis"]) or ("",) * 3),
        *(middle["payload"], middle["stored"] - middle["payload"]),
        sum(cell["stored"] for cell in cells.values()),
    )
    return (line["title"], *(f"{n:,}" if isinstance(n, int) else n for n in numbers))


def _seconds(line: Values, name: str) -> Iterator[tuple[str, ...]]:
    """A row with totals, one for each step if there are several, and the processor's."""
    cells = [line["cells"][use_case] for use_case in BASES]
    steps = dict.fromkeys(step for cell in cells for step in cell[name])
    yield (line["title"], *map(_milliseconds, _totals(line, name)))
    for step in steps if len(steps) > 1 else ():
        taken = (cell[name].get(step) for cell in cells)
        yield (f"- {step}", *("" if each is None else _milliseconds(each) for each in taken))
    if "processor" in cells[0]:
        yield ("- processor", *(_milliseconds(cell["processor"][name]) for cell in cells))


def _totals(line: Values, name: str) -> list[float]:
    return [sum(line["cells"][use_case][name].values()) for use_case in BASES]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 0.9995 else f"{1000 * seconds:,.0f}"


def picture(report: Values) -> Any:
    """A row for each group: bytes, time to save, time to recover by use case.

    Lines with crosses are the thesis's bytes.
    """
    if "groups" not in report:
        return None
    groups = report["groups"]
    drawing, panels = figure(len(groups), 3, (18, 4.5 * len(groups)))
    for group, row in zip(groups, panels, strict=True):
        for number, line in enumerate(group["lines"]):
            _draw(group, line, f"C{number}", row)
        labels = ("MB stored", "seconds to save (mean)", "seconds to recover (mean)")
        for panel, label in zip(row, labels, strict=True):
            panel.set(ylabel=label, title=_title(group))
            panel.tick_params(axis="x", labelrotation=45)
            panel.legend(fontsize=7)
            panel.set(yscale="log") if panel is row[0] else panel.set_ylim(bottom=0)
    return drawing


def _draw(group: Values, line: Values, color: str, panels: Sequence[Any]) -> None:
    """One approach in the three panels of a group."""
    names, label = list(BASES), line["title"]
    sizes = [line["cells"][name]["stored"] / 1e6 for name in names]
    panels[0].plot(names, sizes, "o-", color=color, label=label)
    if (stated := _thesis(group, line["thesis"])) and label in {"B", "U'_P"}:
        kinds = [stated[0 if name == "U1" else 1 if name == "U2" else 2] for name in names]
        theirs = [size / 1e6 for size in kinds]
        panels[0].plot(names, theirs, "x:", color=color, label=f"{label}, thesis")
    for panel, steps in zip(panels[1:], ("save", "recover"), strict=True):
        totals = _totals(line, steps)
        panel.plot(names, totals, "o-", color=color, label=f"{label} ({fmean(totals):.3g} s)")
