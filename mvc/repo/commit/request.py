"""The arguments of a commit and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.adapters.state_file import StateFile
from mvc.errors import InvalidName, WrongUsage
from mvc.ids import CommitId
from mvc.io.plans import is_temporary
from mvc.limits import MAX_ATTACHED, MAX_ATTACHED_BYTES, MAX_MESSAGE, MAX_NEEDS, MAX_PARENTS
from mvc.model.manifest import FileEntry
from mvc.names import (
    DEFAULT_STATE,
    check_author,
    check_path,
    check_place,
    check_ref,
    check_run,
    encode_text,
    printable,
)
from mvc.repo.statements.protection import RecordingNotice
from mvc.repo.values import check_values
from mvc.repo.worktree.git_code import GitCode
from mvc.types import PathName, Progress

if TYPE_CHECKING:
    from mvc.lossy.reducer import Reducer


class CommitOptions(Struct, frozen=True, kw_only=True):
    """Rarely used arguments of ``Repository.commit``.

    ``author``, ``time``: for the log (default: the setting ``user.name``, and now).
    ``allow_empty``: commit a version equal to its parent (default: only for a mapping or a
    deployment), and accept an empty mapping. ``progress``: called with bytes done, bytes in total
    and the path. ``branch``: the branch to advance (default: the current one); another branch
    leaves HEAD and working folder unchanged; it must have a version unless ``new_branch``, which
    starts it without a parent. ``tag``: advance this tag instead; its version contains only the
    committed files. ``detached``: advance no ref; the version follows ``parent`` (or nothing) until
    ``Repository.branch``, ``tag`` or ``advance`` names it, and runs no hook. ``parents``: further
    parents, for averages and merges; the tip remains the first. ``needs``: further versions that a
    replay needs.

    ``at``: when the version went live on the target ``deploy`` (default: now). ``push``: send the
    deployment as ``Repository.deploy`` does; if the remote refuses it, only the version is
    recorded. ``anyway``: deploy an incomplete model. ``sign``: sign version and deployment with
    your SSH key (default: your settings; docs/signatures.md). ``recording``: the training that
    makes the version; it stops deploying after others deploy.

    ``run``: the training's name. ``code``: the git work tree, as in an earlier ``CommitResult``
    (default: read now). ``patch``: attach the difference from the git commit as ``code.patch``
    (default: the setting ``commit.patch``); if it is not available, True raises WrongUsage,
    IoFailed or NotInstalled, the setting warns.

    ``max_recovery``: most seconds to recover this version, instead of ``store.max_recovery``.
    ``reset_point``: store every tensor in full. ``exact``: tensors that a lossy pipeline must not
    change. ``produced_by``: the lossy pipeline that already produced the state.

    ``before``: called with the version's id and time, before it is stored, to serve it; the time
    becomes that of the deployment. Only for states stored unchanged. If it raises, nothing is
    committed. If the commit fails afterwards, the version is unknown; if another commit reaches the
    branch first, the result has another id.
    """

    max_recovery: float | None = None
    author: str | None = None
    time: int | str | datetime | None = None
    allow_empty: bool | None = None
    progress: Progress | None = None
    branch: str | None = None
    new_branch: bool = False
    at: int | str | datetime | None = None
    push: str | bool = False
    anyway: bool = False
    reset_point: bool = False
    exact: Sequence[str] = ()
    produced_by: str | None = None
    run: str = ""
    code: GitCode | None = None
    patch: bool | None = None
    sign: bool | None = None
    needs: Collection[CommitId] = ()
    parents: Sequence[CommitId] = ()
    tag: str | None = None
    before: Callable[[CommitId, int], object] | None = None
    recording: RecordingNotice | None = None
    detached: bool = False
    parent: CommitId | None = None

    def __post_init__(self) -> None:
        """Raises WrongUsage for an empty ``produced_by``, and for two refs to advance."""
        refs = (self.branch is not None, self.tag is not None, self.detached)
        if sum(refs) > 1 or (self.parent is not None and not self.detached):
            raise WrongUsage("use only one of branch, tag and detached; parent needs detached")
        if self.produced_by is not None and not self.produced_by.strip():
            raise WrongUsage(
                "produced_by is empty: it names the lossy pipeline that produced the state",
                hint="omit it for a state that no pipeline changed",
            )


class FileOptions(Struct, frozen=True, kw_only=True):
    """How ``Repository.commit`` reads files.

    ``all``: add modified tracked files; a named file with the bytes of a missing one is its new
    name. ``cwd``: the folder that relative paths start from. ``opaque``: store truncated model
    files as bytes instead of raising BadModelFile. ``output``, ``in_place``: where to write a
    file's production weights; either also enables a lossy pipeline of the settings.
    """

    all: bool = False
    cwd: Path | None = None
    opaque: bool = False
    output: PathName | None = None
    in_place: bool = False


Attachment: TypeAlias = bytes | Mapping[str, Any]
"""An attachment: bytes, or a state."""

FileContent: TypeAlias = Mapping[str, Any] | StateFile | FileEntry | Path
"""A file of a version: a state, a parsed file, a stored entry, or a file on disk."""


class Change(Struct, frozen=True):
    """One path of the new version; its file comes from ``open``, or is ``stored`` already.

    Without both the path is removed. ``cached``: keep the version in memory as a base of the next
    one. ``reducer``: reduces it against the parent's file at its path.
    """

    path: str
    open: Callable[[], AbstractContextManager[StateFile]] | None
    cached: bool = False
    reducer: Reducer | None = None
    stored: FileEntry | None = None

    @classmethod
    def of(cls, path: str, file: Mapping[str, Any] | StateFile | FileEntry | None) -> Self:
        """A path with a caller's content; files are ``cached`` only if they are in memory."""
        if file is None or isinstance(file, FileEntry):
            return cls(path, None, stored=file)
        source = file if isinstance(file, StateFile) else StateFile.of(file)
        return cls(path, lambda: nullcontext(source), source is not file or source.in_memory)


