"""Assembly: gaps, computed checksums in any place, and layouts that do not add up."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.model.hashing import blob_id, raw_blob_id
from mvc.model.manifest import Check, Content, FileEntry
from mvc.model.tensor import TensorSpec
from tests.adapters.helpers import rebuild


def entry_of(data: bytes, spans: list[tuple[int, int]], checks: list[Check] = ()):
    """An entry over ``data`` with raw contents at ``spans`` and the skeleton left over."""
    contents, blobs, skeleton, end = [], [], bytearray(), 0
    blank = bytearray(data)
    for check in checks:
        blank[check.position : check.position + 4] = bytes(4)
    for start, length in spans:
        spec = TensorSpec("raw", (length,))
        blobs.append(data[start : start + length])
        contents.append(Content(start, spec, blob_id(spec, blobs[-1])))
        skeleton += blank[end:start]
        end = start + length
    skeleton += blank[end:]
    entry = FileEntry(
        "f", "torch", len(data), tuple(contents), raw_blob_id(skeleton), tuple(checks)
    )
    return entry, bytes(skeleton), blobs


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=6),
    st.integers(0, 9),
    st.integers(1, 40),
)
def test_contents_and_gaps_alternate(parts, tail, piece):
    spans, end = [], 0
    for gap, length in parts:
        spans.append((end + gap, length))
        end += gap + length
    data = bytes(i % 255 + 1 for i in range(end + tail))
    assert rebuild(*entry_of(data, spans), piece=piece) == data


@pytest.mark.parametrize("position", [0, 20, 40])
def test_checksums_before_and_after_what_they_cover(position):
    data = bytearray(range(1, 61))
    data[position : position + 4] = zlib.crc32(data[8:18]).to_bytes(4, "little")
    check = Check(position, 8, 10)
    entry, skeleton, blobs = entry_of(bytes(data), [(8, 6), (14, 4)], [check])
    assert skeleton.count(bytes(4)) == 1
    for piece in (1, 3, 100):
        assert rebuild(entry, skeleton, blobs, piece) == data


def test_several_fields_may_keep_one_checksum_and_nothing_has_checksum_zero():
    data = bytearray(range(1, 61))
    for position in (0, 30, 56):
        data[position : position + 4] = zlib.crc32(data[8:18]).to_bytes(4, "little")
    data[40:44] = bytes(4)
    checks = [Check(p, 8, 10) for p in (0, 30, 56)] + [Check(40, 20, 0)]
    assert rebuild(*entry_of(bytes(data), [(8, 10)], checks)) == data


def test_layouts_that_do_not_fit_are_refused():
    data = bytes(range(30))
    entry, skeleton, blobs = entry_of(data, [(4, 8), (20, 4)])
    for bad in (
        (entry, skeleton + b"x", blobs),
        (entry, skeleton, [blobs[0] + b"x", blobs[1]]),
        (entry, skeleton, [blobs[0][:-1], blobs[1]]),
        (replace(entry, contents=entry.contents[::-1]), skeleton, blobs[::-1]),
        (replace(entry, checks=(Check(0, 4, 8), Check(13, 6, 9))), skeleton, blobs),
        (replace(entry, checks=(Check(0, 25, 100),)), skeleton, blobs),
    ):
        with pytest.raises(DamagedData):
            rebuild(*bad)
