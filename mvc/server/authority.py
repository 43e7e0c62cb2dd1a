"""Who asks, and what he may do: one account, or those who hold tokens."""

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
    """Who asks, and what he may do in the repository; ``scopes`` is never empty.

    ``sender``: the token or account that is recorded with a change.
    """

    name: str
    scopes: tuple[str, ...]
    sender: str


class Denied(Exception):
    """A request that is refused before anything is looked at; ``status`` is HTTP's."""

    def __init__(self, status: int, error: MvcError) -> None:
        super().__init__(error.message)
        self.status, self.error = status, error


class Gate(Protocol):
    """Says who asks."""

    def caller(self, authorization: str | None, repository: str) -> Caller:
        """Raises Denied."""


class Account:
    """Everybody who reaches the server is one account, as behind ssh."""

    def __init__(self, held: tuple[str, ...] = ()) -> None:
        self._scopes = scopes.within(held, "") if held else ALL
        if not self._scopes:
            raise RemoteRefused("no scope of this command is for its repository")

    def caller(self, authorization: str | None, repository: str) -> Caller:  # noqa: ARG002
        return Caller("-", self._scopes, account())


class Holders:
    """Those who have a token of the folder."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def caller(self, authorization: str | None, repository: str) -> Caller:
        given = authorization or ""
        if given[: len(_BEARER)].lower() != _BEARER:
            raise Denied(401, RemoteRefused(
                "a token is needed here",
                hint="ask who runs it for one ('mvc serve token add'), and set "
                "MVC_TOKEN_AT_HOST, with the name of the host, or token_file of the remote",
            ))  # fmt: skip
        try:
            token = self._tokens.holder(given[len(_BEARER) :].strip())
        except MvcError as error:  # it names places that are no business of strangers
            raise Denied(500, RemoteRefused(
                "this server cannot read its tokens",
                hint="its owner sees why with 'mvc serve token list' there",
            )) from error  # fmt: skip
        if token is None:
            raise Denied(401, RemoteRefused(
                "the token is not known here",
                hint="is it the one for this server? its owner can make another",
            ))  # fmt: skip
        if self._tokens.has_expired(token):
            raise Denied(401, RemoteRefused(
                f"the token {token.name} has expired", hint="ask who runs the remote for a new one"
            ))  # fmt: skip
        held = scopes.within(token.scopes, repository)
        if not held:
            raise Denied(403, RemoteRefused(
                f"the token {token.name} has no scope for this repository",
                hint="check the name in the URL, or ask who runs the remote for another token",
            ))  # fmt: skip
        return Caller(token.name, held, f"token {token.name}")


def may_push(held: Iterable[str]) -> None:
    """Raises RemoteRefused for those who may only read."""
    if not any(scope == "admin" or ":" in scope for scope in held):
        scopes.require(("read",), "push", "...")
