"""``mvc train-distributed``.

Starts a coordinator and K processes of SCRIPT, which takes part by
'with mvc.distributed.join(model) as worker'. Every global model is a commit that is deployed
to the target. A process that is killed is started again and goes on from the last one.
ARGUMENTS are the script's; options of its own follow '--'. The settings of --option are those of
mvc.distributed.join, and host, port, resume and restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from mvc.api import Repository
from mvc.cli.verb import CommandOptions, Session, argument, fields, option, verb
from mvc.distributed.protocols.named import PROTOCOLS
from mvc.distributed.runner.launch import Launch, launch
from mvc.distributed.runner.settings import check_alone, checked, from_texts
from mvc.errors import CannotDistribute
from mvc.text import count, printable, size

_NOTES = {
    "begins": "{workers} workers, {protocol}, {threshold}",
    "found": "found {threshold}",
    "resumed": "goes on from round {round}",
}
_WARNINGS = {
    "lost": "worker {worker} is lost: {reason}",
    "refused": "{reason}",
    "not pushed": "{reason}",
    "given up": "{what} was given up and still runs; it is ended",
    "immortal": "{what} cannot be ended: it waits for the system, as for a disk",
}


class _TrainDistributedOptions(CommandOptions, frozen=True, kw_only=True):
    script: str = argument("SCRIPT")
    arguments: tuple[str, ...] = argument("[ARGUMENTS]...", type=click.UNPROCESSED)
    workers: int = option(
        "K",
        "The number of training processes, at least 2.",
        type=click.IntRange(2, 1024),
        required=True,
    )
    protocol: str | None = option(
        "NAME",
        f"{', '.join(PROTOCOLS)}; by default fgm, and fgm-nesterov without a threshold.",
    )
    options: dict[str, str] = option(
        "K=V", "Another setting: rho=0.3, every=8, up=int8, push=origin, resume=true, ...",
        "-O", "--option",
    )  # fmt: skip
    repo: str | None = option("DIR", "The repository; by default that of this folder.")
    target: str | None = option("T", "The target of global models; by default global.")
    branch: str | None = option("NAME", "The branch of global models, made if missing.")


@verb("mvc train-distributed train.py --workers 4", _TrainDistributedOptions)
def command(session: Session, args: _TrainDistributedOptions) -> None:
    named = fields(args, "protocol repo target branch")
    settings = args.options | {name: value for name, value in named.items() if value is not None}
    job, given = from_texts(settings)
    for name in given.keys() & {"repo", "log"}:
        given[name] = str(Path(given[name]).absolute())
    given = checked(given)
    check_alone(given)
    if "repo" in given:
        with Repository.open(given["repo"]) as repo:
            if "push" in given:
                repo.remotes.find(given["push"])
    launched = {"restarts": job.pop("restarts")} if "restarts" in job else {}
    what = Launch(args.script, args.arguments, args.workers, job | {"settings": given}, **launched)
    done = launch(what, partial(_tell, session))
    if session.as_json and not done["refused"]:
        session.json("mvc.train-distributed/1", done)
    elif not session.as_json and session.verbosity >= 0:
        session.line(_summary(done))
    if done["refused"]:
        worker, reason = min(done["refused"].items())
        raise CannotDistribute(f"trained to the end, but without worker {worker}: {reason}")


def _tell(session: Session, event: Mapping[str, Any]) -> None:
    kind = event["event"]
    said = {name: printable(str(value)) for name, value in event.items()}
    if kind == "round" and (session.verbose or event["round"] == 0):
        moved = size(event["bytes_up"] + event["bytes_down"])
        session.note(f"round {event['round']}: {event['commit'][:10]}, {moved} until now")
    elif kind == "waits":
        session.note(f"waits for {event['what']}, {event['seconds']:.0f} s until now")
    elif kind == "restarted":
        who = "the coordinator" if event["worker"] is None else f"worker {event['worker']}"
        session.warn(f"{who} was killed by {event['by']}; it starts again")
    elif kind in _NOTES:
        session.note(_NOTES[kind].format_map(said))
    elif kind in _WARNINGS:
        session.warn(_WARNINGS[kind].format_map(said))


def _summary(done: Mapping[str, Any]) -> str:
    sent = count(done["messages_up"] + done["messages_down"], "message")
    pushed = done["push"]["pushed"] if done["push"] else 0
    return (
        f"{count(done['rounds'], 'round')}, {count(done['subrounds'], 'sub-round')}; "
        f"{size(done['bytes_up'])} up, {size(done['bytes_down'])} down"
        + (f"; {sent} since the restart" if done["resumed"] else f" in {sent}")
        + (f"; {count(pushed, 'version')} pushed" if pushed else "")
    )
