"""``mvc train-distributed``.

Starts K processes of SCRIPT with torch's launcher. In SCRIPT, 'with mvc.distributed.join(model) as
worker' joins the training. mvc commits every global model (the common model of all processes) and
deploys it to the target. ARGUMENTS are passed to SCRIPT. Options of SCRIPT must follow '--'.
--option sets an argument of mvc.distributed.join.
"""

from __future__ import annotations

import logging
from pathlib import Path

import click

from mvc.api import Repository
from mvc.cli.verb import CommandOptions, PathText, Session, argument, option, verb
from mvc.distributed.protocols.named import PROTOCOLS
from mvc.distributed.settings import checked, protocol_of
from mvc.text import count, size


class _TrainDistributedOptions(CommandOptions, frozen=True, kw_only=True):
    script: str = argument("SCRIPT")
    arguments: tuple[str, ...] = argument("[ARGUMENTS]...", type=click.UNPROCESSED)
    workers: int = option(
        "K",
        "The number of processes, at least 2.",
        type=click.IntRange(2, 1024),
        required=True,
    )
    protocol: str | None = option(
        "NAME",
        f"{', '.join(PROTOCOLS)}; by default fgm if a threshold is set, otherwise fgm-nesterov.",
    )
    options: dict[str, str] = option(
        "K=V", "A setting: rho=0.3, every=8, up=int8, push=origin, resume=true, ...",
        "-O", "--option",
    )  # fmt: skip
    repo: PathText | None = option("DIR", "The repository, by default that of this folder.")
    target: str | None = option("T", "The target of global models, by default global.")
    branch: str | None = option(
        "NAME", "The branch of global models. If it is missing, mvc creates it."
    )


@verb("mvc train-distributed train.py --workers 4", _TrainDistributedOptions)
def command(session: Session, args: _TrainDistributedOptions) -> None:
    named = {
        "protocol": args.protocol, "repo": args.repo, "target": args.target, "branch": args.branch,
    }  # fmt: skip
    settings = args.options | {name: value for name, value in named.items() if value is not None}
    launch_settings = checked(settings, strict=False)
    if "protocol" in launch_settings:  # the script may set the rest
        protocol_of({"rate": 1.0, **launch_settings})
    if "repo" in launch_settings:
        launch_settings["repo"] = str(Path(launch_settings["repo"]).absolute())
        with Repository.open(launch_settings["repo"]) as repo:
            if "push" in launch_settings:
                repo.remotes.find(launch_settings["push"])
    from mvc.distributed.runner.launch import launch  # imports torch

    done = launch(
        args.script,
        args.arguments,
        args.workers,
        launch_settings,
        level=logging.INFO - 10 * session.verbosity,
    )
    if session.as_json:
        session.json("mvc.train-distributed/1", done)
    elif session.verbosity >= 0:
        sent = count(done["messages_up"] + done["messages_down"], "message")
        pushed = done["push"]["pushed"] if done["push"] else 0
        session.line(
            f"{count(done['rounds'], 'round')}, {count(done['subrounds'], 'sub-round')}; "
            f"{size(done['bytes_up'])} up, {size(done['bytes_down'])} down; {sent}"
            + (" since the restart" if done["resumed"] else "")
            + (f"; {count(pushed, 'version')} pushed" if pushed else "")
        )
