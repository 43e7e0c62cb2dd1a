"""``mvc stats``.

'Plain copies' is the total size of all files of all versions. Recovery times are estimates.
--calibrate fits these estimates to this machine.
"""

from __future__ import annotations

from mvc.api import LogOptions, Stats
from mvc.cli.commits import note_absent
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
    versions: bool = flag(
        "List how versions are stored, their sizes, recovery times and prices.", allows=""
    )
    calibrate: bool = option(None, "First measure the decoding speed of this machine.")


@verb("mvc stats", _StatsOptions)
def command(session: Session, args: _StatsOptions) -> None:
    if args.versions:
        _print_versions(session)
        return
    stats = session.run("reading", session.repo.storage.stats, calibrate=args.calibrate)
    if not session.answered("mvc.stats/1", stats):
        _print(session, stats)


def _print_versions(session: Session) -> None:
    """Prints a table of versions. The price of a version is its recovery time in seconds, plus its
    stored gigabytes times the setting ``store.storage_weight``.
    """
    priced = [
        (entry, entry.storage)
        for entry in session.run(
            "reading", session.repo.log, "HEAD", LogOptions(every=True, prices=True)
        )
        if entry.storage is not None
    ]
    if session.as_json:
        versions = [
            {"version": entry.id, "bytes": sum(stored.bytes.values())}
            | fields(stored, "kind seconds price")
            for entry, stored in priced
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
        for entry, stored in priced
    ]
    session.table("version, stored, bytes>, recovery>, price>, message", rows)


def _print(session: Session, stats: Stats) -> None:
    steps, worst = stats.predicted, stats.recovery_worst_commit
    missing = {"forgotten": stats.forgotten, "absent": stats.absent}
    missing["by replay"] = stats.dropped
    not_stored = "".join(f", {number:,} {word}" for word, number in missing.items() if number)
    # The percentage is printed only if the repository is not larger than the plain copies.
    smaller = 0 < stats.raw_bytes >= stats.stored_bytes
    mean, most = seconds(stats.recovery_mean), seconds(stats.recovery_worst)
    where = f" ({worst.short})" if worst else ""
    stored_as = [f"{number:,} {kind}" for kind, number in stats.kinds.items() if number]
    facts = {
        "Versions": f"{stats.versions:,} ({count(stats.reset_points, 'reset point')}{not_stored})",
        "Names": f"{count(stats.branches, 'branch', 'branches')}, {count(stats.tags, 'tag')}",
        "Deployments": f"{stats.deployments:,} on {count(stats.targets, 'target')}",
        "Tensors": f"{stats.tensors:,} distinct",
        "Plain copies": size(stats.raw_bytes),
        "Stored": size(stats.stored_bytes) + f" ({percent(stats.ratio, 1)})" * smaller,
    }
    if stats.versions:
        facts |= {
            "Deltas to apply": f"{stats.deltas_mean:.1f} on average, {stats.deltas_worst} at worst",
            "Recovery": f"{mean} on average, {most} at worst{where}",
            "Stored as": ", ".join(stored_as),
        }
    if steps is not None:
        facts["Predicted"] = (
            f"{count(steps.contents, 'tensor')} by optimizers' steps, {size(steps.bytes)}"
        )
    if stats.price is not None:
        weight = session.repo.config.get("store.storage_weight")
        facts["Price"] = f"{seconds(stats.price)} (a gigabyte is worth {seconds(weight)})"
    session.lines(f"{name + ':':17}{value}" for name, value in facts.items())
    session.line()
    rows = [
        (_KINDS.get(kind, kind), size(nbytes), percent(nbytes, stats.stored_bytes))
        for kind, nbytes in stats.bytes.items()
        if nbytes or stats.versions
    ]
    session.table("stored, bytes>, share>", rows)
    note_absent(session, stats.absent)
