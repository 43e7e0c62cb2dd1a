"""``mvc checkout``.

With REV and no PATHs, mvc writes all files of the version, deletes tracked files that the version
lacks, and moves HEAD to the version. With PATHs, mvc writes only these files, and HEAD does not
move. With -o, mvc writes to another place, and HEAD does not move. --at and --target select the
version by its deployment. mvc verifies every file before it replaces the first file. If a checkout
is interrupted, the next mvc command completes it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import BinaryIO

import click

import mvc.recipes as recipes
from mvc.api import Restored
from mvc.cli.restored import note_training, print_restored, switch_to, warn_of_unreached
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
        "REMOTE|URL", "Read from a remote, or from the repository at URL. Needs -o.", needs="output"
    )
    output: PathText | None = option(
        "FILE|DIR", "Write to FILE or DIR, and do not move HEAD. FILE - is stdout.", "-o"
    )
    everything: bool = flag("With -o: write training states, too.", "--all", needs="output")
    atomic_dir: bool = flag("With -o DIR: replace the whole folder in one step.", needs="output")
    delete: bool = flag("With -o DIR: delete files that the version lacks.", needs="output")
    delta_from: str | None = option(
        "BASE", "With -o DIR: write a delta from BASE for inference engines.", needs="output"
    )
    whole: bool = flag("Write the weights and the code of the model into the DIR of -o.", "--model")
    new_branch: str | None = option(
        "NAME", "Create branch NAME at REV (default: HEAD) and switch to it.", "-b",
        allows="words force",
    )  # fmt: skip
    force: bool = FORCE_WORK


@verb('mvc checkout --at "2026-11-20 10:00" --target prod -o live.safetensors', _CheckoutOptions)
def command(session: Session, args: _CheckoutOptions) -> None:
    if args.new_branch is not None:
        if len(args.words) > 1:
            raise click.UsageError("-b checks out a version, not PATHs")
        switch_to(session, args.new_branch, create=True, start=next(iter(args.words), None),
                  force=args.force)  # fmt: skip
        return
    with session.visiting(args.remote, nodes=is_report(args.target or "")):
        _checkout(session, args)


def _checkout(session: Session, args: _CheckoutOptions) -> None:
    before = session.repo.head(if_known=True).branch
    rev, paths = session.moment_or_rev(args.words, args.at, args.target)
    if rev is None:
        raise click.UsageError("name a REV, or a time with --at TIME")
    names = session.names(paths) if args.remote is None else list(paths)
    if args.whole:
        excluded = (args.everything, args.atomic_dir, args.delete, args.delta_from, names)
        if any(excluded) or args.output == "-":
            raise click.UsageError(
                "--model writes a whole version; its only options are -o DIR and -f"
            )
        _write_model(session, rev, args.output, force=args.force)
        return
    done = _restore(session, rev, names, args)
    if done.moved_head:
        note_training(session, before, done.branch)
    if not session.as_json:
        print_restored(session, done)
        if done.moved_head:
            on = f" (branch {printable(done.branch)})" if done.branch else " (detached)"
            title = session.title(done.commit)
            session.note(f"HEAD is now at {done.commit.short}{on} {title}".rstrip())
    warn_of_unreached(session, done)
    session.answered("mvc.checkout/1", done)


def _restore(session: Session, rev: str, names: Sequence[str], args: _CheckoutOptions) -> Restored:
    """Writes files.

    If REV is no revision but a tracked path, the hint of the error names the right command.
    """
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
    """Writes the code and the weights of a model into a folder."""
    from mvc.models.export import export_model  # imports numpy, which is slow

    commit = session.repo.find(rev)
    folder = output or f"model-{commit.short}"
    done = session.run("restoring", export_model, session.repo, commit, folder=folder, force=force)
    call = recipes.model(session.repo, commit).call
    if session.answered("mvc.checkout/1", fields(done) | {"model": call, "folder": folder}):
        return
    print_restored(session, done)
    name = printable(folder)
    session.note(
        f"{name}/load.py loads the model with the code in {name}/code: read both before you run it"
    )


def _stdout(session: Session) -> BinaryIO:
    """The stream of ``-o -``. Raises UsageError if stdout is a terminal, or with ``--json``."""
    if session.as_json:
        raise click.UsageError("-o - and --json both write to stdout")
    if sys.stdout.isatty():
        raise click.UsageError("stdout is a terminal: redirect it to a file or a program")
    return sys.stdout.buffer
