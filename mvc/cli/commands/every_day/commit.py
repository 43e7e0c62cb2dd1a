"""``mvc commit``.

Records the files PATHs. A PATH that is a folder selects all its files. If a tracked file below a
PATH is missing on disk, the new version lacks the file. Other tracked files are as in HEAD. When
the command ends, the version is durable.

A lossy pipeline computes and records production weights. -o or --in-place writes them to disk. With
--provenance, mvc records a recipe. SCRIPT has a function NAME (default: train) that trained PATH
from HEAD, and functions model() and optimizer(parameters). A replay (a second run) with the same
bits proves the recipe.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import click

from mvc.api import CommitOptions, CommitResult, FileEntry, FileOptions, version_with
from mvc.cli.commits import summary, warn_of_deployment
from mvc.cli.listing import why_opaque
from mvc.cli.script import Script
from mvc.cli.transfers import note_unsent
from mvc.cli.verb import (
    CommandOptions,
    PathText,
    Session,
    argument,
    fields,
    flag,
    option,
    sign,
    verb,
)
from mvc.errors import MvcError, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.text import count, listed, printable

_MOST_REASONS, _MOST_NAMES = 5, 3
_ORBAX = {"_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"}
_OF_ORBAX = "Orbax compresses arrays", "export them with safetensors.flax.save_file"
_STYLES = {"added": "added", "removed": "removed", "unchanged": None}


class _CommitOptions(CommandOptions, frozen=True, kw_only=True):
    paths: tuple[PathText, ...] = argument("[PATH]...", completes="FILE")
    every: bool = flag("Commit every tracked file that changed.", "-a", "--all")
    message: str | None = option("MSG", "The message; - reads it from stdin.", "-m")
    metrics: dict[str, float] = option("K=V", "Record a number (repeatable).", "--metric")
    params: dict[str, str] = option("K=V", "Record a text (repeatable).", "--param")
    run: str = option("NAME", "The name of the training run.", default="")
    deploy: str | None = option("TARGET", "Record that the version goes live on TARGET.")
    at: str | None = option("TIME", "The time of the deployment, if not now.", needs="deploy")
    push: bool = flag(
        "Send the deployment at once. If the remote refuses it, only commit.", needs="deploy"
    )
    anyway: bool = flag("Deploy even if a file of the model is missing.", needs="deploy")
    sign: bool | None = sign()
    pipeline: str | None = option("SPEC|PRESET", "The encoding of changed tensors.")
    output: PathText | None = option(
        "FILE", "With a lossy pipeline: write the production weights to FILE.", "-o"
    )
    in_place: bool = flag(
        "With a lossy pipeline: overwrite the committed file with the production weights."
    )
    exact: tuple[str, ...] = option("TENSOR", "A tensor that a lossy pipeline must not change.")
    reset_point: bool = flag("Store the version in full, without deltas.")
    author: str | None = option("NAME", "The author, if not user.name.")
    date: str | None = option("TIME", "The time of the version, if not now.")
    opaque: bool = flag("Store a truncated model file as bytes.")
    allow_empty: bool = flag("Commit even if nothing differs from HEAD.")
    provenance: str | None = option(
        "SCRIPT[:NAME]",
        "Record how PATH was trained, and prove the recipe by a replay.",
        allows="paths message metrics params deploy data no_verify",
    )
    data: tuple[PathText, ...] = option(
        "[NAME=]PATH",
        "With --provenance: a file or folder that the training reads (repeatable).",
        completes="FILE",
        needs="provenance",
    )
    no_verify: bool = flag("With --provenance: do not run the training again.", needs="provenance")


@verb(
    'mvc commit model.safetensors -m "nightly" --metric acc=0.98 --deploy prod',
    _CommitOptions,
)
def command(session: Session, args: _CommitOptions) -> None:
    message = sys.stdin.read().removeprefix("\ufeff") if args.message == "-" else args.message
    recorded = {
        "message": message or "",
        "metrics": args.metrics,
        "params": args.params,
        "deploy": args.deploy,
    }
    if args.provenance is not None:
        _record(session, args, args.provenance, recorded)
        return
    done = _commit(session, args, recorded)
    _show(session, args, done, {"weights": "stored"})
    if not (session.as_json or args.pipeline or args.output or args.in_place):
        _note_setting(session, done)
    if args.output is not None:
        session.note(f"the production weights are in {args.output}")


def _show(session: Session, args: _CommitOptions, done: CommitResult, more: dict[str, Any]) -> None:
    """Prints the result. JSON has the fields ``more``, too."""
    if done.deployment is not None:
        warn_of_deployment(session, done.deployment)
    same_as = _same_as(session, done)
    if session.answered("mvc.commit/1", fields(done) | {"same_as": same_as} | more):
        return
    if not session.quiet:
        _print(session, done, same_as)
    if done.deployment is not None:
        note_unsent(session, done.deployment.target)
        if args.push:
            session.note("only the deployed version was sent; 'mvc push' sends the branch")


def _verdict(done: CommitResult, args: _CommitOptions, *, dropped: bool) -> str:
    """The result of the replay (second run of the training), and whether weights stay stored."""
    version = done.id.short
    if dropped:
        return f"dropped the weights of {version}: the replay reproduced them; the file stays"
    if args.no_verify:
        prove = f"'mvc retrain {version} --trust-code'"
        return f"stored the weights of {version}: the recipe is not proven; {prove} proves it"
    later = f"'mvc forget --weights {version}'"
    return f"stored the weights of {version}: the replay reproduced them; {later} drops them"


def _commit(session: Session, args: _CommitOptions, recorded: dict[str, Any]) -> CommitResult:
    with session.progress("committing") as progress:
        files = FileOptions(
            all=args.every, opaque=args.opaque, output=args.output, in_place=args.in_place
        )
        options = CommitOptions(
            time=args.date,
            at=args.at,
            push=args.push,
            anyway=args.anyway,
            sign=args.sign,
            run=args.run,
            exact=args.exact,
            reset_point=args.reset_point,
            author=args.author,
            allow_empty=args.allow_empty,
            progress=progress,
        )
        paths = list(args.paths) or None
        return session.repo.commit(
            paths, files=files, options=options, pipeline=args.pipeline, **recorded
        )


def _print(session: Session, done: CommitResult, same_as: Mapping[str, CommitId]) -> None:
    session.lines(session.folded(summary(session, done)))
    for path in done.paths:  # like git: only added, removed and renamed files; with -v every file
        if session.verbose or path.kind in {"added", "removed", "renamed"}:
            word = session.paint(f"{path.kind:9}", _STYLES.get(path.kind, "changed"))
            was = f" (was {printable(path.renamed_from)})" if path.renamed_from else ""
            session.line(f" {word} {printable(path.path)}{was}")
    new = {p.path for p in done.paths if p.kind == "added" or p.tensors_changed > p.tensors}
    files = [file for path, file in done.entries.items() if path in new]
    _name_opaque(session, done.id, [file for file in files if file.format == "opaque"])
    for name, version in same_as.items():
        session.note(f"{name} equals {session.named(version)}")


def _name_opaque(session: Session, version: CommitId, files: Sequence[FileEntry]) -> None:
    """Prints files and folders that are stored as bytes, one line for each reason."""
    reasons = defaultdict[tuple[str, str], list[str]](list)
    paths = [PurePosixPath(file.path) for file in files]
    folders = {path.parent for path in paths if path.name in _ORBAX}
    for folder in sorted(folder for folder in folders if folders.isdisjoint(folder.parents)):
        reasons[_OF_ORBAX].append(f"{folder}/")
    for file in files:
        if reason := why_opaque(session, version, file):
            reasons[reason].append(file.path)
    for (why, how), names in islice(reasons.items(), _MOST_REASONS):
        session.note(
            f"stored as bytes (tensors not compared): {listed(names, _MOST_NAMES)} ({why}; {how})"
        )
    if (more := len(reasons) - _MOST_REASONS) > 0:
        session.note(f"stored as bytes for {count(more, 'more reason')}: 'mvc ls' lists them")


# -- with a recipe ---------------------------------------------------------------------------


def _data(texts: Iterable[str]) -> str | dict[str, str] | None:
    """The data sets of ``--data``: a mapping from names to paths, or one path without a name."""
    pairs = [text.partition("=") for text in texts]
    named = {name: path for name, equals, path in pairs if equals}
    if len(named) == len(pairs):
        return named or None
    if len(pairs) > 1:
        raise click.UsageError("several data sets need names: --data NAME=PATH")
    return pairs[0][0]


def _record(session: Session, args: _CommitOptions, target: str, recorded: dict[str, Any]) -> None:
    """Commits a file with the recipe in the script ``target``, and proves the recipe."""
    from mvc.recipes.making import constructed
    from mvc.recipes.verbs import record
    from mvc.training.resume import load

    if len(args.paths) != 1:
        raise click.UsageError("name one PATH: the file that the training wrote")
    (path,) = args.paths
    (name,) = session.names([path])
    script = Script(target, session.fs, "train", recorded=True)
    with session.progress("training", counted=True) as progress:
        with script.running():
            try:
                base = session.repo.manifest("HEAD").by_path
            except UnknownRevision as error:
                raise UnknownRevision(
                    "there is no version yet from which the training could start",
                    hint="first commit the initial weights",
                ) from error
            service, make = script.required(script.name), script.required("model")
            if not callable(make):
                raise WrongUsage(
                    f"model in {script.place} is not a function", hint="define: def model():"
                )
            model, optimizer = constructed(make), script.get("optimizer")
            load(session.repo, model, "HEAD", path=name if name in base else None)
            run = record(
                session.repo,
                model,
                None if optimizer is None else optimizer(list(model.parameters())),
                service=service,
                data=_data(args.data),
                path=name,
                verify=not args.no_verify,
                progress=progress,
                **recorded,
            )
        try:
            with script.running(), run:
                run.trained(path)
        except MvcError:
            if run.result is not None and not session.as_json:
                _show(session, args, run.result, {})
            raise
    assert run.result is not None
    _show(session, args, run.result, {"weights": "given up" if run.weights_dropped else "stored"})
    if not session.as_json:
        session.note(_verdict(run.result, args, dropped=run.weights_dropped))


def _note_setting(session: Session, done: CommitResult) -> None:
    """Prints a note if ``commit.pipeline`` is lossy: whether the version is stored exactly."""
    from mvc.pipelines import Pipeline

    text = str(session.repo.config.get("commit.pipeline"))
    pipeline = Pipeline.parse(text)
    if not any(entry.tensors for entry in done.entries.values()):
        return
    if pipeline.forward_only:
        session.note(f"stored approximately: commit.pipeline is {text}")
    elif pipeline.lossy or pipeline.decisions:
        session.note(
            f"stored exactly: commit.pipeline is {text}; add -o FILE or --in-place to compute "
            "production weights"
        )


def _same_as(session: Session, done: CommitResult) -> dict[str, CommitId]:
    """Maps changed paths to the newest other version in which the file has the same state.

    Paths without such a version are left out.
    """
    changed = [path.path for path in done.paths if path.kind == "changed"]
    entries = session.repo.manifest(done.id).by_path if changed else {}
    versions = {p: version_with(session.repo, entries[p], besides=done.id) for p in changed}
    return {path: version for path, version in versions.items() if version is not None}
