"""Which file system a path lies on, out of a mount table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.io import mounts
from mvc.io.files import FileSystem

_TABLE = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /absent/home rw shared:2 master:1 - nfs4 server:/home rw
31 30 0:26 / /absent/home/local rw - xfs /dev/sdb rw
32 22 0:27 / /absent/with\040space rw - fuse.sshfs me@host: rw
33 22 0:28 / /absent/twice rw - tmpfs tmpfs rw
34 22 0:29 / /absent/twice rw - cifs //server/share rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/absent", "ext4", False),
        ("/absent/home/x/y", "nfs4", True),
        ("/absent/home/local/x", "xfs", False),
        ("/absent/home-is-not-home", "ext4", False),
        ("/absent/with space/x", "fuse.sshfs", True),
        ("/absent/twice/x", "cifs", True),
    ],
)
def test_longest_prefix_and_latest_mount_win(path: str, kind: str, network: bool) -> None:
    found = mounts.type_of(Path(path), _TABLE)
    assert found == kind
    assert mounts.is_network(found) is network


def test_unknown_is_empty_and_not_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mounts.type_of(Path("/x"), "") == ""
    assert not mounts.is_network("")
    assert not mounts.is_network("fuse.ext4")
    monkeypatch.setattr(mounts, "TABLE", "/no/such/table")
    assert mounts.type_of(Path("/x")) == ""


@given(st.text(max_size=200))
def test_any_table_is_read_without_failing(table: str) -> None:
    assert isinstance(mounts.type_of(Path("/x"), table), str)


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/absent/home")
    assert mounts.type_of(tmp_path / "link" / "x", _TABLE) == "nfs4"


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="Linux only")
def test_the_real_table_knows_this_folder_and_proc(tmp_path: Path) -> None:
    fs = FileSystem()
    assert mounts.type_of(Path("/proc/self")) == "proc"
    assert mounts.type_of(tmp_path)
    assert not fs.is_network_filesystem(Path("/proc"))
