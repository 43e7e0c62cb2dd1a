"""A state: the tensors of one file or dictionary, and its Merkle root.

The tree's leaves are in the order of the keys' UTF-8 bytes, not in the order of
the file: safetensors reorders tensors when it writes, and the same state must
have the same root in every format (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from mvc.ids import BlobId, Root
from mvc.model.merkle import MerkleTree, leaf
from mvc.model.tensor import TensorSpec

__all__ = ["State", "StateTensor"]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One named tensor: ``id`` is its param hash."""

    key: str
    spec: TensorSpec
    id: BlobId


class State:
    """Named tensors in key order. Equal roots mean equal names, dtypes, shapes and bytes."""

    def __init__(self, tensors: Iterable[StateTensor]) -> None:
        self.tensors = tuple(sorted(tensors, key=lambda t: _order(t.key)))

    @cached_property
    def by_key(self) -> dict[str, StateTensor]:
        return {t.key: t for t in self.tensors}

    @cached_property
    def tree(self) -> MerkleTree:
        return MerkleTree([leaf(t.id, t.key) for t in self.tensors])

    @property
    def root(self) -> Root:
        return self.tree.root

    def __len__(self) -> int:
        return len(self.tensors)


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
