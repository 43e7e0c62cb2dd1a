"""``mvc train-distributed``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from mvc.api.repository import Repository
from mvc.cli.completing import complete_files, complete_targets
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import count, size
from mvc.distributed.runner.launch import Launch, launch
from mvc.distributed.runner.settings import PROTOCOLS, check_alone, checked
from mvc.errors import CannotDistribute
from mvc.model.names import printable

_Decorator = Callable[[Any], Any]


def _number(name: str, help_: str) -> _Decorator:
    return click.option(name, type=float, metavar="X", help=help_)


@verb("train-distributed", "mvc train-distributed train.py --workers 4 --rho 12 --rate 0.01")
@click.argument("script", metavar="SCRIPT", shell_complete=complete_files)
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--workers", type=click.IntRange(2, 1024), required=True, metavar="K",
    help="The number of training processes, at least 2.",
)  # fmt: skip
@click.option("--protocol", metavar="NAME", help=f"{', '.join(PROTOCOLS)}; by default fgm.")
@_number("--rho", "The threshold in steps: the radius is rho * rate * sqrt(parameters).")
@_number("--rate", "The learning rate, for --rho.")
@_number("--radius", "The threshold as a distance, the radius.")
@_number("--relative", "The threshold as a share of the model's norm, anew each round.")
@click.option("--safe", metavar="NAME", help="The safe function: norm (default), variance or cap.")
@click.option("--every", type=int, metavar="H", help="Steps between averages (local-sgd, diloco).")
@_number("--barrier", "fgm: a round ends at this share of its first sum; 0.01.")
@_number("--rebalance", "fgm-rebalancing: the share below which a round goes on.")
@_number("--outer-rate", "The coordinator's rate (diloco, fgm-nesterov).")
@_number("--outer-momentum", "The coordinator's momentum (diloco, fgm-nesterov).")
@click.option("--up", metavar="CODEC", help="The codec of drifts, which travel to the coordinator.")
@click.option("--down", metavar="CODEC", help="The codec of changes of the global model.")
@click.option(
    "--seed", type=int, metavar="N", help="The seed of the protocol's own random choices."
)
@click.option("--repo", metavar="PATH", help="The repository; by default that of this folder.")
@click.option(
    "--target", metavar="T", shell_complete=complete_targets,
    help="The target of global models; by default global.",
)  # fmt: skip
@click.option("--branch", metavar="NAME", help="The branch of global models, made if missing.")
@click.option(
    "--worker-models", is_flag=True, help="Also commit and deploy each worker's model, to worker-I."
)
@click.option("--resume", is_flag=True, help="Go on from what is live on the target.")
@click.option(
    "--restarts", type=click.IntRange(0), default=3, metavar="N",
    help="Restart killed processes, N times in all; by default 3.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(1), metavar="SECONDS",
    help="The wait for a silent process or a lost worker; by default 120.",
)  # fmt: skip
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Where the coordinator listens; by default 127.0.0.1.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N",
    help="The coordinator's port; by default a free one.",
)  # fmt: skip
@click.option("--log", metavar="FILE", help="Write the order of all events, for a replay.")
def command(
    session: Session,
    script: str,
    arguments: tuple[str, ...],
    workers: int,
    resume: bool,
    restarts: int,
    host: str,
    port: int,
    **settings: Any,
) -> None:
    """Train one model in several processes that talk seldom.

    Starts a coordinator and K processes of SCRIPT, which takes part by
    'with mvc.distributed.join(model) as worker'. Every global model is a commit that is deployed
    to the target. A process that is killed is started again and goes on from the last one.
    ARGUMENTS are the script's; options of its own follow '--'.
    """
    settings["worker_models"] = settings["worker_models"] or None
    for name in ("repo", "log"):
        if settings[name] is not None:
            settings[name] = str(Path(settings[name]).absolute())
    given = checked(settings)
    check_alone(given)
    if "repo" in given:
        Repository.open(given["repo"]).close()
    job = {"host": host, "port": port, "resume": resume, "settings": given}
    done = launch(Launch(script, arguments, workers, job, restarts), _Teller(session))
    if session.as_json and not done["refused"]:
        session.out.json("mvc.train-distributed/1", done)
    elif not session.as_json and session.verbosity >= 0:
        session.out.line(_summary(done))
    if done["refused"]:
        worker, reason = min(done["refused"].items())
        raise CannotDistribute(f"trained to the end, but without worker {worker}: {reason}")


class _Teller:
    """Says on stderr what happens."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, event: Mapping[str, Any]) -> None:
        out, kind = self._session.out, event["event"]
        if kind == "begins":
            out.note(f"{event['workers']} workers, {event['protocol']}, {event['threshold']}")
        elif kind == "resumed":
            out.note(f"goes on from round {event['round']}")
        elif kind == "round":
            if self._session.verbose or event["round"] == 0:
                moved = size(event["bytes_up"] + event["bytes_down"])
                out.note(f"round {event['round']}: {event['commit'][:10]}, {moved} until now")
        elif kind == "lost":
            out.warn(f"worker {event['worker']} is lost: {printable(str(event['reason']))}")
        elif kind == "refused":
            out.warn(printable(str(event["reason"])))
        elif kind == "waits":
            out.note(f"waits for {event['what']}, {event['seconds']:.0f} s until now")
        elif kind == "given up":
            out.warn(f"{event['what']} was given up and still runs; it is ended")
        elif kind == "immortal":
            out.warn(f"{event['what']} cannot be ended: it waits for the system, as for a disk")
        elif kind == "restarted":
            who = "the coordinator" if event["worker"] is None else f"worker {event['worker']}"
            out.warn(f"{who} was killed by {event['by']}; it starts again")


def _summary(done: Mapping[str, Any]) -> str:
    sent = count(done["messages_up"] + done["messages_down"], "message")
    return (
        f"{count(done['rounds'], 'round')}, {count(done['subrounds'], 'sub-round')}; "
        f"{size(done['bytes_up'])} up, {size(done['bytes_down'])} down"
        + (f"; {sent} since the restart" if done["resumed"] else f" in {sent}")
    )
