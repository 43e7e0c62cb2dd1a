"""The invariant of a parsed file: contents and checksum fields lie apart, names are sound."""

import pytest

from mvc.adapters import parsed as module
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, SourceFile, gaps
from mvc.errors import BadModelFile, InvalidName
from mvc.model.manifest import Check
from mvc.model.tensor import TensorSpec
from tests.adapters.helpers import MemorySource


def raw(offset: int, length: int) -> ParsedContent:
    return ParsedContent(offset, TensorSpec("raw", (length,)))


def file_of(contents=(), tensors=(), checks=()) -> SourceFile:
    parts = FileParts("torch", tuple(contents), tuple(tensors), tuple(checks))
    return SourceFile(MemorySource(bytes(range(1, 41))), "f", 40, parts)


def test_check_fields_are_zero_in_the_skeleton():
    parsed = file_of(
        [raw(4, 6), raw(10, 0), raw(20, 10)], checks=[Check(12, 4, 6), Check(36, 4, 6)]
    )
    blank = bytearray(range(1, 41))
    blank[12:16] = blank[36:40] = bytes(4)
    assert parsed.skeleton() == blank[:4] + blank[10:20] + blank[30:]


def test_gaps_are_what_spans_leave():
    assert list(gaps([], 5)) == [(0, 5)]
    assert list(gaps([(0, 2), (2, 0), (3, 2)], 5)) == [(2, 1)]
    assert list(gaps([(0, 5)], 5)) == []


@pytest.mark.parametrize(
    ("contents", "checks"),
    [
        ([raw(0, 5), raw(4, 5)], []),
        ([raw(10, 5), raw(0, 5)], []),
        ([raw(35, 6)], []),
        ([raw(0, 10)], [Check(8, 0, 5)]),
        ([raw(10, 10)], [Check(8, 10, 10)]),
        ([], [Check(38, 0, 5)]),
        ([], [Check(4, 10, 5), Check(6, 20, 5)]),
    ],
)
def test_layouts_that_contradict_themselves_are_refused(contents, checks):
    with pytest.raises(BadModelFile):
        file_of(contents, checks=checks)


def test_names_are_checked_and_unique():
    tensor = ParsedTensor("a", raw(0, 4).spec, 0)
    with pytest.raises(BadModelFile, match="the same name"):
        file_of([raw(0, 4)], [tensor, tensor])
    with pytest.raises(InvalidName):
        file_of([raw(0, 4)], [ParsedTensor("a\0", raw(0, 4).spec, 0)])


def test_limits(monkeypatch):
    monkeypatch.setattr(module, "MAX_SKELETON", 39)
    with pytest.raises(BadModelFile, match="outside its tensors"):
        file_of()
    monkeypatch.setattr(module, "MAX_TENSORS", 1)
    with pytest.raises(BadModelFile, match="more than 1 tensors"):
        file_of([raw(0, 4), raw(4, 4)])
