"""``mvc commit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mvc.cli import complete
from mvc.cli.commits import as_json as commit_json
from mvc.cli.commits import warn_of_clock
from mvc.cli.options import json_option, metrics, moment
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import count, one_line, stored_for
from mvc.model.names import printable
from mvc.repo.commit.request import CommitOptions
from mvc.repo.lookup import commits, manifests
from mvc.repo.times import format_time
from mvc.repo.worktree.identify import earlier

if TYPE_CHECKING:
    from mvc.cli.output import Output
    from mvc.ids import CommitId
    from mvc.repo.commit.result import CommitResult


@click.command(
    "commit",
    cls=Verb,
    example='mvc commit model.safetensors -m "nightly" --metric acc=0.98 --deploy prod',
)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("-a", "--all", "every", is_flag=True, help="Take every tracked file that changed.")
@click.option("-m", "--message", metavar="MSG", help="Say what this version is.")
@click.option(
    "-F", "--file", "message_file", type=click.File("r", encoding="utf-8"),
    metavar="FILE", help="Read the message from FILE; - is stdin.",
)  # fmt: skip
@click.option("--metric", "pairs", metavar="K=V", multiple=True, help="Keep a number with it.")
@click.option(
    "--deploy", metavar="TARGET", shell_complete=complete.targets,
    help="Record that it goes live on TARGET.",
)  # fmt: skip
@click.option("--at", metavar="TIME", help="When it went live, if not now.")
@click.option("--pipeline", metavar="SPEC|PRESET", help="How to store what changed.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
    help="With a lossy pipeline: where to write the production weights.",
)  # fmt: skip
@click.option("--in-place", is_flag=True, help="Write them in place of what was read.")
@click.option(
    "--exact",
    metavar="TENSOR",
    multiple=True,
    help="A tensor that a lossy pipeline must not change.",
)
@click.option("--reset-point", is_flag=True, help="Store it in full, without deltas.")
@click.option("--author", metavar="NAME", help="Who made it, if not user.name.")
@click.option("--date", metavar="TIME", help="When it was made, if not now.")
@click.option("--opaque", is_flag=True, help="Keep a model file that is cut off as it is.")
@click.option("--allow-empty", is_flag=True, help="Commit even if nothing differs from HEAD.")
@json_option
@click.pass_obj
def command(
    session: Session,
    paths: tuple[str, ...],
    every: bool,
    message: str | None,
    message_file: Any,
    pairs: tuple[str, ...],
    deploy: str | None,
    at: str | None,
    pipeline: str | None,
    output: Path | None,
    in_place: bool,
    exact: tuple[str, ...],
    reset_point: bool,
    author: str | None,
    date: str | None,
    opaque: bool,
    allow_empty: bool,
    as_json: bool,
) -> None:
    """Record model files as a new version.

    PATHs are recorded as they are now; a folder means the files in it. Other tracked
    files keep what they hold in HEAD. When the command ends, the version is on disk.

    A lossy pipeline makes production weights, against what HEAD holds: they are what is
    recorded and what is to be deployed, so say with -o or --in-place where they go.
    """
    if at is not None and deploy is None:
        raise click.UsageError("--at says when a deployment happened: add --deploy TARGET")
    if message is not None and message_file is not None:
        raise click.UsageError("give the message with -m or with -F, not both")
    if message_file is not None:
        message = message_file.read()
    with session.progress("committing") as progress:
        done = session.repository.commit(
            list(paths) if paths else None,
            options=CommitOptions(
                all=every,
                output=output,
                in_place=in_place,
                exact=exact,
                opaque=opaque,
                allow_empty=allow_empty,
                author=author,
                time=moment(session, date),
                progress=progress,
            ),
            message=message or "",
            metrics=metrics(pairs),
            deploy=deploy,
            at=moment(session, at),
            pipeline=pipeline,
            reset_point=reset_point,
        )
    session.out.warn_of_dead_links(done.dead_links)
    if done.deployment is not None:
        warn_of_clock(session.out, done.deployment)
    same_as = _same_as(session, done)
    if as_json:
        _print_json(session, done, same_as)
    elif session.verbosity >= 0:
        session.out.line(_summary(session.out, done))
        if output is not None:
            session.out.note(f"the production weights are in {printable(str(output))}")
        _print_paths(session, done)
        for path, version in same_as.items():
            title = one_line(commits.get(session.context, version).message)
            words = f"{version.short}, {title}" if title else version.short
            session.out.note(f"{printable(path)} is what it was in {words}")


def _same_as(session: Session, done: CommitResult) -> dict[str, CommitId]:
    """Changed paths whose state is no new one, with the newest other version that has it."""
    entries = manifests.of_commit(session.context, done.id).by_path
    found = {}
    for path in done.paths:
        if path.kind == "changed":
            version = earlier(session.context, entries[path.path], besides=done.id)
            if version is not None:
                found[path.path] = version
    return found


def _summary(out: Output, done: CommitResult) -> str:
    """``[main 1a2b3c4d5e] nightly: 12 of 14 tensors changed, 1.02 MB stored for 3.55 MB``."""
    where = printable(done.branch or "detached HEAD")
    text = f"[{out.paint(where, 'branch')} {out.paint(done.id.short, 'id')}] "
    title = one_line(done.commit.message)
    text += f"{title}: " if title else ""
    parts = [_changed(done)]
    parts.append(stored_for(done.stored_bytes, done.raw_bytes))
    if done.deployment is not None:
        moment_ = format_time(done.deployment.time_ns)
        target = out.paint(printable(done.deployment.target), "target")
        parts.append(f"deployed to {target} at {moment_}")
    return text + ", ".join(parts)


def _changed(done: CommitResult) -> str:
    changed = sum(p.tensors_changed for p in done.paths if p.kind != "removed")
    total = sum(p.tensors for p in done.paths if p.kind != "removed")
    files = sum(p.kind != "unchanged" for p in done.paths)
    if not total:
        return f"{count(files, 'file')} changed"
    words = f"{changed:,} of {count(total, 'tensor')} changed"
    return words if files < 2 else f"{words} in {count(files, 'file')}"


def _print_paths(session: Session, done: CommitResult) -> None:
    """Added and removed files as git names them; with -v every file."""
    styles = {"added": "added", "removed": "removed", "changed": "changed"}
    for path in done.paths:
        if session.verbose or path.kind in {"added", "removed"}:
            word = session.out.paint(f"{path.kind:9}", styles.get(path.kind))
            session.out.line(f" {word} {printable(path.path)}")


def _print_json(session: Session, done: CommitResult, same_as: dict[str, CommitId]) -> None:
    deployment = done.deployment
    payload = {
        "commit": commit_json(done.id, done.commit),
        "branch": done.branch,
        "paths": [
            {
                "path": p.path,
                "kind": p.kind,
                "tensors_changed": p.tensors_changed,
                "tensors": p.tensors,
                "same_as": str(same_as[p.path]) if p.path in same_as else None,
            }
            for p in done.paths
        ],
        "raw_bytes": done.raw_bytes,
        "stored_bytes": done.stored_bytes,
        "deployment": None
        if deployment is None
        else {
            "target": deployment.target,
            "time": format_time(deployment.time_ns, 0),
            "time_ns": deployment.time_ns,
        },
    }
    session.out.json("mvc.commit/1", payload)
