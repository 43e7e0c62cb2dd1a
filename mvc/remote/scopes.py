"""Scopes: the rights of a client of an mvc server, such as ``read`` or ``push:GLOB``.

A client's scopes are those of its token. With ssh, ``mvc serve --stdio --scope`` names the scopes.
``read`` permits reading versions. ``metrics`` permits reading the server's metrics. ``push:GLOB``
permits pushes to the refs that match GLOB. A GLOB without the prefix ``heads/`` or ``tags/`` is for
branches. ``deploy:GLOB`` permits deployments to the targets that match GLOB. ``admin`` permits
everything, including forced pushes, deletions of refs, and purges. The prefix ``REPO:`` limits a
scope to repositories of this name. ``*`` matches any characters, even ``/``. Reports of a node (a
machine that serves a model) need a GLOB with the name of the node, such as ``deploy:nodes/NAME/*``:
``deploy:*`` is not enough.
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

Action = Literal["read", "push", "deploy", "metrics", "admin"]
TOKEN_FORM = re.compile(r"mvc_[A-Za-z0-9_-]{43}")
"""The form of a token: ``mvc_``, then 256 bits in base64url."""
_PLAIN, _WITH_GLOB = {"read", "metrics", "admin"}, {"push", "deploy"}
_NAME = re.compile(r"[A-Za-z0-9_*?][A-Za-z0-9._+/*?-]*")
_OF_A_NODE = re.compile(rf"{NODES}[^/*?]+/.+")
_MOST = 100


def parse_scopes(texts: Iterable[str]) -> tuple[str, ...]:
    """The scopes in ``texts``. Each text has one or more scopes, separated by commas.

    Raises WrongUsage.
    """
    scopes = tuple(dict.fromkeys(s.strip() for text in texts for s in text.split(",")))
    if not scopes or len(scopes) > _MOST:
        raise WrongUsage(f"name 1 to {_MOST} scopes with --scope", hint=_EXAMPLES)
    for scope in scopes:
        _, action, glob = _split(scope)
        if action == "deploy" and glob and is_report(glob) and not _OF_A_NODE.fullmatch(glob):
            raise WrongUsage(
                f"the scope {printable(scope[:200])!r} does not name a node", hint=_ONE_NODE
            )
        if (action in _PLAIN and glob is None) or (action in _WITH_GLOB and _is_name(glob)):
            continue
        raise WrongUsage(f"{printable(scope[:200])!r} is not a scope", hint=_EXAMPLES)
    return scopes


_EXAMPLES = (
    "use read, push:heads/*, deploy:prod, metrics or admin; the prefix REPO: limits the scope to "
    "one repository"
)
_ONE_NODE = "each node needs its own token, with the scope deploy:nodes/NAME/*"


def _split(scope: str) -> tuple[str, str, str | None]:
    """The repository (``*`` for all), the action, and the glob of a scope."""
    parts = scope.split(":")
    if len(parts) == 1 or parts[0] in (_PLAIN | _WITH_GLOB) - {"metrics"}:
        parts.insert(0, "*")
    if not 2 <= len(parts) <= 3 or not _is_name(parts[0]):
        return "*", "", None
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def _is_name(text: str | None) -> bool:
    return text is not None and len(text) <= MAX_REF_BYTES and _NAME.fullmatch(text) is not None


def within(scopes: Iterable[str], repository: str) -> tuple[str, ...]:
    """The scopes that apply to this repository, without the prefix."""
    applicable = []
    for scope in scopes:
        name, action, glob = _split(scope)
        if fnmatchcase(repository, name):
            applicable.append(action if glob is None else f"{action}:{glob}")
    return tuple(applicable)


def allows(scopes: Iterable[str], action: Action, name: str = "") -> bool:
    """Whether the scopes of one repository allow an action.

    If there are no scopes, everything is allowed. ``name``: the branch or tag to push to
    (``heads/main``), or the target to deploy to.
    """
    scopes = tuple(scopes)
    if not scopes or "admin" in scopes:
        return True
    if action in _PLAIN:
        return action in scopes
    globs = [scope.partition(":")[2] for scope in scopes if scope.startswith(f"{action}:")]
    if action == "push":
        globs += [BRANCH + glob for glob in globs if not glob.startswith((BRANCH, TAG))]
    if action == "deploy" and is_report(name):  # otherwise nodes could replace each other's reports
        node = "/".join(name.split("/")[:2])
        globs = [glob for glob in globs if glob.startswith(f"{node}/")]
    return any(fnmatchcase(name, glob) for glob in globs)


def require(scopes: Iterable[str], action: Action, name: str = "") -> None:
    """Raises RemoteRefused unless the scopes allow the action."""
    if not allows(scopes, action, name):
        scope = f"{action}:{printable(name)}" if name else action
        is_deployment = action == "deploy" and not is_report(name)
        reason = "; a push includes all deployments of its versions" if is_deployment else ""
        raise RemoteRefused(
            f"the token needs the scope {scope}{reason}",
            hint=_ONE_NODE
            if is_report(name)
            else f"ask the server's administrator for a token with {scope}",
        )


def check_moves(scopes: tuple[str, ...], moves: Iterable[Move]) -> None:
    """Raises RemoteRefused for a change of a ref that the scopes do not allow."""
    for move in moves:
        require(scopes, "push", move.name)
        if move.force or move.new is None:
            require(scopes, "admin")


def check_protected(scopes: Iterable[str], targets: Iterable[str]) -> None:
    """Raises RemoteRefused for a protected target that no scope names literally (without ``*``)."""
    for target in targets:
        if not names_target(scopes, target):
            raise RemoteRefused(
                f"the remote protects {printable(target)} (deploy.protect)",
                hint="deploy inside that repository with --anyway, or through a server with a "
                f"token that has the scope deploy:{printable(target)}",
            )


def names_target(scopes: Iterable[str], target: str) -> bool:
    """Whether a scope is ``admin``, or names this target literally (without ``*``)."""
    return not {"admin", f"deploy:{target}"}.isdisjoint(scopes)


def check_news(
    scopes: tuple[str, ...],
    targets: Iterable[str],
    *,
    adds: bool = False,
    name: str = f"{BRANCH}*",
    forgets: bool = False,
) -> None:
    """Raises RemoteRefused for received changes that the scopes do not allow.

    ``targets``: the targets of received deployments. For each target, a ``deploy`` scope is needed.
    ``adds``: whether versions, states or annotations are added. Adding needs at least one ``push``
    scope, for any ref. Without a ``push`` scope, the error asks for the scope ``push:NAME``.
    ``forgets``: whether a state is purged. Purging needs ``admin``.
    """
    for target in targets:
        require(scopes, "deploy", target)
    if adds and not any(scope.startswith("push:") for scope in scopes):
        require(scopes, "push", name)
    if forgets:
        require(scopes, "admin")
