"""``mvc train-distributed``.

Starts a coordinator and K processes of SCRIPT, which takes part by
'with mvc.distributed.join(model) as worker'. Every global model is a commit that is deployed
to the target. A process that is killed is started again and goes on from the last one.
ARGUMENTS are the script's; options of its own follow '--'.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from mvc.api.repository import Repository
from mvc.cli.options import CommandOptions, argument, flag, option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.distributed.protocols.named import PROTOCOLS
from mvc.distributed.runner.launch import Launch, launch
from mvc.distributed.runner.settings import check_alone, checked
from mvc.errors import CannotDistribute
from mvc.names import printable
from mvc.text import count, size

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
_OF_THE_LAUNCH = {"script", "arguments", "workers", "resume", "restarts", "host", "port"}


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
    rho: float | None = option(
        "X", "The threshold in steps: the radius is rho * rate * sqrt(parameters)."
    )
    rate: float | None = option(
        "X", "The learning rate, for --rho; by default that of the optimizer given to join."
    )
    radius: float | None = option("X", "The threshold as a distance, the radius.")
    relative: float | None = option(
        "X", "The threshold as a share of the model's norm, anew each round."
    )
    period: int | None = option(
        "N", "Find the threshold in the workers' first N steps; by default 40 steps."
    )
    safe: str | None = option("NAME", "The safe function: norm (default), variance or cap.")
    every: int | None = option("H", "Steps between averages (local-sgd, diloco).")
    barrier: float | None = option("X", "fgm: a round ends at this share of its first sum; 0.01.")
    rebalance: float | None = option("X", "fgm-rebalancing: the share below which a round goes on.")
    outer_rate: float | None = option("X", "The coordinator's rate (diloco, fgm-nesterov).")
    outer_momentum: float | None = option("X", "The coordinator's momentum (diloco, fgm-nesterov).")
    up: str | None = option("CODEC", "The codec of drifts, which travel to the coordinator.")
    down: str | None = option("CODEC", "The codec of changes of the global model.")
    seed: int | None = option("N", "The seed of the protocol's own random choices.")
    repo: str | None = option("DIR", "The repository; by default that of this folder.")
    target: str | None = option("T", "The target of global models; by default global.")
    branch: str | None = option("NAME", "The branch of global models, made if missing.")
    push: str | None = option("REMOTE", "Push the branch of global models there.")
    worker_models: bool = flag("Also commit and deploy each worker's model, to worker-I.")
    resume: bool = flag("Go on from what is live on the target.")
    restarts: int = option(
        "N",
        "Restart killed processes, N times in all; by default 3.",
        type=click.IntRange(0),
        default=3,
    )
    timeout: float | None = option(
        "SECONDS",
        "The wait for a silent process or a lost worker; by default 120.",
        type=click.FloatRange(1),
    )
    host: str = option(
        "ADDRESS", "Where the coordinator listens; by default 127.0.0.1.", default="127.0.0.1"
    )
    port: int = option(
        "N",
        "The coordinator's port; by default a free one.",
        type=click.IntRange(0, 65535),
        default=0,
    )
    log: str | None = option("FILE", "Write the order of all events, for a replay.")


@verb("mvc train-distributed train.py --workers 4", _TrainDistributedOptions)
def command(session: Session, args: _TrainDistributedOptions) -> None:
    settings = {k: v for k, v in asdict(args).items() if k not in _OF_THE_LAUNCH}
    settings["worker_models"] = args.worker_models or None
    for name in ("repo", "log"):
        if settings[name] is not None:
            settings[name] = str(Path(settings[name]).absolute())
    given = checked(settings)
    check_alone(given)
    if "repo" in given:
        with Repository.open(given["repo"]) as repo:
            if "push" in given:
                repo.remotes.find(given["push"])
    job = {"host": args.host, "port": args.port, "resume": args.resume, "settings": given}
    what = Launch(args.script, args.arguments, args.workers, job, restarts=args.restarts)
    done = launch(what, partial(_tell, session))
    if session.as_json and not done["refused"]:
        session.out.json("mvc.train-distributed/1", done)
    elif not session.as_json and session.verbosity >= 0:
        session.out.line(_summary(done))
    if done["refused"]:
        worker, reason = min(done["refused"].items())
        raise CannotDistribute(f"trained to the end, but without worker {worker}: {reason}")


def _tell(session: Session, event: Mapping[str, Any]) -> None:
    kind = event["event"]
    said = {name: printable(str(value)) for name, value in event.items()}
    if kind == "round" and (session.verbose or event["round"] == 0):
        moved = size(event["bytes_up"] + event["bytes_down"])
        session.out.note(f"round {event['round']}: {event['commit'][:10]}, {moved} until now")
    elif kind == "waits":
        session.out.note(f"waits for {event['what']}, {event['seconds']:.0f} s until now")
    elif kind == "restarted":
        who = "the coordinator" if event["worker"] is None else f"worker {event['worker']}"
        session.out.warn(f"{who} was killed by {event['by']}; it starts again")
    elif kind in _NOTES:
        session.out.note(_NOTES[kind].format_map(said))
    elif kind in _WARNINGS:
        session.out.warn(_WARNINGS[kind].format_map(said))


def _summary(done: Mapping[str, Any]) -> str:
    sent = count(done["messages_up"] + done["messages_down"], "message")
    pushed = done["push"]["pushed"] if done["push"] else 0
    return (
        f"{count(done['rounds'], 'round')}, {count(done['subrounds'], 'sub-round')}; "
        f"{size(done['bytes_up'])} up, {size(done['bytes_down'])} down"
        + (f"; {sent} since the restart" if done["resumed"] else f" in {sent}")
        + (f"; {count(pushed, 'version')} pushed" if pushed else "")
    )
