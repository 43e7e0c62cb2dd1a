"""Finds the tensor of the parent version from which a new tensor was probably derived.

The new tensor can then be stored as a delta from a version of the found tensor, which
``mvc.store.writing.object_writer`` chooses. The search begins in the parent's file of the same
path. The best candidate is the tensor with the same name, then the tensor whose name differs only
in the prefix of a wrapper (such as DataParallel), then the tensor with the same dtype, shape and
position. If no candidate is suitable, the parent's other files are searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, count

from mvc.adapters.parsed import ParsedFile, ParsedTensor
from mvc.codecs import cast
from mvc.model.manifest import Content, FileEntry, LogicalTensor, Manifest
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.content.compare import bare_name
from mvc.store.writing.base_cache import BaseCache
from mvc.store.writing.storing import Origin, Storing


def content_names(
    contents: Sequence[object], tensors: Sequence[ParsedTensor | LogicalTensor]
) -> list[str]:
    """A name for each content: the key of its first tensor, or a number if it has no tensor."""
    names = {tensor.content: tensor.key for tensor in reversed(tensors)}
    raw = count()
    return [names[i] if i in names else f"\0raw{next(raw)}" for i in range(len(contents))]


class _Candidates:
    """The contents (tensor data) of one file of the parent, by name, bare name and shape."""

    def __init__(self, entry: FileEntry) -> None:
        self._contents = entry.contents
        self._names = content_names(entry.contents, entry.tensors)
        # The first of several equal names counts. Only forged manifests have equal names.
        self.by_name = dict(zip(self._names[::-1], entry.contents[::-1], strict=True))

    def find(self, name: str, spec: TensorSpec, position: int) -> Iterator[Content]:
        """Yields candidates, best first.

        ``position``: the index of the new content among the new file's contents with this spec.
        """
        named = self.by_name.get(name), self._by_bare.get(bare_name(name))
        yield from (content for content in named if content is not None)
        yield from self._by_shape.get(spec, [])[position : position + 1]

    @cached_property
    def _by_bare(self) -> dict[str, Content]:
        bare = map(bare_name, self._names[::-1])
        return dict(zip(bare, self._contents[::-1], strict=True))

    @cached_property
    def _by_shape(self) -> dict[TensorSpec, list[Content]]:
        by_spec: dict[TensorSpec, list[Content]] = {}
        for content in self._contents:
            by_spec.setdefault(content.spec, []).append(content)
        return by_spec


class BaseFinder:
    """Finds bases for the contents of one commit among the contents of the parent."""

    def __init__(self, parent: Manifest) -> None:
        self.parent = parent
        self._entries = parent.by_path | parent.attached_by_path
        self._files: dict[str, _Candidates] = {}  # filled on first use
        self._seen: dict[tuple[str, TensorSpec], int] = {}

    def storing(self, path: str, parsed: ParsedFile, last: BaseCache | None = None) -> Storing:
        """A file to store, with a name and a base for each content.

        If the cache ``last`` has a base for a content, the parent is not searched for this content.
        """
        names, same = content_names(parsed.contents, parsed.tensors), dict[str, Content]()
        if path in self._entries:
            same = self._candidates(path).by_name
        origins = []
        for name, content in zip(names, parsed.contents, strict=True):
            spec, base = content.spec, None
            if last is None or last.base(name, spec) is None:
                base = same.get(name)
                if base is None or (base.spec is not spec and base.spec != spec):
                    base = self.find(path, name, spec)
            origins.append(Origin(name, base))
        return Storing(parsed, path, origins, last)

    def find(self, path: str, name: str, spec: TensorSpec) -> Content | None:
        """A content of the parent that is probably similar to the new content, or None."""
        position = self._seen.get((path, spec), 0)
        self._seen[(path, spec)] = position + 1
        same = [path] if path in self._entries else []
        paths = chain(same, (other for other in self._entries if other != path))
        contents = (c for file in paths for c in self._candidates(file).find(name, spec, position))
        return next((content for content in contents if _related(content.spec, spec)), None)

    def _candidates(self, path: str) -> _Candidates:
        if path not in self._files:
            self._files[path] = _Candidates(self._entries[path])
        return self._files[path]


def _related(old: TensorSpec, new: TensorSpec) -> bool:
    """Whether a delta between tensors with these specs is possible."""
    if old.dtype == new.dtype:
        inner = old.shape[1:] == new.shape[1:] or old.elements == new.elements
        return new.dtype == "raw" or inner
    same = old.elements == new.elements and DTYPES[old.dtype].floating
    return same and cast.supported(old.dtype, new.dtype)
