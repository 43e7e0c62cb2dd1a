from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mvc.io.ssh_keygen import key_of

MAGIC = b"SSHSIG\0\0\0\1"


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: MAGIC + data))
@example(MAGIC + b"\0\0\0\7" + b"\0\0\0\3a\x1bc" + b"\0\0\0\0" * 4)
@example(MAGIC + b"\0\0\0\0" * 4000)
@example(MAGIC + b"\0\0\0\4" + b"\xff" * 4 + b"\0\0\0\0" * 4)
def test_bytes_of_strangers_are_looked_at_and_no_more(blob: bytes) -> None:
    assert key_of(blob).isprintable()
