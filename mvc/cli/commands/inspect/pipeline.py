"""``mvc pipeline``.

A pipeline is a line of stages that encodes changed tensors. A preset is a named pipeline. Without
arguments, mvc lists stages and presets. With a SPEC (a pipeline) or PRESET, mvc explains the
pipeline. With requirements (--max-recovery, --lossy, --speed, --accuracy-drop), mvc chooses a
preset that meets them. --set writes the pipeline to the settings.
"""

from __future__ import annotations

from typing import Any, Literal

import click
from msgspec.structs import asdict

from mvc.api import set_value
from mvc.cli.verb import CommandOptions, Session, argument, fields, flag, option, verb
from mvc.pipelines import (
    ACCURACY_DROPS,
    PRESETS,
    SPEEDS,
    STAGES,
    Pipeline,
    Requirements,
    read_stages,
)

_ABOUT = "about lossy decides"  # fields of a stage in JSON


class _PipelineOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[str, ...] = argument("[SPEC|PRESET]")
    max_recovery: float | None = option(
        "SECONDS", "Requirement: the longest recovery time of a version; by default 10 seconds."
    )
    lossy: bool = flag("Permit production weights that differ from training weights.")
    speed: Literal["fast", "slow"] | None = option(
        None,
        "With --lossy: slow measures the accuracy of each version, fast (default) does not.",
        type=click.Choice(SPEEDS),
    )
    accuracy_drop: float | None = option(
        "|".join(f"{d:g}" for d in ACCURACY_DROPS),
        "With --lossy: percentage points of accuracy that production weights may lose.",
    )
    write: bool = flag("Store the pipeline in the setting commit.pipeline.", "--set")


@verb('mvc pipeline "xor | lsb:20 | planes:all | zstd:1"', _PipelineOptions)
def command(session: Session, args: _PipelineOptions) -> None:
    if len(args.words) > 1:
        raise click.UsageError("name one pipeline, in quotes")
    options = fields(args, "max_recovery speed accuracy_drop") | {"lossy": args.lossy or None}
    requirements = {name: value for name, value in options.items() if value is not None}
    needs = Requirements(**requirements) if requirements else None
    if needs is not None and args.words:
        raise click.UsageError("name a pipeline or requirements, not both")
    text = needs.pipeline if needs is not None else next(iter(args.words), None)
    if text is None:
        if args.write:
            raise click.UsageError("--set needs a pipeline or requirements")
        _list(session)
        return
    pipeline = Pipeline.parse(text)
    chosen = next((n for n in PRESETS if Pipeline.parse(n) == pipeline), None)
    if args.write:
        _set(session, chosen or pipeline.text, needs)
    if session.as_json:
        choice: dict[str, Any] = {}
        if needs is not None:
            choice = {"requirements": asdict(needs), "measured": needs.measured}
        session.json("mvc.pipeline/1", _json(pipeline, chosen) | choice | {"set": args.write})
    else:
        _explain(session, pipeline, chosen)
        if needs is not None and needs.measured:
            session.line(f"Measured:   {needs.measured}")
        if needs is not None and not args.write:
            session.note("add --set to use this pipeline in the repository")


def _set(session: Session, name: str, needs: Requirements | None) -> None:
    values = {"commit.pipeline": name}
    if needs is not None:
        values["store.max_recovery"] = f"{needs.max_recovery:g}"
    for key, value in values.items():
        set_value(session.fs, session.config_file, key, value)
        session.note(f"{key} = {value}")


def _list(session: Session) -> None:
    stages = [fields(kind, f"usage {_ABOUT}") for kind in STAGES.values()]
    if session.answered("mvc.pipeline/1", {"stages": stages, "presets": PRESETS}):
        return
    session.table("stage, effect", [(kind.usage, kind.about) for kind in STAGES.values()])
    session.line()
    session.table("preset, pipeline", list(PRESETS.items()))


def _explain(session: Session, pipeline: Pipeline, preset: str | None) -> None:
    coding = pipeline.coding()
    session.line(pipeline.text + (f"  ({preset})" if preset else ""))
    session.line()
    session.table(
        "stage, acts on, effect",
        [(s.text, s.acts_on, s.about) for s in read_stages(pipeline.text)],
    )
    session.line()
    if pipeline.operator == "none":
        facts = {"Stored as": f"{coding.text}, every version in full"}
    else:
        direction = "forward only" if pipeline.forward_only else "in both directions"
        facts = {"Deltas as": f"{coding.text}, {direction}", "In full as": coding.full().text}
    weights = "production weights differ from training weights" if pipeline.lossy else "lossless"
    if pipeline.forward_only:
        weights = "stored weights differ from the committed weights"
    facts["Weights"] = weights
    if pipeline.decisions:
        facts["Saves"] = f"by {', '.join(s.text for s in pipeline.decisions)}"
    session.lines(f"{name + ':':12}{value}" for name, value in facts.items())


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
