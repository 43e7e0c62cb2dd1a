"""Distinct types for 32-byte BLAKE3 identities (layer 0).

A commit id can not be passed where a blob id is meant: mypy sees the types,
and equality stays that of bytes.
"""

from __future__ import annotations

from typing import Self

DIGEST_SIZE = 32
SHORT_HEX = 10
_new = bytes.__new__  # a history has millions of ids, and ``super`` takes half of the time


class Digest(bytes):
    """32 bytes of BLAKE3 under one domain tag.

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
        """From 64 hexadecimal digits; ValueError otherwise."""
        return cls(bytes.fromhex(text))

    @property
    def short(self) -> str:
        """The first ten hexadecimal digits, for people."""
        return self.hex()[:SHORT_HEX]

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.short}…)"


class BlobId(Digest):
    """Names the content of one tensor or of one run of other bytes."""

    __slots__ = ()


class ManifestId(Digest):
    """Names the paths of a version with their states and layouts."""

    __slots__ = ()


class CommitId(Digest):
    """Names a commit."""

    __slots__ = ()


class Root(Digest):
    """The Merkle root of a state, or of a version with several states."""

    __slots__ = ()


class StatementId(Digest):
    """Names a statement, in every repository alike."""

    __slots__ = ()
