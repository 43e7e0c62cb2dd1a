"""How a commit is shown: as ``git log`` does, on one line, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output
from mvc.cli.text import number, one_line
from mvc.errors import DamagedData, NoDeployment
from mvc.model.names import printable
from mvc.repo import deployments
from mvc.repo.times import format_age, format_time

if TYPE_CHECKING:
    from mvc.ids import CommitId
    from mvc.model.commit import Commit
    from mvc.repo.context import Context
    from mvc.repo.deployments import Deployed
    from mvc.repo.history.log import LogEntry

__all__ = [
    "Live",
    "as_json",
    "deployed_json",
    "details",
    "forgotten_on",
    "heading",
    "one_liner",
    "warn_of_clock",
    "warn_of_time",
]

_1990 = 631_152_000 * 10**9


class Live:
    """Tells the deployments that are live now from the others; one look-up a target."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sequences: dict[str, int | None] = {}

    def __call__(self, deployed: Deployed) -> bool:
        target = deployed.target
        if target not in self._sequences:
            try:
                live = deployments.live_at(self._context, None, target)
            except (NoDeployment, DamagedData):  # none counts, or it is not known which does
                self._sequences[target] = None
            else:
                self._sequences[target] = live.sequence
        return deployed.sequence == self._sequences[target]


def _names(
    out: Output, entry: LogEntry, branch: str | None, live: Callable[[Deployed], bool]
) -> str:
    """``(HEAD -> main, tag: v1) [prod]``, with a leading space; empty for a bare commit."""
    words = []
    for name in entry.refs:
        if name == "HEAD":
            arrow = out.paint("HEAD", "head")
            at = branch is not None and branch in entry.refs
            words.append(f"{arrow} -> {out.paint(str(branch), 'branch')}" if at else arrow)
        elif name.startswith("tag: "):
            words.append(out.paint(printable(name), "tag"))
        elif name != branch or "HEAD" not in entry.refs:
            words.append(out.paint(printable(name), "branch"))
    text = f" ({', '.join(words)})" if words else ""
    targets = [d.target for d in entry.deployments if live(d)]
    if targets:
        text += " [" + ", ".join(out.paint(printable(t), "target") for t in targets) + "]"
    return text


def heading(
    out: Output,
    entry: LogEntry,
    branch: str | None,
    live: Callable[[Deployed], bool],
    *,
    full: bool = False,
) -> str:
    """``commit 1a2b3c4d5e (HEAD -> main) [prod]``: in square brackets where it is live now."""
    id_ = str(entry.id) if full else entry.id.short
    return out.paint(f"commit {id_}", "id") + _names(out, entry, branch, live)


def one_liner(
    out: Output,
    entry: LogEntry,
    branch: str | None,
    live: Callable[[Deployed], bool],
    *,
    full: bool = False,
) -> str:
    """``1a2b3c4d5e (HEAD -> main) [prod] message``."""
    message = one_line(entry.commit.message) or out.paint("(no message)", "dim")
    id_ = str(entry.id) if full else entry.id.short
    gone = ""
    if entry.forgotten_ns is not None:
        gone = out.paint(f" ({forgotten_on(entry.forgotten_ns)})", "dim")
    return f"{out.paint(id_, 'id')}{_names(out, entry, branch, live)} {message}{gone}"


def forgotten_on(time_ns: int) -> str:
    """``forgotten on 2026-11-21T10:00:00+01:00``."""
    return f"forgotten on {format_time(time_ns, precise=False)}"


def details(entry: LogEntry, now_ns: int, *, full: bool = False) -> list[str]:
    """The lines under a heading, message last."""
    commit = entry.commit
    when = format_time(commit.time_ns, commit.zone_minutes, precise=False)
    lines = []
    if len(commit.parents) > 1:
        lines.append("Parents:  " + " ".join(p.short for p in commit.parents))
    lines.append(f"Author:   {printable(commit.author)}")
    lines.append(f"Date:     {when} ({format_age(commit.time_ns, now_ns)})")
    lines.append(f"Pipeline: {printable(commit.pipeline)}")
    if full:
        lines.append(f"Root:     {commit.root}")
        lines.append(f"Manifest: {commit.manifest}")
    if commit.code:
        lines.append(f"Code:     {printable(commit.code if full else commit.code[:10])}")
    if commit.metrics:
        pairs = (f"{printable(k)}={number(v)}" for k, v in sorted(commit.metrics.items()))
        lines.append("Metrics:  " + "  ".join(pairs))
    if entry.reset_point:
        lines.append("Stored:   as a reset point")
    if entry.forgotten_ns is not None:
        lines.append(f"State:    {forgotten_on(entry.forgotten_ns)}")
    lines += [_deployed(d) for d in entry.deployments]
    if commit.message.strip():
        lines.append("")
        lines += [f"    {printable(line)}".rstrip() for line in commit.message.strip().splitlines()]
    return lines


def warn_of_clock(out: Output, deployed: Deployed) -> None:
    """Says that a deployment was recorded with a clock behind the one before it."""
    if not deployed.clock_back:
        return
    text = f"the clock is behind the newest record of {printable(deployed.target)}"
    if not deployed.dated:
        text += ": what is live now follows the order of recording, '--at TIME' the times on record"
    out.warn(text)


def warn_of_time(out: Output, deployed: Deployed, commit: Commit) -> None:
    """Says that a deployment is dated before there was such a version, or anything like it."""
    if not deployed.dated:
        return
    if deployed.time_ns < _1990:
        out.warn(f"the deployment is dated {format_time(deployed.time_ns)}, before 1990")
    elif deployed.time_ns < commit.time_ns:
        out.warn(
            f"the deployment is dated {format_time(deployed.time_ns)}, but {commit.id.short} was "
            f"made after that, at {format_time(commit.time_ns)}"
        )


def _deployed(deployed: Deployed) -> str:
    taken_back = " (retracted)" if deployed.retracted else ""
    return f"Deployed: {printable(deployed.target)} at {format_time(deployed.time_ns)}{taken_back}"


def deployed_json(deployed: Deployed) -> dict[str, Any]:
    """One deployment; times both in ISO 8601 (UTC) and in nanoseconds."""
    return {
        "target": deployed.target,
        "commit": str(deployed.commit),
        "time": format_time(deployed.time_ns, 0),
        "time_ns": deployed.time_ns,
        "recorded": format_time(deployed.recorded_ns, 0),
        "recorded_ns": deployed.recorded_ns,
        "sequence": deployed.sequence,
        "retracted": deployed.retracted,
        "retracted_ns": deployed.retracted_ns,
    }


def as_json(
    id_: CommitId,
    commit: Commit,
    refs: Sequence[str] = (),
    deployments: Sequence[Deployed] = (),
    forgotten_ns: int | None = None,
) -> dict[str, Any]:
    """One commit with the names and deployments it goes by."""
    return {
        "id": str(id_),
        "parents": [str(p) for p in commit.parents],
        "root": str(commit.root),
        "manifest": str(commit.manifest),
        "author": commit.author,
        "time": format_time(commit.time_ns, 0),
        "time_ns": commit.time_ns,
        "zone_minutes": commit.zone_minutes,
        "message": commit.message,
        "metrics": dict(commit.metrics),
        "pipeline": commit.pipeline,
        "code": commit.code,
        "refs": list(refs),
        "deployments": [deployed_json(d) for d in deployments],
        "forgotten": None if forgotten_ns is None else format_time(forgotten_ns, 0),
        "forgotten_ns": forgotten_ns,
    }
