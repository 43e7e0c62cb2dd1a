"""Tokens of a served folder: who may do what there. Only their hashes are kept.

A token has 256 random bits, so a plain hash of it can neither be reversed nor guessed. The file
lies in the served folder, in its ``.mvc`` if it is a repository itself.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from mvc.errors import InvalidConfig, InvalidName, WrongUsage
from mvc.names import FOLDER, printable
from mvc.system import Clock, FileIdentity, FileSystem, refuse_foreign, trusted_owners
from mvc.transport import scopes

DAYS = 90
"""How long a token is good for, unless said otherwise."""
FILE, _FILE_INSIDE = ".mvc-tokens", "tokens"
_BY_OTHERS = 0o077
LARGEST = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}", re.ASCII)
_SECOND = 1_000_000_000
_DAY = 86_400


class Token(Struct, frozen=True, forbid_unknown_fields=True):
    """``digest``: SHA-256 of the token, in hex; ``made`` and ``expires``: seconds since 1970."""

    name: str
    digest: str
    scopes: tuple[str, ...]
    made: int
    expires: int


class Tokens:
    """The tokens of one served folder, read anew when their file changes."""

    def __init__(self, fs: FileSystem, folder: Path, clock: Clock | None = None) -> None:
        """Raises DubiousOwnership for another user's repository."""
        self._fs, self._clock = fs, clock or Clock()
        inside = folder / FOLDER
        refuse_foreign(fs, inside)
        self._file = inside / _FILE_INSIDE if fs.stat(inside) is not None else folder / FILE
        self._identity: FileIdentity | None = None
        self._known: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """Every token, the oldest first. Raises InvalidConfig."""
        identity = self._fs.stat(self._file)
        if identity != self._identity:
            self._known = () if identity is None else self._read(identity)
            self._identity = identity
        return self._known

    def _read(self, identity: FileIdentity) -> tuple[Token, ...]:
        shown = printable(str(self._file))
        if identity.permissions & _BY_OTHERS or identity.owner not in trusted_owners():
            raise InvalidConfig(
                f"{shown} says who may do what, and others can read or change it",
                hint=f"look at it, then: chmod 600 {shown}",
            )
        try:
            known = msgspec.json.decode(
                self._fs.read_bytes(self._file, LARGEST), type=tuple[Token, ...]
            )
            for token in known:
                scopes.parse_scopes(token.scopes)
        except (msgspec.DecodeError, WrongUsage) as error:
            raise InvalidConfig(
                f"{shown} is no list of tokens", hint="remove it and make the tokens again"
            ) from error
        return known

    def holder(self, text: str) -> Token | None:
        """Whose token this is; every one is compared, in the same time. It may have expired."""
        digest = _digest(text)
        held = [t for t in self.all() if hmac.compare_digest(t.digest.encode(), digest.encode())]
        return held[0] if held else None

    def has_expired(self, token: Token) -> bool:
        return self._now() >= token.expires

    def add(self, name: str, allowed: Sequence[str], days: int = DAYS) -> str:
        """Makes a token, and returns it: nobody can read it later.

        Raises InvalidName, WrongUsage for scopes that there are not, and for a name in use.
        """
        if _NAME.fullmatch(name) is None:
            raise InvalidName(
                f"the name of a token has 1 to 64 letters, digits and . _ @ + -: "
                f"{printable(name[:80])!r}"
            )
        text = "mvc_" + secrets.token_urlsafe(32)
        assert scopes.TOKEN_FORM.fullmatch(text)
        now = self._now()
        made = Token(
            name, _digest(text), scopes.parse_scopes(allowed), now, expires=now + days * _DAY
        )

        with self._changing() as known:
            if any(token.name == name for token in known):
                raise WrongUsage(
                    f"there is a token {name} already",
                    hint=f"'mvc serve token remove {name}' takes it away",
                )
            known.append(made)
        return text

    def remove(self, name: str) -> Token:
        """Takes a token away: from the next request on it is refused. Raises WrongUsage."""
        with self._changing() as known:
            gone = next((token for token in known if token.name == name), None)
            if gone is None:
                raise WrongUsage(
                    f"there is no token {printable(name[:80])!r}",
                    hint="'mvc serve token list' shows those there are",
                )
            known.remove(gone)
        return gone

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Writes what the block makes of the list, unless it fails."""
        with self._fs.lock(self._file.with_name(f"{self._file.name}.lock")):
            known = list(self.all())
            yield known
            data = msgspec.json.encode(known)
            self._fs.write_atomic(self._file, msgspec.json.format(data) + b"\n", mode=0o600)

    def _now(self) -> int:
        return self._clock.now_ns() // _SECOND


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
