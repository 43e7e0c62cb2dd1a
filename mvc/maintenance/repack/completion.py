"""Completing a selection, so that every blob can be recovered from what is stored then.

A layout is about versions, but versions share blobs, and not every delta is reversible. So what a
layout needs may leave a blob without a way to it. ``completed`` takes these steps, in this order:

1. Codings that share one payload are all kept, or none.
2. A new delta that is needed backwards is tried: it may turn out to be a full record.
3. A piece that nothing leads to gets the smallest stored delta from a piece that is reached, a
   chosen delta turned round, or a full record.
4. Each blob gets a coding of its own: as the base of a delta alone it is nowhere named by its full
   id. A delta turned round for that may have been another's only way, so step 3 comes once more.

Blobs that no version has (of forgotten states, before gc) keep the codings they have, and the
paths of others may lead through them. Nothing new is made of them or from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping

from mvc.maintenance.paths import CheapestPath, Reachability
from mvc.maintenance.repack.candidates import Candidate, Node, starts_of
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.selection import Selection


def completed(selection: Selection, costs: Costs) -> Selection:
    """The selection, and the codings without which a piece could not be recovered."""
    completion = _Completion(Selection(selection), costs)
    completion.keep_groups_whole()
    completion.try_what_is_needed_backwards()
    completion.reach_every_piece()
    completion.name_every_blob()
    completion.reach_every_piece()
    return completion.chosen


class _Completion:
    def __init__(self, chosen: Selection, costs: Costs) -> None:
        self.chosen = chosen
        self._costs = costs
        self._stored = costs.candidates
        self._specs = costs.survey.specs  # of the blobs that versions have

    def keep_groups_whole(self) -> None:
        for group in self._stored.groups.values():
            if any(candidate in self.chosen for candidate in group):
                self.chosen.add(group)

    def try_what_is_needed_backwards(self) -> None:
        """Replaces new deltas whose base nothing else leads to by what a trial makes of them."""
        reached = self._reached()
        unproven: dict[tuple[bytes, bytes], int] = {}
        for each in self.chosen.new:
            if each.base and not each.sure and (each.base, each.start) not in reached:
                unproven[each.id, each.base] = each.span
        self.chosen.drop([each for each in self.chosen.new if (each.id, each.base) in unproven])
        for (id_, base), span in unproven.items():
            self.chosen.add(self._costs.tried(id_, base, span))

    def reach_every_piece(self) -> None:
        reached = self._reached()
        waiting = deque(node for node in self._needed() if node not in reached)
        one_way = self._one_way()
        put_off: set[Node] = set()
        while waiting:
            node = waiting.popleft()
            if node in reached:
                continue
            found = self._delta_to(node, reached, one_way)
            if not found and node not in put_off:
                put_off.add(node)  # another piece's coding may lead here
                waiting.append(node)
                continue
            for candidate in found or self._full_of(node):
                self.chosen.add([candidate])
                _add(reached, candidate)
                self._drop_other_way(candidate)

    def name_every_blob(self) -> None:
        """Turns deltas round from blobs without a coding of their own towards the full record.

        The other end of such a delta may lose its only coding, and follows. Where the other end is
        of no version, the blob is encoded anew.
        """
        own = Counter(candidate.id for candidate in self.chosen)
        ways = self.chosen.cheapest()
        waiting = [id_ for id_ in self._specs if not own[id_]]
        while waiting:
            id_ = waiting.pop()
            for start in starts_of(self._specs[id_].nbytes):
                way = ways[id_, start].step
                if way.id == id_:
                    continue
                if way.id not in self._specs:
                    self.chosen.add(self._past_others((id_, start), ways))
                    own[id_] += 1
                    break
                self.chosen.add([self._costs.turned(way)])
                own[id_] += 1
                if way.grouped or way not in self.chosen:
                    continue
                self.chosen.drop([way])
                own[way.id] -= 1
                if not own[way.id]:
                    waiting.append(way.id)

    # -- of what a piece can be made -------------------------------------------------------

    def _delta_to(
        self, node: Node, reached: Reachability, one_way: Mapping[Node, list[Candidate]]
    ) -> list[Candidate]:
        """The smallest delta that makes a piece: a stored one, or a chosen one turned round."""
        found = [o for o in self._stored.of(node) if o.base and reached.has_all(o.needs)]
        if node[0] in self._specs:
            ways = [o for o in one_way.get(node, ()) if o.node in reached and o in self.chosen]
            found += map(self._costs.turned, ways)
        return [min(found, key=lambda candidate: candidate.stored)] if found else []

    def _full_of(self, node: Node) -> list[Candidate]:
        full = [candidate for candidate in self._stored.of(node) if candidate.base is None]
        if full:
            return [min(full, key=lambda candidate: candidate.stored)]
        if node[0] not in self._specs:
            return []  # it is lost, and no version needs it
        return self._costs.alone(node[0])

    def _past_others(
        self, node: Node, ways: Mapping[Node, CheapestPath[Node, Candidate]]
    ) -> list[Candidate]:
        """New codings of a blob, from the nearest blob of a version on its cheapest path."""
        base = ways[node].origin
        while base is not None and base[0] not in self._specs:
            base = ways[base].origin
        return self._costs.alone(node[0]) if base is None else self._costs.tried(node[0], base[0])

    def _drop_other_way(self, candidate: Candidate) -> None:
        """Drops the other direction of a turned delta, unless it shares its payload."""
        for other in self._stored.of((candidate.base or b"", candidate.start)):
            kept = other.grouped or other.id not in self._specs
            if other.base == candidate.id and not other.reversible and not kept:
                self.chosen.drop([other])

    # -- what is there ---------------------------------------------------------------------

    def _reached(self) -> Reachability:
        """The pieces that chosen codings lead to; untried ones count as forward only."""
        reached = Reachability()
        for candidate in self.chosen:
            _add(reached, candidate)
        return reached

    def _needed(self) -> Iterator[Node]:
        """Every piece of every stored blob, those of versions first and in their order."""
        for version in self._costs.survey.versions:
            for id_ in version.blobs:
                for start in starts_of(self._specs[id_].nbytes):
                    yield id_, start
        for candidate in self._stored:
            if candidate.id not in self._specs:
                yield candidate.node

    def _one_way(self) -> dict[Node, list[Candidate]]:
        """Chosen deltas that are not reversible, by the piece they start from."""
        found: dict[Node, list[Candidate]] = defaultdict(list)
        for each in self.chosen:
            if each.base and each.id in self._specs and each.is_one_way:
                found[each.base, each.start].append(each)
        return found


def _add(reached: Reachability, candidate: Candidate) -> None:
    reversible = candidate.reversible and candidate.sure
    reached.add(
        candidate.id,
        candidate.start,
        candidate.base,
        reversible=reversible,
        inputs=candidate.inputs,
    )
