"""``mvc import``.

Every file becomes a version of one tracked path, oldest first; a folder inside DIR,
such as checkpoint-500, becomes one version with all its files. A folder of numbered
checkpoints inside DIR is a run, and becomes a branch of its name. What is there already
is skipped, so that the command can be run again. Files that are no models by their
names are left out and listed; a file that is named itself is always imported. With
--data a file or a folder is stored as a data set: once, and kept as the tag data/NAME.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

import mvc.recipes as recipes
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb
from mvc.importing.checkpoints import Imported, import_checkpoints
from mvc.text import count, format_time, listed, printable, size, stored_for


class _ImportOptions(CommandOptions, frozen=True, kw_only=True):
    sources: tuple[PathText, ...] = argument("DIR|FILE...", required=True)
    clock: str = option(
        "mtime|name:FORMAT",
        "When each was made: the file's time, or what FORMAT (strftime) reads in its name.",
        "--time",
        default="mtime",
        show_default=True,
    )
    deploy: str | None = option("TARGET", "Record that each went live on TARGET at its time.")
    path: PathText | None = option("PATH", "The tracked path (or folder), if not model.EXT.")
    message: str | None = option("MSG", "Message of each, if not the name of its file.", "-m")
    skip_broken: bool = flag("Skip and list checkpoints that are no sound models.")
    data: bool = flag(
        "Store a data set instead; -m says what changed.", takes="sources message name reference"
    )
    name: str | None = option("NAME", "The data set, if not named as its file.", needs="data")
    reference: bool = flag("With --data: keep place and hashes, not the files.", needs="data")


@verb("mvc import runs/2026-11 --time mtime --deploy prod", _ImportOptions)
def command(session: Session, args: _ImportOptions) -> None:
    if args.data:
        _import_data(session, args)
        return
    done: list[Imported] = []
    left_out: list[Path] = []
    broken: list[Path] = []
    try:
        found = session.run(
            "importing",
            import_checkpoints,
            session.repo,
            args.sources,
            taken=done.append,
            left_out=left_out,
            broken=broken if args.skip_broken else None,
            time=args.clock,
            deploy=args.deploy,
            path=args.path,
            message=args.message,
        )
    except BaseException:
        if kept := sum(version.kept for version in done):
            session.note(
                f"{count(kept, 'version')} imported so far, and kept; the same command again goes "
                "on from there"
            )
        raise
    if left_out:
        names = listed([printable(str(path)) for path in left_out], 5)
        session.note(f"skipped (no model files by name, or links to folders): {names}")
    if broken:
        names = listed([printable(str(path)) for path in broken], 5)
        session.warn(f"skipped (no sound models): {names}")
    payload = {"versions": found, "left_out": left_out, "broken": broken}
    if session.answered("mvc.import/1", payload):
        return
    if session.verbose:
        session.table("time, source, commit, stored>", [_row(version) for version in found])
    if session.verbosity >= 0:
        session.line(_summary(found))
        for branch, number in Counter(version.branch for version in found).items():
            name = "HEAD" if branch is None else printable(branch)
            session.line(f"  {name}: {count(number, 'checkpoint')}")
    if any(version.kept for version in found):
        session.note(
            "the working folder is as it was; 'mvc checkout HEAD .' writes the newest of its branch"
        )


def _import_data(session: Session, args: _ImportOptions) -> None:
    if len(args.sources) > 1:
        raise click.UsageError("--data stores one file or folder")
    found = session.run(
        "storing",
        recipes.add_data,
        session.repo,
        args.sources[0],
        message=args.message or "",
        name=args.name,
        reference=args.reference,
    )
    if not session.answered("mvc.import.data/1", {"data_sets": [found]}):
        session.note(f"Data set {found.name} is at {found.version.short}")


def _summary(found: Sequence[Imported]) -> str:
    """``31 versions imported (2026-11-01 to 2026-11-20), 8.1 MB stored for 110 MB (7.4 %)``."""
    kept = [version for version in found if version.kept]
    if not kept:
        return f"nothing imported, {count(len(found), 'version')} there already"
    first, last = (format_time(v.time_ns, precise=False)[:10] for v in (kept[0], kept[-1]))
    span = first if first == last else f"{first} to {last}"
    raw, stored = sum(v.raw_bytes for v in kept), sum(v.stored_bytes for v in kept)
    parts = [f"{count(len(kept), 'version')} imported ({span})", stored_for(stored, raw)]
    if len(kept) < len(found):
        parts.append(f"{len(found) - len(kept):,} there already")
    return ", ".join(parts)


def _row(version: Imported) -> tuple[str, ...]:
    return (
        format_time(version.time_ns, precise=False),
        version.source.name,
        version.commit.short,
        size(version.stored_bytes) if version.kept else "there already",
    )
