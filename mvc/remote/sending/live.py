"""What is live on a target, for one who wants nothing else: a mark that changes with it, and the
one path of the live version along the cheapest way from what the receiver's files hold.
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
from mvc.remote.statements import Buried
from mvc.remote.transport import Slice, Wanted
from mvc.repo.checkout.checkout import chosen
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.statements.live import live_at, same_until
from mvc.store.format import read_features
from mvc.store.snapshot import JOURNAL
from mvc.store.store import Store

NOTHING_LIVE = "-"
"""The mark of a target on which nothing is live."""
_MOST_HELD = 64  # versions that a receiver has


class LiveMark:
    """A text that is another one whenever something else is live on ``target``.

    A look costs a call of the system while nothing is recorded and no dated deployment becomes due.
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
        """The mark of what is live now, and when states were last lost, or came back.

        While both are the same, so is what is sent to one who asks for the live version. Raises
        DamagedData, IoFailed.
        """
        seen, now = self._store.fs.stat(self._journal), self._store.clock.now_ns()
        if seen is None or seen != self._seen or now not in self._valid_ns:
            snapshot = self._store.fresh()
            live = None
            with suppress(NoDeployment, UnknownTarget):
                live = live_at(self._store, None, self._target)
            newest = snapshot.newest_hybrid(self._target)  # no mark comes back after a retraction
            self._mark = f"{live.sequence}-{live.commit.hex()}-{newest}" if live else NOTHING_LIVE
            self._seen, self._valid_ns = seen, same_until(snapshot, self._target, now)
            generation, position = self._read
            self._read = snapshot.generation, snapshot.position
            if snapshot.generation != generation or any(
                each.entry.states or each.entry.forgets for each in snapshot.entries(position)
            ):
                self._lost = self._read
        return self._mark, self._lost


def live_slice(store: Store, config: Config, wanted: Wanted) -> Slice:
    """The answer to ``Wanted.live``: the deployment and the version that is live.

    Of its records there are those of the wanted files, and none if the receiver's are this
    version. Raises UnknownTarget, NoDeployment, UnknownPath, StateForgotten, WeightsDropped.
    """
    snapshot, buried = store.fresh(), Buried(store.snapshot, wanted.without)
    live = live_at(store, None, wanted.live)
    recorded, commit = commits.placed(snapshot, live.commit)
    records = NOTHING
    if live.commit not in wanted.have:
        availability.check_kept(store, live.commit)
        if live.commit in buried:
            raise StateForgotten(
                f"the state of version {live.commit.short}, which is live on "
                f"{printable(wanted.live)}, was forgotten by name",
                hint="its owner deploys another version",
            )
        entries = entries_of(manifests.load(store, commit.manifest), wanted)
        availability.check_available(store, commit.id, entries)
        held, known = _in_files(store, wanted, commit.time_ns)
        near = _near(entries, entries_of(manifests.load(store, known), wanted)) if known else {}
        closure = Closure(
            store, config, lambda _: False, buried.hold, file=held, manifest=known, near=near
        )
        needed = Needed(frozenset({commit.manifest}), manifests.objects(entries))
        records = closure.choose(recorded, needed)
    found = snapshot.statement(live.id)
    if found is None:
        raise DamagedData(f"the deployment of {live.commit.short} is lost")
    sent = Sent(
        (commit.encoded,),
        records.size,
        shapes=records.shapes,
        statements=(found[1].encoded,),
    )
    features = read_features(store.fs, store.folder)
    return Slice(encode_entries([sent]), records.size, records.read(), features=features)


def _in_files(store: Store, wanted: Wanted, time_ns: int) -> tuple[set[bytes], ManifestId | None]:
    """The objects that the receiver has: those of the paths in its versions, and manifests.

    Also the one of these manifests whose version is nearest to a moment.
    """
    found: set[bytes] = set()
    known: list[tuple[int, ManifestId]] = []
    for id_ in sorted(wanted.have)[:_MOST_HELD]:
        # A version that was forgotten here is no loss: another way leads to what is wanted.
        with suppress(MvcError):
            manifest = manifests.of_commit(store, id_)
            found.update(manifests.objects(entries_of(manifest, wanted)))
            commit = commits.get(store.snapshot, id_)
            found.add(commit.manifest)
            known.append((abs(commit.time_ns - time_ns), commit.manifest))
    found.difference_update(wanted.objects)
    return found, min(known)[1] if known else None


def _near(entries: Iterable[FileEntry], old: Iterable[FileEntry]) -> dict[bytes, bytes]:
    """By each content, the one with the same tensor in files of another version, if it fits."""
    there = {(each.path, t.key): each.contents[t.content] for each in old for t in each.tensors}
    pairs = (
        (each.contents[t.content], there.get((each.path, t.key)))
        for each in entries
        for t in each.tensors
    )
    return {new.id: base.id for new, base in pairs if base and base.spec == new.spec}


def entries_of(manifest: Manifest, wanted: Wanted) -> list[FileEntry]:
    """The wanted files of a version. Raises UnknownPath."""
    if wanted.folder:
        return chosen(manifest, wanted.paths)[0]
    return [manifest.file(*wanted.paths[:1])]
