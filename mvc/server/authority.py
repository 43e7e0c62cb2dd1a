"""Authentication: finds the caller of a request, and the scopes (rights) of the caller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from mvc.errors import MvcError, RemoteRefused
from mvc.server.tokens import Tokens
from mvc.transport import account, scopes

ALL = ("admin",)
_BEARER = "bearer "


class Caller(Struct, frozen=True):
    """The authenticated caller. ``scopes``: its rights in the requested repository, never empty.

    ``sender``: the token or account, as recorded with each change of the caller.
    """

    name: str
    scopes: tuple[str, ...]
    sender: str


class Denied(Exception):
    """A request is refused before it is processed. ``status``: the HTTP status."""

    def __init__(self, status: int, error: MvcError) -> None:
        super().__init__(error.message)
        self.status, self.error = status, error


class Gate(Protocol):
    """Authenticates requests."""

    def caller(self, authorization: str | None, repository: str) -> Caller:
        """The caller of a request to a repository. Raises Denied."""


class Account:
    """A gate for ssh, which has authenticated the client: the caller is this process's account.

    ``allowed``: the scopes of the caller. If empty, the caller may do everything.
    """

    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        self._scopes = scopes.within(allowed, "") if allowed else ALL
        if not self._scopes:
            raise RemoteRefused("none of the scopes applies to this repository")

    def caller(self, authorization: str | None, repository: str) -> Caller:  # noqa: ARG002
        return Caller("-", self._scopes, account())


class Holders:
    """A gate for tokens: every client must have a token of the served folder."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def caller(self, authorization: str | None, repository: str) -> Caller:
        header = authorization or ""
        if header[: len(_BEARER)].lower() != _BEARER:
            raise Denied(401, RemoteRefused(
                "the server requires a token",
                hint="get one from the server's administrator ('mvc serve token add'), and set "
                "MVC_TOKEN_AT_HOST, with the name of the host, or the remote's token_file",
            ))  # fmt: skip
        try:
            token = self._tokens.holder(header[len(_BEARER) :].strip())
        except MvcError as error:  # the message has paths, which clients must not see
            raise Denied(500, RemoteRefused(
                "the server cannot read its tokens",
                hint="the server's administrator can check with 'mvc serve token list'",
            )) from error  # fmt: skip
        if token is None:
            raise Denied(401, RemoteRefused(
                "the server does not know this token",
                hint="check that it is the token for this server, or ask for a new one",
            ))  # fmt: skip
        if self._tokens.has_expired(token):
            raise Denied(401, RemoteRefused(
                f"the token {token.name} has expired",
                hint="ask the server's administrator for a new one",
            ))  # fmt: skip
        applicable = scopes.within(token.scopes, repository)
        if not applicable:
            raise Denied(403, RemoteRefused(
                f"the token {token.name} has no scope for this repository",
                hint="check the name in the URL, or ask the server's administrator for another "
                "token",
            ))  # fmt: skip
        return Caller(token.name, applicable, f"token {token.name}")


def may_push(granted: Iterable[str]) -> None:
    """Raises RemoteRefused if none of the scopes allows a push or a deployment."""
    if not any(scope == "admin" or ":" in scope for scope in granted):
        scopes.require(("read",), "push", "heads/*")
