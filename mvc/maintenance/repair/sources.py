"""Where ``mvc fsck --repair`` finds the bytes of an object that cannot be recovered normally.

An *object* is a tensor or a manifest (the list of a version's files). The sources are tried in this
order: other stored deltas from which the object can be decoded, the object's damaged record,
another repository such as a backup, the files of the working folder. Bytes are accepted only if
they have the object's hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from mvc.adapters.opening import parse_beside
from mvc.adapters.parsed import ParsedFile
from mvc.errors import DamagedData, MvcError, NotARepository
from mvc.ids import ManifestId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.limits import PIECE
from mvc.maintenance.repair.damage import SoundGraph
from mvc.maintenance.rewrite_plan import ObjectSource
from mvc.model.hashing import verify_pieces
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import TensorSpec
from mvc.names import FOLDER, printable
from mvc.repo.ownership import refuse_foreign
from mvc.repo.worktree.worktree import entry_of
from mvc.store.format import FORMAT
from mvc.store.recovery.recover import Recovery, piece_reader
from mvc.store.snapshot import JOURNAL
from mvc.store.store import Store


def folder_of(fs: FileSystem, path: Path) -> Path:
    """The folder with journal and packs: ``path`` itself, or the folder ``.mvc`` in ``path``.

    Raises NotARepository if neither folder has a journal, and DubiousOwnership if the folder
    belongs to another user.
    """
    real = fs.realpath(path)
    for folder in (real / FOLDER, real):
        if all(fs.stat(folder / name) is not None for name in (FORMAT, JOURNAL)):
            refuse_foreign(fs, folder)
            return folder
    raise NotARepository(
        f"there is no repository in {printable(str(path))}",
        hint="name the folder of a repository, or a copy of a .mvc folder",
    )


class Untouched(FileSystem):
    """Reports every folder as read-only, so that opening the other repository changes nothing."""

    def is_writable_dir(self, path: Path) -> bool:  # noqa: ARG002
        return False


@contextmanager
def object_sources(store: Store, graph: SoundGraph, other: Path | None) -> Iterator[ObjectSources]:
    """All sources of objects, open while the block runs. ``other``: another repository's folder."""
    own = Recovery(graph.packs, graph, store.pool)
    with ExitStack() as stack:
        stack.callback(graph.packs.close)
        backup = None if other is None else stack.enter_context(closing(_open_other(other)))
        working = _WorkingFiles(store)
        stack.callback(working.close)
        yield ObjectSources(own, store.recovery, working, backup)


def _open_other(folder: Path) -> Store:
    """Opens another repository to read its objects. Errors name the folder."""
    try:
        return Store(Untouched(), Clock(), folder)
    except MvcError as error:
        error.message = f"{printable(str(folder))}: {error.message}"
        raise


