"""Known answers of MMlib's tree, and 1,000 random comparisons."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.ids import BlobId
from mvc.model.hashing import digest
from mvc.model.manifest import LogicalTensor, State
from mvc.model.merkle import MerkleTree, compare, leaf
from mvc.model.tensor import TensorSpec


def leaves(n: int, changed: set[int] | frozenset[int] = frozenset()) -> list[bytes]:
    return [leaf(bytes([i in changed]) * 32, f"layer{i}") for i in range(n)]


def node(left: bytes, right: bytes) -> bytes:
    return digest(b"mvc.node.1", left, right)


@pytest.mark.parametrize(
    ("n", "changed", "comparisons"),
    [
        (64, {62, 63}, 13),
        (64, {63}, 13),
        (64, {61, 62}, 15),
        (64, {22, 23, 24, 25, 62, 63}, 29),
        (64, {30, 31, 32, 33, 62, 63}, 31),
        (64, {28, 29, 30, 31, 62, 63}, 25),
        (64, {32, 33, 34, 35, 62, 63}, 23),
        (4, {2, 3}, 5),
        (5, {4}, 5),
        (5, {0}, 7),
        (7, set(range(7)), 13),
        (64, set(), 1),
        (1, {0}, 1),
        (0, set(), 1),
    ],
)
def test_known_answers(n: int, changed: set[int], comparisons: int) -> None:
    found = compare(MerkleTree(leaves(n)), MerkleTree(leaves(n, changed)))
    assert found.changed == tuple(sorted(changed))
    assert found.comparisons == comparisons


def test_the_middle_windows_that_take_29_comparisons() -> None:
    def comparisons(start: int) -> int:
        changed = {*range(start, start + 4), 62, 63}
        return compare(MerkleTree(leaves(64)), MerkleTree(leaves(64, changed))).comparisons

    found = [start for start in range(59) if comparisons(start) == 29]
    assert found == [1, 3, 6, 9, 11, 17, 19, 22, 25, 27, 37, 39, 45, 47]


def differing(a: object, b: object) -> int:
    """Inner nodes of two trees that differ, counted without ``compare``."""
    if a.left is None or a.hash == b.hash:
        return 0
    return 1 + differing(a.left, b.left) + differing(a.right, b.right)


def test_1000_random_changes_are_found_at_the_predicted_price() -> None:
    rng = random.Random(2)
    for _ in range(1000):
        n = rng.randint(1, 300)
        count = min(n, rng.choice([0, 1, 2, 9, rng.randint(0, n)]))
        changed = set(rng.sample(range(n), count))
        a, b = MerkleTree(leaves(n)), MerkleTree(leaves(n, changed))
        found = compare(a, b)
        assert set(found.changed) == changed
        assert found.comparisons == 1 + 2 * differing(a.top, b.top)
        assert (a.root == b.root) == (not changed)


def test_odd_leaves_are_paired_at_the_front() -> None:
    x = leaves(7)
    assert MerkleTree(x[:1]).root == x[0]
    assert MerkleTree(x[:3]).root == node(node(x[0], x[1]), x[2])
    five = node(node(node(x[0], x[1]), x[2]), node(x[3], x[4]))
    assert MerkleTree(x[:5]).root == five
    six = node(node(node(x[0], x[1]), node(x[2], x[3])), node(x[4], x[5]))
    assert MerkleTree(x[:6]).root == six
    assert MerkleTree(x).root == node(
        node(node(x[0], x[1]), node(x[2], x[3])), node(node(x[4], x[5]), x[6])
    )


@given(st.integers(1, 200))
def test_everything_changed_takes_2n_minus_1(n: int) -> None:
    found = compare(MerkleTree(leaves(n)), MerkleTree(leaves(n, set(range(n)))))
    assert found.comparisons == 2 * n - 1
    assert found.changed == tuple(range(n))


def test_trees_of_different_size_are_not_compared() -> None:
    with pytest.raises(ValueError, match="numbers of leaves"):
        compare(MerkleTree(leaves(3)), MerkleTree(leaves(4)))


def test_no_tensors_have_a_root_of_their_own() -> None:
    assert MerkleTree([]).root == MerkleTree([]).root
    assert MerkleTree([]).root != MerkleTree([bytes(32)]).root


def test_a_root_says_names_and_contents() -> None:
    spec = TensorSpec("float32", (2,))

    def root(*pairs: tuple[str, int]) -> bytes:
        return State(LogicalTensor(k, spec, BlobId(bytes([v]) * 32), 0) for k, v in pairs).root

    assert root(("a", 1), ("b", 2)) == root(("b", 2), ("a", 1))
    different = {root(("a", 1), ("b", 2)), root(("a", 2), ("b", 1)), root(("a", 1), ("c", 2))}
    assert len(different | {root(("a", 1))}) == 4
