"""What a repository answers, as plain JSON: compared with what was written down with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.model.commit import Commit
from mvc.names import ATTACHED
from mvc.repo.content.contents import write_file
from mvc.repo.lookup import availability
from mvc.repo.statements.annotations import Annotations
from mvc.store.journal.entries import Entry
from mvc.testing import fresh_process

__all__ = ["describe"]


def describe(root: Path) -> dict[str, Any]:
    """Refs, log, commits with the SHA-256 of every file, deployments, fsck; or the refusal."""
    fresh_process()
    try:
        with Repository.open(root, discover=False) as repo:
            entries = [recorded.entry for recorded in repo.handle.store.snapshot.entries()]
    except MvcError as error:
        return {"refused": [error.kind, error.exit_code]}
    with Repository.open(root, discover=False) as repo:
        names = {change.name for entry in entries for change in entry.refs}
        commits = [commit for entry in entries for commit in entry.commits]
        return {
            "operations": [entry.operation for entry in entries],
            "refs": {name: _plain(repo.handle.store.snapshot.ref(name)) for name in sorted(names)},
            "log": _log(repo),
            "commits": {str(c.id): _commit(repo, c) for c in commits},
            "deployments": [
                [d.target, d.time_ns, d.sequence, str(d.commit), d.retracted]
                for d in repo.deployments()
            ],
            "live": _live(repo),
            "fsck": _problems(repo, full=False),
            "fsck --full": _problems(repo, full=True),
            **_told(repo, entries, commits),
        }


def _told(repo: Repository, entries: list[Entry], commits: list[Commit]) -> dict[str, Any]:
    """Who and why, annotations, and runs."""
    annotations = Annotations(repo.handle.store.fresh())
    found = {str(c.id): [list(asdict(a).values()) for a in annotations.of(c.id)] for c in commits}
    return {
        "who": [[o.number, o.author, o.reason, o.undone_by] for o in repo.operations()],
        "returns": [
            [d.sequence, d.author, d.reason, d.returns_to, d.retracted_by, d.retracted_reason]
            for d in repo.deployments()
        ],
        "annotations": {id_: each for id_, each in found.items() if each},
        "code": {str(c.id): [c.run, c.code, c.dirty] for c in commits},
        "statements": [[s.name, str(s.id)] for entry in entries for s in entry.statements],
        "states": [[str(s.commit), s.path, s.change] for entry in entries for s in entry.states],
        **_told_elsewhere(repo, entries),
    }


def _told_elsewhere(repo: Repository, entries: list[Entry]) -> dict[str, Any]:
    """What has a name in every repository, and what came from others."""
    return {
        "stamps": [[str(d.id), d.hybrid_ns, d.recorded_ns] for d in repo.deployments()],
        "retracted": [d.retracted_ns for d in repo.deployments()],
        "receipts": [[r.time_ns, r.author, r.reason] for r in repo.storage.receipts()],
        "remotes": [[ref.name, str(ref.commit)] for ref in repo.refs("remote")],
    }


def _plain(value: Any) -> str | None:
    return None if value is None else str(value)


def _log(repo: Repository) -> list[str]:
    return [str(entry.commit.id) for entry in repo.log("main")]


def _commit(repo: Repository, commit: Any) -> dict[str, Any]:
    return {
        "manifest": commit.manifest.hex(),
        "root": commit.root.hex(),
        "parents": [str(parent) for parent in commit.parents],
        "author": commit.author,
        "time": [commit.time_ns, commit.zone_minutes],
        "message": commit.message,
        "metrics": dict(commit.metrics),
        "pipeline": commit.pipeline,
        "files": _files(repo, commit.id),
        **({"params": dict(commit.params)} if commit.params else {}),
        **(_recipe(repo, commit) if commit.attached else {}),
    }


def _recipe(repo: Repository, commit: Any) -> dict[str, Any]:
    """What a version carries and needs, and whether its weights were given up."""
    context, carried = repo.handle, {}
    for entry in repo.manifest(commit.id).attached:
        name = entry.path.removeprefix(ATTACHED)
        if name.startswith("service/"):
            state = sorted(repo.attachment(commit.id, name).items())
            carried[name] = hashlib.sha256(repr(state).encode()).hexdigest()
        else:
            carried[name] = hashlib.sha256(repo.attachment(commit.id, name)).hexdigest()
    gone = availability.dropped(context.store, commit.id)
    return {
        "carried": carried,
        "needs": [str(needed) for needed in commit.needs],
        "dropped": None if gone is None else [gone.path, gone.seconds, gone.where],
    }


def _files(repo: Repository, id_: Any) -> dict[str, str] | str:
    """By path, or "lost" for what damage does not give back."""
    fresh_process()
    try:
        entries = repo.manifest(id_).entries
    except MvcError as error:
        return f"lost: {error.kind}"
    found = {}
    for entry in entries:
        out = bytearray(entry.size)

        def write_at(at: int, data: Any, out: bytearray = out) -> None:
            out[at : at + len(data)] = data

        try:  # as checkout writes it, but into memory
            write_file(repo.handle.store.recovery, entry, write_at)
        except MvcError as error:
            found[entry.path] = f"lost: {error.kind}"
        else:
            found[entry.path] = hashlib.sha256(out).hexdigest()
    return found


def _live(repo: Repository) -> dict[str, list[list[Any]]]:
    """By target: what was live at the moment of each deployment, and just before it."""
    live: dict[str, list[list[Any]]] = {}
    for deployed in repo.deployments():
        for at in (deployed.time_ns - 1, deployed.time_ns):
            try:
                found = str(repo.find(at=at, target=deployed.target))
            except MvcError as error:
                found = error.kind
            live.setdefault(deployed.target, []).append([at, found])
    return live


def _problems(repo: Repository, *, full: bool) -> list[dict[str, Any]]:
    problems = [
        {
            "kind": p.kind,
            "object": p.object,
            "versions": sorted(map(str, p.versions)),
            "tensors": sorted(p.tensors),
        }
        for p in repo.storage.fsck(full=full).problems
    ]
    return sorted(problems, key=lambda p: (p["kind"], p["object"]))
