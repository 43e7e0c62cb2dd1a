"""Asking a repository: which version, what was live, what differs; and giving names to versions.

The part of ``Repository`` that neither keeps versions nor changes how they are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.model.manifest import Manifest
from mvc.repo import deployments, refs, times
from mvc.repo.checkout import versions
from mvc.repo.checkout.versions import Version
from mvc.repo.context import Context
from mvc.repo.deployments import Deployed
from mvc.repo.diff import diff
from mvc.repo.diff.diff import Diff
from mvc.repo.history import log as history_log
from mvc.repo.history.log import LogEntry
from mvc.repo.lookup import manifests, revisions
from mvc.repo.refs import Ref
from mvc.repo.worktree import identify, status
from mvc.repo.worktree.identify import Identified
from mvc.repo.worktree.status import Status

__all__ = ["Asking", "Time"]

Time = int | str | datetime


class Asking:
    """Needs an open context."""

    context: Context

    def find(
        self,
        rev: str | CommitId | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
    ) -> CommitId:
        """The commit of a revision, or the one that was live."""
        if at is not None or target is not None:
            if rev is not None:
                raise WrongUsage("name a revision or a moment, not both")
            return self.live(at, target).commit
        return revisions.resolve(self.context, "HEAD" if rev is None else rev)

    def manifest(self, rev: str | CommitId = "HEAD") -> Manifest:
        """The paths of a version with their tensors."""
        return manifests.of_commit(self.context, self.find(rev))

    def iter_versions(
        self,
        since: Time | None = None,
        until: Time | None = None,
        target: str | None = None,
        *,
        rev: str | CommitId = "HEAD",
        path: str | None = None,
        keys: Collection[str] | None = None,
        on_error: str = "raise",
    ) -> Iterator[tuple[Version, Any]]:
        """Versions and their states, oldest first; each is decoded once, from the one before.

        With ``target`` what went live there, as ``(Deployed, state)``, by the time of the
        deployment; without it ``rev`` and its ancestors, as ``(Commit, state)``, by commit time.
        Both bounds are included. ``path`` as for ``checkout``; with ``keys`` only these tensors
        are decoded, as a flat dictionary. A version that was forgotten, is damaged or lacks
        what was asked for raises its error; ``on_error="skip"`` passes it over, ``"yield"``
        gives the error in place of the state. While a state is looked at, the next is decoded.
        """
        return versions.iter_versions(
            self.context,
            since=None if since is None else self.time(since),
            until=None if until is None else self.time(until),
            target=target,
            rev=rev,
            path=path,
            keys=keys,
            on_error=on_error,
        )

    # -- asking ------------------------------------------------------------------------------

    def time(self, value: Time) -> int:
        """Nanoseconds since 1970 of a moment given as such, as text or as a ``datetime``."""
        return times.moment_of(value, now_ns=self.context.store.clock.now_ns())

    def log(self, rev: str | CommitId = "HEAD", **options: Any) -> Iterator[LogEntry]:
        """Versions from newest to oldest; see ``mvc.repo.history.log.log`` for the options."""
        return history_log.log(self.context, rev, **options)

    def status(self, *, untracked: bool = True) -> Status:
        """Which tracked files differ from HEAD, and how."""
        return status.status(self.context, untracked=untracked)

    def diff(
        self,
        a: str | CommitId | None = None,
        b: str | CommitId | None = None,
        paths: Sequence[str] = (),
    ) -> Diff:
        """Compares two versions, or a version and files on disk, tensor by tensor."""
        return diff.diff(self.context, a, b, paths)

    def identify(self, path: str | PathLike[str]) -> list[Identified]:
        """Which versions have the state of this file; from hashes alone."""
        return identify.identify(self.context, Path(path))

    # -- deployments, refs, paths --------------------------------------------------------------

    def deploy(self, rev: str | CommitId, target: str, *, at: Time | None = None) -> Deployed:
        """Records that a version went live on a target, now or at a given moment."""
        moment = None if at is None else self.time(at)
        return deployments.deploy(self.context, self.find(rev), target, moment)

    def retract(
        self, target: str, rev: str | CommitId | None = None, *, at: Time | None = None
    ) -> Deployed:
        """Records that a deployment was none; the evidence stays."""
        moment = None if at is None else self.time(at)
        commit_id = None if rev is None else self.find(rev)
        return deployments.retract(self.context, target, commit_id, moment)

    def live(self, at: Time | None = None, target: str | None = None) -> Deployed:
        """The deployment that was live on a target at a moment; now if none is given."""
        moment = None if at is None else self.time(at)
        return deployments.live_at(self.context, moment, target)

    def deployments(
        self, target: str | None = None, *, incomplete: list[DamagedData] | None = None
    ) -> list[Deployed]:
        """Every deployment, retracted ones included, of one target or all.

        Raises DamagedData where entries of the journal are lost that may have recorded more;
        with ``incomplete`` that is noted there, and what can be read is returned.
        """
        return deployments.list_deployments(self.context, target, incomplete=incomplete)

    def branches(self) -> list[Ref]:
        """All branches with their newest commits."""
        return refs.branches(self.context)

    def tags(self) -> list[Ref]:
        """All tags with their commits."""
        return refs.tags(self.context)

    def branch(self, name: str, rev: str | CommitId = "HEAD", *, force: bool = False) -> Ref:
        """Makes a branch at a version."""
        return refs.create_branch(self.context, name, rev, force=force)

    def tag(self, name: str, rev: str | CommitId = "HEAD", *, force: bool = False) -> Ref:
        """Names a version for ever."""
        return refs.create_tag(self.context, name, rev, force=force)
