"""``mvc pipeline``.

Without arguments all stages and presets are listed. With --bench every pipeline commits
models of yours into a temporary repository and checks them out of it: several PATHs are
consecutive versions, and so are the model files of a folder; one tracked file is
compared with its version at HEAD. Your own repository is not written to.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec.structs import asdict

from mvc.cli.completing import complete_pipeline
from mvc.cli.options import CommandOptions, argument, check_alone, flag, option
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session, load
from mvc.cli.tables import Column, columns, numbers, show
from mvc.cli.text import count, nbytes, percent, seconds, size
from mvc.codecs.stage import Stage
from mvc.codecs.stages import Compressor
from mvc.errors import NotARepository
from mvc.model.names import printable
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS, STAGES, read_stages
from mvc.repo.config import set_value
from mvc.requirements import ACCURACY_DROPS, SPEEDS, Requirements

if TYPE_CHECKING:
    from mvc.api.bench import BenchRow, Measured

_STAGES = columns("stage, what it does")
_PRESETS = columns("preset, pipeline")
_ABOUT = "about lossy decides"  # of a stage, in JSON
_EXPLAINED = columns("stage, acts on, what it does")
_MEASURED = (
    Column("pipeline"),
    Column("preset"),
    *numbers("deltas, full, commit, checkout, recovery, a version"),
    Column(""),
)


class _PipelineOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[str, ...] = argument("[SPEC|PRESET]", shell_complete=complete_pipeline)
    bench: bool = flag("Measure every pipeline on the models of PATH...")
    max_bytes: str | None = option(
        "BYTES", "With --bench: commit at most this much of a version (1MB); by default 256MiB.",
        needs="bench",
    )  # fmt: skip
    max_recovery: float | None = option(
        "SECONDS", "Choose: seconds that recovering any version may take; by default 10."
    )
    lossy: bool = flag("Choose: production weights may differ from training weights.")
    speed: Literal["fast", "slow"] | None = option(
        None, "Choose: fast, or slow, which compares accuracies.", type=click.Choice(SPEEDS)
    )
    accuracy_drop: float | None = option(
        "|".join(f"{d:g}" for d in ACCURACY_DROPS),
        "Choose: per cent of accuracy that production weights may lose.",
    )
    write: bool = flag("Make it the setting commit.pipeline.", "--set")


@verb('mvc pipeline "xor | lsb:20 | planes:all | zstd:1"', _PipelineOptions)
def command(session: Session, args: _PipelineOptions) -> None:
    if args.bench:
        check_alone("bench", takes="words max_bytes")
        if not args.words:
            raise click.UsageError("name the models to measure: --bench PATH...")
        _measure(session, args.words, args.max_bytes)
        return
    if len(args.words) > 1:
        raise click.UsageError("say one pipeline, in quotes")
    text = args.words[0] if args.words else None
    needs = None
    if args.lossy or not (
        args.max_recovery is None and args.speed is None and args.accuracy_drop is None
    ):
        if text is not None:
            raise click.UsageError("say either a pipeline or what it must meet")
        needs = Requirements(
            10 if args.max_recovery is None else args.max_recovery,
            args.lossy,
            args.speed or "fast",
            args.accuracy_drop or 0,
        )
        text = needs.pipeline
    if text is None:
        if args.write:
            raise click.UsageError("--set takes a pipeline, or what it must meet")
        _list(session)
        return
    pipeline = Pipeline.parse(text)
    chosen = next((n for n in PRESETS if Pipeline.parse(n) == pipeline), None)
    if args.write:
        _set(session, chosen or pipeline.text, needs)
        if pipeline.lossy or pipeline.decisions:
            made = (
                "by mvc.Recorder, since a stage of this line decides what is saved"
                if pipeline.decisions
                else "where they are asked for: 'mvc commit' with -o FILE or --in-place, and "
                "pipeline= in Python"
            )
            session.out.note(
                f"Versions are stored exactly as given. Production weights are made {made}"
            )
    if session.as_json:
        told: dict[str, Any] = {}
        if needs is not None:
            told = {"requirements": asdict(needs), "measured": needs.measured}
        session.out.json("mvc.pipeline/1", _json(pipeline, chosen) | told | {"set": args.write})
    else:
        _explain(session, pipeline, chosen)
        if needs is not None and needs.measured:
            session.out.line(f"Measured:   {needs.measured}")
        if needs is not None and not args.write:
            session.out.note("Add --set to use it in this repository from now on")


def _set(session: Session, name: str, needs: Requirements | None) -> None:
    values = {"commit.pipeline": name}
    if needs is not None:
        values["store.max_recovery"] = f"{needs.max_recovery:g}"
    for key, value in values.items():
        set_value(session.fs, session.config_file, key, value)
        session.out.note(f"{key} = {value}")


def _list(session: Session) -> None:
    out = session.out
    if session.as_json:
        stages = [fields(kind, f"usage {_ABOUT}") for kind in STAGES.values()]
        out.json("mvc.pipeline/1", {"stages": stages, "presets": PRESETS})
        return
    show(out, _STAGES, [(kind.usage, kind.about) for kind in STAGES.values()])
    out.line()
    show(out, _PRESETS, list(PRESETS.items()))


def _explain(session: Session, pipeline: Pipeline, preset: str | None) -> None:
    out, coding = session.out, pipeline.coding()
    out.line(pipeline.text + (f"  ({preset})" if preset else ""))
    out.line()
    show(out, _EXPLAINED, [(s.text, _reach(s), s.about) for s in read_stages(pipeline.text)])
    out.line()
    if pipeline.operator == "none":
        facts = {"Stored as": f"{coding.text}, every version in full"}
    else:
        way = "forward only" if pipeline.forward_only else "to be walked either way"
        facts = {"Deltas as": f"{coding.text}, {way}", "In full as": coding.full().text}
    weights = "production weights differ from training weights" if pipeline.lossy else "lossless"
    if pipeline.forward_only:
        weights = "what is stored differs from what was given"
    facts["Weights"] = weights
    if pipeline.decisions:
        facts["Saves"] = f"by {', '.join(s.text for s in pipeline.decisions)}"
    for name, value in facts.items():
        out.line(f"{name + ':':12}{value}")


def _reach(stage: Stage) -> str:
    if stage.decides:
        return "the version"
    if isinstance(stage, Compressor):
        return "the bytes"
    return "all tensors" if stage.scope == "group" else "each tensor"


def _json(pipeline: Pipeline, preset: str | None) -> dict[str, Any]:
    coding = pipeline.coding()
    return {
        "pipeline": pipeline.text,
        "preset": preset,
        **fields(pipeline, "operator scope"),
        "lossy": bool(pipeline.lossy) or pipeline.forward_only,
        "coding": coding.text,
        "full": coding.full().text,
        "stages": [fields(stage, f"text scope {_ABOUT}") for stage in read_stages(pipeline.text)],
    }


# -- measured on models of the user ----------------------------------------------------------------


def _measure(session: Session, paths: Sequence[str], max_bytes: str | None) -> None:
    from mvc.api.bench import MAX_BYTES, bench

    repository = None
    with suppress(NotARepository):
        repository = session.repository
    with session.progress("measuring") as progress:
        found = bench(
            [Path(path) for path in paths],
            repository=repository,
            config=None if repository else load(None),
            max_bytes=MAX_BYTES if max_bytes is None else nbytes(max_bytes),
            progress=progress,
        )
    if session.as_json:
        session.out.json("mvc.pipeline.bench/1", found)
    else:
        _print_measured(session, found, user=repository is None)


def _print_measured(session: Session, found: Measured, *, user: bool) -> None:
    """``user``: the settings in use are the user's own."""
    out, best = session.out, found.advice.row
    out.line(_looked_at(found))
    out.line(f"{count(found.threads, 'thread')}; every pipeline gave every version back exactly")
    out.line()
    styles = ["good" if row is best else None for row in found.rows]
    show(out, _MEASURED, [_cells(found, row) for row in found.rows], styles=styles)
    out.line()
    if best is None:
        out.line(f"No recommendation: {found.advice.reason}")
    else:
        out.line(f"Recommended: {out.paint(best.name, 'good')}, {found.advice.reason}")
        setting = f"{'--user ' if user else ''}commit.pipeline {shlex.quote(best.name)}"
        use = f"To use it:   mvc config {setting}"
        out.line("It is in use already" if best.pipeline == found.in_use else use)
    for note in found.notes:
        out.note(note)


