"""The remotes of a repository: ``.mvc/remotes.yaml`` and the disposable folders ``.mvc/remotes/R``.

The file holds names, URLs and options, and no secret: a URL with a password is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import (
    InvalidConfig,
    InvalidName,
    MvcError,
    RefConflict,
    UnknownRevision,
    WrongUsage,
)
from mvc.io.files import FileSystem
from mvc.limits import MAX_REMOTE_BYTES, MAX_URL
from mvc.model.statement import Deployment, Signature, Statement, Tombstone
from mvc.names import REMOTE, check_ref, printable
from mvc.remote.kinds import FORMS, KINDS, RemoteKind, scheme_of
from mvc.remote.transport import States
from mvc.repo.config import changing, read_yaml, write_yaml
from mvc.repo.lookup.refs import remote_refs
from mvc.repo.revisions import resolve
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.store import Store

FILE = "remotes.yaml"
FOLDER = "remotes"
DEFAULT = "origin"
_MOST = 1000  # remotes of a repository
_MOST_PORTS = 65_535

_SCP = re.compile(r"[\w.-]+@[\w.-]+:(?!//)")
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


class Remote(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A remote, under its name in this repository; the name is empty for a plain URL.

    ``lazy``: a missing state is fetched when a command asks for it. ``data``: whether the contents
    of data sets are pushed. ``tombstones``: whether what is forgotten by name there is so here as
    well; ``deployments``: whether what is deployed or retracted there is. ``nodes``: whether
    ``fetch`` brings what nodes report. ``states``: whose states it brings (``states_of``).
    ``token_file`` (of mode 0600) and ``ca_file`` are for https, ``program`` is mvc at the other end
    of ssh, ``endpoint`` and ``region`` are of buckets.
    """

    url: str
    name: str = ""
    lazy: bool = False
    data: bool = True
    tombstones: bool = True
    deployments: bool = True
    nodes: bool = False
    states: str = "all"
    token_file: str = ""
    ca_file: str = ""
    program: str = ""
    endpoint: str = ""
    region: str = ""

    @property
    def scheme(self) -> str:
        return scheme_of(self.url)[0]

    @property
    def kind(self) -> RemoteKind:
        return KINDS[self.scheme]

    @property
    def is_bucket(self) -> bool:
        """Whether it is a store of objects, which runs no mvc."""
        return self.kind.is_bucket

    @property
    def is_on_this_machine(self) -> bool:
        """Whether its server is at a socket, or the loopback interface."""
        host = urlsplit(self.url).hostname or ""
        return self.url.startswith("unix:") or _LOOPBACK.fullmatch(host) is not None

    @property
    def typed(self) -> str:
        """What names it behind a command: nothing for ``origin``, which is the default."""
        return "" if self.name == DEFAULT else f" {self.name or self.url}"

    @property
    def disbelieved(self) -> tuple[str, ...]:
        """The kinds of statements that a fetch from it passes over."""
        forgotten = () if self.tombstones else (Tombstone.name,)
        return forgotten if self.deployments else (*forgotten, Deployment.name)

    def disbelieves(self, statement: Statement) -> bool:
        """Whether a fetch from it passes over a statement."""
        is_of_deployment = isinstance(statement, Signature) and statement.of_statement
        is_about_target = bool(statement.target or is_of_deployment)
        return (Deployment.name if is_about_target else statement.name) in self.disbelieved

    def folder(self, store: Store) -> Path:
        """Its folder in ``.mvc``, which is made; everything in it may be lost."""
        if not self.name:
            raise WrongUsage("a URL has no folder here")
        place = store.folder / FOLDER / self.name
        store.fs.make_dirs(place, within=store.folder)
        return place


_OPTIONS = tuple(f for f in Remote.__struct_fields__ if f not in {"name", "url"})


