"""The report as Markdown and as a picture, the thesis's figures beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from mvc.evaluation.common.render import grid, picture, pyplot
from mvc.evaluation.provenance.architectures import ARCHITECTURES
from mvc.evaluation.provenance.flow import BASES, RELATIONS
from mvc.evaluation.provenance.tables import Group, Line, Report
from mvc.evaluation.provenance.thesis import DIGIT_SWAP, PROVENANCE, STORAGE, TIMES

__all__ = ["architectures", "bars", "markdown"]

_STORED = (
    *("approach", "U1", "U2", "U3", "thesis U1", "thesis U2", "thesis U3"),
    *("weights U3", "metadata U3", "all ten"),
)
_READING = (
    "stored: bytes by which everything below `.mvc` grows with one model; of U3 a middle one of "
    "the eight models. weights: encoded tensors among these, full or as deltas; metadata: all "
    "else (headers, manifest, journal).",
    "The thesis's B and U also hold the network's source file, the environment and, for every "
    "tensor, hashes as JSON; mvc's versions here hold weights and hashes.",
    "A model is saved when no crash loses it: seconds to save include the flush to disk.",
    "load reads, decodes and proves every tensor by its hash; recover puts the tensors into a "
    "network; check hash computes the Merkle root of that network once more. mvc decodes a chain "
    "of deltas at once and has no step in which a base is recovered.",
    "processor: time of the processor, all threads together. It hardly depends on what else "
    "the machine does, as the other seconds do. The processes of M_Prov that train again are not "
    "in it.",
    "M_Prov: train is the training itself, which all approaches need and only this one counts; "
    "retrain starts a process for each version after the last one that is stored, and verifies "
    "the root.",
    "Seconds of the thesis are of other machines, with the database and the files on the network.",
)


def architectures() -> str:
    """The networks: what they count to here, and the thesis's figures, which must be equal."""
    rows = []
    for each in ARCHITECTURES.values():
        network = each.empty()
        last = network.get_submodule(each.last)
        counts = [sum(p.numel() for p in part.parameters()) for part in (network, last)]
        state = network.state_dict()
        size = sum(value.nbytes for value in state.values())
        numbers = (*counts, len(state), size, each.parameters, each.last_parameters)
        rows.append((f"{each.title} ({each.name})", *(f"{n:,}" for n in numbers), each.size))
    titles = (
        *("network", "parameters", "last layer", "tensors", "bytes"),
        *("thesis parameters", "thesis fine-tuned", "thesis size"),
    )
    return grid(titles, rows)


def markdown(report: Report) -> str:
    """All groups, then what to know when reading them."""
    parts = ["# MMlib: ten models derived from one another\n"]
    if report.machine:
        parts.append(report.machine + "\n")
    for group in report.groups:
        parts.extend(_group(group))
    parts.append("## How to read it\n")
    abouts = {line.title: line.about for group in report.groups for line in group.lines}
    relations = dict.fromkeys(group.relation for group in report.groups)
    notes = (
        *(f"{title}: {about}." for title, about in abouts.items()),
        *(f"{relation}: {RELATIONS[relation]}." for relation in relations),
        *_READING,
        *TIMES,
        DIGIT_SWAP,
        PROVENANCE,
    )
    parts.append("".join(f"- {note}\n" for note in notes))
    return "\n".join(parts)


def _group(group: Group) -> Iterator[str]:
    setting = group.setting
    first = group.lines[0].cells
    weights = "trained" if setting["trained"] else "random"
    yield (
        f"## {ARCHITECTURES[group.architecture].title}, {group.relation}\n\n"
        f"U1 has {weights} weights; U3 then {setting['batches']} and U2 "
        f"{2 * setting['batches']} batches of {setting['batch_size']} images of "
        f"{setting['data']}, {setting['size']} x {setting['size']}. From one U3 to the next "
        f"{first['U3.1.2'].tensors} of {first['U1'].tensors} tensors change, "
        f"{first['U3.1.2'].changed:,} bytes.\n"
    )
    yield "Bytes stored:\n"
    yield grid(_STORED, (_stored(group, line) for line in group.lines))
    for what, name in (("save", "save"), ("recover", "recover")):
        yield f"\nMilliseconds to {what}:\n"
        titles = ("approach", *BASES)
        yield grid(titles, (row for line in group.lines for row in _seconds(line, name)))
    yield ""


