"""torch.save's zip files, read from the zip's structure and the pickle's opcodes alone.

A storage that contiguous tensors tile exactly becomes one content per tensor,
shared by all the tensors that lie in the same place (tied weights). Any other
storage (views, strides, gaps) is one raw content, and its tensors are views of
it. Everything else, code and pickle included, stays literal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from mvc.adapters.files.pickle_nodes import read_pickle
from mvc.adapters.files.torch_tensors import StoredTensor, find_tensors
from mvc.adapters.files.zip_layout import Member, find_checks
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.adapters.views import is_contiguous, reach
from mvc.errors import BadModelFile
from mvc.limits import MAX_PICKLE, MAX_UNFOLDED, MIB
from mvc.model.manifest import View
from mvc.model.tensor import DTYPES, TensorSpec

__all__ = ["archive_name", "parse_torch_zip"]

_BIG_MEMBER = MIB
"""Members without tensors from this size on are contents of their own, not skeleton."""

_Placed = tuple[StoredTensor, ParsedContent, View | None]


def archive_name(members: Iterable[Member]) -> str | None:
    """The folder inside the archive that holds ``data.pkl``; None if it is no torch file."""
    first = next(iter(members), None)
    if first is None:
        return None
    folder = first.name.split("/")[0]
    return folder if any(m.name == f"{folder}/data.pkl" for m in members) else None


def parse_torch_zip(source: Source, name: str, members: tuple[Member, ...]) -> FileParts:
    """Raises BadModelFile for what torch would not have written."""
    folder = archive_name(members)
    by_name = {m.name: m for m in members}
    pickle = by_name.get(f"{folder}/data.pkl")
    if folder is None or pickle is None or not pickle.stored or pickle.size > MAX_PICKLE:
        raise BadModelFile(f"{name}: data.pkl is missing, compressed or too long")
    tensors = find_tensors(read_pickle(source.read(pickle.start, pickle.size)))
    order = by_name.get(f"{folder}/byteorder")
    if order is not None and source.read(order.start, order.size) != b"little":
        tensors = []
    prefix = f"{folder}/data/"
    by_storage: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        by_storage.setdefault(prefix + tensor.storage, []).append(tensor)
    contents: list[ParsedContent] = []
    placed: dict[int, tuple[ParsedContent, View | None]] = {}
    for member in members:
        inside = by_storage.pop(member.name, [])
        for tensor, content, view in _place(member, inside, name):
            placed[id(tensor)] = (content, view)
            contents.append(content)
        if not inside and member is not pickle and _is_content(member, prefix):
            contents.append(_raw(member))
    if by_storage:
        raise BadModelFile(f"{name}: the storage {next(iter(by_storage))} is missing")
    _limit_views(name, source.size(), placed, tensors)
    return _parts(source, name, members, contents, [(t, *placed[id(t)]) for t in tensors])


def _parts(
    source: Source,
    name: str,
    members: tuple[Member, ...],
    contents: list[ParsedContent],
    placed: list[_Placed],
) -> FileParts:
    ordered = sorted(set(contents), key=lambda c: (c.offset, c.end, c.spec.dtype, c.spec.shape))
    index = {content: i for i, content in enumerate(ordered)}
    tensors = tuple(
        ParsedTensor(t.key, t.spec, index[content], view) for t, content, view in placed
    )
    filled = _holding(members, ordered)
    return FileParts("torch", tuple(ordered), tensors, find_checks(source, name, filled))


def _holding(members: tuple[Member, ...], contents: list[ParsedContent]) -> list[Member]:
    """The members in which contents lie; both are in file order."""
    starts = iter(c.offset for c in contents if c.spec.nbytes)
    at = next(starts, None)
    found = []
    for member in members:
        end = member.start + member.size
        if at is not None and member.start <= at < end:
            found.append(member)
        while at is not None and at < end:
            at = next(starts, None)
    return found


def _is_content(member: Member, prefix: str) -> bool:
    return bool(member.size) and (
        member.size >= _BIG_MEMBER or (member.stored and member.name.startswith(prefix))
    )


def _raw(member: Member) -> ParsedContent:
    return ParsedContent(member.start, TensorSpec("raw", (member.size,)))


def _place(member: Member, tensors: list[StoredTensor], name: str) -> list[_Placed]:
    """Where in the file each tensor of one storage lies."""
    if not tensors:
        return []
    for tensor in tensors:
        end = reach(tensor.spec, View(tensor.offset, tensor.strides))[1]
        if not member.stored or tensor.storage_bytes != member.size or end > member.size:
            raise BadModelFile(f"{name}: {tensor.key} does not fit its storage")
    empty: list[_Placed] = [
        (t, ParsedContent(member.start, t.spec), None) for t in tensors if not t.spec.elements
    ]
    full = [t for t in tensors if t.spec.elements]
    if _tiles(member.size, full):
        return empty + [(t, ParsedContent(member.start + _offset(t), t.spec), None) for t in full]
    raw = _raw(member)
    return empty + [(t, raw, View(t.offset, t.strides)) for t in full]


def _offset(tensor: StoredTensor) -> int:
    return tensor.offset * DTYPES[tensor.spec.dtype].itemsize


def _tiles(size: int, tensors: list[StoredTensor]) -> bool:
    """Whether contiguous tensors cover [0, size) without gap; equal places count once."""
    if not all(is_contiguous(t.spec.shape, t.strides) for t in tensors):
        return False
    places = {(_offset(t), t.spec) for t in tensors}
    ends = [(0, 0), *sorted((at, at + spec.nbytes) for at, spec in places)]
    return ends[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(ends))


def _limit_views(
    name: str,
    size: int,
    placed: dict[int, tuple[ParsedContent, View | None]],
    tensors: list[StoredTensor],
) -> None:
    """Expanded views may name far more bytes than the file has; hashing these has to end."""
    total = sum(t.spec.nbytes for t in tensors if placed[id(t)][1] is not None)
    if total > MAX_UNFOLDED[0] * size + MAX_UNFOLDED[1]:
        raise BadModelFile(f"{name}: its views unfold to {total} bytes")
