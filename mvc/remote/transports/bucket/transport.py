"""The transport to a bucket: the transport to its mirror, and what comes in is published.

Each slice becomes one swap of the head, so what ends early loses at most a slice.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
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
from mvc.remote.transports.folder import FolderTransport, once_other
from mvc.repo.config import Config, own_config
from mvc.store.store import Store
from mvc.types import Bytes

T = TypeVar("T")

MIRROR = "mirror"
"""The mirror's folder in ``.mvc/remotes/R``."""

_TRIES = 100
_LOOK = 30.0  # seconds between two looks at what is live
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 2.0  # seconds after a lost race
_BLOCK = 1 << 20


class BucketTransport:
    """An open bucket. Raises RemoteUnreachable, RemoteRefused and the errors of a repository."""

    def __init__(self, mirror: Mirror, *, held: ExitStack) -> None:
        """``held``: is closed with it."""
        self.url = mirror.objects.url
        self._mirror = mirror
        self._publisher = Publisher(mirror)
        self._held = held
        self._looked = False

    def head(self, after: Place | None = None) -> RemoteHead:
        """What the bucket is now. One without a head is empty, and has no identity yet."""
        self._looked = False
        found = self._on_mirror(lambda transport: transport.head(after))
        if self._mirror.seen is None:
            return replace(found, identity=b"", refs={})
        return found

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """The entries as of the last ``head``."""

        def begin(transport: FolderTransport) -> tuple[list[Slice], Iterator[Slice]]:
            self._mirror.fs.load(list(self._mirror.fs.known))
            slices = transport.send(wanted)
            return list(islice(slices, 1)), slices

        first, rest = self._on_mirror(begin)
        yield from first
        with self._taken_back():
            yield from rest

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        def look() -> str | None:
            self._looked = False
            return self._on_mirror(lambda transport: transport.live(target))

        return once_other(look, mark, seconds, pause=_LOOK * random.uniform(0.75, 1.25))  # noqa: S311

    def receive(self, given: Slice) -> Received:
        """Publishes a slice with one swap of the head; again after a lost race."""
        place, rest = self._mirror.place, iter(given.records)
        with translate(place, "write"), tempfile.TemporaryFile(dir=place) as file:

            def records() -> Iterator[Bytes]:  # those that were read before come from the file
                file.seek(0)
                while block := file.read(_BLOCK):
                    yield block
                for part in rest:
                    file.write(part)
                    yield part

            got = self._until_published(
                lambda transport: transport.receive(replace(given, records=records()))
            )
        return replace(got, identity=self._mirror.store.snapshot.identity)

    def maintain(self, act: Callable[[Store, Config], T]) -> T:
        """Runs a verb on the bucket's repository and publishes what it changed.

        It may run several times: after a lost race it begins again on what is there. Objects that
        nothing has named for long enough are deleted first.
        """
        fs, publisher = self._mirror.fs, self._publisher
        fs.lingering = self._on_mirror(lambda _: sweep(self._mirror, publisher))
        return self._until_published(
            lambda inside: act(inside.store, inside.config), every_pack=True
        )

    def inspect(self, act: Callable[[Store, Config], T]) -> T:
        """Runs a verb that only reads, such as fsck, on what the bucket itself holds."""
        own, self._mirror.fs.own = self._mirror.fs.own, None
        try:
            return self._on_mirror(lambda inside: act(inside.store, inside.config), every_pack=True)
        finally:
            self._mirror.fs.own = own

    def close(self) -> None:
        self._mirror.close()
        self._held.close()

    def _until_published(
        self, act: Callable[[FolderTransport], T], *, every_pack: bool = False
    ) -> T:
        wait = _FIRST_WAIT
        for _ in range(_TRIES):
            done = self._on_mirror(act, every_pack=every_pack)
            with self._taken_back():
                if self._publisher.publish():
                    return done
            time.sleep(random.uniform(0, wait))  # noqa: S311
            wait = min(2 * wait, _LONGEST_WAIT)
        raise Busy(
            f"others changed {self.url} again and again meanwhile",
            hint="run it again; where many push at once, 'mvc serve' has no such races",
        )

    def _on_mirror(self, act: Callable[[FolderTransport], T], *, every_pack: bool = False) -> T:
        """Runs it on the mirror, as the bucket was when this transport last looked.

        Once more on one that is made anew, if the mirror is damaged.
        """
        try:
            with self._taken_back():
                done = act(self._transport(every_pack))
                if (damage := self._mirror.store.snapshot.damage) is None:
                    return done
                raise damage
        except (DamagedData, IoFailed):
            self._mirror.reset()
        with self._taken_back():
            return act(self._transport(every_pack))

    def _transport(self, every_pack: bool) -> FolderTransport:
        mirror = self._mirror
        if not self._looked:
            mirror.refresh()
            self._looked = True
        if every_pack:
            mirror.fs.load(list(mirror.fs.known))
        return FolderTransport(self.url, mirror.store, mirror.config)

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """After an error the next operation looks again, and takes back what the bucket lacks."""
        try:
            yield
        except BaseException:
            self._looked = False
            raise


def open_bucket(
    remote: Remote, store: Store | None, config: Config | None, *, place: Path | None = None
) -> BucketTransport:
    """A transport to a bucket; its mirror is kept in the remote's folder, or at ``place``.

    Without a name, without a repository, or while the mirror that is kept is in use, it has one of
    its own, which lasts as long as the transport.
    """
    if place is None and store is not None and remote.name:
        place = remote.folder(store) / MIRROR
    fs = FileSystem()
    with ExitStack() as held:
        objects = objects_of(remote)
        held.callback(objects.close)

        def mirror(place: Path) -> Mirror:
            return Mirror(
                objects,
                place,
                clock=Clock() if store is None else store.clock,
                config=config or own_config(fs, {}),
                own=store,
            )

        made = None
        if place is not None:
            with suppress(Busy):
                made = mirror(place)
        if made is None:
            made = mirror(held.enter_context(fs.temporary_folder()))
        return BucketTransport(made, held=held.pop_all())


def objects_of(remote: Remote) -> Objects:
    """The open store of a bucket's URL."""
    open_: Callable[[Remote], Objects] = remote.kind.load().open_objects
    return open_(remote)


def check_bucket(remote: Remote) -> None:
    """Raises RemoteRefused unless the store keeps what pushes at once rely on."""
    with closing(objects_of(remote)) as objects:
        check_conditions(objects)
