"""What the holder of a token, or of an account behind a forced command, may do.

``read``, ``push:GLOB`` (branches ``heads/...`` and tags ``tags/...``; a GLOB that begins otherwise
is of branches), ``deploy:GLOB`` (targets), ``metrics`` (what a server counts) and ``admin``
(everything: force, delete, tombstones).
``REPO:`` in front limits a scope to repositories of this name. ``*`` in a GLOB stands for any
characters, ``/`` among them. What a node reports needs a GLOB that names the node:
``deploy:nodes/NAME/*``. ``deploy:*`` does not allow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

from mvc.errors import RemoteRefused, WrongUsage
from mvc.limits import MAX_REF_BYTES
from mvc.names import NODES, is_report, printable
from mvc.remote.transport import Move
from mvc.repo.lookup.refs import BRANCH, TAG

Deed = Literal["read", "push", "deploy", "metrics", "admin"]
TOKEN_FORM = re.compile(r"mvc_[A-Za-z0-9_-]{43}")
"""What a token looks like: 256 bits in base64url."""
_PLAIN, _WITH_GLOB = {"read", "metrics", "admin"}, {"push", "deploy"}
_NAME = re.compile(r"[A-Za-z0-9_*?][A-Za-z0-9._+/*?-]*")
_OF_A_NODE = re.compile(rf"{NODES}[^/*?]+/.+")
_MOST = 100


def parse_scopes(texts: Iterable[str]) -> tuple[str, ...]:
    """The scopes of texts that name one or, with commas between them, several.

    Raises WrongUsage.
    """
    scopes = tuple(dict.fromkeys(s.strip() for text in texts for s in text.split(",")))
    if not scopes or len(scopes) > _MOST:
        raise WrongUsage(f"name 1 to {_MOST} scopes with --scope", hint=_EXAMPLES)
    for scope in scopes:
        _, deed, glob = _split(scope)
        if deed == "deploy" and glob and is_report(glob) and not _OF_A_NODE.fullmatch(glob):
            raise WrongUsage(f"{printable(scope[:200])!r} names no node", hint=_ONE_NODE)
        if (deed in _PLAIN and glob is None) or (deed in _WITH_GLOB and _is_name(glob)):
            continue
        raise WrongUsage(f"{printable(scope[:200])!r} is no scope", hint=_EXAMPLES)
    return scopes


_EXAMPLES = (
    "read, push:heads/*, deploy:prod, metrics or admin, each with REPO: in front for one repository"
)
_ONE_NODE = "each node has a token of its own, with the scope deploy:nodes/NAME/*"


def _split(scope: str) -> tuple[str, str, str | None]:
    """Repository (``*`` for all), deed, and glob."""
    parts = scope.split(":")
    if len(parts) == 1 or parts[0] in (_PLAIN | _WITH_GLOB) - {"metrics"}:
        parts.insert(0, "*")
    if not 2 <= len(parts) <= 3 or not _is_name(parts[0]):
        return "*", "", None
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def _is_name(text: str | None) -> bool:
    return text is not None and len(text) <= MAX_REF_BYTES and _NAME.fullmatch(text) is not None


def within(scopes: Iterable[str], repository: str) -> tuple[str, ...]:
    """The scopes that hold for this repository, without its name."""
    held = []
    for scope in scopes:
        name, deed, glob = _split(scope)
        if fnmatchcase(repository, name):
            held.append(deed if glob is None else f"{deed}:{glob}")
    return tuple(held)


def allows(scopes: Iterable[str], deed: Deed, name: str = "") -> bool:
    """Whether scopes of one repository allow to read, to push to the branch or tag ``name``
    (``heads/main``), to deploy to the target ``name``, or to do all. No scopes allow all.
    """
    scopes = tuple(scopes)
    if not scopes or "admin" in scopes:
        return True
    if deed in _PLAIN:
        return deed in scopes
    globs = [scope.partition(":")[2] for scope in scopes if scope.startswith(f"{deed}:")]
    if deed == "push":
        globs += [BRANCH + glob for glob in globs if not glob.startswith((BRANCH, TAG))]
    if deed == "deploy" and is_report(name):  # others' reports replace what a node has said
        node = "/".join(name.split("/")[:2])
        globs = [glob for glob in globs if glob.startswith(f"{node}/")]
    return any(fnmatchcase(name, glob) for glob in globs)


def require(scopes: Iterable[str], deed: Deed, name: str = "") -> None:
    """Raises RemoteRefused unless ``allows``."""
    if not allows(scopes, deed, name):
        scope = f"{deed}:{printable(name)}" if name else deed
        is_told = deed == "deploy" and not is_report(name)
        told = "; a push tells all deployments of its versions" if is_told else ""
        raise RemoteRefused(
            f"this needs the scope {scope}{told}",
            hint=_ONE_NODE
            if is_report(name)
            else "ask who runs the remote for a token that has it",
        )


def check_moves(scopes: tuple[str, ...], moves: Iterable[Move]) -> None:
    """Raises RemoteRefused for a ref that its sender may not move so."""
    for move in moves:
        require(scopes, "push", move.name)
        if move.force or move.new is None:
            require(scopes, "admin")


def check_protected(scopes: Iterable[str], targets: Iterable[str]) -> None:
    """Raises RemoteRefused for protected targets, but for those that a scope names in full."""
    for target in targets:
        if not names_target(scopes, target):
            raise RemoteRefused(
                f"{printable(target)} is protected there (deploy.protect)",
                hint="deploy to it in that repository itself, with --anyway, or through a server "
                f"with a token of the scope deploy:{printable(target)}",
            )


def names_target(scopes: Iterable[str], target: str) -> bool:
    """Whether a scope allows all, or deployments to just this target."""
    return not {"admin", f"deploy:{target}"}.isdisjoint(scopes)


def check_news(
    scopes: tuple[str, ...], targets: Iterable[str], *, adds: bool = False, forgets: bool = False
) -> None:
    """Raises RemoteRefused for targets that its sender may not deploy to, for versions, states or
    annotations (``adds``) of one who may push nothing, and for what has a state forgotten by name.
    """
    for target in targets:
        require(scopes, "deploy", target)
    if adds and not any(scope.startswith("push:") for scope in scopes):
        require(scopes, "push", "...")
    if forgets:
        require(scopes, "admin")
