"""Bundles: contents that the same versions have, planned as if they were one.

Most tensors of a model change together, and a version is a reset point only if all of it is stored
in full. So one bound holds for a whole bundle, for which the plan is exact.

A tree of contents joins a larger one if each of its contents has a counterpart there: one that the
same versions have, made from the counterpart of its base. So where no delta leads from a tensor to
its successor, both of its trees can join that of another tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mvc.maintenance.repack.solve.graph import Edge, Nodes, Selected
from mvc.maintenance.repack.solve.priced import Priced

_LOSS = 0.02  # a delta that loses more of a bundle's bytes on the way back is forward only


class _Bundle(Struct, frozen=True):
    """``members`` that are made from those of the bundle ``base``; ``whole`` ones, which are in
    full in any case. Without a base all are members.
    """

    base: int | None
    members: list[int]
    whole: list[int]


class Bundles:
    """``priced``: the problem with bundles in place of contents."""

    def __init__(self, problem: Priced) -> None:
        self._contents = problem.contents
        self._bundles: list[_Bundle] = []
        holders: list[list[int]] = [[] for _ in range(len(self._contents))]
        for version, held in enumerate(problem.held):
            for content in held:
                holders[content].append(version)
        self._holders = [tuple(versions) for versions in holders]
        self._place_all()
        full_bytes, full_ns = self._contents.full_bytes, self._contents.full_ns
        every = [[*bundle.members, *bundle.whole] for bundle in self._bundles]
        of = {content: number for number, each in enumerate(every) for content in each}
        self.priced = replace(
            problem,
            contents=Nodes(
                [sum(full_bytes[content] for content in contents) for contents in every],
                [sum(full_ns[content] for content in contents) for contents in every],
                [self._edge(i) for i, each in enumerate(self._bundles) if each.base is not None],
            ),
            held=[list({of[content]: None for content in held}) for held in problem.held],
        )

    def _place_all(self) -> None:
        """Puts every content in a bundle, those of the largest trees first."""
        roots: dict[tuple[int, ...], list[int]] = defaultdict(list)  # bundles, by their versions
        below: dict[tuple[int, tuple[int, ...]], int] = {}  # bundles, by base and versions
        trees = sorted(self._contents.trees, key=lambda tree: -self._size(tree.nodes))
        for tree in trees:
            holders = [self._holders[node] for node in tree.nodes]
            for root in roots[holders[0]]:
                found = [root]
                for link, versions in zip(tree.up[1:], holders[1:], strict=True):
                    assert link is not None
                    found.append(below.get((found[link[0]], versions), -1))
                if -1 not in found:
                    break
            else:
                found = []
                for link, versions in zip(tree.up, holders, strict=True):
                    base = None if link is None else found[link[0]]
                    found.append(len(self._bundles))
                    self._bundles.append(_Bundle(base, [], []))
                    roots[versions].append(found[-1])
                    if base is not None:
                        below.setdefault((base, versions), found[-1])
            for number, node, link in zip(found, tree.nodes, tree.up, strict=True):
                bundle = self._bundles[number]
                joins = link is None and bundle.base is not None
                (bundle.whole if joins else bundle.members).append(node)

    def _size(self, contents: Iterable[int]) -> int:
        return sum(self._contents.full_bytes[content] for content in contents)

    def _deltas(self, bundle: _Bundle) -> list[int]:
        """The numbers of the deltas that make a bundle's members."""
        ups = (self._contents.parents[content] for content in bundle.members)
        return [up[1] for up in ups if up is not None]

    def _lost(self, bundle: _Bundle) -> Sequence[int]:
        """What of its base no delta leads back to."""
        edges = [self._contents.edges[number] for number in self._deltas(bundle)]
        back = {edge.a for edge in edges if not edge.forward}
        base = self._bundles[bundle.base or 0]
        return [content for content in base.members if content not in back]

    def _edge(self, number: int) -> Edge:
        bundle = self._bundles[number]
        assert bundle.base is not None
        edges = [self._contents.edges[delta] for delta in self._deltas(bundle)]
        most = _LOSS * self._size(self._bundles[bundle.base].members)
        return Edge(
            bundle.base,
            number,
            sum(edge.bytes for edge in edges) + self._size(bundle.whole),
            sum(edge.ns for edge in edges),
            forward=self._size(self._lost(bundle)) > most,
        )

    def contents(self, layout: Selected) -> Selected:
        """The layout of the contents that one of the bundles stands for."""
        sources, edges = set[int](), set[int]()
        times = self.priced.contents.recovery(layout)
        for number in layout.sources:
            sources.update(self._bundles[number].members, self._bundles[number].whole)
        for number in layout.edges:
            edge = self.priced.contents.edges[number]
            bundle = self._bundles[edge.b]
            edges.update(self._deltas(bundle))
            sources.update(bundle.whole)
            if times.get(edge.b, 0) + edge.ns == times.get(edge.a):
                sources.update(self._lost(bundle))
        return Selected(frozenset(sources), frozenset(edges))
