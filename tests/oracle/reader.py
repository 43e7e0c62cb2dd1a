"""A reader of repositories written from docs/format.md alone: nothing of mvc is imported.

It trades speed for plainness, reads everything into memory and uses no index. What it
finds wrong it raises as ``Bad``.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from pathlib import Path
from types import SimpleNamespace as Record

import numpy as np
from blake3 import blake3

from tests.oracle.codings import Bad, Cursor, apply, need
from tests.oracle.values import (
    blob_id,
    digest,
    nbytes,
    read_journal,
    read_manifest,
    version_root,
    viewed,
)

__all__ = ["Bad", "Repository"]


def read_record(data, at):
    need(data[at : at + 4] == b"mvR1", "a record does not begin as one")
    header, body = struct.unpack_from("<IQ", data, at + 4)
    end = at + 16 + header
    need(blake3(data[at:end]).digest(16) == data[end : end + 16], "a record header's check")
    r = Record(body=data[end + 16 : end + 16 + body], end=end + 16 + body, cache=None)
    need(len(r.body) == body, "a record is cut off")
    c = Cursor(data[at + 16 : end])
    r.group = c.uint()
    texts = c.list(c.text)
    check = c.take(8) if r.group else b""

    def member():
        m = Record(flags=c.uint(), id=c.id(), nbytes=c.uint())
        m.kind = m.flags & 3
        need(m.kind in (1, 2) and m.flags < 16, "a member of unknown kind")
        m.start = c.uint() if m.flags & 8 else 0
        m.coding, m.base = texts[c.uint()], c.take(8) if m.flags & 4 else b""
        m.stored, m.check = (len(r.body), check) if r.group else (c.uint(), c.take(8))
        return m

    r.members = c.list(member)
    c.end()
    at = 0
    for m in r.members:
        m.payload = r.body if r.group else r.body[at : at + m.stored]
        need(blake3(m.payload).digest(8) == m.check, f"the payload of {m.id.hex()[:10]}")
        at += m.stored
    need(r.group or at == len(r.body), "payloads do not fill the body")
    r.blobs = b"".join(m.id for m in r.members if m.kind == 1)
    return r


class Repository:
    """``folder`` is the .mvc folder. ``commits`` by id, ``refs`` by name, all as at the end."""

    def __init__(self, folder):
        folder = Path(folder)
        text, _, check = (folder / "format").read_bytes().partition(b" check=")
        need(check == blake3(text).hexdigest(8).encode() + b"\n", "the format file's check")
        need(text == b"mvc-repository 1 features=", "an unknown format or feature")
        self.entries = read_journal((folder / "journal").read_bytes())
        self.commits = {m.id: m for e in self.entries for m in e.commits}
        self.refs = {name: new for e in self.entries for name, _, new in e.refs}
        self.removed = next((e.removed for e in self.entries[::-1] if e.removed is not None), [])
        self._read_deployments()
        self._read_packs(folder / "packs")

    def _read_deployments(self):
        self.deployments, newest = [], {}
        gone = {r for e in self.entries for r in e.retractions}
        for e in self.entries:
            for target, time, commit, previous in e.deployments:
                need(previous == newest.get(target, -1) + 1, f"a gap in the record of {target}")
                newest[target] = e.sequence
                dead = (target, e.sequence) in gone
                self.deployments.append(
                    Record(target=target, time=time, sequence=e.sequence, commit=commit, dead=dead)
                )

    def live(self, target, time=None):
        """The commit live on a target now or at a time in ns; None if there is none."""
        found = [d for d in self.deployments if d.target == target and not d.dead]
        if time is not None:
            found = [d for d in found if d.time <= time]
            return max(found, key=lambda d: (d.time, d.sequence)).commit if found else None
        return max(found, key=lambda d: d.sequence).commit if found else None

    def _read_packs(self, folder):
        self.first, self.into, self.out_of, packs = {}, {}, {}, {}
        for number, start, length in (r for e in self.entries for r in e.regions):
            if number not in packs:
                packs[number] = (folder / f"{number:08d}.pack").read_bytes()
                need(packs[number][:8] == b"mvcpack1", "a pack does not begin as one")
            at = start
            while at < start + length:
                record = read_record(packs[number], at)
                for m in record.members:
                    self.first.setdefault(m.id[:8], m.id)
                    self.into.setdefault((m.id, m.start), []).append((record, m))
                    if m.base and m.coding.split(" | ")[0] in ("sub", "xor"):
                        self.out_of.setdefault((m.base, m.start), []).append((record, m))
                at = record.end
            need(at == start + length, "a record crosses the end of a region")

    def steps(self, node):
        """(node to have first or None, record, member, reverse) of all that leads to a piece."""
        id_, start = node
        for record, m in self.into.get(node, ()):
            yield (self.first[m.base], start) if m.base else None, record, m, False
        if self.first.get(id_[:8]) == id_:
            for record, m in self.out_of.get((id_[:8], start), ()):
                yield (m.id, start), record, m, True

    def piece(self, id_, start):
        """By the fewest steps from a full record; not compared with any hash."""
        goal = (id_, start)
        queue, seen = deque([(goal, ())]), {goal}
        while queue:
            node, path = queue.popleft()
            for origin, *step in self.steps(node):
                if origin is None:
                    data = None
                    for record, member, reverse in (step, *path):
                        data = apply(record, member, data, reverse)
                    return data
                if origin not in seen:
                    seen.add(origin)
                    queue.append((origin, (step, *path)))
        raise Bad(f"no full record leads to {id_.hex()[:10]}")

    def blob(self, id_, dtype, shape):
        """A verified object."""
        data = self.piece(id_, 0)
        while len(data) < nbytes(dtype, shape):
            data += self.piece(id_, len(data))
        need(blob_id(dtype, shape, data) == id_, f"object {id_.hex()[:10]} differs from its hash")
        return data

    def manifest(self, commit):
        data = self.piece(self.commits[commit].manifest, 0)
        need(digest(b"mvc.manifest.1", data) == self.commits[commit].manifest, "a manifest's hash")
        entries = read_manifest(data)
        need(version_root(entries) == self.commits[commit].root, "a version's root")
        return entries

    def checkout(self, commit):
        """{path: bytes} of a version."""
        return {e.path: self._file(e) for e in self.manifest(commit)}

    def _file(self, e):
        out, free = bytearray(e.size), np.ones(e.size, bool)
        for c in e.contents:
            data = self.blob(c.id, *c.spec)
            need(free[c.at : c.at + len(data)].all(), "contents overlap")
            out[c.at : c.at + len(data)] = data
            free[c.at : c.at + len(data)] = False
        rest = int(free.sum())
        need(bool(e.skeleton) == bool(rest) and len(out) == e.size, "a skeleton's length")
        if rest:
            view = np.frombuffer(out, np.uint8)
            view[free] = np.frombuffer(self.blob(e.skeleton, "raw", (rest,)), np.uint8)
        for position, start, length in e.checks:
            crc = zlib.crc32(memoryview(out)[start : start + length])
            out[position : position + 4] = crc.to_bytes(4, "little")
        return bytes(out)

    def tensors(self, commit):
        """{path: {key: (dtype, shape, bytes)}} of a version."""
        return {e.path: {t.key: self._tensor(e, t) for t in e.tensors} for e in
                self.manifest(commit)}  # fmt: skip

    def _tensor(self, e, t):
        content = e.contents[t.content]
        data = self.blob(content.id, *content.spec)
        if t.strides is not None:
            data = viewed(t, data)
            need(blob_id(*t.spec, data) == t.id, f"tensor {t.key} differs from its hash")
        return *t.spec, data

    def check_steps(self):
        """Takes every coding of every object, either way, and compares; how many there were."""
        count, known = 0, {node: self.piece(*node) for node in self.into}
        for node, data in known.items():
            for origin, record, member, reverse in self.steps(node):
                found = apply(record, member, known.get(origin), reverse)
                need(found == data, f"two codings of {node[0].hex()[:10]} differ")
                count += 1
        return count
