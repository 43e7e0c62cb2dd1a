"""Compares the tensors of two files by their hashes, without reading the tensors.

The hashes of a file's tensors are the leaves of a Merkle tree. If two files have the same tensor
names, their trees are compared from the root, and children are compared only if their parents
differ (section 3.2 of the MMlib paper). If the tensor names differ, tensors are matched by name,
then by content, then by the bare name: the name without the prefixes that wrappers such as
DataParallel add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from mvc.model.manifest import FileEntry, LogicalTensor
from mvc.model.merkle import compare as compare_trees
from mvc.model.tensor import TensorSpec

_WRAPPERS = ("module.", "_orig_mod.", "model.", "state_dict.", "_fsdp_wrapped_module.")


def bare_name(key: str) -> str:
    """A tensor's name without the prefixes that wrappers add (DataParallel, compile, FSDP)."""
    while key.startswith(_WRAPPERS) and key not in _WRAPPERS:
        key = key.partition(".")[2]  # a prefix has one dot, at its end
    return key


class TensorDiff(Struct, frozen=True):
    """How one tensor differs. A number is None if it was not requested or is undefined.

    ``kind``: unchanged, changed, added, removed, resized (another shape), or renamed
    (``renamed_from`` is the old name). ``changed_share``: share of elements whose bits differ; 1 if
    the dtypes differ. ``l2``, ``max_abs``: L2 norm and largest magnitude of the difference.
    ``cosine``: cosine similarity of the old and the new values. ``l2``, ``max_abs`` and ``cosine``
    are computed in float64 from elements that are finite in both tensors. ``nonfinite``: number of
    elements that are not finite in the old or in the new tensor.
    """

    key: str
    kind: str
    old_spec: TensorSpec | None
    new_spec: TensorSpec | None
    renamed_from: str | None = None
    changed_share: float | None = None
    l2: float | None = None
    max_abs: float | None = None
    cosine: float | None = None
    nonfinite: int = 0

    @property
    def same(self) -> bool:
        """Whether the content is equal. The name may differ."""
        return self.changed_share == 0.0


class FileDiff(Struct, frozen=True):
    """How one file differs. ``kind``: unchanged, changed, added, removed or renamed.

    ``other_changed``: whether anything outside the tensors differs, such as metadata, padding, or
    the order of the tensors. ``comparisons``: number of compared hashes. ``types``: two mappings,
    for the old and the new file, from the name of a tensor to its quantisation, such as ``Q4_K``.
    """

    path: str
    kind: str
    tensors: tuple[TensorDiff, ...]
    comparisons: int
    other_changed: bool = False
    renamed_from: str | None = None
    types: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})

    @property
    def changed_tensors(self) -> int:
        return sum(t.kind != "unchanged" for t in self.tensors)


def compare_files(old: FileEntry | None, new: FileEntry | None, path: str) -> FileDiff:
    """How the file ``new`` differs from ``old``. None: the file does not exist."""
    if old is None or new is None:
        if (present := new or old) is None:
            raise ValueError("one of the two files must exist")
        kind = "added" if old is None else "removed"
        tensors = tuple(_alone(t, kind) for t in present.tensors)
        return FileDiff(
            path, kind, tensors, 0, other_changed=bool(present.skeleton_size or not tensors)
        )
    tensors, comparisons = _tensors(old, new)
    same = old.content_id == new.content_id
    quiet = all(t.kind == "unchanged" for t in tensors)
    other = not same and (quiet or outside_tensors(old) != outside_tensors(new))
    return FileDiff(
        path, "unchanged" if same else "changed", tensors, comparisons, other_changed=other
    )


Pair = tuple[str, FileEntry | None, FileEntry | None]
"""A path with its old and its new file."""


def compare_paths(pairs: Sequence[Pair]) -> list[FileDiff]:
    """How each path differs.

    If a removed file and an added file have equal bytes, the result has one renamed file in place
    of the two.
    """
    removed = {path: x for path, x, y in pairs if x is not None and y is None}
    new = {path: y for path, x, y in pairs if y is not None and x is None}
    origins = renames(removed.values(), new.values())
    result = []
    for path, old, entry in pairs:
        if (origin := origins.get(path)) is not None:
            same = compare_files(removed[origin], entry, path)
            result.append(replace(same, kind="renamed", renamed_from=origin))
        elif path not in origins.values():
            result.append(compare_files(old, entry, path))
    return result


