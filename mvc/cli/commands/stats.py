"""``mvc stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import count, percent, seconds, size
from mvc.repo.stats import stats

if TYPE_CHECKING:
    from mvc.repo.stats import Stats

_KINDS = {
    "full": "full records",
    "delta": "deltas",
    "metadata": "manifests, headers",
    "journal": "journal",
    "index": "index (can be rebuilt)",
}
_COLUMNS = (Column("stored"), Column("bytes", right=True), Column("share", right=True))


@click.command("stats", cls=Verb, example="mvc stats")
@json_option
@click.pass_obj
def command(session: Session, as_json: bool) -> None:
    """Show what the repository holds and costs.

    'Plain copies' is what all files of all versions would take; recovery times are
    estimates for this machine.
    """
    found = stats(session.context)
    if as_json:
        session.out.json("mvc.stats/1", _json(found))
    else:
        _print(session, found)


def _print(session: Session, found: Stats) -> None:
    out = session.out
    gone = f", {found.forgotten:,} forgotten" if found.forgotten else ""
    held = [
        ("Versions", f"{found.versions:,} ({count(found.reset_points, 'reset point')}{gone})"),
        ("Names", f"{count(found.branches, 'branch', 'branches')}, {count(found.tags, 'tag')}"),
        ("Deployments", f"{found.deployments:,} on {count(found.targets, 'target')}"),
        ("Tensors", f"{found.tensors:,} distinct"),
        ("Plain copies", size(found.raw_bytes)),
        ("Stored", size(found.stored_bytes) + _ratio(found)),
    ]
    if found.versions:
        chains = f"{found.chain_mean:.1f} on average, {found.chain_max} at most"
        held += [("Deltas to apply", chains), ("Recovery", _recovery(found))]
    for name, value in held:
        out.line(f"{name + ':':17}{value}")
    out.line()
    rows = [
        (_KINDS.get(kind, kind), size(nbytes), percent(nbytes, found.stored_bytes))
        for kind, nbytes in found.bytes.items()
        if nbytes or found.versions
    ]
    show(out, _COLUMNS, rows)


def _ratio(found: Stats) -> str:
    """A share says something only of a store smaller than the copies it stands for."""
    smaller = 0 < found.raw_bytes >= found.stored_bytes
    return f" ({percent(found.ratio, 1)})" if smaller else ""


def _recovery(found: Stats) -> str:
    mean, worst = seconds(found.recovery_mean), seconds(found.recovery_worst)
    where = f" ({found.recovery_worst_commit.short})" if found.recovery_worst_commit else ""
    return f"{mean} on average, {worst} at worst{where}"


def _json(found: Stats) -> dict[str, object]:
    worst = found.recovery_worst_commit
    return {
        "versions": found.versions,
        "forgotten": found.forgotten,
        "reset_points": found.reset_points,
        "tensors": found.tensors,
        "raw_bytes": found.raw_bytes,
        "stored_bytes": found.stored_bytes,
        "ratio": found.ratio,
        "bytes": dict(found.bytes),
        "chain_max": found.chain_max,
        "chain_mean": found.chain_mean,
        "recovery_worst": found.recovery_worst,
        "recovery_mean": found.recovery_mean,
        "recovery_worst_commit": None if worst is None else str(worst),
        "deployments": found.deployments,
        "targets": found.targets,
        "branches": found.branches,
        "tags": found.tags,
    }
