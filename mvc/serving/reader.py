"""FileReader: in the process that serves, the newest production weights, swapped in one step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3
from msgspec.structs import replace

from mvc.errors import IoFailed, MvcError, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileIdentity, FileSystem
from mvc.model.names import check_ref, printable
from mvc.serving.served_version import ServedVersion, decode

if TYPE_CHECKING:
    from mvc.api.repository import Repository


_NOTED = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,18}|[1-8][0-9]{18})")  # a version; ns since 1970
_MOST_NOTED = 1 << 20  # bytes


class FileReader:
    """Reads the file that a ``FileSink`` writes to ``path``.

    ``production`` is the version that this process serves, None before the first swap.
    ``target`` names the deployment target on which ``swap`` records it. The file may be written
    later. Raises InvalidName for a ``target`` that cannot be one, IoFailed where the file's folder
    does not exist.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        target: str | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        if target is not None:
            check_ref("deployment target", target)
        self._path = Path(path)
        self._target = target
        self._fs = fs or FileSystem()
        folder = self._fs.stat(self._path.parent)
        if folder is None or not folder.is_dir:
            raise IoFailed(
                f"there is no folder for {printable(str(path))}",
                hint="name the path that the FileSink writes to",
            )
        self._clock = clock or Clock()
        self._seen: FileIdentity | None = None
        self._unrecorded: list[tuple[CommitId, int]] | None = None  # None: not looked for yet
        self.production: ServedVersion | None = None

    def swap(self, repo: Repository | None = None) -> ServedVersion | None:
        """Makes a newer version ``production`` and returns it; None if there is none.

        Call it between two requests. The version is verified against its hash first: BadModelFile
        or DamagedData leave ``production`` as it was. Raises WrongUsage for a file that no sink has
        written.

        With ``repo`` the deployment is recorded there, on the reader's target and with the time
        of the swap by this process's clock. If recording fails, its error is raised, the new
        version is in place all the same, and the next call with ``repo`` records it first. The
        time is written beside the file before the swap, so that if this process is killed before
        it has recorded the swap, the next reader of the file and target does.
        """
        if repo is not None and self._target is None:
            raise WrongUsage("the reader has no target to record", hint="pass target= to it")
        if self._unrecorded is None and repo is not None and self._target is not None:
            # Before a new version is looked for: an error here must not pass it over.
            self._unrecorded = list(self._left_behind(repo, self._target))
        newer = self._newer()
        if repo is None or self._target is None or self._unrecorded is None:
            self.production = newer or self.production
            return newer
        if newer is not None:
            self._unrecorded.append((newer.commit, newer.time_ns))
            self._write_note(self._target, self._unrecorded)
            self.production = newer
        if self._unrecorded:
            while self._unrecorded:
                commit, time_ns = self._unrecorded[0]
                repo.deploy(commit, self._target, at=time_ns)
                del self._unrecorded[0]
            with suppress(MvcError):
                self._fs.unlink(self._note(self._target), missing_ok=True)
        return newer

    def _note(self, target: str) -> Path:
        """The file beside the weights with the swaps on a target that are not recorded yet."""
        name = blake3(target.encode()).hexdigest(4)
        return self._path.with_name(f"{self._path.name}.swaps-{name}")

    def _write_note(self, target: str, swaps: Sequence[tuple[CommitId, int]]) -> None:
        """Writes the note, not flushed; where it cannot be written, the memory alone has them."""
        text = "".join(f"{commit} {time_ns}\n" for commit, time_ns in swaps)
        with suppress(MvcError):
            self._fs.replace_file(
                self._note(target),
                lambda file: file.write(text.encode()),
                mode=None,
                durable=False,
            )

    def _left_behind(self, repo: Repository, target: str) -> Iterator[tuple[CommitId, int]]:
        """The swaps that an earlier process noted and did not record, of versions ``repo`` has."""
        note, data = self._note(target), b""
        with suppress(MvcError):
            if self._fs.stat(note) is not None:
                data = self._fs.read_bytes(note, _MOST_NOTED)
        for line in data.splitlines():
            if (noted := _NOTED.fullmatch(line)) is None:
                continue
            commit, time_ns = CommitId.parse(noted[1].decode()), int(noted[2])
            with suppress(UnknownRevision):
                made = repo.deployments_of(commit)
                if not any(d.target == target and d.time_ns == time_ns for d in made):
                    yield commit, time_ns

    def _newer(self) -> ServedVersion | None:
        """The version in the file, as of now, if the file was replaced since the last call."""
        if self._fs.stat(self._path) in (None, self._seen):
            return None
        with self._fs.open_read(self._path) as file:
            identity = file.identity()
            data = np.empty(identity.size, np.uint8).data
            if file.read_into(0, data) != identity.size:
                raise WrongUsage(f"{self._path} became shorter while it was read")
        version = decode(data, str(self._path))
        self._seen = identity
        return replace(version, time_ns=self._clock.now_ns())