def renames(removed: Iterable[FileEntry], new: Iterable[FileEntry]) -> dict[str, str]:
    """Maps the path of each added file to the path of a removed file with the same bytes.

    A removed file is used at most once. Added files without such a removed file are omitted.
    """
    left: dict[object, list[str]] = {}
    for entry in removed:
        left.setdefault(entry.content_id, []).append(entry.path)
    origins = {}
    for entry in new:
        if paths := left.get(entry.content_id):
            origins[entry.path] = paths.pop(0)
    return origins


def outside_tensors(entry: FileEntry) -> tuple[bytes | None, tuple[bytes, ...]]:
    """The ids of the parts of a file that are not tensors."""
    used = {t.content for t in entry.tensors}
    return entry.skeleton, tuple(c.id for i, c in enumerate(entry.contents) if i not in used)


def _tensors(old: FileEntry, new: FileEntry) -> tuple[tuple[TensorDiff, ...], int]:
    """The differences of all tensors, and the number of compared hashes.

    The tensors of the new file come first, in the order of that file, then the removed tensors.
    """
    before = {t.key: t for t in old.tensors}
    after = {t.key: t for t in new.tensors}
    if before.keys() == after.keys():
        comparison = compare_trees(old.state.tree, new.state.tree)
        differing = {new.state.tensors[i].key for i in comparison.changed}
        comparisons = comparison.comparisons
    else:
        shared = before.keys() & after.keys()
        differing = {key for key in shared if not _equal(before[key], after[key])}
        comparisons = 1 + len(shared)
    origins = _origins(
        [t for t in old.tensors if t.key not in after],
        [t for t in new.tensors if t.key not in before],
    )
    rows = [
        _row(t, before.get(t.key) or origins.get(t.key), t.key in differing) for t in after.values()
    ]
    renamed = {t.key for t in origins.values()}
    removed = (t for t in old.tensors if t.key not in after and t.key not in renamed)
    return (*rows, *(_alone(t, "removed") for t in removed)), comparisons


def _row(new: LogicalTensor, old: LogicalTensor | None, differs: bool) -> TensorDiff:
    if old is None:
        return _alone(new, "added")
    renamed = old.key if old.key != new.key else None
    same = _equal(old, new) if renamed is not None else not differs
    kind = "changed" if old.spec.shape == new.spec.shape else "resized"
    kind = "renamed" if renamed is not None else "unchanged" if same else kind
    row = TensorDiff(new.key, kind, old.spec, new.spec, renamed_from=renamed)
    return replace(row, changed_share=0.0, l2=0.0, max_abs=0.0) if same else row


def _alone(tensor: LogicalTensor, kind: str) -> TensorDiff:
    spec = tensor.spec
    added = kind == "added"
    return TensorDiff(tensor.key, kind, None if added else spec, spec if added else None)


def _equal(a: LogicalTensor, b: LogicalTensor) -> bool:
    return a.id == b.id and a.spec == b.spec


def _origins(
    removed: Iterable[LogicalTensor], fresh: Iterable[LogicalTensor]
) -> dict[str, LogicalTensor]:
    """Maps the key of each renamed tensor to a removed tensor of equal content or bare name.

    A removed tensor is used at most once.
    """
    left = {t.key: t for t in removed}
    waiting = list(fresh)
    origins: dict[str, LogicalTensor] = {}
    # Matches tensors by content and bare name, then by content, then by bare name.
    for by_content, by_name in ((True, True), (True, False), (False, True)):
        table: dict[object, list[LogicalTensor]] = {}
        signature = partial(_signature, by_content=by_content, by_name=by_name)
        for tensor in left.values():
            table.setdefault(signature(tensor), []).append(tensor)
        for tensor in waiting:
            if candidates := table.get(signature(tensor)):
                origins[tensor.key] = candidates.pop(0)
                del left[origins[tensor.key].key]
        waiting = [t for t in waiting if t.key not in origins]
    return origins


def _signature(tensor: LogicalTensor, *, by_content: bool, by_name: bool) -> object:
    name = bare_name(tensor.key) if by_name else None
    return tensor.spec, tensor.id if by_content else None, name
