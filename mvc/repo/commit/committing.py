"""Commits of states and of files, which a lossy pipeline may reduce first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mvc.errors import WrongUsage
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.checkout.outputs import refuse_slash
from mvc.repo.commit import commit
from mvc.repo.commit.inputs import of_files, of_state
from mvc.repo.commit.reduced_file import approximating
from mvc.repo.commit.request import Change, CommitRequest, FileOptions
from mvc.repo.commit.result import CommitResult
from mvc.repo.context import Context
from mvc.repo.lookup.refs import tip
from mvc.repo.whole import refuse_incomplete

if TYPE_CHECKING:
    from mvc.repo.commit.lossy_commit import LossyCommit


def commit_states(
    context: Context,
    given: Mapping[str, Mapping[str, Any] | None],
    path: str,
    request: CommitRequest,
) -> CommitResult:
    """A version of the states ``given`` by path; a lossy pipeline reduces the one at ``path``."""
    changes = [of_state(each, name, cached=True) for name, each in given.items()]
    live: Any = given.get(path)
    setting = None if live is None else approximating(context)
    lossy = _lossy(context, request, request.pipeline or setting)
    if lossy is None:
        return replace(_publish(context, request, changes), state=live)
    if live is None:
        raise WrongUsage(
            f"a lossy pipeline reduces the state at {path}, which is not given",
            hint="name its path with path=, or commit with pipeline='lossless'",
        )
    reduced = lossy.changes([c for c in changes if c.path == path], given_back=True)
    changes = [*reduced, *(c for c in changes if c.path != path)]
    done = _publish(context, request.made_by(lossy.text), changes)
    return replace(done, state=lossy.state(done.entries[path]))


def commit_files(
    context: Context,
    paths: object,
    given: Mapping[str, Mapping[str, Any] | None],
    *,
    request: CommitRequest,
    read: FileOptions,
    whole: bool,
) -> CommitResult:
    """A version of the files at ``paths`` and the states ``given``; a lossy pipeline reduces files.

    ``whole``: a model that lacks a file is refused.
    """
    options = request.options
    changes = of_files(context, paths, read, options)
    if whole:
        at = tip(context, options.branch, new=options.new_branch)
        files = {c.path: None if c.open is None else context.root / c.path for c in changes}
        refuse_incomplete(context, at.commit, files)
    further = [of_state(each, name, cached=True) for name, each in given.items()]
    if read.output is not None:
        refuse_slash(read.output)
    output = None if read.output is None else Path(read.output)
    written = output is not None or read.in_place
    setting = str(context.config.get("commit.pipeline")) if written else approximating(context)
    lossy = _lossy(context, request, request.pipeline or setting)
    if lossy is None:
        if written:
            raise WrongUsage("output and in_place are for lossy pipelines")
        return _publish(context, request, [*changes, *further])
    # Training goes on from its own weights: an approximation is only written on request.
    written = written or not lossy.pipeline.forward_only
    if written:
        lossy.check_places(changes, output, in_place=read.in_place)
    changes = [*lossy.changes(changes, given_back=False), *further]
    done = _publish(context, request.made_by(lossy.text), changes)
    if written:
        lossy.write(done, output)
    return done


def _publish(context: Context, request: CommitRequest, changes: Sequence[Change]) -> CommitResult:
    return commit.commit(context, replace(request, changes=changes), request.options.progress)


def _lossy(context: Context, request: CommitRequest, text: str | None) -> LossyCommit | None:
    """The making of production weights by the pipeline ``text``; None if it only codes."""
    options = request.options
    parsed = Pipeline.parse(text or "lossless")
    makes = parsed.decisions or parsed.lossy or parsed.forward_only
    if options.produced_by is None and makes:
        from mvc.repo.commit.lossy_commit import LossyCommit

        return LossyCommit.of(context, str(text), request)
    if options.exact:
        raise WrongUsage("exact is for lossy pipelines")
    return None