def states_of(text: str) -> States:
    """``all``, ``none``, ``live`` or ``last:N``. Raises WrongUsage."""
    if text in ("all", "none"):
        return "all" if text == "all" else "none"
    found = re.fullmatch(r"live|last:([0-9]{1,9})", text, re.ASCII)
    if found is None:
        raise WrongUsage(f"states are all, none, live or last:N, not {printable(text[:50])!r}")
    return int(found[1] or 0)


def normalised(url: str, cwd: Path) -> str:
    """A URL as it is kept: paths absolute, without ``file://``. Raises WrongUsage.

    What it holds is later given to programs such as ssh: hosts and users are plain names.
    """
    if not url or len(url) > MAX_URL or printable(url) != url:
        raise WrongUsage(f"this is no URL: {printable(url[:100])!r}", hint=FORMS)
    scheme, rest = scheme_of(url)
    if scheme not in KINDS:
        raise WrongUsage(f"mvc has no remotes at {scheme}://", hint=FORMS)
    kind = KINDS[scheme]
    if kind.authority:
        authority, _, path = rest.partition("/")
        _check_authority(scheme, kind, authority)
        if "?" in path or "#" in path:
            raise WrongUsage(f"a URL ends with its path: {scheme}://{authority}/...", hint=FORMS)
        return f"{scheme}://{authority}/{path}"
    if scheme != "file":
        return f"{scheme}:{_absolute(rest, cwd)}"
    if _SCP.match(url):
        host, _, path = url.partition(":")
        raise WrongUsage(
            f"{url} is not a URL of mvc", hint=f"write ssh://{host}/{path.lstrip('/')}"
        )
    if rest != url:
        rest = "/" + rest.removeprefix("localhost").lstrip("/")
    return _absolute(rest, cwd)


def _check_authority(scheme: str, kind: RemoteKind, authority: str) -> None:
    """Raises WrongUsage for what is no host, without a password that it holds."""
    before, at, _ = authority.rpartition("@")
    if at and (":" in before or not kind.takes("user@host")):
        raise WrongUsage(
            f"a URL holds no password and no token: {scheme}://...@{authority.rpartition('@')[2]}",
            hint=kind.secrets,
        )
    port = re.search(r":([0-9]+)$", authority)
    is_port = port is None or 0 < int(port[1]) <= _MOST_PORTS
    if not kind.takes(authority) or not is_port:
        raise WrongUsage(f"this is no host: {authority[:100]!r}", hint=FORMS)


def _file(path: str, cwd: Path) -> str:
    """The path of a file that an option names, from wherever it is read later."""
    return path and _absolute(posixpath.expanduser(path), cwd)


def _absolute(path: str, cwd: Path) -> str:
    if not path:
        raise WrongUsage("the path of a remote is empty", hint=FORMS)
    return posixpath.normpath(cwd / path)


def check_name(name: str) -> str:
    """Returns the name of a remote; raises InvalidName."""
    check_ref("remote", name)
    if "/" in name or len(name) > MAX_REMOTE_BYTES:
        raise InvalidName(
            f"the name of a remote has at most {MAX_REMOTE_BYTES} letters and no '/': "
            f"{printable(name[:60])}"
        )
    return name


def remotes(store: Store) -> dict[str, Remote]:
    """Every remote by its name. Raises InvalidConfig."""
    file = store.folder / FILE
    tree = read_yaml(store.fs, file)
    try:
        found = msgspec.convert(tree, dict[str, Remote])
        if len(found) > _MOST:
            raise WrongUsage(f"more than {_MOST} remotes")
        for name, remote in found.items():
            check_name(name)
            states_of(remote.states)
            if normalised(remote.url, store.root) != remote.url:
                raise WrongUsage(f"this is no whole URL: {printable(remote.url[:100])!r}")
    except (msgspec.ValidationError, InvalidName, WrongUsage) as error:
        raise InvalidConfig(
            f"{printable(str(file))}: {printable(str(error))}",
            hint="correct the file, or remove it and add the remotes again",
        ) from error
    return {name: replace(remote, name=name) for name, remote in found.items()}


