"""Merges a version into the current branch.

Conflicts are detected before anything is stored. Then a commit with two parents is stored, but the
branch does not move. At the end, one checkout writes the files of the commit and moves the branch.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import RefConflict
from mvc.ids import CommitId
from mvc.repo.checkout.checkout import Restored, fast_forward
from mvc.repo.checkout.checkout import plan as plan_checkout
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import CommitOptions, CommitRequest
from mvc.repo.config import Config
from mvc.repo.diff.diff import diff
from mvc.repo.handle import Recent
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.commits import merge_base
from mvc.repo.lookup.refs import head
from mvc.repo.merge.plan import OURS, THEIRS, Conflict, Strategy, merge_plan
from mvc.repo.recording import refuse_recorded
from mvc.repo.revisions import Rev, id_or_text, resolve
from mvc.repo.worktree.worktree import check_worktree
from mvc.store.store import Store
from mvc.types import Progress


class Merged(Struct, frozen=True):
    """The result of a merge: ``branch`` (None: a detached HEAD) moved from ``old`` to ``new``.

    ``base``: the common ancestor, which is ``old`` in a fast-forward. ``conflicts``: unresolved
    conflicts. If there are any, nothing was stored. ``restored``: the written files; None if
    nothing changed. ``unused``: rules ``PATTERN=HOW`` that match no conflict.
    """

    branch: str | None
    old: CommitId | None
    new: CommitId | None
    base: CommitId | None
    conflicts: tuple[Conflict, ...] = ()
    restored: Restored | None = None
    unused: tuple[str, ...] = ()


def merge(
    store: Store,
    config: Config,
    recent: Recent,
    rev: Rev,
    *,
    strategy: Strategy,
    progress: Progress | None = None,
) -> Merged:
    """Does the work of ``Repository.merge``."""
    check_worktree(store)
    at, theirs = head(store.fresh()), resolve(store, rev)
    refuse_recorded(store, at.branch)
    base = None if at.commit is None else merge_base(store.snapshot, at.commit, theirs)
    done = Merged(at.branch, at.commit, at.commit, base)
    if base == theirs:
        return done
    if base != at.commit:
        if base is None or at.commit is None:
            raise RefConflict(
                "unrelated histories cannot be merged: there is no common ancestor",
                hint="'mvc average' averages any versions",
            )
        three = [base, at.commit, theirs]
        versions = [manifests.of_commit(store, id_) for id_ in three]
        plan = merge_plan(store, versions, strategy)
        done = replace(
            done,
            unused=tuple(r for r in strategy.rules if "=" in r and r not in plan.used),
        )
        if plan.conflicts:
            return replace(done, conflicts=_measured(store, plan.conflicts, three, progress))
        ours, merged = versions[OURS], {**versions[THEIRS].by_path, **versions[OURS].by_path}
        written = [e for e in merged.values() if e.path in ours.by_path or plan.files.get(e.path)]
        # This only checks whether the files in the working folder may be overwritten.
        plan_checkout(store, theirs, written, old=ours, force=False)
        for id_, manifest in zip(three, versions, strict=True):
            check_available(store, id_, [e for e in manifest.entries if e.path in plan.files])
        params = {
            "merge.base": base.hex(),
            "merge.strategy": " ".join(strategy.rules),
            "merge.scale": repr(strategy.scale) if "sum" in strategy.hows else "",
        }
        request = CommitRequest(
            contents=plan.files,
            message=f"merge {id_or_text(rev)}",
            params={name: text for name, text in params.items() if text},
            options=CommitOptions(
                detached=True,
                parent=at.commit,
                parents=(theirs,),
                allow_empty=True,
                progress=progress,
            ),
        )
        theirs = commit(store, config, recent, request).id
    return replace(
        done,
        new=theirs,
        restored=fast_forward(store, at, theirs, "merge", progress=progress),
    )


def _measured(
    store: Store,
    conflicts: Sequence[Conflict],
    three: Sequence[CommitId],
    progress: Progress | None,
) -> tuple[Conflict, ...]:
    """The conflicts, each with the differences (as in ``diff``) of both sides from the base."""
    paths = sorted({conflict.path for conflict in conflicts if conflict.key is not None})
    if not paths:
        return tuple(conflicts)
    diffs = [diff(store, three[0], side, paths, progress=progress) for side in three[1:]]
    ours, theirs = ({(f.path, row.key): row for f in d.files for row in f.tensors} for d in diffs)
    return tuple(
        replace(row, ours=ours.get(at, row.ours), theirs=theirs.get(at, row.theirs))
        for row in conflicts
        for at in [(row.path, row.key or "")]
    )
