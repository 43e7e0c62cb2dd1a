"""Plans a three-way merge: for each file and tensor, which version's value to use.

Triples are always (base, ours, theirs). The base is the common ancestor. Tensors are compared by
their hashes, and are not read.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.adapters.python.state import combined_header
from mvc.adapters.state_file import StateFile
from mvc.errors import WrongUsage
from mvc.ids import BlobId
from mvc.model.manifest import Content, FileEntry, LogicalTensor, Manifest
from mvc.names import printable
from mvc.repo.average import fill
from mvc.repo.commit.proposal import nested
from mvc.repo.content.compare import TensorDiff, outside_tensors
from mvc.repo.content.contents import skeleton_of
from mvc.repo.derived import DerivedFile
from mvc.repo.diff.distance import ROUNDED
from mvc.store.store import Store
from mvc.text import did_you_mean

OURS, THEIRS = 1, 2
_SIDES = {"ours": OURS, "theirs": THEIRS}
_HOWS = ("mean", "ours", "theirs", "sum")
_NEW_LAYOUTS = frozenset({"safetensors", "state"})
"""Formats in which everything except tensors is metadata, so that mvc can write a new header."""

_Sum: TypeAlias = tuple[tuple[BlobId, ...], tuple[float, ...]]
"""Contents (tensor data) and their weights in a sum; empty if there is no sum."""
_Chosen: TypeAlias = dict[str, tuple[LogicalTensor, Content, _Sum]]
"""Maps names to: the tensor of one side, its content, and the sum to store instead, if any."""


class Strategy(Struct, frozen=True):
    """How to resolve conflicts: rules ``HOW`` or ``PATTERN=HOW``.

    ``scale``: the factor X of ``sum``, which is the base plus X times the change of each side.
    """

    rules: tuple[str, ...]
    scale: float

    def __post_init__(self) -> None:
        """Raises WrongUsage."""
        for how in (how for how in self.hows if how not in _HOWS):
            raise WrongUsage(
                f"there is no strategy {printable((how or self.hows[how])[:100])}",
                hint=did_you_mean(
                    how, _HOWS, "use mean, ours, theirs or sum; for some tensors 'lm_head.*=ours'"
                ),
            )
        if not (abs(self.scale) < float("inf") and (self.scale == 1 or "sum" in self.hows)):
            raise WrongUsage("--scale must be a finite number, and needs --strategy sum")

    @property
    def hows(self) -> dict[str, str]:
        """Maps each strategy in the rules to a rule with this strategy."""
        return {rule.rpartition("=")[2]: rule for rule in self.rules}

    def of(self, *names: str) -> list[str]:
        """The rules whose pattern matches one of ``names``. The last matching rule counts."""
        return [
            rule
            for rule in self.rules
            if any(fnmatchcase(name, rule.rpartition("=")[0] or "*") for name in names)
        ]


class Conflict(Struct, frozen=True):
    """A file that changed on both sides; or, if ``key`` is not None, a tensor of the file.

    ``ours``, ``theirs``: the change on each side.
    """

    path: str
    key: str | None
    ours: TensorDiff
    theirs: TensorDiff


class MergePlan(Struct, frozen=True):
    """``files``: maps paths to the files that replace our files. None removes the path.

    ``conflicts``: files and tensors that both sides changed and no rule resolves. With conflicts,
    do not use ``files``. ``used``: the rules that match a file or tensor that both sides changed.
    """

    files: dict[str, FileEntry | StateFile | None] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


def merge_plan(store: Store, versions: Sequence[Manifest], strategy: Strategy) -> MergePlan:
    """Plans the merge of the third version into the second. The first version is the base.

    If the merge would need both a file ``a`` and a file ``a/b``, both paths are conflicts.
    """
    plan, paths = MergePlan(), {path for version in versions for path in version.by_path}
    three = {path: [version.by_path.get(path) for version in versions] for path in sorted(paths)}
    sides = {path: _side(*(e and e.content_id for e in entries)) for path, entries in three.items()}
    present = {p for p, es in three.items() if (es[sides[p]] if sides[p] else any(es[1:]))}
    sides |= {path: -1 for pair in nested(present) for path in pair}
    for path, (base, ours, theirs) in three.items():
        side, combined, known = sides[path], None, len(plan.conflicts)
        if not side and ours and theirs:
            combined = _combine(plan, store, strategy, base=base, ours=ours, theirs=theirs)
        if side <= 0 and not combined and len(plan.conflicts) == known:
            how = _settle(plan, strategy, path, None, three=three[path], usable=_SIDES)
            side = _SIDES.get(how, OURS)
        if combined or side == THEIRS:
            plan.files[path] = combined or theirs
    return plan


def _side(base: object, ours: object, theirs: object) -> int:
    """The side whose value is used. 0 if the two sides changed the value differently."""
    return OURS if theirs in (base, ours) else THEIRS if ours == base else 0


def _settle(
    plan: MergePlan,
    strategy: Strategy,
    path: str,
    key: str | None,
    *,
    three: Sequence[object],
    usable: Container[str],
) -> str:
    """The strategy for a file or tensor that changed on both sides.

    ``usable``: the strategies that are possible for this file or tensor. If the rules choose none
    of these, adds a conflict to ``plan`` and returns an empty text.
    """
    rules = strategy.of(path, *([] if key is None else [key, f"{path}:{key}"]))
    plan.used.update(rules)
    how = rules[-1].rpartition("=")[2] if rules else ""
    if how in usable:
        return how
    ours, theirs = (
        TensorDiff(
            key or path,
            "removed" if side is None else "added" if three[0] is None else "changed",
            None,
            None,
        )
        for side in three[1:]
    )
    plan.conflicts.append(Conflict(path, key, ours, theirs))
    return ""


def _combine(
    plan: MergePlan,
    store: Store,
    strategy: Strategy,
    *,
    base: FileEntry | None,
    ours: FileEntry,
    theirs: FileEntry,
) -> StateFile | None:
    """Merges a file tensor by tensor.

    None if a side has no tensors, if the bytes outside of tensors conflict, or if no layout fits.
    """
    tensors = [{t.key: t for t in e.tensors} if e else {} for e in (base, ours, theirs)]
    # The skeleton of a file is all bytes outside of tensors. Skeletons that contain checksums of
    # tensors always differ, so they are not compared.
    beside = _side(
        *(entry and outside_tensors(entry)[bool(entry.checks) :] for entry in (base, ours, theirs))
    )
    if not beside and ours.format not in _NEW_LAYOUTS:
        return None  # bytes outside of tensors cannot be merged
    chosen, scale = _Chosen(), strategy.scale
    sums = {"mean": (0.5, 0.5), "sum": (1 - 2 * scale, scale, scale)}
    for key in dict.fromkeys((*tensors[OURS], *tensors[THEIRS])) if all(tensors[1:]) else ():
        by_side = [by_key.get(key) for by_key in tensors]
        side, how = _side(*(tensor and (tensor.id, tensor.spec) for tensor in by_side)), ""
        if not side:
            specs = [
                t.spec if t and t.view is None and t.spec.dtype in ROUNDED else t for t in by_side
            ]
            usable = {*_SIDES, *(how for how, w in sums.items() if len({*specs[-len(w) :]}) == 1)}
            how = _settle(plan, strategy, ours.path, key, three=by_side, usable=usable)
            side = _SIDES.get(how, OURS)
        if (tensor := by_side[side]) is not None:
            content = (theirs if side == THEIRS else ours).contents[tensor.content]
            weights = sums.get(how, ())
            ids = tuple(t.id for t in by_side[3 - len(weights) :] if t)
            chosen[key] = tensor, content, (ids, weights)
    first = theirs if beside == THEIRS else ours
    layouts = _layouts(store, first, ours, theirs, chosen=chosen) if chosen else ()
    return next(filter(None, (_filled(store, *layout, chosen) for layout in layouts)), None)


def _layouts(
    store: Store, first: FileEntry, ours: FileEntry, theirs: FileEntry, *, chosen: _Chosen
) -> Iterator[tuple[FileEntry, bytes | None]]:
    """Yields file layouts to try for the chosen tensors: of existing files, then a new layout.

    The second value is the header of a new layout, otherwise None.
    """
    yield from ((entry, None) for entry in (first, ours, theirs))
    if ours.format == theirs.format and ours.format in _NEW_LAYOUTS:
        order = sorted(chosen.values(), key=lambda choice: -choice[0].spec.width)
        header = combined_header(
            ours,
            [skeleton_of(store.recovery, entry) for entry in (ours, theirs)],
            {tensor.key: tensor.spec for tensor, *_ in order},
        )
        if header is not None:
            ends = [*accumulate((t.spec.nbytes for t, *_ in order), initial=len(header))]
            layout = replace(
                ours,
                size=ends[-1],
                contents=tuple(replace(c, offset=ends[i]) for i, (_, c, _) in enumerate(order)),
                tensors=tuple(replace(t, content=i) for i, (t, *_) in enumerate(order)),
            )
            yield layout, header


def _filled(
    store: Store, layout: FileEntry, skeleton: bytes | None, chosen: _Chosen
) -> StateFile | None:
    """A file with the chosen tensors in this layout; None if the layout does not fit.

    The layout must have tensors of the same names, specs and views. Tensors that share their data
    in the layout must have the same values.
    """
    slots = {t.key: (t.spec, t.view, layout.contents[t.content].spec) for t in layout.tensors}
    if slots != {key: (t.spec, t.view, content.spec) for key, (t, content, _) in chosen.items()}:
        return None
    filled = {(t.content, chosen[t.key][1].id, chosen[t.key][2]) for t in layout.tensors}
    ids = {i: id_ for i, id_, _ in filled}
    if len(ids) < len(filled):
        return None
    contents = tuple(replace(c, id=ids.get(i, c.id)) for i, c in enumerate(layout.contents))
    sums = {i: of for i, _, of in filled if of[0]}

    def compute(i: int, start: int, out: memoryview) -> None:
        fill(store.recovery, contents[i].spec.dtype, *sums[i], start, out=out)

    entry = replace(layout, contents=contents)
    return StateFile(DerivedFile(store, entry, sums, compute, skeleton=skeleton))
