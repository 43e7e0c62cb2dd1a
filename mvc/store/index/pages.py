"""Checks the file of the index, an LMDB database, before LMDB opens it.

LMDB trusts its file. A flipped bit in a page's header or in an offset makes LMDB read outside the
page or outside the file, and kills the process at every start. So all pages that LMDB may read are
checked first: the main tree, the tree of free pages, and the lists of free pages. Stored keys and
values are not checked here, because they have hashes.

Layout: LMDB 0.9 (``mdb.c``: MDB_meta, MDB_db, MDB_page, MDB_node), file version 1, 64-bit,
little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.io.files import ReadFile

_MAGIC, _VERSION = 0xBEEFC0DE, 1
# After the page header: magic, version, address, map size, tree of free pages, main tree, last
# page, transaction.
_META = struct.Struct("<16xIIQQ48s48sQQ")
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow, entries, root
_PAGE = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # low, high, flags, key size
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE, _DIRTY = 1, 2, 4, 8, 16
_BIG = 1  # flag of a node: its value is on overflow pages
_FREE_FLAGS = 8  # integer keys
_EMPTY = (1 << 64) - 1  # the root of an empty tree
_DEEPEST = 16
_TRIES = 5


class _Header(Struct, frozen=True):
    """One of the two headers of the file. ``last``: number of the last page.

    ``free`` and ``main``: the tree of free pages and the main tree, as LMDB describes them.
    """

    page_size: int
    transaction: int
    last: int
    free: tuple[int, ...]
    main: tuple[int, ...]


def check_pages(file: ReadFile) -> None:
    """Raises DamagedData for a file on which LMDB could crash.

    Another process may overwrite pages during the check, and then changes the header. So if a check
    fails and the header has changed, the file is checked again. After ``_TRIES`` changes, the file
    counts as valid, because the other process has checked it, too.
    """
    for _ in range(_TRIES):
        header = _newest(file)
        try:
            _Check(file, header).all()
        except DamagedData:
            if _newest(file).transaction == header.transaction:
                raise
        else:
            return


def _newest(file: ReadFile) -> _Header:
    first = _header(file.read(0, _META.size), 0)
    second = _header(file.read(first.page_size, _META.size), 1)
    if first.page_size != second.page_size:
        raise DamagedData("the index file is damaged: its headers disagree")
    return second if second.transaction > first.transaction else first


def _header(data: bytes, number: int) -> _Header:
    if len(data) < _META.size:
        raise DamagedData("the index file is truncated")
    magic, version, _, _, free, main, last, transaction = _META.unpack(data)
    if magic != _MAGIC or version != _VERSION:
        raise DamagedData("the index file is not an LMDB file of a known version")
    page_number, _, flags, _, _ = _PAGE.unpack_from(data)
    size = _DB.unpack(free)[0]
    sizes = {1 << bits for bits in range(9, 17)}
    if page_number != number or not flags & _META_PAGE or size not in sizes or last < 1:
        raise _wrong(number)
    return _Header(size, transaction, last, _DB.unpack(free), main=_DB.unpack(main))


class _Check:
    """Checks all pages that one header reaches."""

    def __init__(self, file: ReadFile, header: _Header) -> None:
        self._file = file
        self._header = header
        self._size = header.page_size
        self._end = file.size() // header.page_size
        self._reached: set[int] = {0, 1}

    def all(self) -> None:
        header = self._header
        if header.main[1] or header.free[1] != _FREE_FLAGS:
            raise DamagedData("the index file is damaged: its trees have wrong flags")
        for _ in self._tree(header.main):
            pass
        for key, value in list(self._tree(header.free)):
            self._free_pages(key, value)

    def _tree(self, tree: tuple[int, ...]) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value).

        A value on overflow pages is left empty, unless it lists free pages.
        """
        depth, counts, root = tree[2], tree[3:7], tree[7]
        if root == _EMPTY:
            if depth or any(counts):
                raise DamagedData("the index file is damaged: an empty tree has pages")
            return
        if not 1 <= depth <= _DEEPEST:
            raise _wrong(root)
        level, entries = [root], 0
        for remaining in range(depth - 1, -1, -1):
            children: list[int] = []
            for number in level:
                for flags, key, value, result in self._nodes(number, leaf=not remaining):
                    if remaining:
                        children.append(result)
                    else:
                        entries += 1
                        big = flags & _BIG
                        yield key, self._overflow(value, result, tree) if big else value
            level = children
        if entries != counts[3]:
            raise DamagedData("the index file is damaged: a tree lacks entries")

    def _mark(self, number: int, count: int = 1) -> None:
        """Marks pages as reached.

        Raises DamagedData for a page that was reached before or is not in the file.
        """
        if number < 2 or number + count - 1 > self._header.last or count > self._header.last:
            raise _wrong(number)
        pages = range(number, number + count)
        if not self._reached.isdisjoint(pages):
            raise _wrong(number)
        self._reached.update(pages)

    def _read(self, number: int, length: int) -> bytes:
        """The first bytes of a page, or of consecutive pages, which the file must contain."""
        if number + (length - 1) // self._size >= self._end:
            raise DamagedData("the index file is truncated")
        return self._file.read(number * self._size, length)

    def _nodes(self, number: int, *, leaf: bool) -> Iterator[tuple[int, bytes, bytes, int]]:
        """Yields (flags, key, value, number) of each node of a page.

        In a leaf, ``number`` is the length of the value. In a branch, it is the number of the child
        page.
        """
        self._mark(number)
        page = self._read(number, self._size)
        page_number, _, flags, lower, upper = _PAGE.unpack_from(page)
        kind = _LEAF if leaf else _BRANCH
        fits = not lower % 2 and _PAGE.size < lower <= upper <= self._size
        if page_number != number or flags & ~_DIRTY != kind or not fits:
            raise _wrong(number)
        node_bytes = 0
        for at in struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size):
            if at < upper or at + _NODE.size > self._size:
                raise _wrong(number)
            low, high, node_flags, key_size = _NODE.unpack_from(page, at)
            key_at = at + _NODE.size
            value_at = key_at + key_size
            if leaf:
                result = low | high << 16
                stored = 8 if node_flags & _BIG else result
                if node_flags & ~_BIG or not key_size:
                    raise _wrong(number)
            else:
                result, stored = low | high << 16 | node_flags << 32, 0
            end = value_at + stored
            if end > self._size:
                raise _wrong(number)
            node_bytes += end - at + (end - at) % 2
            yield node_flags if leaf else 0, page[key_at:value_at], page[value_at:end], result
        if node_bytes != self._size - upper:  # nodes fill their part of the page without overlaps
            raise _wrong(number)

    def _overflow(self, value: bytes, length: int, tree: tuple[int, ...]) -> bytes:
        """Checks a value on overflow pages. Returns the value if it lists free pages."""
        number = int.from_bytes(value, "little")
        if not 2 <= number <= self._header.last:
            raise _wrong(number)
        page_number, _, flags, low, high = _PAGE.unpack(self._read(number, _PAGE.size))
        count = low | high << 16  # a short value may have more pages than it needs
        fits = _PAGE.size + length <= count * self._size and number + count <= self._end
        if page_number != number or flags & ~_DIRTY != _OVERFLOW or not fits:
            raise _wrong(number)
        self._mark(number, count)
        if tree is not self._header.free:
            return b""
        return self._read(number, _PAGE.size + length)[_PAGE.size :]

    def _free_pages(self, key: bytes, value: bytes) -> None:
        """Marks the pages that a transaction freed.

        ``value``: a count, then descending page numbers.
        """
        if len(key) != 8 or len(value) < 8 or len(value) % 8:
            raise DamagedData("the index file is damaged: a list of free pages is invalid")
        count, *pages = struct.unpack(f"<{len(value) // 8}Q", value)
        transaction = int.from_bytes(key, "little")
        if (
            count > len(pages)
            or transaction > self._header.transaction
            or pages[:count] != sorted(pages[:count], reverse=True)
        ):
            raise DamagedData("the index file is damaged: a list of free pages is invalid")
        for number in pages[:count]:
            self._mark(number)


def _wrong(number: int) -> DamagedData:
    return DamagedData(f"the index file is damaged: page {number} is invalid")
