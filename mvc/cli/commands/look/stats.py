"""``mvc stats``.

'Plain copies' is what all files of all versions would take. Recovery times are estimates for the
machine that the settings count with, after 'mvc stats --calibrate' for this one.
"""

from __future__ import annotations

from mvc.api import LogOptions, Stats
from mvc.cli.commits import tell_absent
from mvc.cli.verb import CommandOptions, Session, fields, flag, option, verb
from mvc.text import count, one_line, percent, seconds, size

_KINDS = {
    "full": "full records",
    "delta": "deltas",
    "metadata": "manifests, headers",
    "journal": "journal",
    "index": "index (can be rebuilt)",
}


class _StatsOptions(CommandOptions, frozen=True, kw_only=True):
    versions: bool = flag("List how each version is stored, and its price.", takes="")
    calibrate: bool = option(None, "Measure first how fast this machine decodes.")


@verb("mvc stats", _StatsOptions)
def command(session: Session, args: _StatsOptions) -> None:
    if args.versions:
        _print_versions(session)
        return
    found = session.repo.storage.stats(calibrate=args.calibrate)
    if not session.answered("mvc.stats/1", found):
        _print(session, found)


def _print_versions(session: Session) -> None:
    """``price``: seconds, with what the bytes cost, if ``store.storage_weight`` says so."""
    entries = session.repo.log("HEAD", LogOptions(every=True, prices=True))
    found = [(entry, entry.storage) for entry in entries if entry.storage is not None]
    if session.as_json:
        versions = [
            {"version": entry.id, "bytes": sum(stored.bytes.values())}
            | fields(stored, "kind seconds price")
            for entry, stored in found
        ]
        session.json("mvc.stats.versions/1", {"versions": versions})
        return
    rows = [
        (
            session.id_text(entry.id),
            stored.kind,
            size(sum(stored.bytes.values())),
            seconds(stored.seconds),
            "" if stored.price is None else seconds(stored.price),
            one_line(entry.commit.message),
        )
        for entry, stored in found
    ]
    session.table("version, stored, bytes>, recovery>, price>, message", rows)


def _print(session: Session, found: Stats) -> None:
    steps, worst = found.predicted, found.recovery_worst_commit
    missing = {"forgotten": found.forgotten, "not here": found.absent}
    missing["by retraining"] = found.dropped
    gone = "".join(f", {number:,} {what}" for what, number in missing.items() if number)
    # A share says something only of a store smaller than the copies it replaces.
    smaller = 0 < found.raw_bytes >= found.stored_bytes
    mean, most = seconds(found.recovery_mean), seconds(found.recovery_worst)
    where = f" ({worst.short})" if worst else ""
    stored_as = [f"{number:,} {kind}" for kind, number in found.kinds.items() if number]
    facts = {
        "Versions": f"{found.versions:,} ({count(found.reset_points, 'reset point')}{gone})",
        "Names": f"{count(found.branches, 'branch', 'branches')}, {count(found.tags, 'tag')}",
        "Deployments": f"{found.deployments:,} on {count(found.targets, 'target')}",
        "Tensors": f"{found.tensors:,} distinct",
        "Plain copies": size(found.raw_bytes),
        "Stored": size(found.stored_bytes) + f" ({percent(found.ratio, 1)})" * smaller,
    }
    if found.versions:
        facts |= {
            "Deltas to apply": f"{found.deltas_mean:.1f} on average, {found.deltas_worst} at worst",
            "Recovery": f"{mean} on average, {most} at worst{where}",
            "Stored as": ", ".join(stored_as),
        }
    if steps is not None:
        tensors = f"{count(steps.contents, 'tensor')} by optimizers' steps"
        facts["Predicted"] = f"{tensors}, {size(steps.bytes)}"
    if found.price is not None:
        weight = session.repo.config.get("store.storage_weight")
        facts["Price"] = f"{seconds(found.price)} (a gigabyte is worth {seconds(weight)})"
    session.lines(f"{name + ':':17}{value}" for name, value in facts.items())
    session.line()
    rows = [
        (_KINDS.get(kind, kind), size(nbytes), percent(nbytes, found.stored_bytes))
        for kind, nbytes in found.bytes.items()
        if nbytes or found.versions
    ]
    session.table("stored, bytes>, share>", rows)
    tell_absent(session, found.absent)
