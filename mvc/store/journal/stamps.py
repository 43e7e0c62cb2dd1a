"""Stamps of deployments: what orders and names them in every repository alike.

The number of an entry is one repository's. Once a deployment of another repository is to come in,
each has a *stamp*, in its own entry or in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.ids import CommitId, DeploymentId
from mvc.limits import MAX_REF_BYTES
from mvc.model.canonical import Reader, Writer
from mvc.model.hashing import digest
from mvc.names import encode_text

NODE = 16
"""Bytes of a node."""
_TAG = b"mvc.deployment.1"
_MANY = 1_000_000
_TARGETS = 1000  # of one entry


class Stamp(Struct, frozen=True):
    """``node``: the repository in which a deployment was recorded first, at ``recorded_ns``.

    ``hybrid_ns``: the clock then, or one more than the newest of its target if that is later. It
    orders the deployments of a target, from whatever repository.
    """

    node: bytes
    recorded_ns: int
    hybrid_ns: int

    def after(self, newest_ns: int) -> Stamp:
        """The same behind a deployment of the target with this hybrid time."""
        return Stamp(self.node, self.recorded_ns, max(self.hybrid_ns, newest_ns + 1))


class LateStamp(Struct, frozen=True):
    """The stamp of the deployment on ``target`` that the earlier entry ``sequence`` recorded."""

    target: str
    sequence: int
    stamp: Stamp


def node_of(note: str) -> bytes:
    """The node of a repository whose first entry has this note."""
    try:
        node = bytes.fromhex(note)
    except ValueError:
        node = b""
    return node if len(node) == NODE else digest(b"mvc.node-name.1", encode_text(note))[:NODE]


def deployment_id(target: str, time_ns: int, commit: CommitId, stamp: Stamp) -> DeploymentId:
    """The same in every repository."""
    parts = (
        encode_text(target),
        Writer().sint(time_ns).done(),
        Writer().sint(stamp.recorded_ns).done(),
        commit,
        stamp.node,
        Writer().uint(stamp.hybrid_ns).done(),
    )
    return DeploymentId(digest(_TAG, *parts)[:16])


def write_stamps(own: Iterable[tuple[str, Stamp]], late: Iterable[LateStamp]) -> bytes:
    """Those of the entry's own deployments, by target in order, then those of earlier ones."""
    rows = [(target, 0, stamp) for target, stamp in own]
    rows += [(each.target, each.sequence + 1, each.stamp) for each in late]
    writer = Writer().uint(len(rows))
    for target, number, stamp in rows:
        writer.text(target).uint(number).raw(stamp.node)
        writer.sint(stamp.recorded_ns).uint(stamp.hybrid_ns)
    return writer.done()


def read_stamps(data: bytes, where: str) -> tuple[dict[str, Stamp], tuple[LateStamp, ...]]:
    """Those of the entry's own deployments by target, and the others. Raises DamagedData."""
    own: dict[str, Stamp] = {}
    late: list[LateStamp] = []
    reader = Reader(data, where)
    for _ in range(reader.count(_MANY)):
        target, number = reader.text(MAX_REF_BYTES), reader.uint()
        stamp = Stamp(reader.raw(NODE), reader.sint(), reader.uint(1 << 63))
        if number:
            late.append(LateStamp(target, number - 1, stamp))
        elif target in own:
            raise reader.fail("a deployment has two stamps")
        else:
            own[target] = stamp
    reader.end()
    return own, tuple(late)


Replaces = tuple[tuple[str, DeploymentId], ...]
"""By target what was live when an entry deployed or retracted there."""


def write_replaces(replaces: Replaces) -> bytes:
    """In order, as a list."""
    writer = Writer().uint(len(replaces))
    for target, id_ in replaces:
        writer.text(target).raw(id_)
    return writer.done()


def read_replaces(data: bytes, where: str) -> Replaces:
    """Raises DamagedData."""
    reader = Reader(data, where)
    count = reader.count(_MANY)
    found = tuple(
        [(reader.text(MAX_REF_BYTES), DeploymentId(reader.raw(16))) for _ in range(count)]
    )
    reader.end()
    return found


def check_all_known(own: Mapping[str, Stamp], targets: Sequence[str], where: str) -> None:
    """Raises DamagedData if there are stamps of deployments that the entry has not."""
    if not own.keys() <= set(targets):
        raise DamagedData(f"{where} is damaged: it stamps a deployment that it does not record")
