"""Cloning: a new repository with all that another one has.

It is built in the folder ``.mvc-clone`` of its place without flushes, flushed once, and moved to
its place. The same command goes on with what a killed process left there.
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

BESIDE = ".mvc-clone"
"""Where a clone is built, in the folder that it is for."""
_LOCK, _STATE = "lock", "state"
_MOST = 1 << 16


class CloneOptions(Struct, frozen=True):
    """``branch``: the current one of the clone, by default that of the remote. ``states``: whose
    states come along, now and with each fetch. ``bare``: without working files. ``remote``: what
    the clone calls the repository that it comes from; ``options`` are fields of ``Remote``.
    """

    branch: str | None = None
    states: str = "all"
    bare: bool = False
    remote: str = DEFAULT
    options: Mapping[str, str | bool] = field(default_factory=dict)


class Cloned(Struct, frozen=True):
    """``branch``: the current one, None if HEAD is detached. ``restored``: its files, None if none
    were written.
    """

    folder: Path
    fetched: Transferred
    branch: str | None
    head: CommitId | None
    restored: Restored | None


class _Unfinished(Struct, frozen=True):
    """What is cloned here, since when the machine runs, and what came already."""

    url: str
    boot: str


def default_folder(url: str) -> str:
    """The folder that a clone makes, if none is named: the last part of the URL."""
    name = url.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    if name in {"", ".", "..", "~", FOLDER}:
        raise WouldOverwrite(
            f"no folder can be named after {url}", hint="name one: 'mvc clone URL DIR'"
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
    """Makes a repository with all that the one at ``url`` has; durable on return.

    Raises WouldOverwrite for a folder that is not empty, Busy for one into which another process
    clones, UnknownRevision for a branch that is not there, and the errors of ``fetch``.
    """
    chosen, fs = options or CloneOptions(), FileSystem()
    states_of(chosen.states)
    remote = remote_of(
        check_name(chosen.remote),
        normalised(url, fs.cwd()),
        {"states": chosen.states, **chosen.options},
    )
    if remote.scheme == "file":
        check_folder(replace(remote, name=""))  # in words of a URL: nothing has the name yet
    place = fs.realpath(folder or Path(default_folder(remote.url)))
    with removing_if_failed(fs) as made, _building(fs, place, remote, made) as beside:
        fetched = None
        if fs.stat(place / FOLDER) is None:
            fetched = _build(beside, remote, chosen, config=config, progress=progress)
            fs.replace(beside / FOLDER, place / FOLDER)
            fs.sync_dir(place)
        with _opened(place, FileSystem(), config) as handle:
            at, restored = head(handle.store.fresh()), None
            if at.commit is not None and not handle.store.bare:
                with suppress(StateForgotten, WeightsDropped):  # they did not come along
                    restored = restore_all(
                        handle.store, at.commit, at.branch or at.commit, progress=progress
                    )
    return Cloned(
        place, fetched or Transferred(remote.name, ()), at.branch, at.commit, restored=restored
    )


@contextmanager
def _building(fs: FileSystem, place: Path, remote: Remote, made: list[Path]) -> Iterator[Path]:
    """The folder to build in, which is gone at the end; what came stays if the block fails."""
    beside, names = place / BESIDE, set() if fs.stat(place) is None else {*fs.list(place)}
    if names - {BESIDE} and not names >= {BESIDE, FOLDER}:
        raise WouldOverwrite(
            f"{printable(str(place))} is there already, and is not empty",
            hint="clone into another folder: 'mvc clone URL DIR'",
        )
    fs.make_dirs(beside, created=made)
    lock = fs.lock(beside / _LOCK, block=False)
    if lock is None:
        raise Busy(
            f"another process clones into {printable(str(place))}", hint="wait until it is done"
        )
    with lock:
        _check_state(fs, beside, _Unfinished(remote.url, boot_id()))
        try:
            yield beside
        except BaseException:
            come = beside / FOLDER / REMOTES / remote.name / FETCHED
            if FOLDER not in fs.list(place) and fs.stat(come) is None:
                fs.remove_tree(beside)
            raise
        fs.remove_tree(beside)


def _check_state(fs: FileSystem, beside: Path, now: _Unfinished) -> None:
    """Begins anew where what is there may lack what was not flushed before a power loss."""
    before = None
    if fs.stat(beside / _STATE) is not None:
        with suppress(msgspec.MsgspecError, ValueError):
            before = msgspec.json.decode(fs.read_bytes(beside / _STATE, _MOST), type=_Unfinished)
    if before is not None and before.url != now.url:
        raise WouldOverwrite(
            f"a clone of {printable(before.url)} was not finished here",
            hint=f"end it with the same command, or remove {printable(str(beside))}",
        )
    if (before != now or not now.boot) and fs.stat(beside / FOLDER) is not None:
        fs.remove_tree(beside / FOLDER)
    if before != now:
        fs.write_atomic(beside / _STATE, msgspec.json.encode(now))


@contextmanager
def _opened(place: Path, fs: FileSystem, config: Configure | None) -> Iterator[Handle]:
    handle = open_handle(place, discover=False, config=config, fs=fs)
    with closing(handle.store):
        yield handle


def _build(
    beside: Path,
    remote: Remote,
    options: CloneOptions,
    *,
    config: Configure | None,
    progress: Progress | None,
) -> Transferred:
    """Makes the repository in ``beside``, durable as a whole."""
    fs = LateFlushes()
    if fs.stat(beside / FOLDER) is None:
        first = BARE_CONFIG if options.bare else FIRST_CONFIG
        create(fs, Clock(), beside, "main", config=first)
    with _opened(beside, fs, config) as handle:
        add_remote(handle.store, remote, force=True)
        with closing(open_transport(remote, handle.store, handle.config)) as transport:
            import_module("mvc.remote.receiving.receiver")  # while the other end of ssh starts
            before = ask(transport, handle.store, remote)
            there = before.head
            if remote.is_bucket and not there.identity:
                raise NotARepository(
                    f"there is no repository in {remote.url}",
                    hint="is the path right? 'mvc push' of another repository begins one there, "
                    "after 'mvc remote add'",
                )
            to = _current(there, remote, options)
            done = fetch_from(
                handle.store, handle.config, remote, transport, before=before,
                wanted=Wanted(states=states_of(options.states), reports=remote.nodes),
                progress=progress,
            )  # fmt: skip
        _begin(handle.store, remote, to, options)
        end, tips = place_of(handle.store.fresh()), tuple(map(bytes, tips_of(there.refs)))
        keep_place(
            handle.store, remote, PUSHED,
            KnownPlace(there.identity, end, tips, there=there.place, dealt=end.sequence),
        )  # fmt: skip
    fs.flush(beside / FOLDER)
    return done


def _current(there: RemoteHead, remote: Remote, options: CloneOptions) -> RefValue:
    """What HEAD will be. Raises UnknownRevision for a branch that is not there; InvalidName."""
    if options.branch is None:
        to = there.refs.get(HEAD)
        return check_ref("branch", to) if isinstance(to, str) else to
    check_ref("branch", options.branch)
    if BRANCH + options.branch not in there.refs:
        names = sorted(n.removeprefix(BRANCH) for n in there.refs if n.startswith(BRANCH))
        raise UnknownRevision(
            f"{remote.url} has no branch {options.branch}",
            hint=f"it has {', '.join(map(printable, names[:10]))}" if names else "it has none yet",
        )
    return options.branch


def _begin(store: Store, remote: Remote, to: RefValue, options: CloneOptions) -> None:
    """Makes the current branch, of a bare repository all branches, and has HEAD lead to it.

    Raises HistoryMissing for a HEAD on a version that did not come.
    """

    def make() -> Entry:
        ref = store.snapshot.ref
        theirs = {f"{BRANCH}{each.name.partition('/')[2]}": each.commit for each in tracked}
        chosen = {n: c for n, c in theirs.items() if options.bare or n == f"{BRANCH}{to}"}
        wanted: dict[str, RefValue] = {**chosen, **({} if to is None else {HEAD: to})}
        changes = [RefChange(n, ref(n), new) for n, new in wanted.items() if ref(n) != new]
        return Entry("clone", store.clock.now_ns(), remote.url, refs=tuple(changes))

    if isinstance(to, CommitId) and not store.snapshot.has_commit(to):
        raise HistoryMissing(f"HEAD of {remote.url} is on {to.short}, which it does not send")
    tracked = remote_refs(store.fresh(), remote.name)
    store.publish(make)
