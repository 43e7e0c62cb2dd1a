"""``mvc train-distributed``.

Starts K processes of SCRIPT by torch's launcher. SCRIPT takes part by
'with mvc.distributed.join(model) as worker'. Every global model is a commit that is deployed
to the target. ARGUMENTS are the script's; options of its own follow '--'. The settings of --option
are those of mvc.distributed.join.
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
    repo: PathText | None = option("DIR", "The repository; by default that of this folder.")
    target: str | None = option("T", "The target of global models; by default global.")
    branch: str | None = option("NAME", "The branch of global models, made if missing.")


@verb("mvc train-distributed train.py --workers 4", _TrainDistributedOptions)
def command(session: Session, args: _TrainDistributedOptions) -> None:
    named = {
        "protocol": args.protocol, "repo": args.repo, "target": args.target, "branch": args.branch,
    }  # fmt: skip
    settings = args.options | {name: value for name, value in named.items() if value is not None}
    given = checked(settings, strict=False)
    if "protocol" in given:  # the rest may be up to the script
        protocol_of({"rate": 1.0, **given})
    if "repo" in given:
        given["repo"] = str(Path(given["repo"]).absolute())
        with Repository.open(given["repo"]) as repo:
            if "push" in given:
                repo.remotes.find(given["push"])
    from mvc.distributed.runner.launch import launch  # imports torch

    level = logging.INFO - 10 * session.verbosity
    done = launch(args.script, args.arguments, args.workers, given, level=level)
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
