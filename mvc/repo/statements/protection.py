"""Protected targets: nothing is recorded there by the way, by whatever makes versions.

The setting ``deploy.protect`` names them. Only a deployment, a rollback and a retraction that say
so (``anyway``) count there; what a fetch brings has happened elsewhere, and is on record.

A training that deploys its versions yields to everybody else who deploys: without a guard its next
step would undo a rollback. The rule is the same for a Recorder, the callbacks of frameworks and a
distributed training.
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
    """What the setting names, with ``*`` for any characters."""
    return tuple(str(config.get(SETTING)).replace(",", " ").split())


def protected(globs: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Those of ``targets`` that ``globs`` name."""
    globs = tuple(globs)
    return [
        target
        for target in targets
        if not is_report(target) and any(fnmatchcase(target, glob) for glob in globs)
    ]


def refuse_protected(config: Config, target: str, *, anyway: bool = False) -> None:
    """Raises TargetProtected for a target that the setting names, unless ``anyway``."""
    if not anyway:
        refuse_protected_by(protecting(config), target)


def refuse_protected_by(globs: Iterable[str], target: str) -> None:
    """Raises TargetProtected for a target that ``globs`` name."""
    if protected(globs, [target]):
        raise TargetProtected(
            f"{printable(target)} is protected ({SETTING})",
            hint="a deployment, a rollback or a retraction that is meant takes --anyway, in Python "
            "anyway=True; versions are committed without one",
        )


class NotDeployed(MvcWarning):
    """A training commits its versions, and has stopped deploying them."""


class RecordingNotice(AbstractContextManager["RecordingNotice"]):
    """A training that records on ``branch``, which is known to others until the block ends.

    With a ``target`` its versions are deployed there while the live deployment is its own last one,
    or the one that was live when it began, and ``deploy.protect`` does not name the target.
    ``stopped`` says why they are not any more; ``left_out`` counts those that were not.
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
        """``alone``: no other training deploys to the target. Raises Busy, TargetProtected."""
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
        """Replaces what is live now with the next version. Raises TargetProtected."""
        if self.target is None:
            return
        refuse_protected_by(self._protecting(), self.target)
        self._live, self._sequence = self._live_now(), -1
        self._warned = False
        self.stopped: str | None = None

    def allows(self) -> bool:
        """Whether the version that is published now is deployed; under the journal's lock."""
        if self.stopped is None:
            self.stopped = self._reason()
        return self.stopped is None

    def committed(self, deployed: Deployed | None) -> None:
        """Notes how a version was committed. Warns of the first one without a deployment."""
        if deployed is not None:
            self._live, self._sequence = deployed.id, deployed.sequence
            return
        self.left_out += 1
        if not self._warned:
            self._warned, target = True, printable(str(self.target))
            with suppress(NotDeployed):  # which the user's filters may make an error
                warnings.warn_explicit(
                    f"the training stops deploying to {target}: {self.stopped}; "
                    "it goes on committing. deploy_again() or a restart deploys again",
                    NotDeployed, "mvc recorder", 0,
                )  # fmt: skip

    def _reason(self) -> str | None:
        """Why the training may not deploy any more."""
        if protected(self._protecting(), [str(self.target)]):
            return f"it is protected ({SETTING})"
        live = self._live_now()
        if live == self._live or (live is None and self._is_newest()):  # the clock was set back
            return None
        if self._live and self._store.snapshot.is_subject(Retraction, self._live):
            return "its deployment was retracted"
        return self._other()

    def _is_newest(self) -> bool:
        """Whether nobody has deployed or retracted anything since this training."""
        newest = self._store.snapshot.newest_on(str(self.target))
        return newest is not None and newest.sequence == self._sequence

    def go_on_after(self, commit: CommitId) -> None:
        """Goes on for an earlier process of the training, whose last version is ``commit``."""
        with suppress(MvcError):
            if live_at(self._store, None, self.target).commit == commit:
                return
        self.stopped = self._other()

    def _other(self) -> str:
        with suppress(MvcError):
            other = live_at(self._store, None, self.target)
            how = "deployed" if other.returns_to is None else "rolled back to"
            return f"{printable(other.author) or 'somebody'} {how} {other.commit.short}"
        return "its deployment does not count any more"

    def _live_now(self) -> bytes | None:
        """The id of the live deployment; empty: lost entries of the journal may change it."""
        try:
            return live_at(self._store, None, self.target).id
        except (NoDeployment, UnknownTarget):
            return None
        except DamagedData:
            return b""

    def _protecting(self) -> tuple[str, ...]:
        """The setting as it is now: the repository's file is read again once it has changed."""
        config, fs = self._config, self._store.fs
        seen = fs.stat(self._file)
        if seen != self._settings[0]:
            globs = () if config.origin(SETTING) == "repository" else protecting(config)
            try:
                read = load_config(fs, self._file, None, {}, flags={})
                globs += tuple(str(read.get(SETTING)).replace(",", " ").split())
            except MvcError:  # somebody is writing it
                globs = protecting(config)
            self._settings = seen, globs
        return self._settings[1]
