"""Types of 32-byte BLAKE3 ids.

Mypy refuses a commit id where a blob id is expected. Two ids are equal if their bytes are equal.
"""

from __future__ import annotations

from typing import Self

DIGEST_SIZE = 32
SHORT_HEX = 10
_new = bytes.__new__  # calling ``super()`` would double the time, and there are millions of ids


class Digest(bytes):
    """A 32-byte BLAKE3 hash. Each kind of id is computed with its own domain tag.

    >>> Digest(bytes(32)).short
    '0000000000'
    """

    __slots__ = ()

    def __new__(cls, value: bytes) -> Self:
        """Raises ValueError unless ``value`` is 32 bytes long."""
        if len(value) != DIGEST_SIZE:
            raise ValueError(f"an id has {DIGEST_SIZE} bytes, not {len(value)}")
        return _new(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses 64 hexadecimal digits; raises ValueError."""
        return cls(bytes.fromhex(text))

    @property
    def short(self) -> str:
        """The first ten hexadecimal digits."""
        return self.hex()[:SHORT_HEX]

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.short}…)"


class BlobId(Digest):
    """Id of a content: the bytes of one tensor, or other bytes of a file."""

    __slots__ = ()


class ManifestId(Digest):
    """Id of a manifest: the paths of a version with their states and layouts."""

    __slots__ = ()


class CommitId(Digest):
    """Id of a commit."""

    __slots__ = ()


class Root(Digest):
    """The Merkle root of a state, or of a version with several states."""

    __slots__ = ()


class StatementId(Digest):
    """Id of a statement, such as a deployment. A statement has the same id in all repositories."""

    __slots__ = ()
