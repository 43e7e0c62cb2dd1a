"""Finds how a model relates to the models of another version, for example "fine-tuned version".

The kinds of relations are those of definition 3 of the MMlib paper. They follow from the names,
dtypes, shapes and hashes of the tensors, so no tensor is read. Prefixes of wrappers (``module.``)
are ignored. If one model is a part of the other model, the prefix of the part (``backbone.``) is
ignored, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from mvc.model.manifest import FileEntry, LogicalTensor
from mvc.names import is_training_key, training_files
from mvc.repo.content.compare import bare_name

Kind: TypeAlias = Literal[
    "equal", "fine-tuned version", "fully updated", "extended", "derived architecture", "base"
]

_Tensors: TypeAlias = dict[str, LogicalTensor]


class Relation(Struct, frozen=True):
    """How the model at ``path`` relates to the model at ``base_path`` of another version.

    ``kind``: docs/python.md explains the kinds. If no model of the other version is related, the
    kind is "base", and ``base_path`` is None. ``tensors``: number of the model's tensors.
    ``shared``: number of tensors whose name and shape are equal in both models. ``equal``: number
    of tensors whose name, shape, dtype and bits are equal in both models.
    """

    path: str
    kind: Kind
    base_path: str | None
    tensors: int
    shared: int = 0
    equal: int = 0

    def __str__(self) -> str:
        """For example ``fine-tuned version (2 of 320 tensors changed)``."""
        if self.kind == "fine-tuned version":
            changed = self.tensors - self.equal
            return f"{self.kind} ({changed:,} of {self.tensors:,} tensors changed)"
        if self.kind in {"extended", "derived architecture"}:
            shared = f"{self.shared:,} of {self.tensors:,} tensors shared"
            return f"{self.kind} ({shared}, {f'{self.equal:,}' if self.equal else 'none'} equal)"
        return self.kind


def models(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """The files with tensors, except files of training states."""
    with_tensors = [entry for entry in entries if entry.tensors]
    training = training_files({entry.path for entry in with_tensors})
    return [entry for entry in with_tensors if entry.path not in training]


def relation(model: FileEntry, bases: Collection[FileEntry]) -> Relation:
    """How ``model`` relates to the best match among ``bases``, the models of another version.

    If ``model`` shares tensors with the base at the same path, this base is the best match.
    Otherwise, the base with the most equal tensors is the best match. Among bases with equally many
    equal tensors, the base with the most shared tensors is the best match.
    """
    relations = [_relation(model, base) for base in bases]
    relations = [r for r in relations if r.kind != "base"]
    if not relations:
        return Relation(model.path, "base", None, len(_tensors(model)))
    return max(relations, key=lambda r: (r.base_path == r.path, r.equal, r.shared))


def _relation(model: FileEntry, base: FileEntry) -> Relation:
    old, new = _by_name(_tensors(base), _tensors(model))
    if old.keys() != new.keys():
        old, new = _aligned(old, new)
    pairs = [(old[name], new[name]) for name in old.keys() & new.keys()]
    shared = [(a, b) for a, b in pairs if a.spec.shape == b.spec.shape]
    equal = sum(a.id == b.id and a.spec == b.spec for a, b in shared)
    kind = _kind(len(shared) == len(old) == len(new), len(shared), equal)
    path = None if kind == "base" else base.path
    return Relation(model.path, kind, path, len(new), shared=len(shared), equal=equal)


def _kind(same_architecture: bool, shared: int, equal: int) -> Kind:
    if same_architecture:
        return "equal" if equal == shared else "fine-tuned version" if equal else "fully updated"
    if shared:
        return "extended" if equal else "derived architecture"
    return "base"


def _tensors(entry: FileEntry) -> list[LogicalTensor]:
    """The tensors of a file's model; all tensors if the file has only a training state."""
    return [t for t in entry.tensors if not is_training_key(t.key)] or list(entry.tensors)


def _by_name(
    old: Iterable[LogicalTensor], new: Iterable[LogicalTensor]
) -> tuple[_Tensors, _Tensors]:
    """Maps the names of the tensors to the tensors, for each of the two models.

    Removes wrapper prefixes from the names, unless two names of a model would then be equal.
    """
    full = {t.key: t for t in old}, {t.key: t for t in new}
    a, b = ({bare_name(key): t for key, t in side.items()} for side in full)
    return (a, b) if (len(a), len(b)) == (len(full[0]), len(full[1])) else full


def _aligned(old: _Tensors, new: _Tensors) -> tuple[_Tensors, _Tensors]:
    """Returns both mappings. Puts a prefix before all names of one mapping, if more names and
    shapes agree with this prefix.
    """
    without_prefix = sum(
        name in new and new[name].spec.shape == t.spec.shape for name, t in old.items()
    )
    outer, inner = _prefixes(old, new), _prefixes(new, old)
    prefix = max((*outer, *inner), key=lambda p: max(outer[p], inner[p]), default="")
    if max(outer[prefix], inner[prefix]) <= without_prefix:
        return old, new
    if outer[prefix] >= inner[prefix]:
        return {prefix + name: t for name, t in old.items()}, new
    return old, {prefix + name: t for name, t in new.items()}


def _prefixes(part: Mapping[str, LogicalTensor], whole: _Tensors) -> Counter[str]:
    """For each prefix, how many names in ``whole`` consist of the prefix and a name in ``part``.

    Only tensors with equal shapes count.
    """
    counts: Counter[str] = Counter()
    for name, tensor in whole.items():
        at = name.find(".") + 1
        while at:
            inner = part.get(name[at:])
            if inner is not None and inner.spec.shape == tensor.spec.shape:
                counts[name[:at]] += 1
            at = name.find(".", at) + 1
    return counts
