"""What is decoded, and in which order, where steps of an optimizer lead to a piece.

Such a step needs its base and its inputs, pieces of the same start, which may be predicted
themselves. A plan makes every piece once, each just before it is needed, so that few are in
memory together: of a run of versions those of one step and of the step before it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.store.graph.search import Graph, Path, PathStep, Place

_TRIES = 16  # steps that lead nowhere, around which a way is searched


class Pieces(Protocol):
    """Pieces of objects that are in memory, by the objects' ids."""

    def __contains__(self, id_: object, /) -> bool:
        """Whether the piece of an object is there."""

    def __getitem__(self, id_: bytes, /) -> memoryview:
        """The piece of an object that is there."""


class Action(Struct, frozen=True):
    """Makes the piece of one object.

    ``steps`` lead there from the piece of ``base``, without it from a full record. One that is
    predicted stands alone, and has the objects of its ``inputs``. ``drops``: objects whose pieces
    nothing after it needs.
    """

    id: bytes
    steps: tuple[PathStep, ...]
    base: bytes | None
    inputs: tuple[bytes, ...]
    drops: tuple[bytes, ...]

    @property
    def needs(self) -> tuple[bytes, ...]:
        """The objects whose pieces must be in memory before."""
        return self.inputs if self.base is None else (self.base, *self.inputs)

    @property
    def by_chunks(self) -> bool:
        """Whether a chunk of the piece needs the same chunk of others alone."""
        return not any(
            step.header.group or step.member.coding.transform
            for step in self.steps
            if not step.member.coding.predicted
        )


class PiecePlan(Struct, frozen=True):
    """Makes the pieces of ``targets`` that begin at ``start``."""

    start: int
    targets: tuple[bytes, ...]
    actions: tuple[Action, ...]

    @property
    def steps(self) -> list[PathStep]:
        """Every payload that is decoded."""
        return [step for action in self.actions for step in action.steps]

    @property
    def origins(self) -> set[bytes]:
        """The objects that are in memory and needed, or targets."""
        made = {action.id for action in self.actions}
        return {*self.targets, *(id_ for each in self.actions for id_ in each.needs)} - made

    @property
    def by_products(self) -> set[bytes]:
        """Inputs of targets that are made on the way, for who takes these next (``ByProducts``)."""
        inputs = {id_ for each in self.actions if each.id in self.targets for id_ in each.inputs}
        bases = {each.base for each in self.actions}
        return inputs & {each.id for each in self.actions} - bases - set(self.targets)


class _Made(Struct, frozen=True):
    """The last step that leads to an object, from which one, and what else that needs."""

    step: PathStep
    base: bytes | None
    inputs: tuple[bytes, ...]


class _Known(Struct, frozen=True):
    """The objects at which a path may begin: those that are in memory or will be made."""

    made: Mapping[bytes, _Made]
    held: Container[bytes]

    def __contains__(self, id_: object) -> bool:
        return id_ in self.made or id_ in self.held


class _LeadsNowhereError(Exception):
    """A step whose base or inputs cannot be had."""

    def __init__(self, step: PathStep, why: str) -> None:
        super().__init__(why)
        self.step = step


def plan(
    graph: Graph,
    targets: Sequence[bytes],
    start: int = 0,
    held: Container[bytes] = (),
    *,
    avoid: AbstractSet[Place] | None = None,
    along: Sequence[Path] = (),
) -> PiecePlan:
    """Raises DamagedData if a target cannot be made. ``held`` and ``avoid`` are as for a path.

    ``along``: paths to targets that are taken, whether there are cheaper ones or not.
    """
    if len(targets) == 1 and not along and targets[0] not in held:
        path = graph.path(targets[0], start, held, avoid=avoid)
        if not is_predicted(path):  # as is hardly any of thousands of small tensors
            action = Action(targets[0], path.steps, path.origin, inputs=(), drops=())
            return PiecePlan(start, tuple(targets), (action,))
    nowhere: dict[Place, _LeadsNowhereError] = {}
    while len(nowhere) < _TRIES:
        closed = graph.damaged if avoid is None else avoid
        shut = closed | nowhere.keys() if nowhere else avoid
        try:
            made = _made(graph, targets, start, held, avoid=shut, along=along)
            return PiecePlan(start, tuple(targets), _ordered(made, targets))
        except _LeadsNowhereError as error:
            if error.step.place in nowhere:  # of ``along``, which is taken in any case
                break
            nowhere[error.step.place] = error
        except DamagedData:
            if not nowhere:
                raise
            break
    first = next(iter(nowhere.values()))
    raise DamagedData(
        f"object {first.step.member.id.hex()[:10]} cannot be recovered: {first}",
        hint="run 'mvc fsck' to see which versions it touches",
    )


def _made(
    graph: Graph,
    targets: Sequence[bytes],
    start: int,
    held: Container[bytes],
    *,
    avoid: AbstractSet[Place] | None,
    along: Sequence[Path],
) -> dict[bytes, _Made]:
    """How every object on the way is made. Raises DamagedData and _LeadsNowhereError."""
    made: dict[bytes, _Made] = {}
    waiting: list[tuple[bytes, PathStep | None]] = [(id_, None) for id_ in targets]
    for path in along:
        waiting += _add(graph, _cut(graph, path, made), made)
    while waiting:
        id_, needs = waiting.pop()
        if id_ in made or id_ in held:
            continue
        try:
            path = _path(graph, (id_, start), made, held, avoid=avoid)
        except DamagedData as error:
            if needs is None:
                raise
            raise _LeadsNowhereError(needs, error.message) from error
        waiting += _add(graph, path, made)
    for each in made.values():
        others = (each.base, *each.inputs) if each.step.member.coding.predicted else ()
        for other in others:
            size = made[other].step.member.nbytes if other in made else each.step.member.nbytes
            if size != each.step.member.nbytes:
                raise _LeadsNowhereError(each.step, "a prediction is of pieces of several lengths")
    return made


