"""What the targets of model files share: parse, and put the same bytes together again."""

from mvc.adapters.files.detect import parse_file
from mvc.adapters.python.state import to_state
from tests.adapters.helpers import MemorySource, rebuild, to_entry


def taken_apart(data: bytes) -> None:
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(data), "x"))
    assert rebuild(entry, skeleton, blobs) == data
    if sum(t.spec.nbytes for t in entry.tensors) < 1 << 16 and len(entry.tensors) < 100:
        to_state(entry, skeleton, lambda i: bytearray(blobs[i]))
