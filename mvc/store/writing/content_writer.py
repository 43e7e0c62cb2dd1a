"""Stores the contents of files: hashes the contents and encodes those that the repository lacks.

A content is the bytes of one tensor. A content of at most 32 MiB (one piece) is read once. A larger
content is read twice: to hash it, and to encode it. If the content has changed between the
two readings, SourceChanged is raised.

A new content is stored as a delta from its base. The base is the first of these that exists:

- the *master*: a tensor of higher precision in the same commit, of which the content is a rounded
  copy (``PrecisionCopies``);
- the previous version of the tensor in memory (``BaseCache``);
- the stored content that the caller has chosen (``Origin``).

A *unit* is a parameter and its optimizer states. If the optimizer's step predicts the new version
of a unit from the previous version, ``put_units`` stores the tensors of the unit together. A *run*
is consecutive predicted versions of a unit. ``put`` stores all other contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from mvc.codecs.optim import PREDICTED
from mvc.errors import DamagedData, EncodingFailed, SourceChanged
from mvc.ids import BlobId
from mvc.io.process import without_collector
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, blob_id, pieces, zero_blob_id, zeros
from mvc.model.manifest import Content, FileEntry, Manifest
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.store.packs.records import BLOB
from mvc.store.writing.bases import Base, StoredBase
from mvc.store.writing.full_or_delta import BasePiece
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pieces import Piece
from mvc.store.writing.precision_copies import Master, PrecisionCopies
from mvc.store.writing.storing import Origin, Storing
from mvc.store.writing.units import (
    RuleChooser,
    Rules,
    Steps,
    UnitMember,
    bytes_of,
    goes_on,
    put_order,
    run_of,
)
from mvc.types import Progress

if TYPE_CHECKING:
    from mvc.adapters.optimizers.units import Unit
    from mvc.adapters.parsed import ParsedFile


_MANY = 1000  # files with more contents are stored without Python's garbage collector


class ContentWriter:
    """Stores files through ``objects``. Call ``objects.flush`` at the end. Not thread-safe."""

    def __init__(self, objects: ObjectWriter, progress: Progress | None = None) -> None:
        self.objects = objects
        self._rules = RuleChooser(objects.policy)
        self.raw_bytes = 0
        self._progress = progress
        self._copies = PrecisionCopies()
        self._joined: tuple[Storing, ...] = ()  # files whose contents were stored together

    def put(self, storing: Storing) -> list[BlobId]:
        """Stores every content of a file. Returns the ids of the contents. Raises SourceChanged.

        The cache ``storing.last``, if any, has the new version afterwards.
        """
        file, last, ids = storing.file, storing.last, storing.ids
        specs = [content.spec for content in file.contents]
        with without_collector() if len(specs) > _MANY else nullcontext():
            try:
                for i in _in_turn(specs, storing.nbytes):
                    if i not in ids:
                        self._note(storing, i, self._content(storing, i))
                self.objects.drain()
            except EncodingFailed:
                _blame_modified((storing, *self._joined))
                raise
            storing.prove(storing.uncopied)
            if last is not None:
                pushed = self.objects.push()  # writes while this thread hashes
                try:
                    last.settle()
                finally:
                    pushed.result()
        return [ids[i] for i in range(len(ids))]

    def put_units(
        self, units: Sequence[Unit], files: Mapping[str, Storing], parent: Manifest
    ) -> None:
        """Stores the units that are predicted, or whose previous version was predicted.

        Call ``put`` for each file afterwards: it stores all other contents. ``files``: maps paths
        to files. ``parent``: the version one optimizer step before.
        """
        self._joined = tuple(files.values())
        members = [self._members(unit, files, parent) for unit in units]
        order = sorted(range(len(units)), key=lambda i: -bytes_of(members[i]))
        try:
            for i in order:
                if members[i]:
                    self._unit(units[i], members[i])
        except EncodingFailed:
            _blame_modified(self._joined)
            raise

    def _members(
        self, unit: Unit, files: Mapping[str, Storing], parent: Manifest
    ) -> dict[str, UnitMember]:
        """The contents of a unit; empty if they cannot be predicted together.

        To be predicted, all contents must be in ``files``, and none may be stored yet. They must
        have the same length and dtype in both versions, and predictions must support the dtype.
        """
        members, before = dict[str, UnitMember](), parent.by_path
        for name, (path, i) in unit.members.items():
            older = unit.older[name]
            if path not in files or older.path not in before:
                return {}
            storing, old = files[path], before[older.path].contents[older.content]
            spec = storing.file.contents[i].spec
            alike = (old.spec.dtype, old.spec.nbytes) == (spec.dtype, spec.nbytes)
            if storing.file.steps or i in storing.ids or not (alike and spec.nbytes):
                return {}
            members[name] = UnitMember(storing, i, spec, base=self._older(storing, i, old))
        specs = {(member.spec.dtype, member.spec.nbytes) for member in members.values()}
        predictable = all(dtype in PREDICTED for dtype, _ in specs)
        return members if len(specs) == 1 and predictable else {}

    def _older(self, storing: Storing, i: int, old: Content) -> Base:
        """The content ``old`` of the previous version as a base, from memory if it is cached."""
        name, spec, last = storing.origins[i].name, storing.file.contents[i].spec, storing.last
        cached = last.base(name, spec) if last is not None else None
        if cached is not None and cached.id == old.id:
            return cached
        return self.objects.stored(old.id, old.spec)

    def _unit(self, unit: Unit, members: Mapping[str, UnitMember]) -> None:
        """Stores the contents of a unit, if they or their previous version are predicted."""
        objects, spec = self.objects, next(iter(members.values())).spec
        self._make_unit_room(members, min(spec.nbytes, PIECE))
        chosen = first = None
        try:
            for member in members.values():
                self._load(member)
            chains = [member.base.chain(0) for member in members.values()]
            run, length = run_of(chains)
            if goes_on(objects.policy, chains, objects.sequence, spec.nbytes):
                first = self._steps(members, 0)
                chosen = self._rules.choose(unit, spec.dtype, first)
        except DamagedData:
            return  # the previous version is damaged; ``put`` can store the contents
        if chosen is not None or run is not None:
            self._announce(members, chosen, keep_previous=chosen is not None and not length)
            self._put_pieces(members, chosen, run, first=first)

    def _make_unit_room(self, members: Mapping[str, UnitMember], length: int) -> None:
        read = sum(m.storing.file.borrow(m.content) is None for m in members.values())
        recovered = sum(isinstance(m.base, StoredBase) for m in members.values())
        self.objects.make_room(max(read, recovered) * length)

    def _steps(self, members: Mapping[str, UnitMember], start: int) -> Steps:
        """The pieces at ``start`` of a unit's tensors, in the new and in the previous version.

        Raises DamagedData.
        """
        return Steps(
            {
                n: BasePiece(bytes(m.id), m.piece(start, self.objects.allocate))
                for n, m in members.items()
            },
            self._older_pieces(members, start),
        )

    def _load(self, member: UnitMember) -> None:
        """Computes the id of a content. Keeps the bytes of a content of one piece in memory."""
        file, i, spec = member.storing.file, member.content, member.spec
        borrowed = file.borrow(i)
        if borrowed is not None:
            member.data, member.borrowed = borrowed, True
        elif spec.nbytes > PIECE:
            member.id = file.content_id(i, self.objects.allocate(PIECE))
            return
        else:
            member.data = self.objects.allocate(spec.nbytes)
            file.read(i, 0, member.data)
        member.id = file.ids[i] if file.ids else blob_id(spec, member.data, parallel=True)

    def _older_pieces(self, members: Mapping[str, UnitMember], start: int) -> dict[str, BasePiece]:
        """Maps names to pieces at ``start`` of the previous version. Raises DamagedData."""
        bases = {name: member.base for name, member in members.items()}
        stored = {name: base for name, base in bases.items() if isinstance(base, StoredBase)}
        data = {name: base.piece(start) for name, base in bases.items() if name not in stored}
        if stored:
            pieces_ = self.objects.stored_pieces([*stored.values()], start)
            data |= zip(stored, pieces_, strict=True)
        return {
            name: BasePiece(bytes(base.id), data[name], base.chain(start))
            for name, base in bases.items()
        }

    def _announce(
        self, members: Mapping[str, UnitMember], rules: Rules | None, *, keep_previous: bool
    ) -> None:
        """Calls ``objects.begin`` for the new contents of a unit, first for inputs of predictions.

        Because of this order, no content is predicted from itself, even if two contents are equal.
        ``keep_previous``: as for ``BaseCache.replace``.
        """
        read = rules.inputs if rules is not None else frozenset[str]()
        for name in reversed(put_order(members, rules)):
            member = members[name]
            storing, i, id_ = member.storing, member.content, member.id
            is_read = name in read
            name, last = storing.origins[i].name, storing.last
            member.wanted = self.objects.wants(id_)
            if member.wanted:
                self.objects.begin(id_)
                if last is not None:
                    member.next_base = last.replace(
                        name, id_, member.spec, keep_previous=keep_previous
                    )
            elif last is not None and member.base.id == id_ and member.data is not None:
                last.unchanged(name, id_, member.spec, member.data)
            # Contents and inputs of predictions in the caller's memory are hashed again later, to
            # detect changes by the caller.
            if member.borrowed and (member.wanted or is_read):
                storing.borrow(i, id_, is_copied=member.next_base is not None)
            self._note(storing, i, id_)

    def _put_pieces(
        self,
        members: Mapping[str, UnitMember],
        rules: Rules | None,
        run: int | None,
        *,
        first: Steps | None,
    ) -> None:
        """Stores the contents of a unit piece by piece. ``first``: the first pieces, if known."""
        spec, objects = next(iter(members.values())).spec, self.objects
        hashers = {name: BlobHasher(spec) for name, m in members.items() if m.data is None}
        for start, length in pieces(spec):
            if start:
                self._make_unit_room(members, length)
            steps = None if start else first
            if rules is not None and start:
                with suppress(DamagedData):  # if a base is damaged, these are not predicted
                    steps = self._steps(members, start)
            for name in put_order(members, rules):
                member = members[name]
                if not member.wanted and name not in hashers:
                    continue
                data = steps.new[name].data if steps else member.piece(start, self.objects.allocate)
                if name in hashers:
                    hashers[name].update(data)
                piece = Piece(member.id, spec, start, data)
                if member.wanted and steps is not None and rules is not None:
                    objects.put_in_run(
                        piece, *rules.sources(name, steps), next_base=member.next_base
                    )
                elif member.wanted:
                    objects.put(piece, member.base, member.next_base, run=run)
        for name, hasher in hashers.items():
            if hasher.done() != members[name].id:
                raise _source_changed(members[name].storing.path)

    def put_skeleton(self, id_: BlobId, data: bytes, old: FileEntry | None) -> None:
        """Stores a skeleton, the bytes of a file outside its tensors.

        ``old``: the file in the parent commit.
        """
        objects, spec = self.objects, TensorSpec("raw", (len(data),))
        if objects.holds(id_):
            return
        base = None
        if old is not None and old.skeleton is not None:
            base = objects.stored(old.skeleton, TensorSpec("raw", (old.skeleton_size,)))
        if len(data) <= PIECE:
            known = None if base is None else (base.id, objects.recovered(base.id, base.spec))
            objects.put_bytes(BLOB, id_, data, known)
            return
        # Large skeletons, such as a pickle of long lists, are stored in pieces like a tensor.
        for start, length in pieces(spec):
            self.objects.make_room(length)
            part = memoryview(data)[start : start + length]
            objects.put(Piece(id_, spec, start, part), base)

    def forget(self, file: ParsedFile) -> None:
        """Call this method before you close a file. Its tensors will not be used as bases."""
        self._copies.forget(file)

    def _note(self, storing: Storing, i: int, id_: BlobId) -> None:
        storing.ids[i] = id_
        self._copies.add(storing.file, i, id_)
        self.raw_bytes += storing.file.contents[i].spec.nbytes
        if self._progress is not None:
            self._progress(self.raw_bytes, max(storing.nbytes, self.raw_bytes), storing.path)

    def _content(self, storing: Storing, i: int) -> BlobId:
        file, last, origin = storing.file, storing.last, storing.origins[i]
        if i in file.stored and not self.objects.wants(file.stored[i]):
            return file.stored[i]
        spec, borrowed = file.contents[i].spec, file.borrow(i)
        if borrowed is None and last is None and file.is_hole(i, 0, spec.nbytes):
            return self._hole(spec)
        if borrowed is None and spec.nbytes > PIECE:
            return self._large(storing, i)
        data = borrowed if borrowed is not None else self._read(file, i, spec.nbytes)
        id_ = file.ids[i] if file.ids else blob_id(spec, data, parallel=True)
        if not self.objects.wants(id_):
            if last is not None:
                last.unchanged(origin.name, id_, spec, data)
            return id_
        master, base = self._base(storing, origin, spec, data)
        next_base = last.replace(origin.name, id_, spec) if last is not None else None
        if borrowed is not None:
            storing.borrow(i, id_, is_copied=next_base is not None)
        self.objects.begin(id_)
        step = file.steps.get(i) if file.steps and master is None else None
        for start, length in pieces(spec):
            if borrowed is not None:
                self.objects.make_room(length)
            piece = Piece(id_, spec, start, data[start : start + length])
            if step is None:
                self.objects.put(piece, base, next_base)
            else:
                self.objects.put_step(piece, step, next_base)
        return id_

    def _base(
        self, storing: Storing, origin: Origin, spec: TensorSpec, data: memoryview
    ) -> tuple[Master | None, Base | None]:
        """The master of which a content is a copy, if any, and the base of the content.

        If there is a master, it is the base.
        """
        master = self._copies.find(spec, data)
        if master is not None:
            if master.file.borrow(master.content) is not None:
                storing.masters.append(master)
            return master, master
        cached = storing.last.base(origin.name, spec) if storing.last is not None else None
        return None, cached or self._stored(origin)

    def _stored(self, origin: Origin) -> Base | None:
        base = origin.base
        return None if base is None else self.objects.stored(base.id, base.spec)

    def _hole(self, spec: TensorSpec) -> BlobId:
        """Stores a content that is a hole (an unwritten range) of its file, without reading it.

        All bytes of such a content are zero.
        """
        id_ = zero_blob_id(spec)
        if self.objects.wants(id_):
            self.objects.begin(id_)
            for start, length in pieces(spec):
                self.objects.put_zeros(Piece(id_, spec, start, zeros(length)))
        return id_

    def _large(self, storing: Storing, i: int) -> BlobId:
        """Stores a content of several pieces. Reads it twice: to hash it, and to encode it."""
        file = storing.file
        spec = file.contents[i].spec
        self.objects.make_room(PIECE)
        id_ = file.content_id(i, self.objects.allocate(PIECE))
        if not self.objects.wants(id_):
            return id_
        self.objects.begin(id_)
        base, hasher = self._stored(storing.origins[i]), BlobHasher(spec, parallel=True)
        for start, length in pieces(spec):
            if file.is_hole(i, start, length):
                part = zeros(length)
                self.objects.put_zeros(Piece(id_, spec, start, part))
            else:
                part = self._read(file, i, length, start)
                self.objects.put(Piece(id_, spec, start, part), base)
            hasher.update(part)
        if hasher.done() != id_:
            raise _source_changed(storing.path)
        return id_

    def _read(self, file: ParsedFile, i: int, length: int, start: int = 0) -> memoryview:
        self.objects.make_room(length)
        part = self.objects.allocate(length)
        file.read(i, start, part)
        return part


def _source_changed(path: str) -> SourceChanged:
    return SourceChanged(
        f"{path} changed while it was being read",
        hint="wait until the program that writes the file has finished, then commit again",
    )


def _in_turn(specs: Sequence[TensorSpec], total: int) -> list[int]:
    """The order in which the contents are stored.

    Masters come before their copies in lower precision. If all contents together have at most the
    size of one piece, larger contents come before smaller ones, so that threads encode the large
    contents while this thread hashes the small ones.
    """
    at_once = total <= PIECE
    return sorted(
        range(len(specs)),
        key=lambda i: (-DTYPES[specs[i].dtype].itemsize, -specs[i].nbytes if at_once else 0),
    )


def _blame_modified(files: Iterable[Storing]) -> None:
    """Called after a failed encoding. Raises SourceChanged if the caller has modified a tensor."""
    for storing in files:
        storing.prove(storing.borrowed)
