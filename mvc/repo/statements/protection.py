"""Protected targets, and trainings that deploy their versions.

The setting ``deploy.protect`` names protected targets. A deployment, rollback or retraction on a
protected target is recorded only with ``anyway=True``. Fetched deployments and retractions are
always recorded.

A training that commits versions may deploy each version to a target. The training stops deploying
as soon as another user deploys to this target or rolls the target back. Otherwise the training's
next version would undo the rollback.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from fnmatch import fnmatchcase

from mvc.errors import (
    DamagedData,
    MvcError,
    MvcWarning,
    NoDeployment,
    TargetProtected,
    UnknownTarget,
)
from mvc.ids import CommitId
from mvc.model.statement import Retraction
from mvc.names import is_report, printable
from mvc.repo.config import Config, load_config
from mvc.repo.recording import announce, announce_target
from mvc.repo.statements.live import Deployed, live_at
from mvc.store.store import CONFIG, Store

SETTING = "deploy.protect"


def protecting(config: Config) -> tuple[str, ...]:
    """The patterns in the setting ``deploy.protect``. ``*`` matches any characters."""
    return tuple(str(config.get(SETTING)).replace(",", " ").split())


def protected(globs: Iterable[str], targets: Iterable[str]) -> list[str]:
    """The ``targets`` that match one of ``globs``."""
    globs = tuple(globs)
    return [
        target
        for target in targets
        if not is_report(target) and any(fnmatchcase(target, glob) for glob in globs)
    ]


def refuse_protected(config: Config, target: str, *, anyway: bool = False) -> None:
    """Raises TargetProtected if the target is protected, unless ``anyway``."""
    if not anyway:
        refuse_protected_by(protecting(config), target)


def refuse_protected_by(globs: Iterable[str], target: str) -> None:
    """Raises TargetProtected if one of ``globs`` matches the target."""
    if protected(globs, [target]):
        raise TargetProtected(
            f"{printable(target)} is protected ({SETTING})",
            hint="to deploy, roll back or retract there, add --anyway (in Python anyway=True); "
            "versions can be committed without a deployment",
        )


class NotDeployed(MvcWarning):
    """Warns that a training still commits versions, but stopped deploying them."""


class RecordingNotice(AbstractContextManager["RecordingNotice"]):
    """A ``with`` block in which a training commits versions to ``branch``.

    During the block, other processes can see that this training runs. With a ``target``, each
    version is deployed to this target, until the target becomes protected, or somebody else changes
    which version is live (also by a retraction). ``stopped``: why the training stopped deploying,
    or None. ``left_out``: the number of versions that were not deployed.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        branch: str | None,
        target: str | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """``alone``: no other training may deploy to the target. Raises Busy, TargetProtected."""
        self.branch, self.target = branch, target
        self._store, self._config = store, config
        self._file = store.folder / CONFIG
        self._settings: tuple[object, tuple[str, ...]] = (None, ())
        self.left_out = 0
        with ExitStack() as failed:
            if target is not None:
                failed.enter_context(announce_target(store, target, alone=alone))
            failed.enter_context(announce(store, branch))
            self.deploy_again()
            self.close = failed.pop_all().close

    def __exit__(self, *_: object) -> None:
        self.close()

    def deploy_again(self) -> None:
        """Resumes deploying, whichever version is live now. Raises TargetProtected."""
        if self.target is None:
            return
        refuse_protected_by(self._protecting(), self.target)
        self._live, self._sequence = self._live_now(), -1
        self._warned = False
        self.stopped: str | None = None

    def allows(self) -> bool:
        """Whether to deploy the version that is being committed.

        Must be called under the lock of the journal (the file with all operations).
        """
        if self.stopped is None:
            self.stopped = self._reason()
        return self.stopped is None

    def committed(self, deployed: Deployed | None) -> None:
        """Notes whether a version was deployed. Warns the first time that it was not deployed."""
        if deployed is not None:
            self._live, self._sequence = deployed.id, deployed.sequence
            return
        self.left_out += 1
        if not self._warned:
            self._warned, target = True, printable(str(self.target))
            with suppress(NotDeployed):  # the user's filters may make it an error
                warnings.warn_explicit(
                    f"the training stops deploying to {target}: {self.stopped}; "
                    "it continues to commit; deploy_again() or a restart resumes deploying",
                    NotDeployed, "mvc recorder", 0,
                )  # fmt: skip

    def _reason(self) -> str | None:
        """Why the training may no longer deploy, or None."""
        if protected(self._protecting(), [str(self.target)]):
            return f"the target is protected ({SETTING})"
        live = self._live_now()
        # After the clock was set back, the training's newest deployment may be in the future.
        if live == self._live or (live is None and self._is_newest()):
            return None
        if self._live and self._store.snapshot.is_subject(Retraction, self._live):
            return "the training's deployment was retracted"
        return self._other()

    def _is_newest(self) -> bool:
        """Whether this training made the target's newest deployment or retraction."""
        newest = self._store.snapshot.newest_on(str(self.target))
        return newest is not None and newest.sequence == self._sequence

    def go_on_after(self, commit: CommitId) -> None:
        """Continues a training of an earlier process, whose newest version was ``commit``.

        The training deploys only if this version is still live.
        """
        with suppress(MvcError):
            if live_at(self._store, None, self.target).commit == commit:
                return
        self.stopped = self._other()

    def _other(self) -> str:
        with suppress(MvcError):
            other = live_at(self._store, None, self.target)
            how = "deployed" if other.returns_to is None else "rolled back to"
            return f"{printable(other.author) or 'another user'} {how} {other.commit.short}"
        return "the training's deployment is no longer live"

    def _live_now(self) -> bytes | None:
        """The id of the live deployment. None if nothing is live, empty if data are damaged."""
        try:
            return live_at(self._store, None, self.target).id
        except (NoDeployment, UnknownTarget):
            return None
        except DamagedData:
            return b""

    def _protecting(self) -> tuple[str, ...]:
        """The patterns of protected targets. Reads changed settings of the repository again."""
        config, fs = self._config, self._store.fs
        identity = fs.stat(self._file)
        if identity != self._settings[0]:
            globs = () if config.origin(SETTING) == "repository" else protecting(config)
            try:
                current = load_config(fs, self._file, None, {}, flags={})
                globs += tuple(str(current.get(SETTING)).replace(",", " ").split())
            except MvcError:  # the file is being written
                globs = protecting(config)
            self._settings = identity, globs
        return self._settings[1]
