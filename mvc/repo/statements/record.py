"""Records deployments (a version went live) and retractions (a deployment does not count).

Deployments and retractions are statements: immutable records with the same bytes in every
repository. Each statement contains the id of the deployment that was live before. A push compares
this id with the live deployment of the remote.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mvc.errors import NoDeployment
from mvc.ids import CommitId, StatementId
from mvc.model.statement import Deployment, Retraction
from mvc.names import is_report
from mvc.repo.config import Config
from mvc.repo.lookup import availability
from mvc.repo.statements.live import (
    IN_STEP,
    Against,
    Deployed,
    check_deployment,
    check_target,
    deployment_with,
    newest_first,
    of_commit,
    recorded_as,
    replaced,
)
from mvc.repo.statements.protection import refuse_protected
from mvc.repo.statements.signatures import Signing, signed, signing
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.publishing.publish import completed
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.times import format_time, whole_second

Send = Callable[[Entry], Callable[[Recorded], None]]
"""Sends an entry to a remote. Returns a function to call when the entry is recorded locally."""
_TRIES = 3


def publish(
    store: Store,
    make: Callable[[int], Entry],
    how: Signing | None,
    *,
    release: Callable[[], None] | None = None,
    send: Send | None = None,
) -> Recorded:
    """Signs and records a journal entry. ``make`` returns the entry for a time.

    The entry is signed before the journal is locked. Under the lock, ``make`` runs again. If the
    new entry differs from the signed entry, the lock is released, and the new entry is signed.
    After three attempts, the entry is signed under the lock. ``send``: sends the entry to a remote
    first. If sending fails, nothing is recorded.
    """

    def drafted(moment: int) -> Entry:
        return completed(store.snapshot, make(moment))

    if send is not None:
        store.fresh()
        draft = signed(store.snapshot, drafted(store.now_ns()), how)
        after = send(draft)
        recorded = store.publish(lambda: draft)
        after(recorded)
        return recorded
    for _ in range(0 if how is None else _TRIES):
        store.fresh()
        moment = store.now_ns()
        draft = drafted(moment)
        whole = signed(store.snapshot, draft, how)

        def final(moment: int = moment, draft: Entry = draft, whole: Entry = whole) -> Entry:
            if drafted(moment).encoded != draft.encoded:
                raise _Overtaken
            return whole

        with suppress(_Overtaken):
            return store.publish(final, release=release)
    return store.publish(lambda: signed(store.snapshot, make(store.now_ns()), how), release=release)


class _Overtaken(Exception):
    """Under the lock, ``make`` returned an entry that differs from the signed entry."""


def deploy(
    store: Store,
    config: Config,
    commit: CommitId,
    target: str,
    time_ns: int | None = None,
    *,
    reason: str = "",
    sign: bool | None = None,
    anyway: bool = False,
    against: Against = IN_STEP,
    send: Send | None = None,
) -> Deployed:
    """Records durably that a version went live, by default now.

    A version whose state is not stored, or whose weights are dropped, can be deployed only at a
    past time. ``against``: how the remote's deployments differ. ``send``: see ``publish``. Raises
    InvalidName, InvalidTime, UnknownRevision, StateForgotten, WeightsDropped, CannotSign. Unless
    ``anyway``, raises TargetProtected, and BadModelFile if a file is missing or invalid.
    """
    refuse_protected(config, target, anyway=anyway)
    snapshot = store.fresh()
    how = signing(store, sign, deployment=True)
    if not anyway:
        from mvc.repo.completeness import refuse_incomplete  # loads parsers of files

        refuse_incomplete(store, commit, {})

    def make(now: int) -> Entry:
        if time_ns is None or time_ns > now:
            availability.check_servable(store, commit)
        at, author = now if time_ns is None else time_ns, config.author
        check_deployment(target, at)
        deployment = Deployment(
            subject=commit,
            author=author,
            reason=reason,
            target=target,
            time_ns=at,
            replaces=replaced(snapshot, target, now, at, against=against),
        )
        return Entry(
            "deploy",
            now,
            target,
            statements=(deployment, *against.retractions(snapshot, deployment)),
        )

    return recorded_as(snapshot, target, publish(store, make, how, send=send).sequence)


def retract(
    store: Store,
    config: Config,
    commit: CommitId | None,
    target: str,
    time_ns: int | None = None,
    *,
    reason: str = "",
    sign: bool | None = None,
    anyway: bool = False,
    against: Against = IN_STEP,
    send: Send | None = None,
) -> Deployed:
    """Records that a deployment does not count. The record of the deployment remains.

    Selects the newest deployment on the target. If ``commit`` is not None, selects only among
    deployments of this version. If ``time_ns`` is not None, selects only among deployments at this
    time or, if there are none, less than a second before. Raises UnknownTarget, UnknownRevision,
    NoDeployment, CannotSign; TargetProtected unless ``anyway``.
    """
    refuse_protected(config, target, anyway=anyway)
    snapshot = store.fresh()
    check_target(snapshot, target)
    how = signing(store, sign, deployment=True)

    def make(now: int) -> Entry:
        retraction = Retraction(
            subject=_to_retract(snapshot, target, commit, time_ns, against=against).id,
            author=config.author,
            reason=reason,
            target=target,
            replaces=replaced(snapshot, target, now, against=against),
        )
        return Entry("retract", now, target, statements=(retraction,))

    (retraction,) = publish(store, make, how, send=send).entry.retractions
    pair = deployment_with(snapshot, StatementId(retraction.subject))
    assert pair is not None
    return recorded_as(snapshot, target, pair[0].sequence)


def _to_retract(
    snapshot: Snapshot,
    target: str,
    commit: CommitId | None,
    time_ns: int | None,
    *,
    against: Against,
) -> Deployed:
    if commit is None or is_report(target):
        newest = newest_first(snapshot, target)
    else:
        newest = reversed(of_commit(snapshot, commit))
    retracted: Deployed | None = None
    near: Deployed | None = None  # a user may pass the time as shown, rounded up to seconds
    if against.without:  # deployments that the remote lacks come first
        newest = iter(sorted(newest, key=lambda d: d.id not in against.without))
    for deployed in newest:
        if deployed.target != target or commit not in (None, deployed.commit):
            continue
        if time_ns in (None, deployed.time_ns):
            if not deployed.retracted or deployed.id in against.counting:
                return deployed
            retracted = retracted or deployed
        elif whole_second(deployed.time_ns) == time_ns and not deployed.retracted:
            near = near or deployed
    if retracted is None and near is not None:
        return near
    wanted = "a deployment" if commit is None else f"a deployment of {commit.short}"
    wanted += f" on {target}" + ("" if time_ns is None else f" at {format_time(time_ns)}")
    if retracted is not None:
        raise NoDeployment(
            f"{wanted} was retracted already, "
            f"at {format_time(whole_second(retracted.retracted_ns or 0))}"
        )
    raise NoDeployment(
        f"there is no record of {wanted}",
        hint=f"'mvc deploy --list {target} -v' lists what was recorded, with exact times",
    )
