"""Commits of states and of files, which a lossy pipeline may reduce first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mvc.adapters.opening import open_file
from mvc.adapters.state_file import StateFile
from mvc.errors import WrongUsage
from mvc.lossy.reducer import Reducer
from mvc.model.manifest import FileEntry
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.checkout.outputs import refuse_slash
from mvc.repo.commit import commit
from mvc.repo.commit.inputs import of_files
from mvc.repo.commit.reduced_file import approximating
from mvc.repo.commit.request import Change, CommitRequest, FileContent, FileOptions
from mvc.repo.commit.result import CommitResult
from mvc.repo.config import Config
from mvc.repo.handle import Recent
from mvc.repo.lookup.refs import tip
from mvc.repo.whole import refuse_incomplete
from mvc.store.store import Store


def commit_states(
    store: Store,
    config: Config,
    recent: Recent,
    given: Mapping[str, FileContent | None],
    path: str,
    *,
    request: CommitRequest,
    read: FileOptions,
    whole: bool,
) -> CommitResult:
    """A version of the files ``given`` by path; a lossy pipeline reduces the state at ``path``.

    ``whole``: a model among files from elsewhere that lacks a file is refused.
    """
    changes = [_change(store, name, each, read) for name, each in given.items()]
    elsewhere = {name: each for name, each in given.items() if isinstance(each, Path | None)}
    if whole and any(elsewhere.values()):
        refuse_incomplete(store, commit.tip_of(store, request).commit, elsewhere)
    live: Any = given.get(path) if isinstance(given.get(path), Mapping) else None
    text = request.pipeline or (None if live is None else approximating(config))
    as_it_is = all(isinstance(each, StateFile | FileEntry | None) for each in given.values())
    reducer = None if as_it_is else _reducer(request, text)
    if reducer is None:
        return replace(
            _publish(store, config, recent, request=request, changes=changes), state=live
        )
    if live is None:
        raise WrongUsage(
            f"a lossy pipeline reduces the state at {path}, which is not given",
            hint="name its path with path=, or commit with pipeline='lossless'",
        )
    changes = [replace(c, reducer=reducer) if c.path == path else c for c in changes]
    return _publish(store, config, recent, request=request.made_by(str(text)), changes=changes)


def commit_files(
    store: Store,
    config: Config,
    recent: Recent,
    paths: object,
    given: Mapping[str, FileContent | None],
    *,
    request: CommitRequest,
    read: FileOptions,
    whole: bool,
) -> CommitResult:
    """A version of the files at ``paths`` and the states ``given``; a lossy pipeline reduces files.

    ``whole``: a model that lacks a file is refused.
    """
    fs, options = store.fs, request.options
    changes = of_files(store, paths, read, options)
    if whole:
        at = tip(store, options.branch, new=options.new_branch)
        files = {c.path: None if c.open is None else store.root / c.path for c in changes}
        refuse_incomplete(store, at.commit, files)
    further = [_change(store, name, each, read) for name, each in given.items()]
    if read.output is not None:
        refuse_slash(read.output)
    output = None if read.output is None else Path(read.output)
    written = output is not None or read.in_place
    setting = str(config.get("commit.pipeline")) if written else approximating(config)
    text = request.pipeline or setting
    reducer = _reducer(request, text)
    if reducer is None:
        if written:
            raise WrongUsage("output and in_place are for lossy pipelines")
        return _publish(store, config, recent, request=request, changes=[*changes, *further])
    from mvc.repo.commit.production_files import check_places, write_production  # rarely needed

    changes = [replace(c, reducer=reducer) if c.open is not None else c for c in changes]
    before = {c.path: fs.stat(store.root / c.path) for c in changes if c.open is not None}
    # Training goes on from its own weights: an approximation is only written on request.
    written = written or not reducer.pipeline.forward_only
    if written:
        check_places(fs, len(before), output, in_place=read.in_place)
    done = _publish(
        store, config, recent, request=request.made_by(str(text)), changes=[*changes, *further]
    )
    if written:
        write_production(store, done, before, output)
    return done


def _change(store: Store, name: str, given: FileContent | None, read: FileOptions) -> Change:
    if isinstance(given, Path):
        strict = not read.opaque
        return Change(name, partial(open_file, store.fs, given, name, strict=strict))
    return Change.of(name, given)


def _publish(
    store: Store, config: Config, recent: Recent, request: CommitRequest, changes: Sequence[Change]
) -> CommitResult:
    return commit.commit(
        store,
        config,
        recent,
        request=replace(request, changes=changes),
        progress=request.options.progress,
    )


def _reducer(request: CommitRequest, text: str | None) -> Reducer | None:
    """What reduces weights as the pipeline ``text`` says; None if that only codes.

    Raises WrongUsage if the pipeline has a save decision: a commit always saves.
    """
    options, pipeline = request.options, Pipeline.parse(text or "lossless")
    makes = pipeline.decisions or pipeline.lossy or pipeline.forward_only
    if options.produced_by is not None or not makes:
        if options.exact:
            raise WrongUsage("exact is for lossy pipelines")
        return None
    if pipeline.decisions:
        decided = {each.text for each in pipeline.decisions}
        words = [word.strip() for word in pipeline.text.split("|")]
        rest = " | ".join(word for word in words if word not in decided)
        origin = "" if request.pipeline else f"commit.pipeline is {text}: "
        raise WrongUsage(
            f"{origin}stage {pipeline.decisions[0].text} decides whether a version is saved, and a "
            "commit always saves",
            hint=f"use mvc.Recorder, which decides, or leave out stage and bound: {rest}",
        )
    return Reducer(pipeline, frozenset(options.exact))
