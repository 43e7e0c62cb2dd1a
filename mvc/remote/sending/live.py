"""Sends the live version of a target to a receiver without a repository, such as ``mvc follow``.

The *mark* of a target is a text that changes when another version goes live. The receiver polls the
mark. After a change, the receiver requests a *slice*: the deployment, the version, and records that
encode the requested files, if possible as deltas from contents that the receiver has.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from mvc.errors import DamagedData, MvcError, NoDeployment, StateForgotten, UnknownTarget
from mvc.ids import ManifestId
from mvc.io.files import FileIdentity
from mvc.model.manifest import FileEntry, Manifest
from mvc.names import check_ref, printable
from mvc.remote.sending.closure import NOTHING, Closure, Needed
from mvc.remote.slices import Sent, encode_entries
from mvc.remote.statements import Purged
from mvc.remote.transport import Slice, Wanted
from mvc.repo.checkout.checkout import chosen
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.statements.live import live_at, same_until
from mvc.store.format import read_features
from mvc.store.snapshot import JOURNAL
from mvc.store.store import Store

NOTHING_LIVE = "-"
"""The mark of a target without a live version."""
_MOST_VERSIONS = 64  # at most so many versions of the receiver are read to find delta bases


class LiveMark:
    """Computes the mark of ``target``. Reads the journal only if the mark may have changed.

    Raises InvalidName.
    """

    def __init__(self, store: Store, target: str) -> None:
        check_ref("deployment target", target)
        self._store, self._target = store, target
        self._journal = store.folder / JOURNAL
        self._seen: FileIdentity | None = None
        self._mark, self._valid_ns = "", range(0)
        snapshot = store.fresh()
        self._read = self._lost = snapshot.generation, snapshot.position

    def now(self) -> tuple[str, object]:
        """The mark of the live version, and a key that changes when a state is lost or restored.

        While the mark and the key do not change, ``live_slice`` returns the same answer. Raises
        DamagedData, IoFailed.
        """
        seen, now = self._store.fs.stat(self._journal), self._store.clock.now_ns()
        if seen is None or seen != self._seen or now not in self._valid_ns:
            snapshot = self._store.fresh()
            live = None
            with suppress(NoDeployment, UnknownTarget):
                live = live_at(self._store, None, self._target)
            # After a retraction, an earlier version is live again. ``newest`` makes the mark new.
            newest = snapshot.newest_hybrid(self._target)
            self._mark = f"{live.sequence}-{live.commit.hex()}-{newest}" if live else NOTHING_LIVE
            self._seen, self._valid_ns = seen, same_until(snapshot, self._target, now)
            generation, position = self._read
            self._read = snapshot.generation, snapshot.position
            if snapshot.generation != generation or any(
                row.entry.states or row.entry.forgets for row in snapshot.entries(position)
            ):
                self._lost = self._read
        return self._mark, self._lost


def live_slice(store: Store, config: Config, wanted: Wanted) -> Slice:
    """The slice with the live deployment, its version, and records of the requested files.

    If the receiver has this version, the slice has no records. Raises UnknownTarget, NoDeployment,
    UnknownPath, StateForgotten, WeightsDropped.
    """
    snapshot, purged = store.fresh(), Purged(store.snapshot, wanted.without)
    live = live_at(store, None, wanted.live)
    recorded, commit = commits.placed(snapshot, live.commit)
    records = NOTHING
    if live.commit not in wanted.have:
        availability.check_stored(store, live.commit)
        if live.commit in purged:
            raise StateForgotten(
                f"the state of version {live.commit.short}, which is live on "
                f"{printable(wanted.live)}, was purged",
                hint="deploy another version in that repository",
            )
        entries = entries_of(manifests.load(store, commit.manifest), wanted)
        availability.check_available(store, commit.id, entries)
        contents, known = _at_receiver(store, wanted, commit.time_ns)
        near = _near(entries, entries_of(manifests.load(store, known), wanted)) if known else {}
        closure = Closure(
            store, config, lambda _: False, purged.contains_all_of,
            file=contents, manifest=known, near=near,
        )  # fmt: skip
        needed = Needed(frozenset({commit.manifest}), manifests.objects(entries))
        records = closure.choose(recorded, needed)
    deployment = snapshot.statement(live.id)
    if deployment is None:
        raise DamagedData(f"the deployment of {live.commit.short} is lost")
    sent = Sent(
        (commit.encoded,),
        records.size,
        shapes=records.shapes,
        statements=(deployment[1].encoded,),
    )
    features = read_features(store.fs, store.folder)
    return Slice(encode_entries([sent]), records.size, records.read(), features=features)


def _at_receiver(
    store: Store, wanted: Wanted, time_ns: int
) -> tuple[set[bytes], ManifestId | None]:
    """The contents that the receiver has, and the manifest of one of the receiver's versions.

    This is the version whose commit time is nearest to ``time_ns``.
    """
    contents: set[bytes] = set()
    known: list[tuple[int, ManifestId]] = []
    for id_ in sorted(wanted.have)[:_MOST_VERSIONS]:
        # If a version of the receiver is forgotten here, it is skipped.
        with suppress(MvcError):
            manifest = manifests.of_commit(store, id_)
            contents.update(manifests.objects(entries_of(manifest, wanted)))
            commit = commits.get(store.snapshot, id_)
            contents.add(commit.manifest)
            known.append((abs(commit.time_ns - time_ns), commit.manifest))
    contents.difference_update(wanted.objects)
    return contents, min(known)[1] if known else None


def _near(entries: Iterable[FileEntry], old: Iterable[FileEntry]) -> dict[bytes, bytes]:
    """Maps the content of each tensor to the content of this tensor in the version ``old``.

    Leaves out tensors that have another dtype or shape in ``old``.
    """
    olds = {(file.path, t.key): file.contents[t.content] for file in old for t in file.tensors}
    pairs = (
        (file.contents[t.content], olds.get((file.path, t.key)))
        for file in entries
        for t in file.tensors
    )
    return {new.id: base.id for new, base in pairs if base and base.spec == new.spec}


def entries_of(manifest: Manifest, wanted: Wanted) -> list[FileEntry]:
    """The requested files of a version. Raises UnknownPath."""
    if wanted.folder:
        return chosen(manifest, wanted.paths)[0]
    return [manifest.file(*wanted.paths[:1])]
