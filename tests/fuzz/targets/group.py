"""A group payload; the first byte is the number of members, then two bytes of size each."""

from mvc.codecs.group import decode_group, encode_group, group_widths
from mvc.codecs.pipeline import Pipeline

_PIPELINE = Pipeline.parse("vsol")


def run(data: bytes) -> None:
    count = data[0] % 8 if data else 0
    sizes = [int.from_bytes(data[1 + 2 * i : 3 + 2 * i], "little") for i in range(count)]
    payload = memoryview(data[1 + 2 * count :])
    out = decode_group(_PIPELINE, payload, sizes)
    assert [len(o) for o in out] == sizes
    assert len(group_widths(payload, count)) == count


def seeds() -> list[bytes]:
    members = [(bytes(range(200)), 4), (bytes(33), 2), (b"", 1), (b"\7" * 64, 8)]
    given = [(memoryview(m), memoryview(bytes(len(m))), w) for m, w in members]
    head = bytes([len(members)]) + b"".join(len(m).to_bytes(2, "little") for m, _ in members)
    return [head + b"".join(map(bytes, encode_group(_PIPELINE, given)))]
