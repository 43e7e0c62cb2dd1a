"""Identities, journal, commits and manifests of docs/format.md; see reader.py."""

from __future__ import annotations

import struct
from types import SimpleNamespace as Record

import numpy as np
from blake3 import blake3

from tests.oracle.codings import Cursor, need

DTYPES = (
    "raw 1,bool 1,int8 1,int16 2,int32 4,int64 8,uint8 1,uint16 2,uint32 4,uint64 8,float64 8,"
    "float32 4,float16 2,bfloat16 2,float8_e4m3fn 1,float8_e4m3fnuz 1,float8_e5m2 1,"
    "float8_e5m2fnuz 1,float8_e8m0fnu 1,float4_e2m1fn_x2 1,complex32 4,complex64 8,complex128 16,"
    "qint8 1,quint8 1,qint32 4"
)
NAMES = [row.split()[0] for row in DTYPES.split(",")]
SIZES = {row.split()[0]: int(row.split()[1]) for row in DTYPES.split(",")}


def uint(value):
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def digest(*parts):
    return blake3(b"".join(uint(len(p)) + p for p in parts)).digest()


def blob_id(dtype, shape, data):
    dims = uint(len(shape)) + b"".join(map(uint, shape))
    return digest(b"mvc.blob.1", dtype.encode(), dims, data)


def nbytes(dtype, shape):
    return int(np.prod(shape, dtype=object)) * SIZES[dtype]


def root(leaves):
    if not leaves:
        return digest(b"mvc.empty.1")
    extra = len(leaves) - (1 << len(leaves).bit_length() - 1)
    rest = leaves[2 * extra :]
    nodes = pairs(leaves[: 2 * extra]) + rest
    while len(nodes) > 1:
        nodes = pairs(nodes)
    return nodes[0]


def pairs(nodes):
    return [digest(b"mvc.node.1", a, b) for a, b in zip(nodes[::2], nodes[1::2], strict=True)]


# -- journal --------------------------------------------------------------------------


def read_frame(data, at):
    """(length of the frame, sequence, chain, payload, check) if a sound frame stands there."""
    if data[at : at + 4] != b"mvJ1" or len(data) - at < 48:
        return None
    length, sequence = struct.unpack_from("<IQ", data, at + 4)
    end = at + 32 + length
    if length > 1 << 24 or end + 16 > len(data):
        return None
    check = blake3(data[at:end]).digest(16)
    if check != data[end : end + 16]:
        return None
    return 48 + length, sequence, data[at + 16 : at + 32], data[at + 32 : end], check


def read_journal(data):
    at, entries, chain = 0, [], bytes(16)
    while at < len(data):
        frame = read_frame(data, at)
        if frame is None:
            begins = [p for p in range(at + 1, len(data)) if data[p : p + 4] == b"mvJ1"]
            later = [(p, f) for p in begins if (f := read_frame(data, p))]
            frame = next((f for p, f in later if p == at + f[0]), None)
            if frame is None:
                lost = any(f[1] >= len(entries) for _, f in later)
                need(not lost, f"entry {len(entries)} is damaged in both copies")
                break
        length, sequence, before, payload, check = frame
        need(sequence == len(entries) and before == chain, f"the chain breaks at {sequence}")
        entries.append(read_entry(payload, sequence))
        at, chain = at + 2 * length, check
    return entries


def read_entry(payload, sequence):
    c = Cursor(payload)
    need(c.uint() == 1, "entry version")
    e = Record(sequence=sequence, operation=c.text(), time=c.uint(), note=c.text())
    e.regions = c.list(lambda: (c.uint(), c.uint(), c.uint()))
    e.commits = c.list(lambda: read_commit(c.bytes()))

    def value():
        tag = c.uint()
        need(tag <= 4 and (tag < 3 or len(e.commits) == 1), "a value of unknown kind")
        if tag == 3:
            return e.commits[0].id
        return (lambda: None, c.id, c.text, None, lambda: e.commits[0].parents[0])[tag]()

    e.refs = c.list(lambda: (c.text(), value(), value()))
    e.deployments = c.list(lambda: (c.text(), c.sint(), value(), c.uint()))
    e.retractions = c.list(lambda: (c.text(), c.uint()))
    removed = c.uint()
    e.removed = None if not removed else [c.text() for _ in range(removed - 1)]
    e.marks = c.list(lambda: c.take(8))
    c.end()
    return e


def read_commit(data):
    c = Cursor(data)
    need(c.uint() == 1, "commit version")
    m = Record(id=digest(b"mvc.commit.1", data), manifest=c.id(), root=c.id())
    m.parents, m.author, m.time, m.zone = c.list(c.id), c.text(), c.sint(), c.sint()
    m.message = c.text()
    m.metrics = dict(c.list(lambda: (c.text(), struct.unpack("<d", c.take(8))[0])))
    m.pipeline, m.code = c.text(), c.text()
    c.end()
    return m


# -- manifests ------------------------------------------------------------------------


def read_manifest(data):
    c = Cursor(data)
    need(c.uint() == 1, "manifest version")
    entries = c.list(lambda: read_file_entry(c))
    c.end()
    paths = [e.path.encode("utf-8", "surrogateescape") for e in entries]
    need(paths == sorted(set(paths)), "the order of paths")
    return entries


def read_spec(c):
    return NAMES[c.uint()], c.uints()


def read_file_entry(c):
    e = Record(path=c.text(), format=c.uint(), size=c.uint(), contents=[])
    end = 0
    for _ in range(c.uint()):
        at = end + c.uint()
        e.contents.append(Record(at=at, spec=read_spec(c)))
        end = at + nbytes(*e.contents[-1].spec)
    for content in e.contents:
        content.id = c.id()
    e.skeleton = c.bytes()
    e.checks = c.list(lambda: (c.uint(), c.uint(), c.uint()))

    def tensor():
        t = Record(key=c.text(), content=c.uint(), strides=None)
        t.spec, t.id = e.contents[t.content].spec, e.contents[t.content].id
        if c.uint():
            t.spec, t.id, t.offset, t.strides = read_spec(c), c.id(), c.uint(), c.uints()
        return t

    e.tensors = c.list(tensor)
    return e


def state_root(entry):
    named = sorted((t.key.encode("utf-8", "surrogateescape"), t.id) for t in entry.tensors)
    return root([digest(b"mvc.leaf.1", id_, key) for key, id_ in named])


def version_root(entries):
    states = [e for e in entries if e.tensors]
    if len(states) == 1:
        return state_root(states[0])
    return root([digest(b"mvc.leaf.1", state_root(e), e.path.encode()) for e in states])


def viewed(tensor, data):
    """Row-major bytes of a tensor that lies in other content by offset and strides."""
    dtype, shape = tensor.spec
    elements = np.frombuffer(data[: len(data) // SIZES[dtype] * SIZES[dtype]], f"V{SIZES[dtype]}")
    at = np.full(shape, tensor.offset, np.int64)
    for axis, (n, stride) in enumerate(zip(shape, tensor.strides, strict=True)):
        at += (np.arange(n) * stride).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return elements[at].tobytes()
