"""The tokens with which clients of ``mvc serve`` identify themselves.

A token has scopes (permissions, such as ``read``). The file of the tokens is in the served folder,
or in ``.mvc`` if this folder is a repository. It has only hashes of the tokens. A token has 256
random bits, so it cannot be guessed from its hash.
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
from msgspec import Struct, field

from mvc.errors import InvalidConfig, InvalidName, WrongUsage
from mvc.names import FOLDER, printable
from mvc.system import Clock, FileIdentity, FileSystem, refuse_foreign, trusted_owners
from mvc.transport import scopes

DAYS = 90
"""Default lifetime of a token."""
FILE, _FILE_INSIDE = ".mvc-tokens", "tokens"
_BY_OTHERS = 0o077
LARGEST = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}", re.ASCII)
_SECOND = 1_000_000_000
_DAY = 86_400


class Token(Struct, frozen=True, forbid_unknown_fields=True):
    """A stored token. ``digest``: SHA-256 of the token, in hex. Times are seconds since 1970."""

    name: str
    digest: str
    scopes: tuple[str, ...]
    created: int = field(name="made")
    expires: int


class Tokens:
    """The tokens of one served folder. If their file has changed, it is read again."""

    def __init__(self, fs: FileSystem, folder: Path, clock: Clock | None = None) -> None:
        """Raises DubiousOwnership if another user owns the repository."""
        self._fs, self._clock = fs, clock or Clock()
        inside = folder / FOLDER
        refuse_foreign(fs, inside)
        self._file = inside / _FILE_INSIDE if fs.stat(inside) is not None else folder / FILE
        self._identity: FileIdentity | None = None
        self._known: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """All tokens, oldest first. Raises InvalidConfig for a damaged or unprotected file."""
        identity = self._fs.stat(self._file)
        if identity != self._identity:
            self._known = () if identity is None else self._read(identity)
            self._identity = identity
        return self._known

    def _read(self, identity: FileIdentity) -> tuple[Token, ...]:
        shown = printable(str(self._file))
        if identity.permissions & _BY_OTHERS or identity.owner not in trusted_owners():
            raise InvalidConfig(
                f"other users can read or change the token file {shown}",
                hint=f"check its content, then: chmod 600 {shown}",
            )
        try:
            known = msgspec.json.decode(
                self._fs.read_bytes(self._file, LARGEST), type=tuple[Token, ...]
            )
            for token in known:
                scopes.parse_scopes(token.scopes)
        except (msgspec.DecodeError, WrongUsage) as error:
            raise InvalidConfig(
                f"{shown} is not a valid token file", hint="delete it and create new tokens"
            ) from error
        return known

    def holder(self, text: str) -> Token | None:
        """The stored token for the text that a client sent, or None. The token may have expired.

        The comparison takes constant time, so that its duration reveals nothing.
        """
        digest = _digest(text)
        equal = [t for t in self.all() if hmac.compare_digest(t.digest.encode(), digest.encode())]
        return equal[0] if equal else None

    def has_expired(self, token: Token) -> bool:
        return self._now() >= token.expires

    def add(self, name: str, allowed: Sequence[str], days: int = DAYS) -> str:
        """Creates a token and returns it. Only its hash is stored.

        Raises InvalidName; WrongUsage for invalid scopes, or a name that is in use.
        """
        if _NAME.fullmatch(name) is None:
            raise InvalidName(
                f"the name of a token has 1 to 64 letters, digits and . _ @ + -: "
                f"{printable(name[:80])!r}"
            )
        text = "mvc_" + secrets.token_urlsafe(32)
        assert scopes.TOKEN_FORM.fullmatch(text)
        now = self._now()
        token = Token(
            name, _digest(text), scopes.parse_scopes(allowed), now, expires=now + days * _DAY
        )

        with self._changing() as known:
            if any(other.name == name for other in known):
                raise WrongUsage(
                    f"a token named {name} already exists",
                    hint=f"choose another name, or revoke it: 'mvc serve token remove {name}'",
                )
            known.append(token)
        return text

    def remove(self, name: str) -> Token:
        """Revokes a token: the next request with it is refused. Raises WrongUsage if unknown."""
        with self._changing() as known:
            revoked = next((token for token in known if token.name == name), None)
            if revoked is None:
                raise WrongUsage(
                    f"there is no token {printable(name[:80])!r}",
                    hint="'mvc serve token list' lists the tokens",
                )
            known.remove(revoked)
        return revoked

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Yields the list of tokens. Writes it after the ``with`` block, unless the block fails."""
        with self._fs.lock(self._file.with_name(f"{self._file.name}.lock")):
            known = list(self.all())
            yield known
            data = msgspec.json.encode(known)
            self._fs.write_atomic(self._file, msgspec.json.format(data) + b"\n", mode=0o600)

    def _now(self) -> int:
        return self._clock.now_ns() // _SECOND


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
