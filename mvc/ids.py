"""Types of 32-byte ids (BLAKE3 hashes), one type for each kind of object.

So mypy reports an error if a commit id is used as a blob id. Ids compare as bytes.
"""

from __future__ import annotations

from typing import Self

DIGEST_SIZE = 32
SHORT_HEX = 10
_new = bytes.__new__  # calling ``super()`` would double the time, and there are millions of ids


class Digest(bytes):
    """A 32-byte BLAKE3 hash.

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
    """Id of a manifest: the list of a version's files, with the tensors of each file."""

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
