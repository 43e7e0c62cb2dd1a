"""The remotes of a repository: the file ``.mvc/remotes.yaml``, and folders ``.mvc/remotes/R``.

The file has the name, URL and options of each remote. In the folder of a remote, fetch and push
store files that may be deleted. A URL with a password is refused, so that no secret is stored.
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
_MOST = 1000  # limit of remotes of a repository
_MOST_PORTS = 65_535

_SCP = re.compile(r"[\w.-]+@[\w.-]+:(?!//)")
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


class Remote(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A remote. If a command names a URL that is not configured, the remote has an empty name.

    ``lazy``: fetch an absent state when a command needs it. ``data``: push the contents of data
    sets. ``tombstones``: a fetch applies the remote's purges. ``deployments``: a fetch applies the
    remote's deployments and retractions. ``nodes``: fetch reports of nodes (machines that serve a
    model). ``states``: the states that a fetch downloads (``states_of``). ``token_file`` (mode
    0600), ``ca_file``: the files with the token and the trusted certificates for https.
    ``program``: the mvc command on the ssh host. ``endpoint``, ``region``: for buckets.
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
        """Whether the remote is object storage, where no mvc runs."""
        return self.kind.is_bucket

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the remote is reached through a Unix socket or the loopback interface."""
        host = urlsplit(self.url).hostname or ""
        return self.url.startswith("unix:") or _LOOPBACK.fullmatch(host) is not None

    @property
    def typed(self) -> str:
        """The argument that selects this remote in a command; empty for the default ``origin``."""
        return "" if self.name == DEFAULT else f" {self.name or self.url}"

    @property
    def disbelieved(self) -> tuple[str, ...]:
        """The kinds of statements that a fetch from this remote ignores: deployments or purges."""
        forgotten = () if self.tombstones else (Tombstone.name,)
        return forgotten if self.deployments else (*forgotten, Deployment.name)

    def disbelieves(self, statement: Statement) -> bool:
        """Whether a fetch from this remote ignores a statement."""
        is_of_deployment = isinstance(statement, Signature) and statement.of_statement
        is_about_target = bool(statement.target or is_of_deployment)
        return (Deployment.name if is_about_target else statement.name) in self.disbelieved

    def folder(self, store: Store) -> Path:
        """The folder of the remote in ``.mvc``, created if missing. Its files may be deleted."""
        if not self.name:
            raise WrongUsage("a remote without a name has no folder")
        place = store.folder / FOLDER / self.name
        store.fs.make_dirs(place, within=store.folder)
        return place


_OPTIONS = tuple(f for f in Remote.__struct_fields__ if f not in {"name", "url"})


def states_of(text: str) -> States:
    """Converts ``live`` to 0, and ``last:N`` to N. Returns ``all`` and ``none`` unchanged. Raises
    WrongUsage.
    """
    if text in ("all", "none"):
        return "all" if text == "all" else "none"
    match = re.fullmatch(r"live|last:([0-9]{1,9})", text, re.ASCII)
    if match is None:
        raise WrongUsage(f"states are all, none, live or last:N, not {printable(text[:50])!r}")
    return int(match[1] or 0)


def normalised(url: str, cwd: Path) -> str:
    """The URL as it is stored: with an absolute path, and without ``file://``. Raises WrongUsage.

    Hosts and users must be plain names, because programs such as ssh receive them as arguments.
    """
    if not url or len(url) > MAX_URL or printable(url) != url:
        raise WrongUsage(f"not a valid URL: {printable(url[:100])!r}", hint=FORMS)
    scheme, rest = scheme_of(url)
    if scheme not in KINDS:
        raise WrongUsage(f"mvc does not support {scheme}:// URLs", hint=FORMS)
    kind = KINDS[scheme]
    if kind.authority:
        authority, _, path = rest.partition("/")
        _check_authority(scheme, kind, authority)
        if "?" in path or "#" in path:
            raise WrongUsage(
                f"a URL with a query or fragment is not supported: {scheme}://{authority}/...",
                hint=FORMS,
            )
        return f"{scheme}://{authority}/{path}"
    if scheme != "file":
        return f"{scheme}:{_absolute(rest, cwd)}"
    if _SCP.match(url):
        host, _, path = url.partition(":")
        raise WrongUsage(
            f"{url} is not a URL that mvc reads", hint=f"write ssh://{host}/{path.lstrip('/')}"
        )
    if rest != url:
        rest = "/" + rest.removeprefix("localhost").lstrip("/")
    return _absolute(rest, cwd)


def _check_authority(scheme: str, kind: RemoteKind, authority: str) -> None:
    """Raises WrongUsage for an invalid host, or for a URL with a password.

    The message never contains the password.
    """
    before, at, _ = authority.rpartition("@")
    if at and (":" in before or not kind.takes("user@host")):
        raise WrongUsage(
            f"a URL must not contain a password: {scheme}://...@{authority.rpartition('@')[2]}",
            hint=kind.secrets,
        )
    port = re.search(r":([0-9]+)$", authority)
    is_port = port is None or 0 < int(port[1]) <= _MOST_PORTS
    if not kind.takes(authority) or not is_port:
        raise WrongUsage(f"not a valid host: {authority[:100]!r}", hint=FORMS)


def _file(path: str, cwd: Path) -> str:
    """The path of an option, made absolute, because later commands run in other folders."""
    return path and _absolute(posixpath.expanduser(path), cwd)


