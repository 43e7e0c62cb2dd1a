"""The type of a path's file system, from proc_pid_mountinfo(5)."""

from __future__ import annotations

import os
import re
from pathlib import Path

TABLE = "/proc/self/mountinfo"
"""The mount table of this process, on Linux."""

_ESCAPE = re.compile(r"\\([0-7]{3})")

# Several hosts may share a file system of these types. Locks and mmap are less reliable on such a
# file system than on a local disk.
# fmt: off
_NETWORK = frozenset([
    "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs",
    "beegfs", "afs", "coda", "ncpfs", "glusterfs", "orangefs", "pvfs2", "panfs", "gfs2",
    "ocfs2", "davfs", "webdav", "afpfs",
])
_NETWORK_FUSE = frozenset([
    "sshfs", "s3fs", "rclone", "glusterfs", "ceph", "ceph-fuse", "gcsfuse", "goofys",
    "mount-s3", "blobfuse", "blobfuse2", "davfs2", "juicefs", "hdfs", "curlftpfs", "seaweedfs",
    "moosefs", "mfs", "lizardfs", "cvmfs2", "smbnetfs",
])
# fmt: on


def type_of(path: Path, table: str | None = None) -> str:
    """The type of the file system of ``path``, such as ``ext4``; empty if unknown.

    ``table`` is the text of a mount table. By default, the mount table of this process is read.
    """
    if table is None:
        try:
            table = Path(TABLE).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    parts = Path(os.path.realpath(path)).parts
    best, kind = 0, ""
    for line in table.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_ESCAPE.sub(lambda m: chr(int(m[1], 8)), fields[4])).parts
        # The comparison is >=, because a later mount on the same point hides the earlier one.
        if len(point) >= best and parts[: len(point)] == point:
            best, kind = len(point), kinds[0]
    return kind


def is_network(kind: str) -> bool:
    """Whether a file system of this type may be shared between hosts."""
    if kind.startswith("fuse."):
        return kind.removeprefix("fuse.") in _NETWORK_FUSE
    return kind in _NETWORK
