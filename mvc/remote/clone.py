"""Clones a remote: creates a repository with the history of the remote.

The clone is built in the subfolder ``.mvc-clone`` of the new folder, without flushes to disk. At
the end, all files are flushed once, and ``.mvc-clone/.mvc`` is moved to ``.mvc``. If the process
was killed, the same command continues the unfinished clone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import (
    Busy,
    HistoryMissing,
    NotARepository,
    StateForgotten,
    UnknownRevision,
    WeightsDropped,
    WouldOverwrite,
)
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem, LateFlushes
from mvc.io.process import boot_id
from mvc.io.replacement import removing_if_failed
from mvc.names import FOLDER, check_ref, printable
from mvc.remote.fetch import fetch_from
from mvc.remote.places import FETCHED, PUSHED, KnownPlace, ask, keep_place, place_of, tips_of
from mvc.remote.remotes import (
    DEFAULT,
    Remote,
    add_remote,
    check_name,
    normalised,
    remote_of,
    states_of,
)
from mvc.remote.remotes import FOLDER as REMOTES
from mvc.remote.transfer import Transferred
from mvc.remote.transport import RemoteHead, Wanted
from mvc.remote.transports.folder import check_folder
from mvc.remote.transports.opening import open_transport
from mvc.repo.checkout.checkout import Restored, restore_all
from mvc.repo.handle import Configure, Handle, open_handle
from mvc.repo.lookup.refs import BRANCH, HEAD, head, remote_refs
from mvc.store.journal.entries import Entry, RefChange, RefValue
from mvc.store.store import BARE_CONFIG, FIRST_CONFIG, Store, create
from mvc.types import Progress

UNFINISHED = ".mvc-clone"
"""Subfolder in which a clone is built."""
_LOCK, _STATE = "lock", "state"
_MOST = 1 << 16


class CloneOptions(Struct, frozen=True):
    """Options of a clone.

    ``branch``: the current branch of the clone, by default the current branch of the remote.
    ``states``: the states that the clone and later fetches download. ``bare``: the clone has no
    working files. ``remote``: the name of the remote in the clone. ``options``: more options of the
    remote (fields of ``Remote``).
    """

    branch: str | None = None
    states: str = "all"
    bare: bool = False
    remote: str = DEFAULT
    options: Mapping[str, str | bool] = field(default_factory=dict)


class Cloned(Struct, frozen=True):
    """The new repository.

    ``branch`` is None if HEAD is detached. ``restored``: the files in the working folder, or None
    if no files were written.
    """

    folder: Path
    fetched: Transferred
    branch: str | None
    head: CommitId | None
    restored: Restored | None


class _Unfinished(Struct, frozen=True):
    """The URL of an unfinished clone, and the boot id (``boot_id``) when the clone began."""

    url: str
    boot: str


def default_folder(url: str) -> str:
    """The default folder for a clone: the last part of the URL.

    Raises WouldOverwrite if this part cannot be the name of a folder.
    """
    name = url.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    if name in {"", ".", "..", "~", FOLDER}:
        raise WouldOverwrite(
            f"{url} does not end in a folder name", hint="name the folder: 'mvc clone URL DIR'"
        )
    return name


def clone_into(
    url: str,
    folder: Path | None = None,
    options: CloneOptions | None = None,
    *,
    config: Configure | None = None,
    progress: Progress | None = None,
) -> Cloned:
    """Clones the repository at ``url``. The clone is durable on return.

    Raises WouldOverwrite for a folder that is not empty, Busy if another process clones into the
    same folder, UnknownRevision for a branch that the remote lacks, and the errors of ``fetch``.
    """
    chosen, fs = options or CloneOptions(), FileSystem()
    states_of(chosen.states)
    remote = remote_of(
        check_name(chosen.remote),
        normalised(url, fs.cwd()),
        {"states": chosen.states, **chosen.options},
    )
    if remote.scheme == "file":
        # Without a name, errors show the URL: the user does not know the remote's name yet.
        check_folder(replace(remote, name=""))
    target = fs.realpath(folder or Path(default_folder(remote.url)))
    with removing_if_failed(fs) as created, _building(fs, target, remote, created) as building:
        fetched = None
        if fs.stat(target / FOLDER) is None:
            fetched = _build(building, remote, chosen, config=config, progress=progress)
            fs.replace(building / FOLDER, target / FOLDER)
            fs.sync_dir(target)
        with _opened(target, FileSystem(), config) as handle:
            at, restored = head(handle.store.fresh()), None
            if at.commit is not None and not handle.store.bare:
                # The remote may not have sent the state of this version.
                with suppress(StateForgotten, WeightsDropped):
                    restored = restore_all(
                        handle.store, at.commit, at.branch or at.commit, progress=progress
                    )
    return Cloned(
        target, fetched or Transferred(remote.name, ()), at.branch, at.commit, restored=restored
    )


@contextmanager
def _building(fs: FileSystem, target: Path, remote: Remote, created: list[Path]) -> Iterator[Path]:
    """Yields the folder in which the clone is built, and deletes this folder at the end.

    If the ``with`` block fails after data were received, does not delete the folder.
    """
    building, names = target / UNFINISHED, set() if fs.stat(target) is None else {*fs.list(target)}
    if names - {UNFINISHED} and not names >= {UNFINISHED, FOLDER}:
        raise WouldOverwrite(
            f"{printable(str(target))} already exists and is not empty",
            hint="clone into another folder: 'mvc clone URL DIR'",
        )
    fs.make_dirs(building, created=created)
    lock = fs.lock(building / _LOCK, block=False)
    if lock is None:
        raise Busy(
            f"another process clones into {printable(str(target))}", hint="wait until it is done"
        )
    with lock:
        _check_state(fs, building, _Unfinished(remote.url, boot_id()))
        try:
            yield building
        except BaseException:
            received = building / FOLDER / REMOTES / remote.name / FETCHED
            if FOLDER not in fs.list(target) and fs.stat(received) is None:
                fs.remove_tree(building)
            raise
        fs.remove_tree(building)


def _check_state(fs: FileSystem, building: Path, now: _Unfinished) -> None:
    """Deletes the data of an unfinished clone if the machine was rebooted since the clone began, or
    if this is unknown.

    After a power loss, files that were not flushed may be damaged. Raises WouldOverwrite for an
    unfinished clone of another URL.
    """
    before = None
    if fs.stat(building / _STATE) is not None:
        with suppress(msgspec.MsgspecError, ValueError):
            before = msgspec.json.decode(fs.read_bytes(building / _STATE, _MOST), type=_Unfinished)
    if before is not None and before.url != now.url:
        raise WouldOverwrite(
            f"this folder has an unfinished clone of {printable(before.url)}",
            hint=f"finish it with the same command, or delete {printable(str(building))}",
        )
    if (before != now or not now.boot) and fs.stat(building / FOLDER) is not None:
        fs.remove_tree(building / FOLDER)
    if before != now:
        fs.write_atomic(building / _STATE, msgspec.json.encode(now))


@contextmanager
def _opened(folder: Path, fs: FileSystem, config: Configure | None) -> Iterator[Handle]:
    handle = open_handle(folder, discover=False, config=config, fs=fs)
    with closing(handle.store):
        yield handle


def _build(
    building: Path,
    remote: Remote,
    options: CloneOptions,
    *,
    config: Configure | None,
    progress: Progress | None,
) -> Transferred:
    """Builds the repository in ``building`` and flushes it once."""
    fs = LateFlushes()
    if fs.stat(building / FOLDER) is None:
        first = BARE_CONFIG if options.bare else FIRST_CONFIG
        create(fs, Clock(), building, "main", config=first)
    with _opened(building, fs, config) as handle:
        add_remote(handle.store, remote, force=True)
        with closing(open_transport(remote, handle.store, handle.config)) as transport:
            import_module("mvc.remote.receiving.receiver")  # this slow import runs while ssh starts
            before = ask(transport, handle.store, remote)
            source = before.head
            if remote.is_bucket and not source.identity:
                raise NotARepository(
                    f"{remote.url} contains no repository",
                    hint="check the path; a first 'mvc push' to this URL creates the repository",
                )
            to = _current(source, remote, options)
            done = fetch_from(
                handle.store, handle.config, remote, transport, before=before,
                wanted=Wanted(states=states_of(options.states), reports=remote.nodes),
                progress=progress,
            )  # fmt: skip
        _begin(handle.store, remote, to, options)
        end, tips = place_of(handle.store.fresh()), tuple(map(bytes, tips_of(source.refs)))
        keep_place(
            handle.store, remote, PUSHED,
            KnownPlace(source.identity, end, tips, end=source.place, dealt=end.sequence),
        )  # fmt: skip
    fs.flush(building / FOLDER)
    return done


def _current(source: RemoteHead, remote: Remote, options: CloneOptions) -> RefValue:
    """The HEAD of the clone.

    Raises InvalidName, and UnknownRevision if the remote lacks the chosen branch.
    """
    if options.branch is None:
        to = source.refs.get(HEAD)
        return check_ref("branch", to) if isinstance(to, str) else to
    check_ref("branch", options.branch)
    if BRANCH + options.branch not in source.refs:
        names = sorted(n.removeprefix(BRANCH) for n in source.refs if n.startswith(BRANCH))
        raise UnknownRevision(
            f"{remote.url} has no branch {options.branch}",
            hint=f"its branches: {', '.join(map(printable, names[:10]))}"
            if names
            else "it has no branch yet",
        )
    return options.branch


def _begin(store: Store, remote: Remote, to: RefValue, options: CloneOptions) -> None:
    """Creates the current branch, or all branches if the repository is bare, and sets HEAD.

    Raises HistoryMissing if the HEAD of the remote is a version that the remote did not send.
    """

    def make() -> Entry:
        ref = store.snapshot.ref
        theirs = {f"{BRANCH}{row.name.partition('/')[2]}": row.commit for row in tracked}
        chosen = {n: c for n, c in theirs.items() if options.bare or n == f"{BRANCH}{to}"}
        wanted: dict[str, RefValue] = {**chosen, **({} if to is None else {HEAD: to})}
        changes = [RefChange(n, ref(n), new) for n, new in wanted.items() if ref(n) != new]
        return Entry("clone", store.clock.now_ns(), remote.url, refs=tuple(changes))

    if isinstance(to, CommitId) and not store.snapshot.has_commit(to):
        raise HistoryMissing(
            f"HEAD of {remote.url} is at {to.short}, but the remote did not send that version"
        )
    tracked = remote_refs(store.fresh(), remote.name)
    store.publish(make)
