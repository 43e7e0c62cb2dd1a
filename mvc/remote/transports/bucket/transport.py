"""Pushes to a bucket and fetches from a bucket, by way of a local copy, the *mirror*.

The mirror is a local repository with the same journal as the bucket. The *head* is the object that
names all other objects of the bucket. A push is split into *slices*. Each slice is published by one
*swap*: the head is replaced, unless another client has replaced the head meanwhile. So an
interrupted push loses at most one slice.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from mvc.errors import Busy, DamagedData, IoFailed
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.io.os_errors import translate
from mvc.remote.remotes import Remote
from mvc.remote.transport import Place, Received, RemoteHead, Slice, Wanted
from mvc.remote.transports.bucket.mirror import Mirror
from mvc.remote.transports.bucket.objects import Objects, check_conditions
from mvc.remote.transports.bucket.publishing import Publisher
from mvc.remote.transports.bucket.sweeping import sweep
from mvc.remote.transports.folder import FolderTransport, wait_for_change
from mvc.repo.config import Config, own_config
from mvc.store.store import Store
from mvc.types import Bytes

T = TypeVar("T")

MIRROR = "mirror"
"""Name of the mirror's folder in ``.mvc/remotes/R``, for the remote R."""

_TRIES = 100
_POLL = 30.0  # seconds between two checks of the live version
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 2.0  # seconds to wait after another client was faster
_BLOCK = 1 << 20


class BucketTransport:
    """An open bucket. Raises RemoteUnreachable, RemoteRefused and the errors of a repository."""

    def __init__(self, mirror: Mirror, *, resources: ExitStack) -> None:
        """``resources``: closed together with the transport."""
        self.url = mirror.objects.url
        self._mirror = mirror
        self._publisher = Publisher(mirror)
        self._resources = resources
        self._is_fresh = False

    def head(self, after: Place | None = None) -> RemoteHead:
        """The bucket's current head. The head of an empty bucket has no identity."""
        self._is_fresh = False
        head = self._on_mirror(lambda transport: transport.head(after))
        if self._mirror.seen is None:
            return replace(head, identity=b"", refs={})
        return head

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """The wanted entries, up to the end that the journal had when ``head`` was last called."""

        def begin(transport: FolderTransport) -> tuple[list[Slice], Iterator[Slice]]:
            self._mirror.fs.load(list(self._mirror.fs.known))
            slices = transport.send(wanted)
            return list(islice(slices, 1)), slices

        first, rest = self._on_mirror(begin)
        yield from first
        with self._refreshing_on_error():
            yield from rest

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        def read() -> str | None:
            self._is_fresh = False
            return self._on_mirror(lambda transport: transport.live(target))

        return wait_for_change(
            read,
            mark,
            seconds,
            pause=_POLL * random.uniform(0.75, 1.25),  # noqa: S311
        )

    def receive(self, incoming: Slice) -> Received:
        """Publishes a slice by one swap of the head. Tries again if another client was faster."""
        place, rest = self._mirror.place, iter(incoming.records)
        with translate(place, "write"), tempfile.TemporaryFile(dir=place) as file:
            # A repeated attempt first reads the records that earlier attempts wrote to the file.
            def records() -> Iterator[Bytes]:
                file.seek(0)
                while block := file.read(_BLOCK):
                    yield block
                for part in rest:
                    file.write(part)
                    yield part

            got = self._until_published(
                lambda transport: transport.receive(replace(incoming, records=records()))
            )
        return replace(got, identity=self._mirror.store.snapshot.identity)

    def maintain(self, act: Callable[[Store, Config], T]) -> T:
        """Runs an operation on the bucket's repository, and publishes the changes.

        First, ``sweep`` deletes objects that have been unused for a long time. If another client
        swaps the head during the operation, the operation runs again on the new head.
        """
        fs, publisher = self._mirror.fs, self._publisher
        fs.lingering = self._on_mirror(lambda _: sweep(self._mirror, publisher))
        return self._until_published(
            lambda inside: act(inside.store, inside.config), every_pack=True
        )

    def inspect(self, act: Callable[[Store, Config], T]) -> T:
        """Runs an operation that changes nothing, such as fsck, on the data in the bucket.

        Data that the local repository has, too, are nevertheless read from the bucket.
        """
        own, self._mirror.fs.own = self._mirror.fs.own, None
        try:
            return self._on_mirror(lambda inside: act(inside.store, inside.config), every_pack=True)
        finally:
            self._mirror.fs.own = own

    def close(self) -> None:
        self._mirror.close()
        self._resources.close()

    def _until_published(
        self, act: Callable[[FolderTransport], T], *, every_pack: bool = False
    ) -> T:
        wait = _FIRST_WAIT
        for _ in range(_TRIES):
            done = self._on_mirror(act, every_pack=every_pack)
            with self._refreshing_on_error():
                if self._publisher.publish():
                    return done
            time.sleep(random.uniform(0, wait))  # noqa: S311
            wait = min(2 * wait, _LONGEST_WAIT)
        raise Busy(
            f"other clients change {self.url} continuously",
            hint="try again later; for many concurrent pushes use 'mvc serve' instead of a bucket",
        )

    def _on_mirror(self, act: Callable[[FolderTransport], T], *, every_pack: bool = False) -> T:
        """Runs ``act`` on the mirror. If the mirror is damaged, runs ``act`` on a new mirror."""
        try:
            with self._refreshing_on_error():
                done = act(self._transport(every_pack))
                if (damage := self._mirror.store.snapshot.damage) is None:
                    return done
                raise damage
        except (DamagedData, IoFailed):
            self._mirror.reset()
        with self._refreshing_on_error():
            return act(self._transport(every_pack))

    def _transport(self, every_pack: bool) -> FolderTransport:
        mirror = self._mirror
        if not self._is_fresh:
            mirror.refresh()
            self._is_fresh = True
        if every_pack:
            mirror.fs.load(list(mirror.fs.known))
        return FolderTransport(self.url, mirror.store, mirror.config)

    @contextmanager
    def _refreshing_on_error(self) -> Iterator[None]:
        """If the ``with`` block raises an error, the next operation reads the head again.

        Reading the head removes unpublished entries from the mirror.
        """
        try:
            yield
        except BaseException:
            self._is_fresh = False
            raise


def open_bucket(
    remote: Remote, store: Store | None, config: Config | None, *, place: Path | None = None
) -> BucketTransport:
    """A transport to a bucket. Its mirror is in the remote's folder, or at ``place``.

    The mirror is temporary if the remote has no name, if there is no local repository, or if
    another process uses the mirror.
    """
    if place is None and store is not None and remote.name:
        place = remote.folder(store) / MIRROR
    fs = FileSystem()
    with ExitStack() as resources:
        objects = objects_of(remote)

        def mirror(place: Path) -> Mirror:
            return Mirror(
                objects,
                place,
                clock=Clock() if store is None else store.clock,
                config=config or own_config(fs, {}),
                own=store,
            )

        opened = None
        if place is not None:
            with suppress(Busy):
                opened = mirror(place)
        if opened is None:
            opened = mirror(resources.enter_context(fs.temporary_folder()))
        return BucketTransport(opened, resources=resources.pop_all())


def objects_of(remote: Remote) -> Objects:
    """The object store of a bucket's URL."""
    open_: Callable[[Remote], Objects] = remote.kind.load().open_objects
    return open_(remote)


def check_bucket(remote: Remote) -> None:
    """Raises RemoteRefused if the object store cannot do a swap, which concurrent pushes need."""
    check_conditions(objects_of(remote))