class _WorkingFiles:
    """Finds objects in files of the working folder.

    ``names``: the paths of files to search. The files are hashed at the first request.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.names: dict[str, None] = {}
        self._locations: dict[bytes, tuple[str, int]] | None = None
        self._open = ExitStack()
        self._parsed: tuple[str, ParsedFile] | None = None

    def piece(self, id_: bytes, start: int, out: memoryview) -> None:
        name, content = self._locate(id_)
        parsed = self._file(name)
        if content < 0:
            skeleton = parsed.skeleton()[start : start + len(out)]
            if len(skeleton) != len(out):
                raise DamagedData(f"{printable(name)} has changed")
            out[:] = skeleton
        else:
            parsed.read(content, start, out)

    def manifest(self, id_: bytes) -> bytes:
        raise DamagedData(f"manifest {id_.hex()[:10]} is not a file of the working folder")

    def _entry(self, name: str) -> FileEntry | None:
        """The manifest entry that a commit would make for a file; None for an unreadable file."""
        try:
            return entry_of(self._store, name)
        except MvcError:
            return None  # for example a file that changes meanwhile

    def where(self, id_: bytes) -> str:
        return printable(self._locate(id_)[0])

    def _locate(self, id_: bytes) -> tuple[str, int]:
        """The path of a file that has the object, and the object's position in the file.

        The position is -1 if the object is the skeleton, the bytes outside the file's tensors.
        """
        if self._locations is None:
            self._locations = {}
            for entry in filter(None, map(self._entry, self.names)):
                for i, content in enumerate(entry.contents):
                    self._locations.setdefault(content.id, (entry.path, i))
                if entry.skeleton is not None:
                    self._locations.setdefault(entry.skeleton, (entry.path, -1))
        if id_ not in self._locations:
            raise DamagedData("no file of the working folder has the object")
        return self._locations[id_]

    def _file(self, name: str) -> ParsedFile:
        if self._parsed is None or self._parsed[0] != name:
            self.close()
            path = self._store.root / name
            file = self._open.enter_context(self._store.fs.open_read(path))
            self._parsed = (name, parse_beside(self._store.fs, path, file, name))
        return self._parsed[1]

    def close(self) -> None:
        self._parsed = None
        self._open.close()


class _DamagedRecords:
    """Reads objects from records with a wrong checksum.

    The damaged bytes may belong to another object of the record. ``specs``: maps the id of a
    tensor to dtype and shape. No other tensors can be read.
    """

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self.specs: dict[bytes, TensorSpec] = {}

    def piece(self, id_: bytes, start: int, out: memoryview) -> None:
        if id_ not in self.specs:
            raise DamagedData(
                f"object {id_.hex()[:10]} has more than 32 MiB: damaged records are not searched"
            )
        out[:] = memoryview(self._recovery.blob(id_, self.specs[id_]))[start : start + len(out)]

    def manifest(self, id_: bytes) -> bytes:
        return self._recovery.manifest(id_)


class ObjectSources:
    """Reads each object from the source that ``find`` chose: the first that has the right bytes."""

    def __init__(
        self, own: ObjectSource, readers: Recovery, working: _WorkingFiles, other: Store | None
    ) -> None:
        self._own = own
        self._working = working
        self._damaged = _DamagedRecords(readers)
        self._sources: dict[str, ObjectSource] = {
            "another path": own,
            "its damaged record": self._damaged,
        }
        if other is not None:
            self._sources["the other repository"] = other.recovery
        self._sources["a file"] = working
        self._chosen: dict[bytes, ObjectSource] = {}

    def find(self, id_: bytes, spec: TensorSpec | None) -> str | None:
        """The name of the first source that has an object; None if no source has the object.

        ``spec``: None for a manifest.
        """
        if spec is not None and spec.nbytes <= PIECE:
            self._damaged.specs[id_] = spec
        for name, source in self._sources.items():
            try:
                sound = self._sound(source, id_, spec)
            except DamagedData:
                continue
            except MvcError:
                if source in (self._own, self._damaged):
                    raise  # an unreadable disk is not damage
                continue
            if sound:
                self._chosen[id_] = source
                return f"the file {self._working.where(id_)}" if name == "a file" else name
        return None

    def _sound(self, source: ObjectSource, id_: bytes, spec: TensorSpec | None) -> bool:
        if spec is None:
            return Manifest.id_of(source.manifest(id_)) == id_
        read = piece_reader(source.piece, id_, spec)
        for _ in verify_pieces(id_, spec, read, DamagedData("it has another hash")):
            pass
        return True

    def load(self, id_: ManifestId) -> Manifest | None:
        """A manifest from the first source that has it; None if the manifest is lost.

        Later searches also read the files of the working folder that the manifest names.
        """
        if self.find(id_, None) is None:
            return None
        manifest = Manifest.decode(self.manifest(id_))
        self._working.names.update((entry.path, None) for entry in manifest.entries)
        return manifest

    def piece(self, id_: bytes, start: int, out: memoryview) -> None:
        self._chosen.get(id_, self._own).piece(id_, start, out)

    def manifest(self, id_: bytes) -> bytes:
        return self._chosen.get(id_, self._own).manifest(id_)