def _path(
    graph: Graph,
    node: tuple[bytes, int],
    made: Mapping[bytes, _Made],
    held: Container[bytes],
    *,
    avoid: AbstractSet[Place] | None,
) -> Path:
    """The path to a piece from what is in memory or will be made. Raises DamagedData."""
    if held:
        return graph.path(*node, _Known(made, held), avoid=avoid)
    return _cut(graph, graph.path(*node, avoid=avoid), made)  # the graph knows many of these


def _cut(graph: Graph, path: Path, made: Mapping[bytes, _Made]) -> Path:
    """What of a path comes after the last object that is made already."""
    ends = [graph.end_of(step) for step in path.steps]
    at = max((i for i, end in enumerate(ends) if end in made), default=None)
    return path if at is None else Path(path.steps[at + 1 :], path.cost, ends[at])


def _add(graph: Graph, path: Path, made: dict[bytes, _Made]) -> list[tuple[bytes, PathStep | None]]:
    """Adds how the objects on a path are made; returns what else that needs, and which step."""
    needed: list[tuple[bytes, PathStep | None]] = []
    at = path.origin
    for step in path.steps:
        inputs, end = _inputs(graph, step), graph.end_of(step)
        made[end], at = _Made(step, at, inputs), end
        needed += [(each, step) for each in inputs]
    return needed


def _inputs(graph: Graph, step: PathStep) -> tuple[bytes, ...]:
    found = []
    for prefix in step.member.inputs:
        if (id_ := graph.resolve_prefix(prefix)) is None:
            raise _LeadsNowhereError(step, "what it is predicted from is not stored")
        found.append(id_)
    return tuple(found)


def _ordered(made: Mapping[bytes, _Made], targets: Sequence[bytes]) -> tuple[Action, ...]:
    """Every action after those that it needs. Raises _LeadsNowhereError where they need it."""
    cuts = {*targets, *(id_ for each in made.values() for id_ in each.inputs)}
    for id_, each in made.items():
        if each.step.member.coding.predicted:
            cuts |= {id_, each.base or id_}
    found: list[Action] = []
    opened: dict[bytes, Iterator[bytes]] = {}  # in the order in which they were opened
    done: set[bytes] = set()
    for target in targets:
        if target not in made or target in done:
            continue
        actions = {target: _action(made, target, cuts)}
        opened[target] = iter(actions[target].needs)
        while opened:
            id_ = next(reversed(opened))
            need = next(opened[id_], None)
            if need is None:
                del opened[id_]
                done.add(id_)
                found.append(actions.pop(id_))
            elif need in opened:
                raise _LeadsNowhereError(actions[id_].steps[0], "it is predicted from itself")
            elif need in made and need not in done:
                actions[need] = _action(made, need, cuts)
                opened[need] = iter(actions[need].needs)
    return _dropping(_whole_first(found), targets)


def _whole_first(actions: Sequence[Action]) -> list[Action]:
    """Those before all others that make whole pieces of nothing or of what is held."""
    made = {action.id for action in actions}
    first = [each for each in actions if not each.by_chunks and not made.intersection(each.needs)]
    moved = {each.id for each in first}
    return [*first, *(each for each in actions if each.id not in moved)]


def _action(made: Mapping[bytes, _Made], id_: bytes, cuts: Container[bytes]) -> Action:
    """Goes back to the nearest object at which the way is cut."""
    each = made[id_]
    steps, base = [each.step], each.base
    while base is not None and base in made and base not in cuts:
        steps.append(made[base].step)
        base = made[base].base
    return Action(id_, tuple(reversed(steps)), base=base, inputs=each.inputs, drops=())


def _dropping(actions: Sequence[Action], targets: Sequence[bytes]) -> tuple[Action, ...]:
    later = set(targets)
    found = []
    for action in reversed(actions):
        ends = {action.id, *action.needs} - later
        later |= ends
        found.append(replace(action, drops=tuple(ends)))
    return tuple(reversed(found))


def recovers(graph: Graph, id_: bytes, nbytes: int) -> bool:
    """Whether an object of so many bytes can be made, and every piece of it that is stored."""
    starts = {step.member.start for step in graph.codings(id_)}
    if starts < set(range(0, max(nbytes, 1), PIECE)):
        return False
    try:
        for start in starts:
            plan(graph, [id_], start)
    except DamagedData:
        return False
    return True


def is_predicted(path: Path) -> bool:
    """Whether an optimizer's step leads to it, so that a plan is needed."""
    return any(step.member.coding.predicted for step in path.steps)


def related(graph: Graph, paths: Sequence[Path]) -> list[list[int]]:
    """Numbers of paths in sets that are planned together: one needs what is on another's way.

    Full records do not relate: many objects may begin at the same zeros.
    """
    owners: dict[bytes, int] = {}
    roots = list(range(len(paths)))

    def root(i: int) -> int:
        while roots[i] != i:
            roots[i] = i = roots[roots[i]]
        return i

    for i, path in enumerate(paths):
        for step in path.steps:
            if step.member.base:
                roots[root(owners.setdefault(graph.end_of(step), i))] = root(i)
    for i, path in enumerate(paths):
        for prefix in {each for step in path.steps for each in step.member.inputs}:
            owner = owners.get(graph.resolve_prefix(prefix) or b"")
            if owner is not None:
                roots[root(owner)] = root(i)
    found: dict[int, list[int]] = {}
    for i in range(len(paths)):
        found.setdefault(root(i), []).append(i)
    return list(found.values())
