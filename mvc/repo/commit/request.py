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

    ``author``, ``time``: recorded in the commit (default: the setting ``user.name``, and now).
    ``allow_empty``: commit even if the version equals its parent, and accept an empty mapping. By
    default, a version may equal its parent if the state is a mapping or the version is deployed.
    ``progress``: called with bytes done, bytes in total and the path.

    ``branch``: the branch to advance (default: the current branch). If ``branch`` is another
    branch, HEAD and working folder do not change. The branch must have a version, unless
    ``new_branch`` is set. The first version of a new branch has no parent. ``tag``: advance this
    tag instead of a branch. The version of a tag contains only the committed files. ``detached``:
    advance no ref and run no hook. The parent of the version is ``parent`` (None: no parent). A ref
    can be created for the version later, by ``Repository.branch``, ``tag`` or ``advance``.
    ``parents``: additional parents, for averages and merges, after the version of the branch.
    ``needs``: other versions that a replay of the training needs.

    ``at``: when the version went live on the target ``deploy`` (default: now). ``push``: send the
    deployment as ``Repository.deploy`` does. If the remote refuses the deployment, only the version
    is recorded. ``anyway``: deploy even an incomplete model. ``sign``: sign version and deployment
    with your SSH key (default: your settings; docs/signatures.md). ``recording``: the training that
    commits the version. If another user deploys to the target, the training no longer deploys.

    ``run``: the training's name. ``code``: the state of the git work tree to record, such as
    ``CommitResult.code`` of an earlier commit (default: the present state). ``patch``: attach the
    difference from the git commit as ``code.patch`` (default: the setting ``commit.patch``). If
    this patch is not available, ``patch=True`` raises WrongUsage, IoFailed or NotInstalled, and the
    setting only causes a warning.

    ``max_recovery``: bound of this version's recovery time in seconds, instead of
    ``store.max_recovery``. ``reset_point``: store every tensor in full. ``exact``: tensors that a
    lossy pipeline must not change. ``produced_by``: the lossy pipeline that already changed the
    state.

    ``before``: a function that can serve the version before the version is stored. mvc calls the
    function with the version's id and time. This time becomes the time of the deployment. No lossy
    pipeline may change the states. If the function raises, nothing is committed. If the commit
    fails after the call, no version with this id exists. If another commit advances the branch
    after the call, the version gets another id.
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
        """Raises WrongUsage if ``produced_by`` is empty, or if two refs would be advanced."""
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

    ``all``: commit all modified tracked files, too, and remove missing ones. If a committed file
    has the bytes of a missing file, the missing file counts as renamed. ``cwd``: the folder from
    which relative paths start.
    ``opaque``: store truncated model files as bytes instead of raising BadModelFile. ``output``:
    the file to which production weights are written. ``in_place``: replace the file by its
    production weights. A lossy pipeline in the setting ``commit.pipeline``, except ``lc``, is
    applied only with ``output`` or ``in_place``.
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
    """A path that a commit changes. ``open``: opens the new file.

    ``stored``: the new file, if this file is already stored. If ``open`` and ``stored`` are None,
    the path is removed. ``cached``: keep the file in memory as the delta base of the next commit.
    ``reducer``: a lossy pipeline that changes the file, so that the delta to the parent is small.
    """

    path: str
    open: Callable[[], AbstractContextManager[StateFile]] | None
    cached: bool = False
    reducer: Reducer | None = None
    stored: FileEntry | None = None

    @classmethod
    def of(cls, path: str, file: Mapping[str, Any] | StateFile | FileEntry | None) -> Self:
        """A path with the new content ``file``, or without content if ``file`` is None.

        A StateFile is ``cached`` only if it is in memory.
        """
        if file is None or isinstance(file, FileEntry):
            return cls(path, None, stored=file)
        source = file if isinstance(file, StateFile) else StateFile.of(file)
        return cls(path, lambda: nullcontext(source), source is not file or source.in_memory)


class CommitRequest(Struct, frozen=True, kw_only=True):
    """The input of a commit. ``contents``: maps paths to new contents. None removes the path.

    ``reads``: commit the files at ``paths`` on disk, too. A path that ends in ``/`` is a sharded
    model. A lossy ``pipeline`` changes the files from disk. If there are no files from disk, the
    pipeline changes the state at ``path``. ``deploy_time_ns``, ``time_ns``: the times of
    ``options`` in ns since 1970. None means the time at which the commit is recorded.
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
        """The target of the deployment that the commit's journal entry records, or None.

        With ``push``, the deployment is recorded after the commit.
        """
        return None if self.options.push else self.deploy

    @property
    def guard(self) -> RecordingNotice | None:
        """The training that decides whether to deploy the version, or None."""
        recording = self.options.recording
        return recording if recording and recording.target == self.target is not None else None


def with_files(
    request: CommitRequest,
    state: object,
    states: Mapping[str, FileContent | None] | None,
    files: FileOptions | None,
) -> CommitRequest:
    """Adds the arguments ``state``, ``states`` and ``files`` of ``Repository.commit`` to a request.

    ``state``: a mapping of tensors, a mapping from paths to files, or paths on disk. If the path of
    a mapping of tensors ends in ``/``, the path is the folder of a sharded model. Sets
    ``allow_empty`` if it is None. Raises InvalidName, WrongUsage.
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
        if not (name.endswith("/") and isinstance(content, Mapping)):  # shards are checked later
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
    """Raises WrongUsage or InvalidName for an invalid request."""
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
        raise WrongUsage(f"a version needs at most {MAX_NEEDS} other versions")
    if len(set(options.parents)) >= MAX_PARENTS:
        raise WrongUsage(
            f"a version has at most {MAX_PARENTS} parents, including the branch's newest version"
        )
    if len(request.attachments) > MAX_ATTACHED:
        raise WrongUsage(f"a version has at most {MAX_ATTACHED} attachments")
    for name, content in request.attachments.items():
        if isinstance(content, bytes) and len(content) > MAX_ATTACHED_BYTES:
            raise WrongUsage(f"{printable(name)} has more than {MAX_ATTACHED_BYTES} bytes")


def check_places(changes: Sequence[Change]) -> None:
    """Raises InvalidName or WrongUsage for a path that mvc does not allow or that occurs twice."""
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
