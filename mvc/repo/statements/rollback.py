"""Rollback: deploys the previous version of a target again.

A rollback finds the deployment before the live deployment, and *repeats* it: it records a new
deployment of the same version. For example, a user deploys the versions A, B and C. The first
rollback deploys B again. The second rollback deploys A again, because it starts from the old
deployment of B. A rollback skips versions that the directly preceding rollbacks have replaced:
after deployments of A, C, B and C, the second rollback skips C and deploys A.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, islice, pairwise

from msgspec.structs import asdict

from mvc.errors import NoDeployment, StateForgotten, WrongUsage
from mvc.ids import CommitId
from mvc.model.statement import Deployment
from mvc.names import printable
from mvc.repo.config import Config
from mvc.repo.lookup import availability
from mvc.repo.statements.live import (
    IN_STEP,
    Against,
    Deployed,
    check_deployment,
    live_among,
    live_at,
    of_commit,
    on,
    recorded_as,
    succession,
)
from mvc.repo.statements.protection import refuse_protected
from mvc.repo.statements.record import Send, publish
from mvc.repo.statements.signatures import signing
from mvc.store.journal.entries import Entry
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store


class RolledBack(Deployed, frozen=True, kw_only=True):
    """The new deployment of a rollback. ``left``: the version that the rollback replaced."""

    left: CommitId


def rollback(
    store: Store,
    config: Config,
    target: str,
    *,
    steps: int = 1,
    to: CommitId | None = None,
    reason: str = "",
    sign: bool | None = None,
    anyway: bool = False,
    against: Against = IN_STEP,
    send: Send | None = None,
) -> RolledBack:
    """``Repository.rollback``. The rollback is durable when the call returns."""
    if steps < 1:
        raise WrongUsage(f"a rollback goes back at least 1 step, not {steps}")
    if steps > 1 and to is not None:
        raise WrongUsage("name a version or a number of steps, not both")
    refuse_protected(config, target, anyway=anyway)
    snapshot = store.fresh()
    how = signing(store, sign, deployment=True)
    left: list[CommitId] = []

    def make(now: int) -> Entry:
        live = live_at(store, None, target)
        live = live_among(snapshot, target, now, against=against) or live
        past = _Past(snapshot, target, now, against)
        back = past.steps_back(live, steps) if to is None else past.newest(live, to)
        past.check_stored(store, back, live)
        left[:] = [live.commit]
        check_deployment(target, now)
        deployment = Deployment(
            subject=back.commit,
            author=config.author,
            reason=reason,
            target=target,
            time_ns=now,
            replaces=live.id,
            returned_to=back.id,
        )
        return Entry(
            "deploy",
            now,
            target,
            statements=(deployment, *against.retractions(snapshot, deployment)),
        )

    recorded = publish(store, make, how, send=send)
    return RolledBack(**asdict(recorded_as(snapshot, target, recorded.sequence)), left=left[0])


class _Past:
    """The deployments of a target until ``now_ns``."""

    def __init__(self, snapshot: Snapshot, target: str, now_ns: int, against: Against) -> None:
        self._against = against
        self._snapshot = snapshot
        self._target = target
        self._now_ns = now_ns

    def steps_back(self, live: Deployed, steps: int) -> Deployed:
        """The deployment that a rollback by ``steps`` steps repeats. Raises NoDeployment."""
        current, passed, left = live, {live.commit}, set(self._left_before())
        for _ in range(steps):
            before = next(self._before(self._origin(current), passed | left), None)
            if before is None:
                raise self._nothing_before(current, live, passed | left)
            current = before
            passed.add(current.commit)
        return current

    def check_stored(self, store: Store, back: Deployed, live: Deployed) -> None:
        """Raises StateForgotten if the version of ``back`` cannot be deployed.

        The hint names the nearest earlier version that is stored.
        """
        try:
            availability.check_servable(store, back.commit)
        except StateForgotten as error:
            for deployed in self._before(self._origin(back), {live.commit}):
                if availability.forgotten(store, deployed.commit) is None:
                    command = f"mvc rollback {printable(self._target)} --to {deployed.commit.short}"
                    hint = f"'{command}' deploys the nearest earlier version that is stored"
                    further = StateForgotten(error.message, hint=hint)
                    further.absent = error.absent
                    raise further from None
            raise

    def newest(self, live: Deployed, commit: CommitId) -> Deployed:
        """The newest deployment of a version. Raises NoDeployment."""
        name = printable(self._target)
        if commit == live.commit:
            raise NoDeployment(f"{commit.short} is live on {name} already")
        for deployed in self._succession() if self._earlier(commit) else ():
            if deployed.commit == commit:
                return deployed
        raise NoDeployment(
            f"{commit.short} was never live on {name}",
            hint=f"'mvc deploy {commit.short} {name}' makes it live",
        )

    def _succession(self, *counting: Deployed) -> Iterator[Deployed]:
        also = {deployed.id for deployed in counting} | self._against.counting
        line = succession(self._snapshot, self._target, self._now_ns, also)
        return (d for d in line if d.id not in self._against.without)

    def _before(self, origin: Deployed, without: set[CommitId]) -> Iterator[Deployed]:
        """Yields the deployments before ``origin``, newest first.

        ``without``: versions whose deployments are skipped. ``origin`` may be retracted.
        """
        line = self._succession(origin)
        rest = dropwhile(lambda deployed: deployed.sequence != origin.sequence, line)
        return (d for d in islice(rest, 1, None) if d.commit not in without)

    def _left_before(self) -> Iterator[CommitId]:
        """Yields the versions that the directly preceding rollbacks have replaced.

        Ends at a deployment that is no rollback, and at a rollback to a later version.
        """
        for deployed, before in pairwise(self._succession()):
            origin = self._origin(deployed)
            if origin is deployed or self._is_later(origin, self._origin(before)):
                return
            yield before.commit

    def _is_later(self, a: Deployed, b: Deployed) -> bool:
        ids = {a.id, b.id}
        line = (d.id for d in self._succession(a, b) if d.id in ids)
        return next(line, None) == a.id

    def _origin(self, deployed: Deployed) -> Deployed:
        """The original deployment that a rollback repeats, possibly after several rollbacks.

        If ``deployed`` is no rollback, ``deployed`` itself.
        """
        while (earlier := self._returned_to(deployed)) is not None:  # ends, as ``earlier`` is older
            deployed = earlier
        return deployed

    def _returned_to(self, deployed: Deployed) -> Deployed | None:
        """The earlier deployment of the same version that a rollback repeats.

        None if ``deployed`` is no rollback, or if there is no such deployment.
        """
        if deployed.returns_to is None:
            return None
        back = self._snapshot.by_sequence(deployed.returns_to)
        if back is None or all(d.subject != deployed.commit for d in on(back, self._target)):
            return None
        earlier = recorded_as(self._snapshot, self._target, back.sequence)
        return earlier if earlier.order < deployed.order and self._began(earlier) else None

    def _began(self, deployed: Deployed) -> bool:
        return not deployed.dated or deployed.time_ns <= self._now_ns

    def _earlier(self, commit: CommitId) -> list[Deployed]:
        """The deployments of a version that have begun, newest first, including retracted ones."""
        return [
            deployed
            for deployed in reversed(of_commit(self._snapshot, commit))
            if deployed.target == self._target and self._began(deployed)
        ]

    def _nothing_before(
        self, current: Deployed, live: Deployed, passed: set[CommitId]
    ) -> NoDeployment:
        name = printable(self._target)
        problem = f"nothing was live on {name} before {current.commit.short}"
        left = next(self._before(self._origin(current), {current.commit, live.commit}), None)
        if left is None or left.commit not in passed:
            return NoDeployment(problem, hint=f"'mvc deploy REV {name}' deploys another version")
        return NoDeployment(
            f"{problem}, except versions that rollbacks have replaced",
            hint=f"'mvc rollback {name} --to {left.commit.short}' deploys such a version",
        )
