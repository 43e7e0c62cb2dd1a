"""What codings that are not stored would cost: tried on some versions, interpolated on the rest.

A trial recovers the tensor and chooses a coding as a commit would. Sizes of a line of
tensors change slowly from version to version, so between two that are known the share of
raw bytes is taken to change evenly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from msgspec import Struct

from mvc.codecs import cast
from mvc.codecs.patch import encode_patch
from mvc.codecs.payload import pack_chunks
from mvc.limits import CHUNK, PIECE
from mvc.maintenance.repack.candidates import Candidate, found_from_base, starts_of
from mvc.maintenance.repack.survey import Survey
from mvc.maintenance.rewrite_plan import encoding_policy
from mvc.model.tensor import TensorSpec
from mvc.store.packs.records import BASE_BYTES
from mvc.store.writing.full_or_delta import BasePiece, Choice, choose, fitted

_EXACT = 8 << 20  # pieces up to this many bytes are encoded whole, larger ones by samples
_GUESS = {False: 0.9, True: 0.6}  # shares of full records and deltas before any is known


class _Trial(Struct, frozen=True):
    """``share`` of raw bytes; whether it is a ``delta``, and whether it is ``reversible``."""

    share: float
    delta: bool
    reversible: bool


class Sizes:
    """Estimates of sizes, which get better with what is learned and measured.

    ``span``: generations between a blob and its base, 0 for a full record.
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._policy = encoding_policy(survey.context.config)
        self._rates = survey.context.store.rates
        self._known: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self._all: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._tried: dict[tuple[bytes, bytes | None], _Trial] = {}

    def learn(self, id_: bytes, span: int, share: float) -> None:
        """Records the share of its raw bytes that a blob takes."""
        at = self._survey.first[id_]
        insort(self._known[self._line(id_, at), span], (at, share))
        total = self._all[span]
        total[0] += share
        total[1] += 1

    def _line(self, id_: bytes, at: int) -> str:
        """The line of tensors that a blob belongs to in version ``at``."""
        return self._survey.versions[at].blobs[id_]

    def full(self, id_: bytes, at: int) -> list[Candidate]:
        tried = self._tried.get((id_, None))
        share = tried.share if tried else self._share(self._line(id_, at), at, 0)
        return self._pieces(id_, None, share, span=0, sure=tried is not None)

    def delta(self, id_: bytes, base: bytes, span: int) -> list[Candidate]:
        """The delta of a blob from a base; full if a trial showed that a delta is not worth it."""
        tried = self._tried.get((id_, base))
        if tried is None:
            alike = self._survey.size(id_) == self._survey.size(base)
            at = self._survey.first[id_]
            share = self._share(self._line(id_, at), at, span)
            return self._pieces(id_, base, share, span=span, reversible=alike)
        known = base if tried.delta else None
        return self._pieces(
            id_, known, tried.share, span=span, reversible=tried.reversible, sure=True
        )

    def _pieces(
        self,
        id_: bytes,
        base: bytes | None,
        share: float,
        *,
        span: int,
        reversible: bool = False,
        sure: bool = False,
    ) -> list[Candidate]:
        nbytes, spec = self._survey.size(id_), self._survey.specs[id_]
        pipeline = self._policy.pipeline if base else self._policy.pipeline.full()
        forward_only = base is not None and not reversible
        reversible = reversible and found_from_base(self._survey.found, id_, base)
        found = []
        for start in starts_of(nbytes):
            length = min(PIECE, nbytes - start)
            stored = max(1, round(share * length))
            found.append(
                Candidate(
                    id=id_,
                    start=start,
                    nbytes=length,
                    stored=stored,
                    seconds=self._rates.coding(pipeline, length, spec, stored),
                    base=base,
                    reversible=reversible,
                    sure=sure,
                    forward_only=forward_only,
                    span=span,
                )
            )
        return found

    def _share(self, line: str, at: int, span: int) -> float:
        known = self._known.get((line, span))
        if not known:
            return self._typical(span)
        place = bisect_left(known, (at, -1.0))
        if place == len(known) or place == 0:
            return known[min(place, len(known) - 1)][1]
        (a, low), (b, high) = known[place - 1], known[place]
        return low if a == b else low + (high - low) * (at - a) / (b - a)

    def _typical(self, span: int) -> float:
        """The mean of all lines; a longer delta is at least as large as a short one."""
        total, count = self._all[span]
        if count:
            return total / count
        if span > 1:
            return max(_GUESS[True], self._typical(1))
        return _GUESS[span > 0]

    # -- trials ------------------------------------------------------------------------

    def measure(self, id_: bytes, base: bytes | None, span: int) -> None:
        """A trial: recovers a blob and its base and encodes it as a commit would."""
        if (id_, base) in self._tried:
            return
        trial = self._try(id_, base)
        self._tried[id_, base] = trial
        self.learn(id_, span if trial.delta else 0, trial.share)

    def _try(self, id_: bytes, base: bytes | None) -> _Trial:
        spec = self._survey.specs[id_]
        recovery = self._survey.context.store.recovery
        starts = starts_of(spec.nbytes)
        start = starts[len(starts) // 2 if len(starts) > 2 else 0]
        new = memoryview(bytearray(min(PIECE, spec.nbytes - start)))
        recovery.piece(id_, start, new)
        piece = None
        base_spec = None
        if base is not None and base[:BASE_BYTES] not in self._survey.found.ambiguous:
            base_spec = self._survey.specs[base]
            piece = self._base_piece(base, base_spec, spec, start)
        choice = choose(
            spec, new, base_spec=base_spec if piece else None, base=piece, policy=self._policy
        )[0]
        against = piece.data if piece is not None and choice.against else None
        share = _size(choice, new, against) / max(1, len(new))
        reversible = choice.against and bool(choice.pipeline) and choice.text == _plain(choice)
        return _Trial(share, choice.against, reversible)

    def _base_piece(
        self, base: bytes, base_spec: TensorSpec, spec: TensorSpec, start: int
    ) -> BasePiece | None:
        if start and start >= base_spec.nbytes:
            return None
        data = memoryview(bytearray(min(PIECE, base_spec.nbytes - start)))
        if base_spec.dtype != spec.dtype:
            if start or base_spec.elements != spec.elements or base_spec.nbytes > PIECE:
                return None
            self._survey.context.store.recovery.piece(base, 0, data)
            converted = cast.cast(data, base_spec.dtype, spec.dtype)
            return BasePiece(base, memoryview(converted).cast("B"))
        self._survey.context.store.recovery.piece(base, start, data)
        return BasePiece(base, data)


def _plain(choice: Choice) -> str:
    return choice.pipeline.text if choice.pipeline else ""


def _size(choice: Choice, new: memoryview, against: memoryview | None) -> float:
    """Payload bytes of a piece."""
    if choice.pipeline is None:
        return len(encode_patch(new, against if against is not None else memoryview(b"")))
    if len(new) > _EXACT or choice.pipeline.scope == "group":
        return choice.share * len(new)
    pipeline = choice.pipeline
    base = None if against is None else fitted(against, len(new))
    chunks = [
        pipeline.encode_chunk(
            new[at : at + CHUNK], None if base is None else base[at : at + CHUNK], choice.width
        )
        for at in range(0, len(new), CHUNK)
    ]
    return sum(len(part) for part in pack_chunks(chunks, len(new), choice.width, CHUNK))
