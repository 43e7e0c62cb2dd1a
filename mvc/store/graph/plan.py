"""Plans which payloads to decode, and in which order, if optimizer steps predict a piece.

A piece is at most 32 MiB of an object, such as the bytes of a tensor. A payload is the encoded
bytes of a piece. A *predicted* piece is stored as the difference from what an optimizer's step
computes. To decode this difference, the piece's base (the weights before the step) and its inputs
(first moments, for example) are needed. Base and inputs are pieces of other objects at the same
offset, and may be predicted, too.

A plan recovers every piece once, directly before the piece is needed, so that few pieces are in
memory at the same time.
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

_TRIES = 16  # planning fails if this many steps have no recoverable base or inputs


class Pieces(Protocol):
    """Pieces of objects in memory. The keys are the objects' ids."""

    def __contains__(self, id_: object, /) -> bool:
        """Whether this object's piece is in memory."""

    def __getitem__(self, id_: bytes, /) -> memoryview:
        """The object's piece."""


class Action(Struct, frozen=True):
    """Recovers the piece of one object.

    ``steps``: the payloads to decode. They are applied to the piece of ``base``. Without a base,
    the first step is a full record. A predicted step is the only step of its action and needs
    ``inputs``, too. ``drops``: objects whose pieces no later action needs.
    """

    id: bytes
    steps: tuple[PathStep, ...]
    base: bytes | None
    inputs: tuple[bytes, ...]
    drops: tuple[bytes, ...]

    @property
    def needs(self) -> tuple[bytes, ...]:
        """Objects whose pieces must be in memory before this action."""
        return self.inputs if self.base is None else (self.base, *self.inputs)

    @property
    def by_chunks(self) -> bool:
        """Whether each chunk (1 MiB) of the piece depends only on chunks at the same offset."""
        return not any(
            step.header.group or step.member.coding.transform
            for step in self.steps
            if not step.member.coding.predicted
        )


class PiecePlan(Struct, frozen=True):
    """Recovers the piece that begins at byte ``start`` of each object in ``targets``."""

    start: int
    targets: tuple[bytes, ...]
    actions: tuple[Action, ...]

    @property
    def steps(self) -> list[PathStep]:
        """Every payload to decode."""
        return [step for action in self.actions for step in action.steps]

    @property
    def origins(self) -> set[bytes]:
        """Objects whose pieces must be in memory before the first action."""
        recovered = {action.id for action in self.actions}
        return {
            *self.targets,
            *(id_ for action in self.actions for id_ in action.needs),
        } - recovered

    @property
    def by_products(self) -> set[bytes]:
        """Inputs of ``targets`` that the plan recovers, and that are not targets or bases.

        The caller may request these objects later (``mvc.store.recovery.by_products``).
        """
        inputs = {
            id_ for action in self.actions if action.id in self.targets for id_ in action.inputs
        }
        bases = {action.base for action in self.actions}
        return inputs & {action.id for action in self.actions} - bases - set(self.targets)


class _LastStep(Struct, frozen=True):
    """The last step of the path to an object, and the base and inputs of this step."""

    step: PathStep
    base: bytes | None
    inputs: tuple[bytes, ...]


class _Known(Struct, frozen=True):
    """Objects at which a path may begin: objects in memory, or recovered earlier in the plan."""

    last_steps: Mapping[bytes, _LastStep]
    available: Container[bytes]

    def __contains__(self, id_: object) -> bool:
        return id_ in self.last_steps or id_ in self.available


class _LeadsNowhereError(Exception):
    """A step whose base or inputs cannot be recovered."""

    def __init__(self, step: PathStep, why: str) -> None:
        super().__init__(why)
        self.step = step