class CommitRequest(Struct, frozen=True, kw_only=True):
    """The input of a commit: ``given`` by path, and with ``reads`` the files at ``paths`` on disk.

    A path that ends in ``/`` is a sharded model. A lossy pipeline reduces the files on disk, or
    else the state at ``path``. ``deploy_time_ns``, ``time_ns``: ns since 1970, instead of the times
    in ``options``; None means the time of publishing.
    """

    contents: Mapping[str, FileContent | None] = field(default_factory=dict)
    path: str = DEFAULT_STATE
    reads: bool = False
    paths: object | None = None
    files: FileOptions = field(default_factory=FileOptions)
    message: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    deploy: str | None = None
    deploy_time_ns: int | None = None
    pipeline: str | None = None
    time_ns: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    attachments: Mapping[str, Attachment] = field(default_factory=dict)
    options: CommitOptions = field(default_factory=CommitOptions)

    @property
    def target(self) -> str | None:
        """The target that the commit itself deploys to; with ``push`` the deployment follows it."""
        return None if self.options.push else self.deploy

    @property
    def guard(self) -> RecordingNotice | None:
        """The training that decides whether the version is deployed too, or None."""
        recording = self.options.recording
        return recording if recording and recording.target == self.target is not None else None


def with_files(
    request: CommitRequest,
    state: object,
    states: Mapping[str, FileContent | None] | None,
    files: FileOptions | None,
) -> CommitRequest:
    """The request with a caller's states and files, and ``allow_empty`` decided.

    ``state``: a mapping of tensors, or of files by path, or paths on disk. The path of a mapping
    may be a folder, which ends in ``/``. Raises InvalidName, WrongUsage.
    """
    first: Mapping[str, Any] = {}
    if request.path in {"", "."}:
        request = replace(request, path="./")
    if isinstance(state, Mapping):
        by_path = any(isinstance(value, StateFile | FileEntry) for value in state.values())
        first = state if by_path else {request.path: state}
    if twice := first.keys() & (states or {}):
        raise WrongUsage(f"{min(twice)} is named twice")
    contents = {**first, **(states or {})}
    for name, content in contents.items():
        if not (name.endswith("/") and isinstance(content, Mapping)):  # its files: checked later
            check_path(name)
    every = files is not None and files.all
    reads = not isinstance(state, Mapping) and (state is not None or every or states is None)
    if files is not None and not (reads or any(isinstance(c, Path) for c in contents.values())):
        raise WrongUsage("files= needs paths", hint="pass the state in states= instead")
    if not (reads or contents):
        raise WrongUsage("states is empty")
    options = request.options
    for path, content in () if options.allow_empty else contents.items():
        if isinstance(content, Mapping) and not content:
            raise WrongUsage(
                f"the state at {path} is empty and would replace a stored one",
                hint="to commit it nevertheless, pass options=mvc.CommitOptions(allow_empty=True)",
            )
    if options.allow_empty is None:
        options = replace(options, allow_empty=not reads or request.deploy is not None)
    return replace(
        request,
        contents=contents,
        reads=reads,
        paths=state,
        files=files or FileOptions(),
        options=options,
    )


def check_request(request: CommitRequest) -> None:
    """Raises WrongUsage, InvalidName or another error of names for an invalid request."""
    if request.options.push and request.deploy is None:
        raise WrongUsage(
            "push sends a deployment, but there is none", hint="name a target with deploy="
        )
    if request.deploy_time_ns is not None and request.deploy is None:
        raise WrongUsage("a deployment time without a deployment target")
    options, deploy = request.options, request.deploy
    if options.before is not None and request.deploy_time_ns is not None:
        raise WrongUsage("before= serves the version now, so at= cannot name another time")
    names = {"deployment target": deploy, "branch": options.branch, "tag": options.tag}
    for kind, name in names.items():
        if name is not None:
            check_ref(kind, name)
    if options.max_recovery is not None and not 0 < options.max_recovery < math.inf:
        raise WrongUsage("max_recovery must be a number of seconds above 0")
    if options.author is not None:
        check_author(options.author)
    check_run(options.run)
    if len(encode_text(request.message)) > MAX_MESSAGE:
        raise WrongUsage(f"the message is longer than {MAX_MESSAGE} bytes")
    check_values(request.metrics, request.params)
    if len(set(options.needs)) > MAX_NEEDS:
        raise WrongUsage(f"a version needs at most {MAX_NEEDS} further versions")
    if len(set(options.parents)) >= MAX_PARENTS:
        raise WrongUsage(f"a version has at most {MAX_PARENTS} parents, including the tip")
    if len(request.attachments) > MAX_ATTACHED:
        raise WrongUsage(f"a version has at most {MAX_ATTACHED} attachments")
    for name, content in request.attachments.items():
        if isinstance(content, bytes) and len(content) > MAX_ATTACHED_BYTES:
            raise WrongUsage(f"{printable(name)} has more than {MAX_ATTACHED_BYTES} bytes")


def check_places(changes: Sequence[Change]) -> None:
    """Raises InvalidName or WrongUsage for files that cannot be in one version."""
    seen: set[str] = set()
    for change in changes:
        if change.path in seen:
            raise WrongUsage(f"{change.path} is named twice")
        if any(map(is_temporary, change.path.split("/"))):
            raise InvalidName(
                f"{change.path} has the name of a temporary file of mvc",
                hint="rename it: checkouts do not write such files",
            )
        seen.add(check_place(change.path))
