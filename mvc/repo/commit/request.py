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
    """The rarer arguments of ``Repository.commit``.

    ``max_recovery`` bounds the seconds that recovering this version may take, in place of the
    setting ``store.max_recovery``. ``author`` (default: the setting ``user.name``) and ``time``
    (default: now) are what the log shows. ``allow_empty``: whether a version that equals its
    parent is committed, by default if a mapping is committed or deployed; and whether a mapping
    may be empty, by default not. ``progress`` is called with bytes done, bytes in total and the
    path. ``branch`` gets the version (default: the current one); if HEAD is elsewhere, HEAD and
    the working folder stay as they are. It must have a version or be the current branch, unless
    ``new_branch``: then this version may be its first, without a parent.

    ``run`` names the training that the version belongs to. ``code`` is the git work tree around the
    repository as an earlier ``CommitResult`` has it, by default as it is now. ``patch``: whether
    the version carries as ``code.patch`` what its code differs by from the git commit around the
    repository, by default as the setting ``commit.patch`` says. True raises
    WrongUsage, IoFailed or NotInstalled if the patch cannot be had; the setting warns.

    ``at`` is when the version went live on the target that ``deploy`` names (default: now).
    ``push`` sends the deployment as ``Repository.deploy`` does; if the remote refuses it, only the
    version is recorded.
    ``anyway`` deploys files that are a part of a model, instead of raising BadModelFile.
    ``sign``: whether the version, and its deployment, are signed with your SSH key, by default as
    your settings say (docs/signatures.md).
    ``reset_point`` stores every tensor in full.

    For lossy pipelines: tensors that ``exact`` names are not changed. ``produced_by`` says that the
    state has been through this pipeline already.

    ``parents`` are further versions that this one continues, as those that it averages or merges;
    the tip stays the first parent, and each counts once.
    ``needs`` are the versions beside the parents without which this one cannot be made again. With
    ``tag`` this tag gets the version, in place of a branch: its parent is the one that the tag
    names, and its files are those that are committed, no others.

    ``detached``: the version comes after ``parent``, or has none, and no ref leads to it until
    ``Repository.branch``, ``tag`` or ``advance`` names it; its deployment runs no hook.

    ``before`` serves the version before it is stored: it is called with the version's id and the
    time, which then is that of the deployment. Only for what is stored as it is given. If it
    raises, nothing is committed. If the commit fails, or the process ends, nothing is known of the
    version. If somebody else commits to the branch meanwhile, the result has another id.

    ``recording`` is the training that makes the version; it yields to others who deploy.
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
        """Raises WrongUsage for a ``produced_by`` of no stage, and for two places of a version."""
        places = (self.branch is not None, self.tag is not None, self.detached)
        if sum(places) > 1 or (self.parent is not None and not self.detached):
            raise WrongUsage(
                "a version is for a branch, for a tag, or detached; parent is for detached ones"
            )
        if self.produced_by is not None and not self.produced_by.strip():
            raise WrongUsage(
                "produced_by is empty: it names the lossy pipeline that made the state",
                hint="leave it out for a state that no pipeline changed",
            )


class FileOptions(Struct, frozen=True, kw_only=True):
    """How ``Repository.commit`` reads files.

    ``all`` adds every tracked path whose file was modified; a file that is named and has the bytes
    of a missing one is its new name. ``cwd`` is the folder that relative paths start from.
    ``opaque`` keeps a model file that is cut off as it is, instead of raising BadModelFile. The
    production weights of a file are written to ``output``, or ``in_place`` of the file; either of
    the two asks for them, also where the lossy pipeline is that of the settings.
    """

    all: bool = False
    cwd: Path | None = None
    opaque: bool = False
    output: PathName | None = None
    in_place: bool = False


Attachment: TypeAlias = bytes | Mapping[str, Any]
"""What a version carries beside its files: bytes, or a state."""

FileContent: TypeAlias = Mapping[str, Any] | StateFile | FileEntry | Path
"""A file of a version: a state, a file that was made of one, one that is stored, one on disk."""


class Change(Struct, frozen=True):
    """One path of the new version, whose file ``open`` gives, or ``stored`` describes.

    Without both the path is removed. ``cached``: its last version stays in memory, as the base of
    the next one. ``reducer``: makes what is stored of it, after the file of the parent at its path.
    """

    path: str
    open: Callable[[], AbstractContextManager[StateFile]] | None
    cached: bool = False
    reducer: Reducer | None = None
    stored: FileEntry | None = None

    @classmethod
    def of(cls, path: str, file: Mapping[str, Any] | StateFile | FileEntry | None) -> Self:
        """A path with what a caller gives. A file is ``cached`` only if it lies in memory."""
        if file is None or isinstance(file, FileEntry):
            return cls(path, None, stored=file)
        made = file if isinstance(file, StateFile) else StateFile.of(file)
        return cls(path, lambda: nullcontext(made), made is not file or made.in_memory)


class CommitRequest(Struct, frozen=True, kw_only=True):
    """What to commit: ``given`` by path, and with ``reads`` the files at ``paths`` on disk.

    A path that ends in ``/`` is a folder, whose files hold the state together. A lossy pipeline
    reduces the files on disk, or else the state at ``path``. ``deploy_time_ns`` (ns
    since 1970) is when the version went live; None means the moment of publishing, and ``time_ns``
    likewise the commit's time. Of ``options`` those count that are not about times.
    ``attachments`` are what the version carries beside its files, bytes or tensors by name.
    """

    given: Mapping[str, FileContent | None] = field(default_factory=dict)
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
        """On which the commit itself deploys; with ``push`` that comes after it."""
        return None if self.options.push else self.deploy

    @property
    def guard(self) -> RecordingNotice | None:
        """What decides whether the version is deployed as well."""
        recording = self.options.recording
        return recording if recording and recording.target == self.target is not None else None


def with_files(
    request: CommitRequest,
    state: object,
    states: Mapping[str, FileContent | None] | None,
    files: FileOptions | None,
) -> CommitRequest:
    """The request with what a caller gives to commit, and with ``allow_empty`` decided.

    ``state`` is a mapping, of files by path or of tensors, or it names files on disk. The path of
    a mapping may be a folder, and then ends in ``/``. Raises InvalidName, WrongUsage.
    """
    first: Mapping[str, Any] = {}
    if request.path in {"", "."}:
        request = replace(request, path="./")
    if isinstance(state, Mapping):
        by_path = any(isinstance(each, StateFile | FileEntry) for each in state.values())
        first = state if by_path else {request.path: state}
    if twice := first.keys() & (states or {}):
        raise WrongUsage(f"{min(twice)} is named twice")
    given = {**first, **(states or {})}
    for name, each in given.items():
        if not (name.endswith("/") and isinstance(each, Mapping)):  # its files are checked later
            check_path(name)
    every = files is not None and files.all
    reads = not isinstance(state, Mapping) and (state is not None or every or states is None)
    if files is not None and not (reads or any(isinstance(e, Path) for e in given.values())):
        raise WrongUsage("files= is for paths", hint="pass the state in states= instead")
    if not (reads or given):
        raise WrongUsage("states names no state")
    options = request.options
    for path, each in () if options.allow_empty else given.items():
        if isinstance(each, Mapping) and not each:
            raise WrongUsage(
                f"the state at {path} is empty, and would take the place of what may be "
                "stored there",
                hint="if that is meant, pass options=mvc.CommitOptions(allow_empty=True)",
            )
    if options.allow_empty is None:
        options = replace(options, allow_empty=not reads or request.deploy is not None)
    return replace(
        request,
        given=given,
        reads=reads,
        paths=state,
        files=files or FileOptions(),
        options=options,
    )


def check_request(request: CommitRequest) -> None:
    """Raises WrongUsage, InvalidName or another error of names for a request that is not valid."""
    if request.options.push and request.deploy is None:
        raise WrongUsage("push sends a deployment", hint="name its target with deploy=")
    if request.deploy_time_ns is not None and request.deploy is None:
        raise WrongUsage("a deployment time without a deployment target")
    options, deploy = request.options, request.deploy
    if options.before is not None and request.deploy_time_ns is not None:
        raise WrongUsage("before serves the version now: at names no other time")
    names = {"deployment target": deploy, "branch": options.branch, "tag": options.tag}
    for kind, name in names.items():
        if name is not None:
            check_ref(kind, name)
    if options.max_recovery is not None and not 0 < options.max_recovery < math.inf:
        raise WrongUsage("max_recovery is a number of seconds above 0")
    if options.author is not None:
        check_author(options.author)
    check_run(options.run)
    if len(encode_text(request.message)) > MAX_MESSAGE:
        raise WrongUsage(f"the message is longer than {MAX_MESSAGE} bytes")
    check_values(request.metrics, request.params)
    if len(set(options.needs)) > MAX_NEEDS:
        raise WrongUsage(f"a version needs at most {MAX_NEEDS} others beside its parent")
    if len(set(options.parents)) >= MAX_PARENTS:
        raise WrongUsage(f"a version has at most {MAX_PARENTS} parents, the tip among them")
    if len(request.attachments) > MAX_ATTACHED:
        raise WrongUsage(f"a version carries at most {MAX_ATTACHED} files beside its own")
    for name, given in request.attachments.items():
        if isinstance(given, bytes) and len(given) > MAX_ATTACHED_BYTES:
            raise WrongUsage(f"{printable(name)} has more than {MAX_ATTACHED_BYTES} bytes")


def check_places(changes: Sequence[Change]) -> None:
    """Raises InvalidName or WrongUsage for files that no version can have together."""
    seen: set[str] = set()
    for change in changes:
        if change.path in seen:
            raise WrongUsage(f"{change.path} is named twice")
        if any(map(is_temporary, change.path.split("/"))):
            raise InvalidName(
                f"{change.path} has the name of a temporary file of mvc",
                hint="no checkout would write it: rename it",
            )
        seen.add(check_place(change.path))
