"""Objects in S3, Google Cloud Storage or Azure, through the library obstore.

obstore reads credentials from the environment (variables, or the role of an instance or container).
A URL names the bucket and a prefix. A *swap* replaces an object only if no other client has changed
the object since this client read the object. A swap is a PUT with the condition ``If-Match: ETAG``,
or ``If-None-Match: *`` for a new object.
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

_WHOLE = 5 << 20  # objects up to this number of bytes are sent in one request
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REQUEST = timedelta(minutes=5)
_CONNECT = timedelta(seconds=10)
_RETRIES = 4
_RETRY_FOR = timedelta(seconds=30)
_MESSAGE = 200
_CREDENTIALS = {
    "s3": "AWS credentials found (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role)",
    "gs": "Google Cloud credentials found (set GOOGLE_APPLICATION_CREDENTIALS, or use a role)",
    "az": "Azure credentials found (set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY)",
}
"""For each scheme, the end of the error message for missing credentials.

If the environment has no credentials, obstore asks a metadata server, which may not exist.
"""


class CloudObjects(Objects):
    """The objects of one bucket whose names begin with one prefix."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        """Raises NotInstalled if obstore is missing; WrongUsage for a URL without a bucket."""
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
                answer = self._api.get(self._store, name)
                self._check_size(name, answer.meta["size"], limit)
                return bytes(answer.bytes())
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

    def read_version(self, name: str, limit: int, known: str = "") -> Versioned | None:
        from obstore.exceptions import NotModifiedError

        try:
            with _reaching(self.url):
                answer = self._api.get(
                    self._store, name, options={"if_none_match": _tags(known)[0]} if known else {}
                )
                self._check_size(name, answer.meta["size"], limit)
                version = _version(answer.meta["e_tag"], answer.meta["version"])
                return Versioned(bytes(answer.bytes()), version)
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
        for name in names:  # one by one: not every store accepts lists
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
        raise WrongUsage(f"{url} does not name a bucket", hint="write s3://BUCKET/PREFIX")
    scheme, bucket, prefix = parts.groups()
    prefix = (prefix or "").strip("/") or None
    host = next(filter(None, (endpoint, *map(os.environ.get, _ENDPOINTS))), "")
    client: ClientConfig = {
        "timeout": _REQUEST, "connect_timeout": _CONNECT, "allow_http": host[:7] == "http://",
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
    if host:
        aws["endpoint"] = host
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
    """The credentials of the profile AWS_PROFILE.

    boto3 reads the credentials, because obstore cannot read profiles.
    """
    if not os.environ.get("AWS_PROFILE") or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise NotInstalled(
            "AWS_PROFILE is set, but profiles need the package boto3",
            hint="pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from error
    return Boto3CredentialProvider()


def _version(tag: str | None, version: str | None) -> str:
    """The id of a version of an object: the ETag (for S3 and Azure) and a number (for Google)."""
    return f"{tag or ''}\n{version or ''}"


def _tags(version: str) -> tuple[str, str]:
    tag, _, number = version.partition("\n")
    return tag, number


def _no_bucket(url: str) -> RemoteRefused:
    return RemoteRefused(
        f"the bucket of {url} does not exist", hint="create it, or correct the URL and endpoint"
    )


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Converts errors of obstore into errors of mvc.

    Errors for missing objects and failed conditions are raised unchanged.
    """
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
            f"{url} refuses access: {_line(error)}",
            hint="correct the clock of this machine, which differs from the clock of the store"
            if "RequestTimeTooSkewed" in str(error)
            else "check the keys in the environment, and their permissions",
        ) from error
    except exceptions.BaseError as error:
        if re.search(r"169\.254\.|/latest/(api|meta-data)/|metadata\.google", str(error)):
            raise RemoteRefused(f"{url}: no {_CREDENTIALS[url[:2]]}") from error
        raise RemoteUnreachable(
            f"{url} does not answer: {_line(error)}",
            hint="check the network, and credentials, region and endpoint in the environment",
        ) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).partition("Debug source")[0].split())
    return printable(text[:_MESSAGE])