def _stored(group: Group, line: Line) -> tuple[str, ...]:
    cells = line.cells
    third = [cells[name] for name in BASES if name.startswith("U3")]
    middle = sorted(third, key=lambda cell: cell.stored)[len(third) // 2]
    stated: Sequence[int | str] = ("", "", "")
    if line.thesis is not None:
        key = (group.architecture, group.relation != "version", line.thesis)
        stated = STORAGE.get(key, stated)
    numbers = (
        *(cells["U1"].stored, cells["U2"].stored, middle.stored, *stated),
        *(middle.payload, middle.metadata, sum(cell.stored for cell in cells.values())),
    )
    return (line.title, *(f"{n:,}" if isinstance(n, int) else n for n in numbers))


def _seconds(line: Line, name: str) -> Iterator[tuple[str, ...]]:
    """A row with totals, one for each step if there are several, and the processor's."""
    steps: dict[str, None] = {}
    for cell in line.cells.values():
        steps |= dict.fromkeys(getattr(cell, name))
    totals = _totals(line, name)
    yield (line.title, *(_milliseconds(totals[use_case]) for use_case in BASES))
    for step in steps if len(steps) > 1 else ():
        taken = (getattr(line.cells[use_case], name).get(step) for use_case in BASES)
        yield (f"- {step}", *("" if each is None else _milliseconds(each) for each in taken))
    spent = (line.cells[use_case].processor[name] for use_case in BASES)
    yield ("- processor", *map(_milliseconds, spent))


def _totals(line: Line, name: str) -> Mapping[str, float]:
    return {use_case: sum(getattr(line.cells[use_case], name).values()) for use_case in BASES}


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 0.9995 else f"{1000 * seconds:,.0f}"


def bars(report: Report, form: str = "png") -> bytes:
    """A picture with a row for each group: bytes, time to save, time to recover by use case.

    Lines with crosses are the thesis's bytes. ``form`` is png or svg.
    """
    rows = len(report.groups)
    figure, panels = pyplot().subplots(
        rows, 3, figsize=(18, 4.5 * rows), squeeze=False, layout="constrained"
    )
    for group, (stored, save, recover) in zip(report.groups, panels, strict=True):
        title = f"{ARCHITECTURES[group.architecture].title}, {group.relation}"
        names = list(BASES)
        for number, line in enumerate(group.lines):
            color, label = f"C{number}", line.title
            sizes = [line.cells[name].stored / 1e6 for name in names]
            stored.plot(names, sizes, "o-", color=color, label=label)
            key = (group.architecture, group.relation != "version", line.thesis or "")
            if (stated := STORAGE.get(key)) and label in {"B", "U'_P"}:
                kinds = [stated[0 if name == "U1" else 1 if name == "U2" else 2] for name in names]
                theirs = [size / 1e6 for size in kinds]
                stored.plot(names, theirs, "x:", color=color, label=f"{label}, thesis")
            for panel, steps in ((save, "save"), (recover, "recover")):
                totals = _totals(line, steps)
                mean = fmean(totals.values())
                panel.plot(
                    names,
                    [totals[name] for name in names],
                    "o-",
                    color=color,
                    label=f"{label} ({mean:.3g} s)",
                )
        stored.set(yscale="log", ylabel="MB stored", title=title)
        save.set(ylabel="seconds to save (mean)", title=title)
        recover.set(ylabel="seconds to recover (mean)", title=title)
        for panel in (stored, save, recover):
            panel.grid(alpha=0.3)
            panel.tick_params(axis="x", labelrotation=45)
            panel.legend(fontsize=7)
            if panel is not stored:
                panel.set_ylim(bottom=0)
    return picture(figure, form)