def _looked_at(found: Measured) -> str:
    """``31 versions of 3.55 MB, 7 pairs compared; 98.1 % changes from one to the next``."""
    text = f"{count(found.versions, 'version')} of {size(found.raw_bytes)}"
    if found.base == "HEAD":
        text = f"{printable(found.newest)}, {size(found.raw_bytes)}, compared with HEAD"
    elif found.compared:
        text += f", {count(found.compared, 'pair')} compared"
    if found.sampled < found.raw_bytes:
        text += f", {percent(found.sampled, found.raw_bytes)} of the bytes looked at"
    if found.changed is not None:
        text += f"; {percent(found.changed, 1)} changes from one to the next"
    return text


def _cells(found: Measured, row: BenchRow) -> tuple[str, ...]:
    common = row.delta or row.full
    return (
        row.pipeline,
        row.preset or "",
        f"{row.delta.ratio:.3f}" if row.delta else "",
        f"{row.full.ratio:.3f}",
        _speed(common.commit),
        _speed(common.checkout),
        seconds(row.recovery),
        size(row.version_bytes),
        _remark(found, row),
    )


def _remark(found: Measured, row: BenchRow) -> str:
    words = {
        "recommended": found.advice.row is row,
        "in use": row.pipeline == found.in_use,
        "over the bound": not row.fits,
        "slow": row.fits and row.slow,
    }
    return ", ".join(word for word, said in words.items() if said)


def _speed(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
