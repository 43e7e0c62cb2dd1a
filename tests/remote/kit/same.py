"""Whether a repository knows what another one knows: every state bit for bit, every answer."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable
from typing import Any

from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.ids import CommitId, StatementId
from mvc.model.manifest import FileEntry
from mvc.repo.content.contents import write_file
from mvc.repo.lookup.availability import dropped

__all__ = ["answers", "assert_clean", "assert_same", "known", "refs_of", "states"]


class Contents:
    """SHA-256 of the files of versions; one that several versions have is read once."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._known: dict[bytes, str] = {}

    def of(self, id_: CommitId) -> dict[str, str] | str:
        """By path, or by what name the state is absent."""
        try:
            entries = self._repo.manifest(id_).entries
        except MvcError as error:
            return error.kind
        gone = dropped(self._repo.handle.store, id_)
        return {
            entry.path: "weights-dropped" if gone and gone.path == entry.path else self._file(entry)
            for entry in entries
        }

    def _file(self, entry: FileEntry) -> str:
        key = entry.content_id
        if key not in self._known:
            self._known[key] = self._read(entry)
        return self._known[key]

    def _read(self, entry: FileEntry) -> str:
        out = bytearray(entry.size)

        def write_at(at: int, data: Any) -> None:
            out[at : at + len(data)] = data

        try:
            write_file(self._repo.handle.store.recovery, entry, write_at)
        except MvcError as error:
            return error.kind
        return hashlib.sha256(out).hexdigest()


def refs_of(repo: Repository) -> dict[str, CommitId]:
    """Its own branches and tags."""
    found = {f"heads/{ref.name}": ref.commit for ref in repo.refs()}
    return found | {f"tags/{ref.name}": ref.commit for ref in repo.refs("tag")}


def known(repo: Repository, *, tracked: bool = False) -> list[CommitId]:
    """Every version that a branch, a tag or a deployment leads to, by parents and needs.

    ``tracked``: and those of the tracking refs.
    """
    waiting = [*refs_of(repo).values(), *(each.commit for each in repo.deployments())]
    waiting += [ref.commit for ref in repo.refs("remote")] if tracked else []
    found: dict[CommitId, None] = {}
    while waiting:
        id_ = waiting.pop()
        if id_ not in found:
            found[id_] = None
            version = repo.version(id_)
            waiting += [*version.parents, *version.needs]
    return sorted(found)


def states(repo: Repository, ids: Iterable[CommitId]) -> dict[CommitId, dict[str, str] | str]:
    contents = Contents(repo)
    return {id_: contents.of(id_) for id_ in ids}


def answers(repo: Repository, without: Container[StatementId] = ()) -> dict[str, Any]:
    """What is said of deployments, by target: listed, live at each moment, live in between.

    Those ``without`` are not listed.
    """
    listed = [d for d in repo.deployments() if d.id not in without]
    found: dict[str, Any] = {"targets": sorted(repo.targets())}
    found["deployments"] = sorted(
        (d.target, d.time_ns, d.recorded_ns, d.commit.hex(), d.retracted) for d in listed
    )
    for target in {d.target for d in listed}:
        times = sorted({d.time_ns + off for d in listed if d.target == target for off in (-1, 0)})
        found[f"order {target}"] = [
            (d.time_ns, d.commit.hex(), d.retracted)
            for d in repo.deployments(target)
            if d.id not in without
        ]
        found[f"live {target}"] = [(at, _live(repo, target, at)) for at in times]
        found[f"now {target}"] = _live(repo, target, None)
        found[f"between {target}"] = [
            (each.since_ns, each.until_ns, each.commit.hex())
            for each in repo.live_between(times[0], times[-1] + 1, target)
        ]
    return found


def _live(repo: Repository, target: str, at: int | None) -> str:
    try:
        return repo.find(at=at, target=target).hex()
    except MvcError as error:
        return error.kind


def annotations(repo: Repository, ids: Iterable[CommitId]) -> dict[CommitId, Any]:
    return {
        id_: sorted(
            (a.author, a.time_ns, a.note, repr(sorted(a.metrics.items())), sorted(a.params.items()))
            for a in repo.annotations(id_)
        )
        for id_ in ids
    }


def assert_clean(repo: Repository, *, full: bool = True) -> None:
    report = repo.storage.fsck(full=full)
    assert report.problems == ()


def assert_same(source: Repository, other: Repository, *, clean: bool = True) -> None:
    """All that the source knows, the other one answers the same; and it is clean."""
    ids = known(source)
    for id_ in ids:
        assert other.version(id_).encoded == source.version(id_).encoded
    there, here = states(source, ids), states(other, ids)
    different = [(id_.short, there[id_], here[id_]) for id_ in ids if there[id_] != here[id_]]
    assert not different, different[:3]
    assert annotations(other, ids) == annotations(source, ids)
    expected, found = answers(source), answers(other)
    for question in expected:
        assert found[question] == expected[question], question
    if clean:
        assert_clean(other)
