from __future__ import annotations

import time
from pathlib import Path

import pytest

from mvc.errors import DamagedData, RemoteRefused
from mvc.io.files import FileSystem
from mvc.remote import slices
from mvc.remote.transport import Place, Received, RemoteHead, Slice, Wanted
from mvc.server.uploads import RETAINED, InUse, Uploads

ID = "0123456789abcdef" * 2
RECEIVED = Received(Place(1, b"c" * 16))


class Transport:
    """Takes slices, and keeps how many bytes each had."""

    url = "test"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def head(self, after: Place | None = None) -> RemoteHead:
        raise NotImplementedError

    def send(self, wanted: Wanted) -> list[Slice]:
        raise NotImplementedError

    def receive(self, given: Slice) -> Received:
        self.sizes.append(sum(map(len, given.records)))
        return RECEIVED

    def close(self) -> None:
        pass


def written(size: int = 1000) -> bytes:
    return b"".join(slices.write(Slice(b"\x90", size, [bytes(size)])))


def uploads(tmp_path: Path) -> Uploads:
    return Uploads(FileSystem(), tmp_path)


def add(uploads: Uploads, data: bytes, at: int = 0) -> None:
    with uploads.find(ID).appending(at) as write:
        write(data)


@pytest.fixture
def held(tmp_path: Path) -> Uploads:
    made = uploads(tmp_path)
    made.find(ID).lock().release()
    return made


def test_an_upload_is_published_once_it_is_whole(tmp_path: Path, held: Uploads) -> None:
    data, transport = written(), Transport()
    add(held, data[:500])
    assert held.find(ID).settled_size() == 500
    add(uploads(tmp_path), data[500:], at=500)  # another process
    assert held.find(ID).publish(transport.receive) == RECEIVED
    assert transport.sizes == [1000]


def test_its_answer_is_kept_for_those_who_did_not_get_it(held: Uploads) -> None:
    add(held, written())
    upload = held.find(ID)
    assert upload.answer() is None
    upload.publish(Transport().receive)
    upload.delete()
    assert held.find(ID).answer() == RECEIVED and held.find(ID).settled_size() == 0


def test_bytes_go_where_the_last_ones_ended(held: Uploads) -> None:
    add(held, b"1234")
    for at in (0, 3, 5):
        with pytest.raises(InUse):
            add(held, b"x", at)


def test_what_is_not_whole_is_not_published(held: Uploads) -> None:
    data = written()
    add(held, data[:-1])
    with pytest.raises(DamagedData):
        held.find(ID).publish(Transport().receive)
    assert held.find(ID).answer() is None


def test_what_is_to_come_is_what_it_begins_with(held: Uploads) -> None:
    data = written()
    add(held, data[:5])
    assert held.find(ID).left() == 0
    add(held, data[5:100], at=5)
    assert held.find(ID).left() == len(data) - 100
    add(held, data[100:], at=100)
    assert held.find(ID).left() == 0
    add(held, b"x", at=len(data))
    with pytest.raises(DamagedData, match="has bytes after its end"):
        held.find(ID).left()


def test_two_requests_do_not_bring_the_same_upload(held: Uploads) -> None:
    with held.find(ID).lock(), pytest.raises(InUse):
        held.find(ID).lock()
    held.find(ID).lock().release()


@pytest.mark.parametrize("name", ["", "../x", "a" * 31, ID.upper(), ID + "0", ID[:-1] + "/"])
def test_what_is_no_name_of_an_upload_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RemoteRefused):
        uploads(tmp_path).find(name)


def test_what_nobody_went_on_with_is_deleted(tmp_path: Path, held: Uploads) -> None:
    add(held, b"1234")
    (tmp_path / "uploads/notes").touch()
    held.clear(lambda: time.time() + RETAINED - 5)
    assert held.find(ID).settled_size() == 4
    with held.find(ID).lock():
        held.clear(lambda: time.time() + RETAINED + 5)
        with pytest.raises(InUse):
            held.find(ID).settled_size()
    assert held.find(ID).settled_size() == 4
    held.clear(lambda: time.time() + RETAINED + 5)
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == ["notes"]
