"""The Merkle tree over the tensors of a state, to find the tensors in which two states differ.

The tree follows section 3.2 of the MMlib paper. docs/format.md, "Manifest", defines in which order
leaves are joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mvc.ids import Root
from mvc.model.hashing import digest
from mvc.names import encode_text

_TAG_LEAF = b"mvc.leaf.1"
_TAG_NODE = b"mvc.node.1"
_TAG_EMPTY = b"mvc.empty.1"


def leaf(content: bytes, key: str) -> bytes:
    """The leaf of a tensor: a hash of ``content``, the hash of the tensor's data, and its name."""
    return digest(_TAG_LEAF, content, encode_text(key))


class _Node(Struct, frozen=True, gc=False):
    hash: bytes
    left: _Node | None = None
    right: _Node | None = None
    index: int = -1  # leaves only


def _pairs(nodes: Sequence[_Node]) -> list[_Node]:
    """The parents of consecutive pairs of nodes."""
    twos = zip(nodes[::2], nodes[1::2], strict=True)
    return [_Node(digest(_TAG_NODE, a.hash, b.hash), a, b) for a, b in twos]


class MerkleTree:
    """A tree over leaf hashes. The root of a tree without leaves is a constant."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.count = len(leaves)
        nodes = [_Node(h, index=i) for i, h in enumerate(leaves)]
        self.top: _Node | None = None
        if nodes:
            extra = len(nodes) - (1 << (len(nodes).bit_length() - 1))
            nodes = [*_pairs(nodes[: 2 * extra]), *nodes[2 * extra :]]
            while len(nodes) > 1:
                nodes = _pairs(nodes)
            self.top = nodes[0]

    @property
    def root(self) -> Root:
        return Root(self.top.hash if self.top else digest(_TAG_EMPTY))


class TreeDiff(Struct, frozen=True):
    """``changed``: sorted indices of leaves that differ. ``comparisons``: number of comparisons."""

    changed: tuple[int, ...]
    comparisons: int


def compare(a: MerkleTree, b: MerkleTree) -> TreeDiff:
    """The leaves in which two trees with equal leaf counts differ.

    Compares the roots, then the two children of every inner node that differs. For n leaves, this
    takes from 1 to 2n - 1 comparisons. Raises ValueError if the leaf counts differ.
    """
    if a.count != b.count:
        raise ValueError("the trees have different numbers of leaves")
    if a.top is None or b.top is None:
        return TreeDiff((), 1)
    changed: list[int] = []
    comparisons = 1
    stack = [(a.top, b.top)] if a.top.hash != b.top.hash else []
    while stack:
        x, y = stack.pop()
        if x.left is None or x.right is None or y.left is None or y.right is None:
            changed.append(x.index)
            continue
        comparisons += 2
        if x.right.hash != y.right.hash:
            stack.append((x.right, y.right))
        if x.left.hash != y.left.hash:
            stack.append((x.left, y.left))
    return TreeDiff(tuple(sorted(changed)), comparisons)
