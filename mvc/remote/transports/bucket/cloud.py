"""Objects in S3, Google Cloud Storage or Azure, by obstore.

Who calls and with which key is what obstore finds in the environment (variables, the role of an
instance or a container); of a URL only bucket and prefix are read. A swap is a put on condition
of the ETag (``If-Match``), or of there being no object (``If-None-Match: *``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from mvc.errors import NotInstalled, RemoteRefused, RemoteUnreachable, WrongUsage, how_to_install
from mvc.names import printable
from mvc.remote.remotes import Remote
from mvc.remote.transports.bucket.objects import CLOCK, Objects, StoredObject, Versioned, too_long
from mvc.types import Bytes

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import (
        AzureConfig,
        AzureStore,
        ClientConfig,
        GCSStore,
        RetryConfig,
        S3Config,
        S3CredentialProvider,
        S3Store,
    )

_WHOLE = 5 << 20  # bytes up to which an object is sent in one request
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REQUEST = timedelta(minutes=5)
_CONNECT = timedelta(seconds=10)
_RETRIES = 4
_RETRY_FOR = timedelta(seconds=30)
_MESSAGE = 200


class CloudObjects(Objects):
    """Objects of one bucket, below one prefix."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        """NotInstalled without obstore; WrongUsage for a URL without a bucket."""
        try:
            import obstore
        except ImportError as error:
            raise NotInstalled(
                f"{url} needs the package obstore", hint=how_to_install("s3")
            ) from error
        self.url = url
        self._api = obstore
        with _reaching(url):
            self._store = _store(url, endpoint, region)

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with _reaching(self.url):
                found = self._api.get(self._store, name)
                self._check_size(name, found.meta["size"], limit)
                return bytes(found.bytes())
        except FileNotFoundError:
            return None

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        if not length:
            return b""
        try:
            with _reaching(self.url):
                return bytes(self._api.get_range(self._store, name, start=start, length=length))
        except FileNotFoundError:
            return None

    def write(self, name: str, parts: Iterable[Bytes], size: int) -> None:
        with self._writing():
            if size <= _WHOLE:
                self._api.put(self._store, name, b"".join(parts), use_multipart=False)
            else:
                self._api.put(self._store, name, iter(parts), chunk_size=_WHOLE, max_concurrency=6)

    def look(self, name: str, limit: int, known: str = "") -> Versioned | None:
        from obstore.exceptions import NotModifiedError

        try:
            with _reaching(self.url):
                found = self._api.get(
                    self._store, name, options={"if_none_match": _tags(known)[0]} if known else {}
                )
                self._check_size(name, found.meta["size"], limit)
                version = _version(found.meta["e_tag"], found.meta["version"])
                return Versioned(bytes(found.bytes()), version)
        except NotModifiedError:
            return Versioned(b"", known)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise _no_bucket(self.url) from error
            return None

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        tag, version = _tags(known)
        mode: PutMode = {"e_tag": tag, "version": version} if known else "create"
        try:
            with self._writing():
                put = self._api.put(self._store, name, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return None
        return _version(put["e_tag"], put["version"])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with _reaching(self.url):
            for batch in self._api.list(self._store, prefix, chunk_size=1000):
                for meta in batch:
                    time_ns = round(meta["last_modified"].timestamp() * 1e9)
                    yield StoredObject(meta["path"], meta["size"], time_ns)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:  # one by one: not every store takes lists
            try:
                with _reaching(self.url):
                    self._api.delete(self._store, name)
            except FileNotFoundError:
                continue

    def now_ns(self) -> int:
        with self._writing():
            self._api.put(self._store, CLOCK, b"", use_multipart=False)
            return round(self._api.head(self._store, CLOCK)["last_modified"].timestamp() * 1e9)

    def _check_size(self, name: str, size: int, limit: int) -> None:
        if size > limit:
            raise too_long(self.url, name, limit)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with _reaching(self.url):
                yield
        except FileNotFoundError as error:
            raise _no_bucket(self.url) from error


def open_objects(remote: Remote) -> CloudObjects:
    """The store of an ``s3://``, ``gs://`` or ``az://`` URL."""
    return CloudObjects(remote.url, endpoint=remote.endpoint, region=remote.region)


def _store(url: str, endpoint: str, region: str) -> S3Store | GCSStore | AzureStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    parts = re.fullmatch(r"(s3|gs|az)://([A-Za-z0-9._-]+)(?:/(.*))?", url)
    if parts is None:
        raise WrongUsage(f"no bucket: {url}", hint="write s3://BUCKET/PREFIX")
    scheme, bucket, prefix = parts.groups()
    prefix = (prefix or "").strip("/") or None
    reached = next(filter(None, (endpoint, *map(os.environ.get, _ENDPOINTS))), "")
    client: ClientConfig = {
        "timeout": _REQUEST, "connect_timeout": _CONNECT, "allow_http": reached[:7] == "http://",
    }  # fmt: skip
    retry: RetryConfig = {"max_retries": _RETRIES, "retry_timeout": _RETRY_FOR}
    if scheme == "gs":
        return GCSStore(bucket, prefix=prefix, client_options=client, retry_config=retry)
    if scheme == "az":
        azure: AzureConfig = {"endpoint": endpoint} if endpoint else {}
        return AzureStore(
            bucket, prefix=prefix, config=azure, client_options=client, retry_config=retry
        )
    aws: S3Config = {}
    if reached:
        aws["endpoint"] = reached
    if region:
        aws["region"] = region
    return S3Store(
        bucket,
        prefix=prefix,
        config=aws,
        client_options=client,
        retry_config=retry,
        credential_provider=_profile(),
    )


def _profile() -> S3CredentialProvider | None:
    """Keys of the profile that AWS_PROFILE names: obstore itself reads none, boto3 does."""
    if not os.environ.get("AWS_PROFILE") or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise NotInstalled(
            "AWS_PROFILE is set, and profiles are read by the package boto3",
            hint="pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from error
    return Boto3CredentialProvider()


def _version(tag: str | None, version: str | None) -> str:
    """One name for a version of an object: S3 and Azure compare its tag, Google a number."""
    return f"{tag or ''}\n{version or ''}"


def _tags(version: str) -> tuple[str, str]:
    tag, _, number = version.partition("\n")
    return tag, number


def _no_bucket(url: str) -> RemoteRefused:
    return RemoteRefused(
        f"there is no bucket of {url}", hint="make it first, or correct the URL and its endpoint"
    )


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """What obstore raises as mvc's errors; that there is no object, or another version, passes."""
    from obstore import exceptions

    answers = (
        exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError,
    )  # fmt: skip
    try:
        yield
    except answers:
        raise
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise RemoteRefused(
            f"{url} refuses: {_line(error)}",
            hint="set the clock of this machine: the store has another time"
            if "RequestTimeTooSkewed" in str(error)
            else "check the keys in the environment, and what their owner may do",
        ) from error
    except exceptions.BaseError as error:
        raise RemoteUnreachable(
            f"{url} does not answer: {_line(error)}",
            hint="check the network, and keys, region and endpoint in the environment",
        ) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).partition("Debug source")[0].split())
    return printable(text[:_MESSAGE])
