"""FileReader: in the process that serves, the newest production weights, swapped in one step."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from mvc.api import Deployed
from mvc.errors import MvcError, MvcWarning, WrongUsage
from mvc.names import check_ref
from mvc.serving.follower import Follower
from mvc.state import ServedVersion, decode_served
from mvc.system import Clock, FileIdentity, FileSystem
from mvc.transport import Replica
from mvc.types import PathName

if TYPE_CHECKING:
    from mvc.api import Repository


HAND_OVER_SECONDS = 0.25
"""How long the file may lag behind the record before the repository is read instead."""


class NotHandedOver(MvcWarning):
    """A reader takes a version from the repository, because the file cannot be read."""


class FileReader:
    """Reads the file that a ``FileSink`` writes to ``path``, or that ``mvc follow`` keeps there.

    ``production`` is the version that this process serves, None before the first swap.
    ``target`` is the deployment target whose record ``swap(repo)`` follows, ``name`` the path of
    the weights in its versions, where these have several models. The file may be written later.
    Raises InvalidName for a ``target`` that cannot be one, and as ``Replica.check``.
    """

    def __init__(
        self,
        path: PathName,
        *,
        target: str | None = None,
        name: str | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        if target is not None:
            check_ref("deployment target", target)
        self._path = Path(path)
        self._target = target
        self._name = name
        self._fs = fs or FileSystem()
        Replica.check(self._fs, self._path)
        self._clock = clock or Clock()
        self._seen: FileIdentity | None = None
        self._repo: Repository | None = None
        self._follower: Follower | None = None
        self._awaited: tuple[Deployed, float] | None = None  # since when, by ``monotonic``
        self.production: ServedVersion | None = None

    def swap(self, repo: Repository | None = None) -> ServedVersion | None:
        """Makes a newer version ``production`` and returns it; None if there is none.

        Call it between two requests. Without ``repo`` that is the version in the file. The file is
        verified against its hash first: BadModelFile or DamagedData leave ``production`` as it
        was. Raises WrongUsage for a file that no sink has written.

        With ``repo`` it is the version that is live on the reader's target by the record, after a
        rollback an older one. It is taken from the file if the file holds it; if it does not
        within a quarter of a second, or cannot be read, from the repository. Raises the errors of
        ``Follower.live`` and ``Repository.checkout``.
        """
        newer = self._newer() if repo is None else self._live(repo)
        if newer is not None:
            self.production = replace(newer, time_ns=self._clock.now_ns())
            return self.production
        return None

    def _live(self, repo: Repository) -> ServedVersion | None:
        """The version that is live on the target, if another one is served."""
        follower = self._following(repo)
        if not self._differs(follower.live()):
            return None
        newer, problem = None, ""
        try:
            newer = self._newer()
        except MvcError as error:
            problem = error.message
        live = follower.live()  # asked again: a version is recorded before it is in the file
        if live is None or not self._differs(live):
            return None
        if newer is not None and newer.commit == live.commit:
            return newer
        if problem:
            text = f"{live.commit.short} is taken from the repository: {problem}"
            warnings.warn(text, NotHandedOver, stacklevel=3)
        elif self.production is not None and self._has_time(live):
            return None
        state = follower.repo.checkout(live, path=self._name)
        return ServedVersion(state, live.commit, live.time_ns)

    def _following(self, repo: Repository) -> Follower:
        if self._target is None:
            raise WrongUsage("the reader has no target to follow", hint="pass target= to it")
        if self._follower is None or self._repo is not repo:
            self._repo, self._follower = repo, Follower(repo, self._target)
        return self._follower

    def _differs(self, live: Deployed | None) -> bool:
        served = self.production
        return live is not None and (served is None or served.commit != live.commit)

    def _has_time(self, live: Deployed) -> bool:
        """Whether the file may still become this version."""
        now = time.monotonic()
        if self._awaited is None or self._awaited[0] != live:
            self._awaited = live, now
        return now - self._awaited[1] < HAND_OVER_SECONDS

    def _newer(self) -> ServedVersion | None:
        """The version in the file, if the file was replaced since the last call."""
        if self._fs.stat(self._path) in (None, self._seen):
            return None
        with self._fs.open_read(self._path) as file:
            identity = file.identity()
            data = np.empty(identity.size, np.uint8).data
            if file.read_into(0, data) != identity.size:
                raise WrongUsage(f"{self._path} became shorter while it was read")
        versions = Replica.noted(self._fs, self._path)
        try:
            version = decode_served(data, str(self._path), versions)
        except WrongUsage:
            if self._fs.stat(self._path) != identity:  # replaced meanwhile, and its note, too
                return None
            raise
        self._seen = identity
        return version
