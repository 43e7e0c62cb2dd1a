"""Files that are nothing in particular, and files that change under the reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.adapters.detect import opaque, parse_file
from mvc.errors import SourceChanged
from tests.adapters.helpers import MemorySource, round_trip


@given(st.binary(max_size=64))
def test_any_bytes_come_back(data):
    entry = round_trip(data)
    assert entry.format == "opaque" and entry.contents[0].spec.shape == (len(data),)


def test_a_file_that_became_shorter_is_named():
    source = MemorySource(bytes(100))
    parsed = opaque(source, "net.pt")
    source.data = bytes(50)
    with pytest.raises(SourceChanged, match=r"net\.pt"):
        parsed.read(0, 0, memoryview(bytearray(100)))


def test_parsing_imports_no_torch(tmp_path):
    import subprocess
    import sys

    code = "import sys, mvc.adapters.detect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert parse_file(MemorySource(b"PK\x03\x04"), "x").format == "opaque"
