"""A byte patch against a fixed base; the first three bytes are the raw size."""

from mvc.codecs.patch import decode_patch, encode_patch

_BASE = b"".join(b"line %d of the base\n" % i for i in range(200))


def run(data: bytes) -> None:
    size = int.from_bytes(data[:3], "little")
    assert len(decode_patch(data[3:], memoryview(_BASE), b"extra", size)) == size


def seeds() -> list[bytes]:
    news = [b"x", _BASE, _BASE[100:] + b"more", b"extra" * 50]
    return [
        len(new).to_bytes(3, "little") + encode_patch(memoryview(new), memoryview(_BASE), b"extra")
        for new in news
    ]