def _absolute(path: str, cwd: Path) -> str:
    if not path:
        raise WrongUsage("the path of a remote is empty", hint=FORMS)
    return posixpath.normpath(cwd / path)


def check_name(name: str) -> str:
    """Returns the name of a remote if it is valid. Raises InvalidName."""
    check_ref("remote", name)
    if "/" in name or len(name) > MAX_REMOTE_BYTES:
        raise InvalidName(
            f"the name of a remote has at most {MAX_REMOTE_BYTES} letters and no '/': "
            f"{printable(name[:60])}"
        )
    return name


def remotes(store: Store) -> dict[str, Remote]:
    """Maps the names of all remotes to the remotes. Raises InvalidConfig."""
    file = store.folder / FILE
    tree = read_yaml(store.fs, file)
    try:
        configured = msgspec.convert(tree, dict[str, Remote])
        if len(configured) > _MOST:
            raise WrongUsage(f"more than {_MOST} remotes")
        for name, remote in configured.items():
            check_name(name)
            states_of(remote.states)
            if normalised(remote.url, store.root) != remote.url:
                raise WrongUsage(f"not an absolute URL: {printable(remote.url[:100])!r}")
    except (msgspec.ValidationError, InvalidName, WrongUsage) as error:
        raise InvalidConfig(
            f"{printable(str(file))}: {printable(str(error))}",
            hint="correct the file, or remove it and add the remotes again",
        ) from error
    return {name: replace(remote, name=name) for name, remote in configured.items()}


def find_remote(store: Store, name: str | None = None) -> Remote:
    """The remote with this name or URL. Without a name: ``origin``, or the only remote.

    Raises UnknownRevision if no remote matches; WrongUsage for an invalid URL. Without a name,
    raises WrongUsage if there are several remotes and none is ``origin``.
    """
    configured = remotes(store)
    if name is None:
        if DEFAULT in configured or len(configured) == 1:
            return configured.get(DEFAULT) or next(iter(configured.values()))
        if configured:
            raise WrongUsage(
                f"several remotes and none is origin: {', '.join(configured)}",
                hint="name one of them",
            )
        raise UnknownRevision(
            "this repository has no remote", hint="add one: 'mvc remote add origin URL'"
        )
    if name in configured:
        return configured[name]
    if "/" in name or ":" in name:
        remote = Remote(normalised(name, store.fs.cwd()))
        if "/" in name or remote.scheme != "file" or store.fs.stat(Path(remote.url)) is not None:
            return remote
    shown = printable(name[:100])
    hint = (
        "name the remote first: 'mvc push REMOTE REV:NAME'"
        if ":" in name
        else f"add it: 'mvc remote add {shown} URL'"
    )
    if configured and ":" not in name:
        hint = f"available: {', '.join(configured)}"
        with suppress(MvcError):  # users may type a version where the remote is expected
            resolve(store, name)
            hint += f"; the remote comes before the version: '{next(iter(configured))} {shown}'"
    raise UnknownRevision(f"there is no remote {shown}", hint=hint)


def add_remote(store: Store, remote: Remote, *, force: bool = False) -> Remote:
    """Adds a remote. ``force``: replaces a remote of this name.

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
        configured = remotes(store)
        if remote.name in configured and not force:
            raise RefConflict(
                f"a remote named {remote.name} already exists: {configured[remote.name].url}",
                hint="choose another name, or change it with -f",
            )
        _write(store, {**configured, remote.name: remote})
    return remote


def remote_of(name: str, url: str, options: Mapping[str, str | bool]) -> Remote:
    """A remote with options. The value of an option may be a text (``"true"``).

    Raises WrongUsage.
    """
    if unknown := options.keys() - set(_OPTIONS):
        raise WrongUsage(
            f"a remote has no option {printable(min(unknown)[:50])}",
            hint=f"available: {', '.join(_OPTIONS)}",
        )
    try:
        return msgspec.convert({"name": name, "url": url, **options}, Remote, strict=False)
    except msgspec.ValidationError as error:
        raise WrongUsage(f"invalid option of a remote: {printable(str(error))}") from error


def remote_at(url: str, options: Mapping[str, str | bool] = {}) -> Remote:
    """A remote that is not in ``remotes.yaml``. ``options``: fields of ``Remote``.

    The name of the remote is ``origin``. So a remote on this machine uses the token of ``origin``.
    Raises WrongUsage.
    """
    remote = remote_of(DEFAULT, normalised(url, FileSystem().cwd()), options)
    return replace(remote, name="") if remote.scheme == "file" else remote


def remove_remote(store: Store, name: str) -> Remote:
    """Deletes a remote, its folder, and its tracking refs."""
    with changing(store.fs, store.folder / FILE):
        configured = remotes(store)
        if name not in configured:
            find_remote(store, name)
            raise UnknownRevision(f"there is no remote {printable(name[:100])}")
        removed = configured.pop(name)
        _write(store, configured)
    if remote_refs(store.fresh(), name):
        store.publish(lambda: _without_refs(store, name))
    store.fs.remove_tree(removed.folder(store))
    return removed


def _without_refs(store: Store, name: str) -> Entry:
    changes = [RefChange(REMOTE + r.name, r.commit, None) for r in remote_refs(store.fresh(), name)]
    return Entry("remove-remote", store.clock.now_ns(), name, refs=tuple(changes))


def _write(store: Store, configured: Mapping[str, Remote]) -> None:
    tree = {
        name: msgspec.to_builtins(replace(remote, name="")) for name, remote in configured.items()
    }
    write_yaml(store.fs, store.folder / FILE, tree)
