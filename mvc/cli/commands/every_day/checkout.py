"""``mvc checkout``.

All files of the version are written and HEAD moves to it. With PATHs only those are
written, with -o they are written elsewhere, and HEAD stays where it is. Every file is
verified before the first one is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import BinaryIO

import click

import mvc.recipes as recipes
from mvc.api import Restored
from mvc.cli.restored import tell, tell_of_training, warn_of_unreached
from mvc.cli.verb import (
    AT,
    FORCE_WORK,
    TARGET,
    CommandOptions,
    PathText,
    Session,
    argument,
    fields,
    flag,
    option,
    verb,
)
from mvc.errors import UnknownRevision
from mvc.names import is_report, printable


class _CheckoutOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[PathText, ...] = argument("[REV] [PATH]...")
    at: str | None = AT
    target: str | None = TARGET
    remote: PathText | None = option(
        "REMOTE|URL", "Of this remote, or the repository at URL; needs -o.", needs="output"
    )
    output: PathText | None = option(
        "FILE|DIR", "Write there, leave HEAD and files alone; - is stdout.", "-o"
    )
    everything: bool = flag("With -o: training states, too.", "--all", needs="output")
    atomic_dir: bool = flag("With -o DIR: swap the whole folder in one step.", needs="output")
    delete: bool = flag("With -o DIR: delete files that the version lacks.", needs="output")
    delta_from: str | None = option(
        "BASE", "With -o DIR: what changed since BASE, as engines exchange it.", needs="output"
    )
    whole: bool = flag("Write the model's code beside its weights, into -o DIR.", "--model")
    force: bool = FORCE_WORK


@verb('mvc checkout --at "2026-11-20 10:00" --target prod -o live.safetensors', _CheckoutOptions)
def command(session: Session, args: _CheckoutOptions) -> None:
    with session.visiting(args.remote, nodes=is_report(args.target or "")):
        _checkout(session, args)


def _checkout(session: Session, args: _CheckoutOptions) -> None:
    before = session.repo.head(if_known=True).branch
    rev, paths = session.moment_or_rev(args.words, args.at, args.target)
    if rev is None:
        raise click.UsageError("name a REV, or a moment with --at TIME")
    names = session.names(paths) if args.remote is None else list(paths)
    if args.whole:
        others = (args.everything, args.atomic_dir, args.delete, args.delta_from, names)
        if any(others) or args.output == "-":
            raise click.UsageError("--model writes a whole version into -o DIR, and nothing else")
        _write_model(session, rev, args.output, force=args.force)
        return
    done = _restore(session, rev, names, args)
    if done.moved_head:
        tell_of_training(session, before, done.branch)
    if not session.as_json:
        tell(session, done)
        if done.moved_head:
            on = f" (branch {printable(done.branch)})" if done.branch else " (detached)"
            title = session.title(done.commit)
            session.note(f"HEAD is now at {done.commit.short}{on} {title}".rstrip())
    warn_of_unreached(session, done)
    session.answered("mvc.checkout/1", done)


def _restore(session: Session, rev: str, names: Sequence[str], args: _CheckoutOptions) -> Restored:
    """Writes files; for a path in the place of a revision the error says how to write it."""
    to = _stdout(session) if args.output == "-" else args.output or session.repo.root
    try:
        done: Restored = session.run(
            "restoring",
            session.repo.checkout,
            rev,
            path=names,
            to=to,
            everything=args.everything,
            atomic_dir=args.atomic_dir,
            delete=args.delete,
            delta_from=args.delta_from,
            force=args.force,
        )
        return done
    except UnknownRevision as error:
        to_path = f"to restore a path: mvc checkout HEAD -- {rev}"
        hint = to_path if session.tracks(rev) else error.hint
        raise UnknownRevision(error.message, hint=hint) from error


def _write_model(session: Session, rev: str, output: str | None, *, force: bool) -> None:
    """Writes code and weights into a folder, and says so."""
    from mvc.models.export import export_model  # it imports numpy

    commit = session.repo.find(rev)
    folder = output or f"model-{commit.short}"
    done = session.run("restoring", export_model, session.repo, commit, folder=folder, force=force)
    call = recipes.model(session.repo, commit).call
    if session.answered("mvc.checkout/1", fields(done) | {"model": call, "folder": folder}):
        return
    tell(session, done)
    name = printable(folder)
    session.note(
        f"{name}/code holds what builds the model, {name}/load.py loads it: read them first"
    )


def _stdout(session: Session) -> BinaryIO:
    """Where ``-o -`` writes a file. Raises UsageError where it would do no good."""
    if session.as_json:
        raise click.UsageError("-o - and --json both write to stdout")
    if sys.stdout.isatty():
        raise click.UsageError("stdout is a terminal: send it to a file or a program")
    return sys.stdout.buffer
