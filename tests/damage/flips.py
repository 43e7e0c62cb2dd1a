"""Flipping bits of a repository one by one, each flip checked for what it touches.

What is asked after *every* flip, through the code that fsck and checkout run:

- format: opening must refuse it;
- journal: it must open, every entry must read as before (so everything that is answered
  from entries is as before, and packs are untouched), and fsck's check of the journal
  must report it;
- first bytes of a pack, record headers, payloads: fsck's check of the packs must report
  the entry that was hit; each object that the damaged header or payload holds (of more
  than eight, two in turn), and one of those that were recovered through it, in turn, must
  come back right or be refused. In a large repository every fourth flip asks for the objects,
  because recovering them costs twenty times what finding the damage does.

The look-ups stand on an opening from before the flip that has forgotten the records of
the entry that was hit. Every ``every``-th flip (of headers eight times as many) is asked
everything on an opening of its own: ``fsck``, and all files of all versions; fsck must
name just the versions that do not come back.

What cannot depend on the flipped bit is computed once: a journal's frame that was decoded
before is not decoded again while its bytes are the same; and a flip in a payload leaves all
headers as they are, so the first path that is planned to an object is the one from before.

Run as a process: ``python -m tests.damage.flips ROOT KIND A B EVERY``, where KIND is
``part`` (bits A, A + B, A + 2B...) or ``random`` (B bits from seed A); it makes the
repository in ROOT and prints its counters.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

from mvc.errors import MvcError
from mvc.maintenance.fsck.journal import JournalCheck
from mvc.maintenance.fsck.packs import PackCheck
from mvc.maintenance.graph import StorageGraph
from mvc.store.graph.search import Graph, Place, Speed
from mvc.store.graph.search import Path as Way
from mvc.store.recovery.recover import Recovery
from mvc.store.snapshot import Snapshot
from tests.damage import made
from tests.damage.decoded import decoded_once
from tests.damage.subject import Span, Subject, Wrong

__all__ = ["flip_bits"]

_LARGE = 1 << 20


def flip_bits(subject: Subject, bits: Iterable[int], every: int) -> Counter[str]:
    """Flips each bit (its number over all files) and checks; raises Wrong.

    Counts ``tried``; ``found``, reported by opening or fsck; ``asked_for_objects``; ``healed``,
    where all that was asked still came back right, by another copy or another way;
    ``asked_everything``.
    """
    flipper = _Flipper(subject)
    for number, bit in enumerate(bits):
        span, at = subject.place(bit // 8)
        try:
            often = every // 8 if span.kind == "header" else every
            flipper.flip(span, at, bit % 8, whole=not (number + 1) % max(often, 1))
        except Exception as error:
            raise Wrong(f"bit {bit % 8} of byte {at} in {span.path.name}: {error!r}") from error
    flipper.close()
    return flipper.counted


class _Flipper:
    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.ask_each = 4 if subject.size > _LARGE else 1
        self.counted: Counter[str] = Counter(tried=0, found=0, healed=0, asked_everything=0)
        self.store = subject.store()
        self.planned = _Planned(self.store.snapshot, Speed())
        subject.fs.files = {path: bytearray(data) for path, data in subject.sound.items()}
        self.through = self._recovered_through()
        self.turn: Counter[bytes] = Counter()

    def flip(self, span: Span, at: int, bit: int, *, whole: bool) -> None:
        data = self.subject.fs.files[span.path]
        assert isinstance(data, bytearray)
        data[at] ^= 1 << bit
        try:
            self.counted["tried"] += 1
            {"format": self._format, "journal": self._journal}.get(span.kind, self._pack)(span)
            self.counted["found"] += 1
            if whole:
                self._everything()
        finally:
            data[at] ^= 1 << bit

    def close(self) -> None:
        self.store.close()
        self.subject.mend()

    def _format(self, span: Span) -> None:
        try:
            self.subject.store().close()
        except MvcError:
            return
        raise Wrong("a damaged format file was opened")

    def _journal(self, span: Span) -> None:
        with decoded_once():
            store = self.subject.store()
            check = JournalCheck(store.snapshot)
            found = [(r.offset, r.sequence, r.entry) for r in check.entries()]
        if found != [(r.offset, r.sequence, r.entry) for r in self.subject.entries]:
            raise Wrong("the journal reads otherwise")
        if not check.problems:
            raise Wrong("fsck does not see it")
        store.close()
        self.counted["healed"] += 1

    def _pack(self, span: Span) -> None:
        view = self.store.snapshot
        self._forget(span)
        check = PackCheck(view, StorageGraph(view))
        if span.recorded is not None:
            check.entry(span.recorded)
        else:
            for recorded in self._named(span):
                check.claim(recorded.entry.regions[0], recorded)
            check.finish()
        if not check.problems:
            raise Wrong("fsck does not see it")
        self._forget(span)
        if self.counted["tried"] % self.ask_each:
            return
        self.counted["asked_for_objects"] += 1
        recovery = Recovery(
            self.store.snapshot.packs, self._graph(span), self.store.pool, provided={}
        )
        back = [self.subject.object_comes_back(recovery, id_) for id_ in self._touched(span)]
        self.counted["healed"] += all(back)
        self._forget(span)

    def _graph(self, span: Span) -> Graph:
        """A graph that knows of no damage."""
        if span.kind == "header":
            return Graph(self.store.snapshot, Speed())
        self.planned.trust_all()
        return self.planned

    def _forget(self, span: Span) -> None:
        """Drops what the view has in memory of the place that is hit, and nothing else."""
        if span.recorded is not None:
            view = self.store.snapshot
            places = [(r.pack, r.start) for r in span.recorded.entry.regions]
            places += [(p, at) for p, at, _ in view._records._cache.pop(span.recorded.offset, ())]
            for place in places:
                view.packs.headers.pop(place, None)
            if span.kind == "header":
                view.packs.headers.pop((int(span.path.stem), span.start), None)

    def _named(self, span: Span) -> list:
        pack = int(span.path.stem)
        return [r for r in self.subject.entries if any(g.pack == pack for g in r.entry.regions)][:1]

    def _touched(self, span: Span) -> list[bytes]:
        """The objects that lie there, and one of those that need them, in turn."""
        ids = list(dict.fromkeys(member.id for member in span.members))
        if not ids:
            return []
        turn = self.turn[ids[0]] = self.turn[ids[0]] + 1
        if len(ids) > 8:
            ids = [ids[turn % len(ids)], ids[(turn + 7) % len(ids)]]
        others = self.through.get(ids[0], ())
        return [*ids, others[turn % len(others)]] if others else ids

    def _recovered_through(self) -> dict[bytes, list[bytes]]:
        """By object: those whose cheapest path leads through one of its payloads."""
        through: dict[bytes, list[bytes]] = {}
        for id_ in self.subject.objects:
            for step in self.store.graph.path(id_).steps:
                if step.member.id != id_:
                    through.setdefault(step.member.id, []).append(id_)
        return through

    def _everything(self) -> None:
        verdict = self.subject.everything()
        self.counted["asked_everything"] += 1
        if not verdict.found:
            raise Wrong("neither opening nor fsck sees it")
        if verdict.refused is None and verdict.named != verdict.lost:
            named, lost = ({v.short for v in x} for x in (verdict.named, verdict.lost))
            raise Wrong(f"fsck names {named} as lost, but what does not come back is {lost}")


class _Planned(Graph):
    """Keeps the paths that it planned before it knew of any damage."""

    def __init__(self, view: Snapshot, speed: Speed) -> None:
        super().__init__(view, speed)
        self._kept: dict[tuple[bytes, int], Way] = {}

    def trust_all(self) -> None:
        self._damaged.clear()
        self.exclude(())

    def path(
        self,
        id_: bytes,
        start: int = 0,
        held: Container[bytes] = (),
        *,
        avoid: AbstractSet[Place] | None = None,
    ) -> Way:
        if self._damaged or held or avoid:
            return super().path(id_, start, held, avoid=avoid)
        if (id_, start) not in self._kept:
            self._kept[id_, start] = super().path(id_, start)
        return self._kept[id_, start]


def main(root: Path, kind: str, a: int, b: int, every: int) -> Counter[str]:
    if kind == "part":
        made.small(root)
        subject = Subject(root)
        return flip_bits(subject, range(a, 8 * subject.size, b), every)
    made.large(root)
    subject = Subject(root)
    draw = random.Random(a)
    return flip_bits(subject, (draw.randrange(8 * subject.size) for _ in range(b)), every)


if __name__ == "__main__":
    root_, kind_, *numbers = sys.argv[1:]
    print(json.dumps(main(Path(root_), kind_, *map(int, numbers))))