def plan(
    graph: Graph,
    targets: Sequence[bytes],
    start: int = 0,
    available: Container[bytes] = (),
    *,
    avoid: AbstractSet[Place] | None = None,
    along: Sequence[Path] = (),
) -> PiecePlan:
    """Plans how to recover the piece that begins at byte ``start`` of each object in ``targets``.

    ``available``: ids of objects in memory. ``avoid``: payloads that the plan must not use, by
    default the payloads known to be damaged. ``along``: paths that the plan must use, even if there
    are faster paths. Raises DamagedData if a piece cannot be recovered.
    """
    if len(targets) == 1 and targets[0] not in available:
        path = along[0] if along else graph.path(targets[0], start, available, avoid=avoid)
        # The usual case. A path of ``along`` may visit an object twice: the received delta of an
        # object may have a base that is stored here as a delta from this object.
        if not is_predicted(path):
            action = Action(targets[0], path.steps, path.origin, inputs=(), drops=())
            return PiecePlan(start, tuple(targets), (action,))
    nowhere: dict[Place, _LeadsNowhereError] = {}
    while len(nowhere) < _TRIES:
        closed = graph.damaged if avoid is None else avoid
        shut = closed | nowhere.keys() if nowhere else avoid
        try:
            last_steps = _last_steps(graph, targets, start, available, avoid=shut, along=along)
            return PiecePlan(start, tuple(targets), _ordered(last_steps, targets))
        except _LeadsNowhereError as error:
            if error.step.place in nowhere:  # a step of ``along``, which cannot be avoided
                break
            nowhere[error.step.place] = error
        except DamagedData:
            if not nowhere:
                raise
            break
    first = next(iter(nowhere.values()))
    raise DamagedData(
        f"object {first.step.member.id.hex()[:10]} cannot be recovered: {first}",
        hint="run 'mvc fsck' to list the affected versions",
    )


def _last_steps(
    graph: Graph,
    targets: Sequence[bytes],
    start: int,
    available: Container[bytes],
    *,
    avoid: AbstractSet[Place] | None,
    along: Sequence[Path],
) -> dict[bytes, _LastStep]:
    """The last step of every object that the plan recovers.

    Raises DamagedData, and _LeadsNowhereError for a step that the caller may avoid.
    """
    last_steps: dict[bytes, _LastStep] = {}
    waiting: list[tuple[bytes, PathStep | None]] = [(id_, None) for id_ in targets]
    for path in along:
        waiting += _add(graph, _cut(graph, path, last_steps), last_steps)
    while waiting:
        id_, needs = waiting.pop()
        if id_ in last_steps or id_ in available:
            continue
        try:
            path = _path(graph, (id_, start), last_steps, available, avoid=avoid)
        except DamagedData as error:
            if needs is None:
                raise
            raise _LeadsNowhereError(needs, error.message) from error
        waiting += _add(graph, path, last_steps)
    for last in last_steps.values():
        member = last.step.member
        for need in (last.base, *last.inputs) if member.coding.predicted else ():
            if need in last_steps and last_steps[need].step.member.nbytes != member.nbytes:
                raise _LeadsNowhereError(last.step, "its base and inputs have different lengths")
    return last_steps


def _path(
    graph: Graph,
    node: tuple[bytes, int],
    last_steps: Mapping[bytes, _LastStep],
    available: Container[bytes],
    *,
    avoid: AbstractSet[Place] | None,
) -> Path:
    """The path to a piece, from an object in memory or in the plan. Raises DamagedData."""
    if available:
        return graph.path(*node, _Known(last_steps, available), avoid=avoid)
    # Without objects in memory, ``graph`` may have the path in its cache.
    return _cut(graph, graph.path(*node, avoid=avoid), last_steps)


def _cut(graph: Graph, path: Path, last_steps: Mapping[bytes, _LastStep]) -> Path:
    """The part of ``path`` after the last of its bases that is in the plan already."""
    ends = [graph.end_of(step) for step in path.steps[:-1]]
    at = max((i for i, end in enumerate(ends) if end in last_steps), default=None)
    return path if at is None else Path(path.steps[at + 1 :], path.cost, ends[at])


def _add(
    graph: Graph, path: Path, last_steps: dict[bytes, _LastStep]
) -> list[tuple[bytes, PathStep | None]]:
    """Adds the objects on a path to ``last_steps``.

    Returns the inputs of the path's steps. Each input is paired with the step that needs it.
    """
    needed: list[tuple[bytes, PathStep | None]] = []
    at = path.origin
    for step in path.steps:
        inputs, end = _inputs(graph, step), graph.end_of(step)
        last_steps[end], at = _LastStep(step, at, inputs), end
        needed += [(id_, step) for id_ in inputs]
    return needed


