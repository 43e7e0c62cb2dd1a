"""``mvc import``.

Each model file becomes a version of the same tracked path, oldest first. A checkpoint folder,
such as DIR/checkpoint-500, becomes one version. A subfolder with numbered checkpoints, such as
DIR/run1 with DIR/run1/checkpoint-500, becomes a branch. mvc skips versions that exist already, so
you can repeat the command. mvc skips and lists files in DIR that do not have the name of a model
file. With --data, mvc stores a file or folder as a data set (tag data/NAME).
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
        "The time of a version: mtime of the file, or parsed from its name by FORMAT (strptime).",
        "--time",
        default="mtime",
        show_default=True,
    )
    deploy: str | None = option("TARGET", "Record that each version went live at its time.")
    path: PathText | None = option(
        "PATH",
        "The tracked path of files (default: model.EXT); for checkpoint folders, a tracked folder.",
    )
    message: str | None = option("MSG", "The message of each version (default: import NAME).", "-m")
    skip_broken: bool = flag("Skip and list invalid checkpoints.")
    data: bool = flag(
        "Store a data set, not versions of a model.", allows="sources message name reference"
    )
    name: str | None = option(
        "NAME", "The name of the data set (default: its file name).", needs="data"
    )
    reference: bool = flag(
        "With --data: record the path and the hashes, but do not store the files.", needs="data"
    )


@verb("mvc import runs/2026-11 --time mtime --deploy prod", _ImportOptions)
def command(session: Session, args: _ImportOptions) -> None:
    if args.data:
        _import_data(session, args)
        return
    imported: list[Imported] = []
    left_out: list[Path] = []
    broken: list[Path] = []
    try:
        versions = session.run(
            "importing",
            import_checkpoints,
            session.repo,
            args.sources,
            on_imported=imported.append,
            left_out=left_out,
            broken=broken if args.skip_broken else None,
            time=args.clock,
            deploy=args.deploy,
            path=args.path,
            message=args.message,
        )
    except BaseException:
        if committed := sum(version.is_new for version in imported):
            session.note(
                f"{count(committed, 'version')} imported so far; repeat the command to continue"
            )
        raise
    if left_out:
        names = listed([printable(str(path)) for path in left_out], 5)
        session.note(f"skipped (not model files by name, or links to folders): {names}")
    if broken:
        names = listed([printable(str(path)) for path in broken], 5)
        session.warn(f"skipped (invalid model files): {names}")
    if session.answered(
        "mvc.import/1", {"versions": versions, "left_out": left_out, "broken": broken}
    ):
        return
    if session.verbose:
        session.table(  # '>': numbers, aligned right
            "time, source, commit, stored>", [_row(session, version) for version in versions]
        )
    if session.verbosity >= 0:
        session.line(_summary(versions))
        for branch, number in Counter(version.branch for version in versions).items():
            session.line(f"  {printable(branch or 'HEAD')}: {count(number, 'checkpoint')}")
    if branches := {version.branch for version in versions if version.is_new}:
        session.note(
            "the working folder is unchanged; 'mvc checkout HEAD .' writes the files of HEAD"
            if session.repo.head().branch in branches
            else "the working folder is unchanged; 'mvc switch BRANCH' writes the files of a branch"
        )


def _import_data(session: Session, args: _ImportOptions) -> None:
    if len(args.sources) > 1:
        raise click.UsageError("--data needs one file or folder")
    data = session.run(
        "storing",
        recipes.add_data,
        session.repo,
        args.sources[0],
        message=args.message or "",
        name=args.name,
        reference=args.reference,
    )
    if not session.answered("mvc.import.data/1", {"data_sets": [data]}):
        session.note(f"Data set {data.name} is at {data.version.short}")


def _summary(versions: Sequence[Imported]) -> str:
    """``31 versions imported (2026-11-01 to 2026-11-20), 8.1 MB stored for 110 MB (7.4 %)``."""
    imported = [version for version in versions if version.is_new]
    if not imported:
        return f"nothing imported: {count(len(versions), 'version')} existed already"
    first, last = (format_time(v.time_ns, precise=False)[:10] for v in (imported[0], imported[-1]))
    span = first if first == last else f"{first} to {last}"
    raw, stored = sum(v.raw_bytes for v in imported), sum(v.stored_bytes for v in imported)
    parts = [f"{count(len(imported), 'version')} imported ({span})", stored_for(stored, raw)]
    if len(imported) < len(versions):
        parts.append(f"{len(versions) - len(imported):,} existed already")
    return ", ".join(parts)


def _row(session: Session, version: Imported) -> tuple[str, ...]:
    return (
        session.moment(version.time_ns, cell=True),
        version.source.name,
        version.commit.short,
        size(version.stored_bytes) if version.is_new else "existed",
    )
