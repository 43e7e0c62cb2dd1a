"""``mvc checkout``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, BinaryIO

import click
from msgspec.structs import replace

from mvc.cli.completing import complete_checkout, complete_files
from mvc.cli.options import target_option
from mvc.cli.program import verb
from mvc.cli.restored import restored_json, tell, tell_of_training, warn_of_unreached
from mvc.cli.retraining import Retraining, retrain_options, with_weights
from mvc.cli.session import Session
from mvc.errors import MvcError, UnknownRevision
from mvc.model.names import printable
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.checkout.checkout import Restored


@verb("checkout", 'mvc checkout --at "2026-11-20 10:00" --target prod -o live.safetensors')
@click.argument("words", metavar="[REV] [PATH]...", nargs=-1, shell_complete=complete_checkout)
@click.option("--at", metavar="TIME", help="The version that was live at TIME, instead of REV.")
@target_option("Where it was live; without --at, what is live there now.")
@click.option(
    "-o", "--output", metavar="FILE|DIR", shell_complete=complete_files,
    help="Write there, leave HEAD and files alone; - is stdout.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="With -o: training states, too.")
@click.option("--atomic-dir", is_flag=True, help="With -o DIR: swap the whole folder in one step.")
@click.option("--delete", is_flag=True, help="With -o DIR: delete files that the version lacks.")
@click.option(
    "--model", "whole", is_flag=True, help="Write the model's code beside its weights, into -o DIR."
)
@retrain_options("With --retrain, run the stored code; with --model, to see that it works.")
@click.option("-f", "--force", is_flag=True, help="Overwrite files that hold uncommitted work.")
def command(
    session: Session,
    words: tuple[str, ...],
    at: str | None,
    target: str | None,
    output: str | None,
    everything: bool,
    atomic_dir: bool,
    delete: bool,
    whole: bool,
    retrain: Retraining,
    force: bool,
) -> None:
    """Restore a version, by name or by the moment it was live.

    All files of the version are written and HEAD moves to it. With PATHs only those are
    written, with -o they are written elsewhere, and HEAD stays where it is. Every file is
    verified before the first one is replaced.
    """
    for name, chosen in (("all", everything), ("atomic-dir", atomic_dir), ("delete", delete)):
        if chosen and output in {None, "-"}:
            raise click.UsageError(f"--{name} is for -o DIR")
    builds = whole and retrain.trust_code
    if retrain.trust_code and not (whole or retrain.asked):
        raise click.UsageError("--trust-code is for --model and --retrain")
    retrain.check(trust_code=whole)
    repository, out = session.repository, session.out
    by_moment = at is not None or target is not None
    if not words and not by_moment:
        raise click.UsageError("name a REV, or a moment with --at TIME")
    rev, paths = (None, words) if by_moment else (words[0], words[1:])
    names = session.names(paths)
    if by_moment:
        live = repository.live(at, target)
        since = format_time(live.time_ns)
        out.note(f"{live.commit.short} was live on {printable(live.target)} from {since}")
        rev = str(live.commit)
    if whole:
        if names or everything or atomic_dir or delete or output == "-":
            raise click.UsageError("--model writes a whole version into -o DIR, and nothing else")
        with_weights(
            session,
            [rev],
            lambda: _write_model(session, str(rev), output, force=force, trust=builds),
            replace(retrain, trust_code=builds and retrain.asked),
        )
        return
    before = repository.head(if_known=True).branch

    def write() -> Restored:
        with session.progress("restoring") as progress:
            return repository.checkout(
                rev,
                path=names,
                to=_stdout(session) if output == "-" else output or repository.root,
                everything=everything,
                atomic_dir=atomic_dir,
                delete=delete,
                force=force,
                progress=progress,
            )

    try:
        done = with_weights(session, [rev], write, retrain)
    except UnknownRevision as error:
        raise UnknownRevision(error.message, hint=_path_hint(session, rev) or error.hint) from error
    if done.moved_head:
        tell_of_training(session, before, done.branch)
    if session.as_json:
        warn_of_unreached(session, done)
        out.json("mvc.checkout/1", restored_json(done))
        return
    tell(session, done)
    if done.moved_head:
        on = f" (branch {printable(done.branch)})" if done.branch else " (detached)"
        out.note(f"HEAD is now at {done.commit.short}{on} {session.title(done.commit)}".rstrip())
    warn_of_unreached(session, done)


def _write_model(
    session: Session, rev: str, output: str | None, *, force: bool, trust: bool
) -> None:
    """Writes code and weights into a folder; with ``trust`` builds the model of them, too."""
    repository, out = session.repository, session.out
    commit = repository.find(rev)
    folder = output or f"model-{commit.short}"
    with session.progress("restoring") as progress:
        done = repository.checkout(commit, to=folder, model=True, force=force, progress=progress)
    built = repository.load_model(commit, trust=True) if trust else None
    if session.as_json:
        call = repository.recipes.model(commit).call
        built_json = {"model": call, "folder": folder, "built": built is not None}
        out.json("mvc.checkout/1", restored_json(done) | built_json)
        return
    tell(session, done)
    name = printable(folder)
    out.note(f"{name}/code holds what builds the model, {name}/load.py loads it: read them first")
    if built is not None:
        parameters = sum(parameter.numel() for parameter in built.parameters())
        out.note(f"the code builds a {type(built).__name__} of {parameters:,} parameters")


def _stdout(session: Session) -> BinaryIO:
    """Where ``-o -`` writes a file. Raises UsageError where it would do no good."""
    if session.as_json:
        raise click.UsageError("-o - and --json both write to stdout")
    if sys.stdout.isatty():
        raise click.UsageError("stdout is a terminal: send it to a file or a program")
    return sys.stdout.buffer


def _path_hint(session: Session, word: str | None) -> str | None:
    """How to write it, if the word is a tracked path given without a revision."""
    at = session.repository.head(if_known=True).commit
    if word is None or at is None:
        return None
    try:
        (name,) = session.names([word])
    except MvcError:
        return None
    tracked = session.repository.manifest(at).by_path
    if name != "." and not any(f"{path}/".startswith(f"{name}/") for path in tracked):
        return None
    return f"to restore a path: mvc checkout HEAD -- {word}"