def _inputs(graph: Graph, step: PathStep) -> tuple[bytes, ...]:
    ids = []
    for prefix in step.member.inputs:
        if (id_ := graph.resolve_prefix(prefix)) is None:
            raise _LeadsNowhereError(step, "an input of its prediction is not stored")
        ids.append(id_)
    return tuple(ids)


def _ordered(last_steps: Mapping[bytes, _LastStep], targets: Sequence[bytes]) -> tuple[Action, ...]:
    """The actions that recover ``targets``. Each action follows the actions that it depends on.

    Raises _LeadsNowhereError for a cycle.
    """
    cuts = {*targets, *(id_ for last in last_steps.values() for id_ in last.inputs)}
    for id_, last in last_steps.items():
        if last.step.member.coding.predicted:
            cuts |= {id_, last.base or id_}
    ordered: list[Action] = []
    opened: dict[bytes, Iterator[bytes]] = {}  # for each object, needs that are not visited yet
    done: set[bytes] = set()
    for target in targets:
        if target not in last_steps or target in done:
            continue
        actions = {target: _action(last_steps, target, cuts)}
        opened[target] = iter(actions[target].needs)
        while opened:
            id_ = next(reversed(opened))
            need = next(opened[id_], None)
            if need is None:
                del opened[id_]
                done.add(id_)
                ordered.append(actions.pop(id_))
            elif need in opened:
                raise _LeadsNowhereError(actions[id_].steps[0], "it is predicted from itself")
            elif need in last_steps and need not in done:
                actions[need] = _action(last_steps, need, cuts)
                opened[need] = iter(actions[need].needs)
    return _dropping(_whole_first(ordered), targets)


def _whole_first(actions: Sequence[Action]) -> list[Action]:
    """Moves actions to the front if they need no other action and do not work by chunks."""
    recovered = {action.id for action in actions}
    first = [a for a in actions if not a.by_chunks and not recovered.intersection(a.needs)]
    moved = {a.id for a in first}
    return [*first, *(a for a in actions if a.id not in moved)]


def _action(last_steps: Mapping[bytes, _LastStep], id_: bytes, cuts: Container[bytes]) -> Action:
    """The action that recovers ``id_`` from the nearest object in ``cuts`` on its path.

    If no object in ``cuts`` is on the path, the action recovers ``id_`` from the beginning of
    the path: a full record, or an object in memory.
    """
    last = last_steps[id_]
    steps, base = [last.step], last.base
    while base is not None and base in last_steps and base not in cuts:
        steps.append(last_steps[base].step)
        base = last_steps[base].base
    return Action(id_, tuple(reversed(steps)), base=base, inputs=last.inputs, drops=())


def _dropping(actions: Sequence[Action], targets: Sequence[bytes]) -> tuple[Action, ...]:
    later = set(targets)
    result = []
    for action in reversed(actions):
        ends = {action.id, *action.needs} - later
        later |= ends
        result.append(replace(action, drops=tuple(ends)))
    return tuple(reversed(result))


def recovers(graph: Graph, id_: bytes, nbytes: int) -> bool:
    """Whether all pieces of an object of this size are stored and can be recovered."""
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
    """Whether an optimizer's step predicts an object on the path, so that the path needs a plan."""
    return any(step.member.coding.predicted for step in path.steps)


def related(graph: Graph, paths: Sequence[Path]) -> list[list[int]]:
    """Groups the paths that must be planned together, because they share objects.

    A group is a list of indexes of ``paths``. Paths that share only a full record are not grouped,
    because a full record of zeros may be on many paths.
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
        for prefix in {name for step in path.steps for name in step.member.inputs}:
            owner = owners.get(graph.resolve_prefix(prefix) or b"")
            if owner is not None:
                roots[root(owner)] = root(i)
    groups: dict[int, list[int]] = {}
    for i in range(len(paths)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())
