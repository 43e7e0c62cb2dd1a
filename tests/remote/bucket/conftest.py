"""Stores of objects to run the same tests on: a folder, and S3 as moto answers for it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mvc.io.files import FileSystem
from mvc.remote.transports.bucket.objects import FolderObjects, Objects
from tests.remote.bucket.kit import Team

Another = Callable[[], Objects]


@pytest.fixture(scope="session")
def _server() -> Iterator[str]:
    """The address of an S3 in this process."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


_numbers = itertools.count()


@pytest.fixture
def s3(_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, of which the environment has the keys."""
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", _server)
    bucket = f"bucket-{next(_numbers)}"
    boto3.client("s3", endpoint_url=_server, region_name="us-east-1").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/models/cnn"


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty bucket of each kind."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    (tmp_path / "bucket").mkdir()
    return f"bucket:{tmp_path / 'bucket'}"


@pytest.fixture
def objects(url: str) -> Objects:
    return opened(url)


def opened(url: str) -> Objects:
    """Its objects."""
    if url.startswith("bucket:"):
        return FolderObjects(FileSystem(), Path(url.removeprefix("bucket:")))
    from mvc.remote.transports.bucket.cloud import CloudObjects

    return CloudObjects(url)


@pytest.fixture
def team(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    team = Team(tmp_path, url, monkeypatch)
    yield team
    team.close()


@pytest.fixture
def folder_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """A team with a bucket in a folder."""
    (tmp_path / "bucket").mkdir()
    team = Team(tmp_path, f"bucket:{tmp_path / 'bucket'}", monkeypatch)
    yield team
    team.close()
