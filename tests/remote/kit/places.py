"""Places of remotes: an empty repository, or nothing yet, behind each kind of transport."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.remote.remotes import Remote
from mvc.remote.sending import sender
from mvc.remote.transports.bucket.transport import objects_of, open_bucket
from mvc.repo.config import set_value
from mvc.repo.handle import Handle
from mvc.server.tokens import Tokens
from mvc.testing import fresh_process, open_quietly
from tests.remote.kit import ssh
from tests.remote.kit.proxy import Faults, Proxy
from tests.remote.kit.serving import Serving, serving
from tests.waiting import until

__all__ = ["KINDS", "Place", "Wire", "connect", "place"]

KINDS = ("folder", "ssh", "http", "bucket", "s3")
T = TypeVar("T")
PROJECT = Path(__file__).parents[3]
NAME = "remote"
BUCKET = "models"


class Wire(Protocol):
    """What has gone through since ``again``, and what is to go wrong next."""

    @property
    def up(self) -> int: ...
    @property
    def down(self) -> int: ...
    @property
    def trips(self) -> int: ...
    def again(self) -> None: ...
    def fail(self, **faults: int) -> None: ...


class _HttpWire:
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    up = property(lambda self: self._proxy.up)
    down = property(lambda self: self._proxy.down)
    trips = property(lambda self: self._proxy.trips)

    def again(self) -> None:
        self._proxy.again()

    def fail(self, **faults: int) -> None:
        self._proxy.again(Faults(**faults))


class _SshWire:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.again()

    def _sum(self, field_: str) -> int:
        return sum(call[field_] for call in ssh.calls(self._folder)[self._begun :])

    up = property(lambda self: self._sum("up"))
    down = property(lambda self: self._sum("down"))
    trips = property(lambda self: self._sum("turns"))

    def again(self) -> None:
        self._begun = len(ssh.calls(self._folder))

    def fail(self, **faults: int) -> None:
        ssh.cut_next(self._folder, **faults)


@dataclass
class Place:
    """``url`` leads to it; ``root``: its folder on this machine, where it is one.

    ``variables``: what a client needs in its environment. ``cloud``: an S3 client of the owner.
    """

    kind: str
    url: str
    root: Path | None = None
    bucket: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    wire: Wire | None = None
    server: Serving | None = None
    token: str = ""
    served: Path | None = None
    patched: Path | None = None
    cloud: Any = None

    def save(self, aside: Path) -> None:
        """Keeps what lies there in a folder."""
        if self.cloud is None:
            shutil.copytree(self._folder(), aside)
            return
        aside.mkdir(parents=True)
        for i, key in enumerate(self._keys()):
            body = self.cloud.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            (aside / str(i)).write_bytes(key.encode() + b"\n" + body)

    def restore(self, aside: Path) -> None:
        """What ``save`` has kept lies there, and nothing else."""
        if self.cloud is None:
            shutil.rmtree(self._folder())
            shutil.copytree(aside, self._folder())
            return
        for key in self._keys():
            self.cloud.delete_object(Bucket=BUCKET, Key=key)
        for path in aside.iterdir():
            key, _, body = path.read_bytes().partition(b"\n")
            self.cloud.put_object(Bucket=BUCKET, Key=key.decode(), Body=body)

    def _folder(self) -> Path:
        folder = self.root or self.bucket
        assert folder is not None
        return folder

    def _keys(self) -> list[str]:
        """Few: all of them come in one answer."""
        found = self.cloud.list_objects_v2(Bucket=BUCKET)
        assert not found["IsTruncated"]
        return [each["Key"] for each in found.get("Contents", ())]

    def own(self, act: Callable[[Repository], T], *, reads: bool = False) -> T:
        """Does something with the remote itself, as its owner; ``reads``: and changes nothing."""
        fresh_process()
        if self.root is not None:
            with open_quietly(self.root) as repo:
                return act(repo)
        with closing(open_bucket(Remote(self.url), None, None)) as transport:
            act_on = transport.inspect if reads else transport.maintain
            return act_on(lambda store, config: act(Repository(Handle(store, config))))

    @contextmanager
    def counted(self) -> Iterator[Wire]:
        """Counts from now on."""
        assert self.wire is not None
        self.wire.again()
        yield self.wire

    def stored(self) -> int:
        """Bytes that lie there."""
        if self.kind == "s3":
            store = objects_of(Remote(self.url))
            return sum(each.size for each in store.list(""))
        there = self.root / ".mvc/packs" if self.root is not None else self.bucket
        assert there is not None
        more = [] if self.root is None else [self.root / ".mvc/journal"]
        return sum(p.stat().st_size for p in (*there.rglob("*"), *more) if p.is_file())

    def kill_next(self, number: int) -> None:
        """The next process at the other end of ssh dies before its change of that number."""
        assert self.patched is not None
        (self.patched / "die").write_text(str(number))

    def narrow_token(self, *scopes: str) -> str:
        """Another token, which may do this."""
        assert self.served is not None
        name = "-".join(re.sub(r"\W", "", scope) for scope in scopes)
        tokens = Tokens(FileSystem(), self.served)
        if any(each.name == name for each in tokens.all()):
            tokens.remove(name)
        return tokens.add(name, scopes, 1)

    def peak(self) -> float:
        """MiB of the server's process at its peak."""
        return 0.0 if self.server is None else self.server.memory / (1 << 20)