def find_remote(store: Store, name: str | None = None) -> Remote:
    """The remote of this name or URL; without one ``origin``, or the only one there is.

    Raises UnknownRevision for none, and WrongUsage where several are possible or for a bad URL.
    """
    found = remotes(store)
    if name is None:
        if DEFAULT in found or len(found) == 1:
            return found.get(DEFAULT) or next(iter(found.values()))
        if found:
            raise WrongUsage(f"which remote? there is {', '.join(found)}", hint="name it")
        raise UnknownRevision(
            "there is no remote yet", hint="name one with 'mvc remote add origin URL'"
        )
    if name in found:
        return found[name]
    if "/" in name or ":" in name:
        return Remote(normalised(name, store.fs.cwd()))
    shown = printable(name[:100])
    hint = f"name one with 'mvc remote add {shown} URL'"
    if found:
        hint = f"there is {', '.join(found)}"
        with suppress(MvcError):  # who knows git's 'push' without a remote types a version first
            resolve(store, name)
            hint += f"; it comes before the version: '{next(iter(found))} {shown}'"
    raise UnknownRevision(f"there is no remote {shown}", hint=hint)


def add_remote(store: Store, remote: Remote, *, force: bool = False) -> Remote:
    """Adds a remote; with ``force`` in place of one of this name.

    Raises InvalidName, WrongUsage, RefConflict.
    """
    cwd = store.fs.cwd()
    remote = replace(
        remote,
        url=normalised(remote.url, cwd),
        token_file=_file(remote.token_file, cwd),
        ca_file=_file(remote.ca_file, cwd),
    )
    check_name(remote.name)
    states_of(remote.states)
    with changing(store.fs, store.folder / FILE):
        found = remotes(store)
        if remote.name in found and not force:
            raise RefConflict(
                f"there is a remote {remote.name} already: {found[remote.name].url}",
                hint="choose another name, or add -f to change it",
            )
        _write(store, {**found, remote.name: remote})
    return remote


def remote_of(name: str, url: str, options: Mapping[str, str | bool]) -> Remote:
    """A remote with options, also as texts: ``lazy`` is ``true``. Raises WrongUsage."""
    if unknown := options.keys() - set(_OPTIONS):
        raise WrongUsage(
            f"a remote has no option {printable(min(unknown)[:50])}",
            hint=f"there is {', '.join(_OPTIONS)}",
        )
    try:
        return msgspec.convert({"name": name, "url": url, **options}, Remote, strict=False)
    except msgspec.ValidationError as error:
        raise WrongUsage(f"an option does not fit: {printable(str(error))}") from error


def remote_at(url: str, options: Mapping[str, str | bool] = {}) -> Remote:
    """The remote at a URL that has no name here; its token is that of ``origin``.

    ``options``: fields of ``Remote``. Raises WrongUsage.
    """
    remote = remote_of(DEFAULT, normalised(url, FileSystem().cwd()), options)
    return replace(remote, name="") if remote.scheme == "file" else remote


def remove_remote(store: Store, name: str) -> Remote:
    """Takes a remote away, its folder, and the refs that say where its branches were."""
    with changing(store.fs, store.folder / FILE):
        found = remotes(store)
        if name not in found:
            find_remote(store, name)
            raise UnknownRevision(f"there is no remote {printable(name[:100])}")
        gone = found.pop(name)
        _write(store, found)
    if remote_refs(store.fresh(), name):
        store.publish(lambda: _without_refs(store, name))
    store.fs.remove_tree(gone.folder(store))
    return gone


def _without_refs(store: Store, name: str) -> Entry:
    changes = [RefChange(REMOTE + r.name, r.commit, None) for r in remote_refs(store.fresh(), name)]
    return Entry("remove-remote", store.clock.now_ns(), name, refs=tuple(changes))


def _write(store: Store, found: Mapping[str, Remote]) -> None:
    tree = {name: msgspec.to_builtins(replace(each, name="")) for name, each in found.items()}
    write_yaml(store.fs, store.folder / FILE, tree)
