"""Verifies records before they are published: decodes them with the code that readers use.

A record is a header and encoded objects, such as tensors. Before a journal entry names a record,
the whole record is decoded and compared with the original bytes, whose hashes are known. So a fault
of an encoder or of the memory does not reach the repository. There are two exceptions:

- If an operation stores more than ``ALWAYS`` bytes, only a sample of the later zstd chunks is
  decoded: the first chunk of every kind, and one chunk in 32. To decode every chunk would take a
  quarter of a commit's CPU time. A chunk whose coding was added to the format later is always
  decoded.
- A predicted chunk is decoded from the prediction that was computed for encoding. Only for one
  chunk in 32, the prediction is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from threading import Lock

import numpy as np

from mvc.codecs.optim import Prediction
from mvc.codecs.patch import decode_patch
from mvc.codecs.payload import Payload
from mvc.codecs.words import combine, scratch_bytes, words_of
from mvc.limits import MIB
from mvc.lossy.lc.payload import decode_steps, encode_steps
from mvc.lossy.lc.step import Addition
from mvc.pipelines.group import Member as GroupMember
from mvc.pipelines.group import decode_group
from mvc.pipelines.pipeline import CODED, ELIDED, Pipeline
from mvc.pipelines.predicted import Predicted, apply_predicted
from mvc.store.packs.records import Member, decode_header, encode_header, payload_check
from mvc.store.proving import proof_of, prove_equal
from mvc.store.recovery.decode import check_codings
from mvc.types import Bytes

ALWAYS = 16 * MIB
"""Every chunk in this many first bytes of an operation is verified."""
_EVERY = 32
_SHORT = 4096  # up to this length, comparing bytes is faster than creating arrays of words


def _prove_bytes(one: Bytes, other: Bytes) -> None:
    if len(one) <= _SHORT:
        prove_equal(bytes(one), bytes(other))
        return
    # Comparing words needs less memory than comparing bytes.
    same = np.array_equal(words_of(memoryview(one), 8), words_of(memoryview(other), 8))
    rest = len(one) // 8 * 8
    prove_equal((same, bytes(one[rest:])), (True, bytes(other[rest:])))


class Sampling:
    """Verifies the encoded chunks of one operation, all or a sample. Safe across threads."""

    def __init__(self, sequence: int) -> None:
        """``sequence``: number of the operation, so that each operation samples other chunks."""
        self._turns = count(sequence)
        self._kinds: set[object] = set()
        self._left = ALWAYS
        self._lock = Lock()

    def _is_sampled(self, kind: object, nbytes: int) -> bool:
        """Whether a chunk is in the first ``ALWAYS`` bytes, the first of its kind, or one in 32."""
        with self._lock:
            self._left -= nbytes
            sampled = next(self._turns) % _EVERY == 0 or kind not in self._kinds or self._left >= 0
            self._kinds.add(kind)
            return sampled

    def chunk(
        self, pipeline: Pipeline, encoded: Bytes, new: memoryview, base: memoryview | None, *,
        width: int,
    ) -> None:  # fmt: skip
        """Verifies that a chunk decodes to ``new``.

        If the coding was added after the format's first version, also undoes the delta, and
        compares the result with ``base``. For older codings, undoing is exact for any bytes.
        """
        later, shape = bool(pipeline.features), encoded[0]
        costly = not later and pipeline.method is not None and shape in (CODED, ELIDED)
        if costly and not self._is_sampled((pipeline.text, width, shape), len(new)):
            return
        data, state = memoryview(encoded), scratch_bytes("proof", len(new)).data
        with proof_of(f"a tensor coded by {pipeline.text}"):
            if base is None:
                pipeline.decode_chunk(data, state, width)
                _prove_bytes(state, new)
                return
            state[:] = base
            pipeline.apply_chunk(data, state, width, reverse=False)
            _prove_bytes(state, new)
            if later:
                pipeline.apply_chunk(data, state, width, reverse=True)
                _prove_bytes(state, base)

    def predicted(
        self,
        pipeline: Pipeline,
        prediction: Prediction,
        encoded: Bytes,
        new: memoryview,
        *,
        sources: Sequence[memoryview],
        width: int,
        known: Predicted,
    ) -> None:
        """Verifies that an encoded chunk and the prediction from ``sources`` lead to ``new``.

        ``known``: the prediction that was computed for encoding.
        """
        state, repeat = known.state, next(self._turns) % _EVERY == 0
        with proof_of(f"a tensor coded by {prediction.text}"):
            if repeat:
                state = scratch_bytes("proof", len(new)).data
            apply_predicted(
                pipeline, prediction, memoryview(encoded), sources, out=state, width=width,
                known=None if repeat else known,
            )  # fmt: skip
            _prove_bytes(state, new)


def prove_group(pipeline: Pipeline, body: Sequence[Bytes], members: Sequence[GroupMember]) -> None:
    """Verifies that a group's payload decodes to all its members."""
    with proof_of(f"a group of tensors coded by {pipeline.text}"):
        sizes = [len(new) for new, _, _ in members]
        decoded = decode_group(pipeline, memoryview(b"".join(body)), sizes)
        for (delta, width), (new, base, _) in zip(decoded, members, strict=True):
            if base is not None:
                state = scratch_bytes("proof", len(new)).data
                state[:] = base
                combine(pipeline.operator, state, delta, width)
                delta = state
            _prove_bytes(delta, new)


