"""Which pieces of objects can be reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Piece = tuple[bytes, int]
"""An object's id and the first byte of one of its pieces."""


class Reachability:
    """The pieces that full records lead to, kept up to date as codings are added.

    A coding with inputs leads on once its base and all of these are reached. ``before`` says which
    pieces count as reached from the start; nothing leads on from these.
    """

    def __init__(self, before: Callable[[Piece], bool] | None = None) -> None:
        self._before = before
        self._reached: set[Piece] = set()
        # By piece what it leads to, and the pieces that this needs as well.
        self._edges: dict[Piece, list[tuple[Piece, tuple[Piece, ...]]]] = {}

    def __contains__(self, piece: Piece) -> bool:
        return piece in self._reached or (self._before is not None and self._before(piece))

    def copy(self) -> Reachability:
        """One to ``reach`` more in, over the same codings; add none to either."""
        made = Reachability(self._before)
        made._reached, made._edges = set(self._reached), self._edges
        return made

    def has_all(self, pieces: Iterable[Piece]) -> bool:
        """Whether all of these are reached."""
        return all(piece in self for piece in pieces)

    def add(
        self,
        id_: bytes,
        start: int,
        base: bytes | None,
        *,
        reversible: bool,
        inputs: Sequence[bytes] = (),
    ) -> None:
        """Adds the coding of a piece; ``reversible``: it makes its base as well."""
        piece = (id_, start)
        if base is None:
            self.reach([piece])
            return
        self._lead([(needed, start) for needed in dict.fromkeys((base, *inputs))], piece)
        if reversible:
            self._lead([piece], (base, start))

    def _lead(self, needs: Sequence[Piece], target: Piece) -> None:
        for at in needs:
            others = tuple(other for other in needs if other != at) if len(needs) > 1 else ()
            self._edges.setdefault(at, []).append((target, others))
        if self.has_all(needs):
            self.reach([target])

    def reach(self, pieces: Iterable[Piece]) -> None:
        """Takes these pieces as reached, and all that can be reached from them."""
        waiting = list(pieces)
        while waiting:
            piece = waiting.pop()
            if piece not in self:
                self._reached.add(piece)
                edges = self._edges.get(piece, ())
                waiting.extend(target for target, others in edges if self.has_all(others))