@contextmanager
def place(
    kind: str,
    folder: Path,
    source: Path | None = None,
    *,
    slice_bytes: int | None = None,
    export: bool = True,
) -> Iterator[Place]:
    """An empty remote below ``folder``, or one with a copy of the repository ``source``.

    ``slice_bytes``: after how many bytes a slice ends, on both sides. ``export``: whether this
    process gets the variables.
    """
    with ExitStack() as stack:
        if slice_bytes is not None:
            stack.enter_context(patch.object(sender, "SLICE", slice_bytes))
        made = stack.enter_context(_MAKERS[kind](folder, source, slice_bytes))
        if export:
            stack.enter_context(patch.dict(os.environ, made.variables))
        yield made


def _repository(root: Path, source: Path | None) -> Path:
    if source is None:
        Repository.init(root, bare=True).close()
    else:
        shutil.copytree(source, root)
        set_value(FileSystem(), root / ".mvc/config.yaml", "core.bare", "true")
    return root


@contextmanager
def _folder(folder: Path, source: Path | None, slice_bytes: int | None) -> Iterator[Place]:
    root = _repository(folder / NAME, source)
    yield Place("folder", str(root), root)


@contextmanager
def _ssh(folder: Path, source: Path | None, slice_bytes: int | None) -> Iterator[Place]:
    root = _repository(folder / NAME, source)
    patched = _patched(folder / "patched", slice_bytes)
    variables = ssh.install(folder / "bin", patched.get("PYTHONPATH", str(PROJECT)))
    wire = _SshWire(folder / "bin")
    url = f"ssh://example.org{root}"
    yield Place("ssh", url, root, variables=variables, wire=wire, patched=folder / "patched")


_START = """
import pathlib
import mvc.remote.sending.sender
mvc.remote.sending.sender.SLICE = {slice_bytes}
if (number := pathlib.Path(__file__).with_name("die")).exists():
    from tests.remote.kit.dying import die_at
    call = int(number.read_text())
    number.unlink()
    die_at(call)
"""


def _patched(folder: Path, slice_bytes: int | None) -> dict[str, str]:
    """Variables by which a server's process has slices of that size, and may be told to die."""
    if slice_bytes is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_START.format(slice_bytes=slice_bytes))
    return {"PYTHONPATH": f"{folder}:{PROJECT}"}


@contextmanager
def _http(folder: Path, source: Path | None, slice_bytes: int | None) -> Iterator[Place]:
    served = folder / "served"
    served.mkdir(parents=True)
    root = _repository(served / NAME, source)
    token = Tokens(FileSystem(), served).add("owner", ("admin",), 1)
    with (
        serving(served, variables=_patched(folder / "patched", slice_bytes)) as server,
        Proxy(("127.0.0.1", server.port)) as proxy,
    ):
        yield Place(
            "http",
            f"http://127.0.0.1:{proxy.port}/{NAME}",
            root,
            variables={"MVC_TOKEN_ORIGIN": token},
            wire=_HttpWire(proxy),
            server=server,
            token=token,
            served=served,
        )


@contextmanager
def _bucket(folder: Path, source: Path | None, slice_bytes: int | None) -> Iterator[Place]:
    assert source is None
    (folder / "bucket").mkdir(parents=True)
    yield Place("bucket", f"bucket:{folder / 'bucket'}", bucket=folder / "bucket")


@contextmanager
def _s3(folder: Path, source: Path | None, slice_bytes: int | None) -> Iterator[Place]:
    """A bucket of moto, which runs as a process of its own, behind a proxy."""
    import boto3

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    variables = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret",
                 "AWS_REGION": "us-east-1"}  # fmt: skip
    try:
        until(lambda: _answers(port), 60)
        with patch.dict(os.environ, variables), Proxy(("127.0.0.1", port)) as proxy:
            client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
            client.create_bucket(Bucket=BUCKET)
            variables["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
            wire = _HttpWire(proxy)
            yield Place("s3", f"s3://{BUCKET}/cnn", variables=variables, wire=wire, cloud=client)
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


_MAKERS = {"folder": _folder, "ssh": _ssh, "http": _http, "bucket": _bucket, "s3": _s3}


def connect(remote: Place) -> http.client.HTTPConnection:
    """A plain connection to the server."""
    port = int(remote.url.split(":")[2].split("/")[0])
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