def proven_steps(pipeline: Pipeline, steps: Sequence[Addition]) -> list[Bytes]:
    """As ``encode_steps``. Then decodes the result and compares it with ``steps``."""
    with proof_of(f"a group of lossy deltas coded by {pipeline.text}"):
        body: list[Bytes] = [*encode_steps(pipeline, steps)]
        sizes = [step.nbytes for step in steps]
        prove_alike(decode_steps(pipeline, memoryview(b"".join(body)), sizes), steps)
    return body


def prove_alike(decoded: Sequence[Addition], originals: Sequence[Addition]) -> None:
    """Raises DamagedData unless the decoded lossy deltas equal the originals."""
    for one, other in zip(decoded, originals, strict=True):
        prove_equal((one.dtype, one.root), (other.dtype, other.root))
        prove_equal(one.table.tobytes(), other.table.tobytes())
        prove_equal(np.array_equal(one.symbols, other.symbols), True)


def prove_patch(patch: Bytes, new: memoryview, base: memoryview, extra: bytes = b"") -> None:
    """Verifies that a patch leads from ``base`` to ``new``."""
    with proof_of("a file's bytes"):
        _prove_bytes(decode_patch(memoryview(patch), base, extra, len(new)), new)


def prove_chunks(payload: Sequence[Bytes], nbytes: int, width: int) -> None:
    """Verifies the list of the lengths of a tensor's chunks.

    ``payload``: the head, which contains this list, and then the chunks.
    """
    head, *chunks = payload
    with proof_of("the list of a tensor's chunks"):
        read = _container(bytes(head), nbytes, sum(map(len, payload)))
        prove_equal(read, (width, [len(chunk) for chunk in chunks]))


@lru_cache(maxsize=256)  # a model may have 100,000 tensors of one size
def _container(head: bytes, nbytes: int, stored: int) -> tuple[int, list[int]]:
    read = Payload(head, nbytes, stored=stored)
    return read.width, read.sizes


def prove_check(payload: Sequence[Bytes], check: bytes) -> None:
    """Verifies the checksum of a payload."""
    with proof_of("a payload"):
        prove_equal(payload_check(payload), check)


def proven_header(members: Sequence[Member], *, group: bool, body_size: int) -> bytes:
    """As ``encode_header``. Then decodes the header and compares the result with the arguments."""
    head = encode_header(members, group=group, body_size=body_size)
    with proof_of("a record's header"):
        read = decode_header(head, "a new record")
        prove_equal((read.members, read.group), (tuple(members), group))
        prove_equal((read.body_at, read.body_size), (len(head), body_size))
        check_codings(read)
    return head
