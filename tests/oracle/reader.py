"""A reader of repositories written from docs/format.md alone: nothing of mvc is imported."""

import bz2
import lzma
import struct
import zlib
from types import SimpleNamespace as Record

import numpy as np
import zstandard
from blake3 import blake3

from tests.oracle import grid, optim, steps

MIB = 1 << 20
FEATURES = "", "stages", "optim", "lc", "blocks", "gguf", "onnx", "hdf5"
COMPRESSORS = "zstd", "zlib", "bz2", "lzma", "brotli"
DTYPES = (
    "raw 1,bool 1,int8 1,int16 2,int32 4,int64 8,uint8 1,uint16 2,uint32 4,uint64 8,float64 8,"
    "float32 4,float16 2,bfloat16 2,float8_e4m3fn 1,float8_e4m3fnuz 1,float8_e5m2 1,"
    "float8_e5m2fnuz 1,float8_e8m0fnu 1,float4_e2m1fn_x2 1,complex32 4,complex64 8,complex128 16,"
    "qint8 1,quint8 1,qint32 4"
)
SIZES = {row.split()[0]: int(row.split()[1]) for row in DTYPES.split(",")}
LAYOUTS = {  # "field:kind", or of its name's; "*" is a list, commas join
    "entry": "version operation:text recorded:uint note:text author:text reason:text undoes:uint "
    "regions:*uint,uint,uint commits:*commit refs:*text,value,value marks:*float "
    "statements:*told states:*id,text,uint",
    "statement": "kind:uint subject:id author:text reason:text node recorded:sint hybrid:uint body",
    "body0": "target:text time:sint replaces:bytes returned:bytes ahead:maybe",
    "body1": "target:text replaces:bytes",
    "body2": "metrics:*text,float params:*text,text note:text",
    "body3": "root:id",
    "body4": "path:text base:id took:uint environment:text",
    "body5": "whose:uint signed:uint before:bytes blob:bytes",
    "made": "version manifest:id root:id parents:*id author:text time:sint zone:sint "
    "message:text metrics pipeline:text code:text params needs:*id attached:*text "
    "run:text dirty:uint",
    "file": "path:text format:uint size:uint places:*uint,spec contents skeleton:bytes "
    "checks:*uint,uint,uint tensors:*tensor",
    "tensor": "key:text content view",
    "viewed": "spec id offset:uint strides:*uint",
}
KINDS = {  # how a cursor reads them, given the fields so far
    "uint": lambda c, r: b if (b := c.take(1)[0]) < 0x80 else b & 0x7F | c.get("uint") << 7,
    "sint": lambda c, r: (n := c.get("uint")) >> 1 ^ -(n & 1),
    "bytes": lambda c, r: c.take(c.get("uint")),
    "text": lambda c, r: c.get("bytes").decode("utf-8", "surrogateescape"),
    "id": lambda c, r: c.take(32),
    "told": lambda c, r: told(c.get("bytes"), c.get("uint")),
    "body": lambda c, r: vars(r).update(whole(c.get("bytes"), f"body{r.kind}")),
    "maybe": lambda c, r: c.get("sint") if c.get("uint") else None,
    "node": lambda c, r: c.take(16),
    "float": lambda c, r: struct.unpack("<d", c.take(8))[0],
    "metrics": lambda c, r: dict(c.get("*text,float")),
    "params": lambda c, r: dict(c.get("*text,text")),
    "commit": lambda c, r: Cursor(m := c.get("bytes")).get("made", Record(id=digest("commit", m))),
    "value": lambda c, r: c.get(("own", "id", "text", "own", "own")[n := c.get("uint")], (n, r)),
    "own": lambda c, r: next((([m.id, *m.parents])[r[0] - 3] for m in r[1].commits if r[0]), None),
    "version": lambda c, r: need(c.get("uint") == 1, "its version"),
    "spec": lambda c, r: (list(SIZES)[c.get("uint")], tuple(c.get("*uint"))),
    "contents": lambda c, r: [Record(gap=gap, spec=spec, id=c.take(32)) for gap, spec in r.places],
    "content": lambda c, r: r.contents[c.get("uint")],
    "view": lambda c, r: vars(r).update(vars(c.get("viewed") if c.get("uint") else r.content)),
}


class Bad(Exception):
    """The bytes are not what docs/format.md allows."""


def need(condition, why):
    if not condition:
        raise Bad(why)


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        need(self.at <= len(self.data), "the bytes end too early")
        return self.data[self.at - n : self.at]

    def get(self, kind, outer=None):  # outer: what the enclosing record has so far
        if kind[0] == "*":
            return [self.get(kind[1:], outer) for _ in range(self.get("uint"))]
        if "," in kind:
            return tuple(self.get(part, outer) for part in kind.split(","))
        if kind in KINDS:
            return KINDS[kind](self, outer)
        record = Record(**vars(outer or Record()))
        for name, _, kind_ in (field.partition(":") for field in LAYOUTS[kind].split()):
            setattr(record, name, self.get(kind_ or name, record))
        return record

    def frame(self, dictionary=b""):
        held = zstandard.ZstdCompressionDict(dictionary, zstandard.DICT_TYPE_RAWCONTENT)
        return zstandard.ZstdDecompressor(held).decompress(self.get("bytes"))

    def stream(self, k, by="zstd"):  # k bytes, in one of four forms
        forms = (
            self.take,
            lambda n: self.take(1) * n,
            lambda n: self.frame() if by == "zstd" else unpack(by, self.get("bytes"), n),
            lambda n: self.elided(n, 1, f"{by}:", by),
        )
        return forms[self.take(1)[0] if k else 0](k)

    def elided(self, k, width, coding, by="zstd"):  # words, zero where a bitmap has no mark
        marked = grid.bits(self.stream(-(-k // 8), by))[:k].astype(bool)
        out = np.zeros(k, f"<u{width}")
        out[marked] = np.frombuffer(self.words(marked.sum(), width, coding), out.dtype)
        return out.tobytes()

    def column(self, k, width, coding, split, cut=4 * MIB):  # words, of their streams or segments
        by = next((name for name in COMPRESSORS if f"{name}:" in coding), None)
        n, size = (width, k) if split else (1, k * width)
        cuts = [min(cut, size - at) for at in range(0, size, cut)] * n
        data = b"".join(self.stream(c, by) if by else self.take(c) for c in cuts)
        return np.frombuffer(np.frombuffer(data, "u1").reshape(n, size).T.tobytes(), f"<u{width}")

    def blocks(self, k, width, coding, *_):  # words, of bytes at the same places of blocks
        by = next((name for name in COMPRESSORS if f"{name}:" in coding), None)
        stage = next(s for s in coding.split(" | ") if s.startswith("blocks:"))
        length, size, places = int(stage[7:]), k * width, []
        marks = grid.bits(self.take(-(-length // 8)))[1:length]
        cuts = [0, *(np.flatnonzero(marks) + 1), length]
        count, get = size // length, self.stream if by else lambda n, by: self.take(n)
        for n in np.diff(cuts):
            places += list(np.frombuffer(get(n * count, by), "u1").reshape(count, n).T)
        data = np.array(places).T.tobytes() + get(size % length, by)
        return np.frombuffer(data, f"<u{width}")

    def words(self, k, width, coding):  # unfolded
        kept, at = k, np.arange(k)
        cut = 4 * MIB if "planes:" in coding or "sparse" in coding else max(1, k * width)
        split = any(name in coding for name in ("planes", "gaps", "lattice"))
        if "sparse" in coding:
            stage = next(s for s in coding.split(" | ") if "sparse" in s)
            options = (stage.partition(":")[2] or "values,indices,diff").split(",")
            kept, split = self.get("uint"), "values" in options
            if need(kept <= k, "more words than there are") or kept < k:
                at = self.column(kept, 8, coding, "indices" in options)
                at = np.cumsum(at, dtype="i8") if "diff" in options else at.astype("i8")
        read = self.blocks if "blocks" in coding else self.column
        words = read(kept, width, coding, split, cut)
        out = np.zeros(k, words.dtype)
        out[at] = words >> 1 ^ -(words & 1) if "zigzag" in coding else words
        return out.tobytes()

    def chunk(self, size, width, coding, base, reverse):
        shape, count = self.take(1)[0], size // width
        if shape == 5:
            by = next((name for name in COMPRESSORS if f"{name}:" in coding), None)
            old = base and base[: count * width]
            return grid.words(self, count, by, old, reverse) + self.take(size % width)
        if shape < 2:
            return bytes(size) if shape else self.take(size)
        words = {2: lambda k, *_: self.take(width) * k, 3: self.words, 4: self.elided}[shape]
        return words(count, width, coding) + self.take(size % width)

    def single(
        self, size, coding, base=None, reverse=False, inputs=None
    ):  # width, bytes of piece or delta
        head = self.take(1)[0]
        width, step = 1 << (head & 3), 1 << (head >> 2)
        cuts = [(at, min(step, size - at)) for at in range(0, size, step)]
        for _ in cuts[1:]:
            self.get("uint")  # the length of a chunk, which follows from its shape and streams
        chunks = []
        for at, n in cuts:
            under = base and base[at : at + n]
            if inputs is not None:
                told = [data[at : at + n] for data in inputs]
                under = memoryview(base)[at : at + n]  # which becomes what is predicted
                chunks.append(optim.chunk(self, n, width, coding, under, told))
            else:
                chunks.append(self.chunk(n, width, coding, under, reverse))
        return width, b"".join(chunks)

    def group(self, sizes, coding):  # the same, of every member
        widths, words = [], {}
        while len(widths) < len(sizes):
            run = self.get("uint")
            widths += [1 << (run & 3)] * (run >> 2)
        members = list(zip(widths, sizes, strict=True))
        for width in sorted(set(widths)):
            count = sum(n // width for w, n in members if w == width)
            words[width] = Cursor(self.words(count, width, coding))
        return [(w, words[w].take(n - n % w) + self.take(n % w)) for w, n in members]

    def patch(self, base, extra, size):
        at = (start * len(base) // size for start in range(0, size, 4 * MIB))
        return b"".join(self.frame(extra + base[max(0, q - 2 * MIB) : q + 6 * MIB]) for q in at)

    def record(self):
        magic, header, body = struct.unpack("<4sIQ", self.data[self.at : self.at + 16])
        head = self.take(16 + header)
        need(magic == b"mvR1" and blake3(head).digest(16) == self.take(16), "a record's header")
        c, payloads = Cursor(head[16:]), Cursor(self.take(body))
        r = Record(group=c.get("uint"), codings=c.get("*text"), members=[])
        check = r.group and c.take(8)
        for _ in range(c.get("uint")):
            m = Record(flags=c.get("uint"), id=c.take(32), nbytes=c.get("uint"))
            m.kind, m.start = m.flags & 3, c.get("uint") if m.flags & 8 else 0
            m.coding, m.base = r.codings[c.get("uint")], c.take(8) if m.flags & 4 else b""
            m.inputs = [c.take(8) for _ in range(c.get("uint"))] if m.flags & 16 else []
            m.payload = payloads.data if r.group else payloads.take(c.get("uint"))
            need(blake3(m.payload).digest(8) == (check or c.take(8)), f"a payload of {m.id.hex()}")
            r.members.append(m)
        read = steps.read if steps.adds(m.coding) else Cursor.group
        r.decoded = r.group and read(payloads, [m.nbytes for m in r.members], m.coding)
        return r


def unpack(by, data, k):
    if by == "lzma":
        chain = [{"id": lzma.FILTER_LZMA2, "dict_size": max(int(k), 4096)}]
        return lzma.decompress(data, lzma.FORMAT_RAW, None, chain)
    if by == "brotli":
        import brotli  # only where a repository needs it

        return brotli.decompress(data)
    return {"zlib": zlib, "bz2": bz2}[by].decompress(data)


def combine(base, delta, width, coding, reverse):  # reverse: base is the piece
    join = np.bitwise_xor if "sub" not in coding else np.subtract if reverse else np.add
    end = len(base) // width * width
    parts = ((base[:end], delta[:end], f"<u{width}"), (base[end:], delta[end:], "u1"))
    return b"".join(join(np.frombuffer(a, t), np.frombuffer(b, t)).tobytes() for a, b, t in parts)


def cast(data, names):
    source, to = names.split(">")
    x = (f := np.frombuffer(data, source)).view(f"u{f.itemsize}")
    y, nan = x + 0x7FFF + (x >> 16 & 1) >> 16, 0xFFFF
    with np.errstate(all="ignore"):
        if to == "float16":
            y, nan = f.astype("f2").view("u2"), x >> 16 & 0x8000 | 0x7E00 | x >> 13 & 0x3FF
        if to == "float32":
            y, nan = f.astype("f4").view("u4"), x >> 32 & 1 << 31 | 0x7FC00000 | x >> 29 & 0x7FFFFF
    return np.where(np.isnan(f), nan, y).astype(f"u{SIZES[to]}").tobytes()


def apply(record, member, base, reverse=False, inputs=()):  # base's piece to its piece, or back
    size, coding, payload = member.nbytes, member.coding, Cursor(member.payload)
    if coding == "patch":
        extra = b"".join(m.id for m in record.members if m.kind == 1) if member.kind == 2 else b""
        return payload.patch(base or b"", extra[:MIB], size)
    to = coding.split(" | ")[0].partition(":")[2]
    base = base if base is None else cast(base, to) if ">" in to else base[:size].ljust(size, b"\0")
    held = record.group and record.decoded[record.members.index(member)]
    if steps.adds(coding):
        return steps.add(base, held)
    foreseen = coding.startswith("optim:")
    base, inputs = (bytearray(base), inputs) if foreseen else (base, None)
    width, delta = held or payload.single(size, coding, base, reverse, inputs)
    return combine(base, delta, width, coding, reverse) if member.base else delta


def uint(n):
    return bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80]) + uint(n >> 7)


def sint(n):
    return uint(n << 1 ^ n >> 63)


def digest(kind, *parts):
    return blake3(b"".join(uint(len(p)) + p for p in (f"mvc.{kind}.1".encode(), *parts))).digest()


def whole(data, kind):  # the fields that are all of these bytes
    found = (c := Cursor(data)).get(kind)
    need(c.at == len(data), f"bytes follow a {kind}")
    return vars(found)


def told(data, previous):
    fields = whole(data, "statement")
    topic = fields.get("target") or (fields["kind"], fields["subject"])
    return Record(**fields, id=digest("statement", data), previous=previous, topic=topic)


def blob_id(dtype, shape, data):
    return digest("blob", dtype.encode(), b"".join(map(uint, (len(shape), *shape))), data)


def tree(leaves):  # the root over pairs of name and id
    named = sorted((name.encode("utf-8", "surrogateescape"), id_) for name, id_ in leaves)
    nodes = [digest("leaf", id_, name) for name, id_ in named] or [digest("empty")]
    while len(nodes) > 1:
        end = 2 * (len(nodes) - (1 << len(nodes).bit_length() - 1)) or len(nodes)
        nodes = [digest("node", *nodes[i : i + 2]) for i in range(0, end, 2)] + nodes[end:]
    return nodes[0]


def read_journal(data):
    at, entries, chain, frames, last = 0, [], bytes(16), {}, -1
    for p in (p for p in range(len(data)) if data[p : p + 4] == b"mvJ1"):
        length, sequence, before = struct.unpack("<IQ16s", data[p + 4 : p + 32].ljust(28))
        end = p + 32 + length
        if blake3(data[p:end]).digest(16) == data[end : end + 16]:
            frames[p] = 48 + length, sequence, before, data[p + 32 : end], data[end : end + 16]
    while frame := frames.get(at) or next((f for p, f in frames.items() if p - f[0] == at), None):
        length, sequence, before, payload, check = frame
        need(sequence > last and before == chain, f"the chain breaks at {sequence}")
        entries.append(Cursor(payload).get("entry", Record(sequence=sequence)))
        at, chain, last = at + 2 * length, check, sequence
    need(all(p < at or f[1] <= last for p, f in frames.items()), "both copies are damaged")
    return entries


class Repository:  # of a folder .mvc, all as at the end of the journal
    def __init__(self, folder):
        text, _, check = (folder / "format").read_text("latin1").partition(" check=")
        features = set(text.removeprefix("mvc 1 features=").split(","))
        sound = check == blake3(text.encode()).hexdigest(8) + "\n"
        unknown = [f for f in features if f not in FEATURES and f[:2] != "w-"]
        need(sound and not unknown, "an unknown or damaged format")
        self.entries = read_journal((folder / "journal").read_bytes())
        self.commits = {m.id: m for e in self.entries for m in e.commits}
        self.refs = {name: new for e in self.entries for name, _, new in e.refs}
        self.statements = [s for e in self.entries for s in e.statements]
        taken = {s.subject for s in self.statements if s.kind == 1}
        last = {}
        for e in self.entries:  # linked: a statement names the entry with the topic's one before
            for s in e.statements:
                s.linked, s.dead = s.previous == last.get(s.topic, 0), s.id in taken
                s.order, s.sequence = (s.hybrid, s.id), e.sequence
            last |= {s.topic: e.sequence + 1 for s in e.statements}
        self.deployments = [s for s in self.statements if s.kind == 0]
        self._read_packs(folder / "packs")

    def forgotten(self):  # the commits whose states may be missing
        marks = [(s[0], s[2]) for e in self.entries for s in e.states if not s[1] and s[2] < 3]
        gone = {id_ for id_, what in dict(marks).items() if what < 2}
        return gone | {s.subject for s in self.statements if s.kind == 3}

    def _read_packs(self, folder):  # edges lead from a piece or None to pieces; all are decoded
        records, self.edges, self.pieces, reached = [], {}, {}, [None]
        for number, start, length in (r for e in self.entries for r in e.regions if r[2]):
            pack = (folder / f"{number:08d}.pack").read_bytes()
            need(pack[:8] == b"mvcpack1", "a pack does not begin as one")
            c = Cursor(pack[start : start + length])
            while c.at < length:
                records.append(c.record())
        first = {m.id[:8]: m.id for r in records[::-1] for m in r.members[::-1]}
        for record, m in ((r, m) for r in records for m in r.members):
            base, piece = (first.get(m.base), m.start) if m.base else None, (m.id, m.start)
            m.needs = [(first.get(name), m.start) for name in m.inputs]
            self.edges.setdefault(base, []).append((piece, record, m, False))
            if m.coding[:3] in ("sub", "xor"):
                self.edges.setdefault(piece, []).append((base, record, m, True))
        late = {}  # what waits for an input
        for origin in reached:
            found = [(origin, *edge) for edge in self.edges.get(origin, ())] + late.pop(origin, [])
            for base, piece, record, m, reverse in found:
                if lack := next((n for n in m.needs if n not in self.pieces), None):
                    late.setdefault(lack, []).append((base, piece, record, m, reverse))
                elif piece not in self.pieces:
                    told = [self.pieces[n] for n in m.needs]
                    self.pieces[piece] = apply(record, m, self.pieces.get(base), reverse, told)
                    reached.append(piece)

    def annotations(self, commit):  # what counts of it, oldest first
        told = [s for s in self.statements if (s.kind, s.subject) == (2, commit) and not s.dead]
        return sorted(told, key=lambda s: s.order)

    def live(self, target, time, present):  # the commit, at a time in ns or (None) now
        mine = sorted((d for d in self.deployments if d.target == target), key=lambda d: d.order)
        found = [d for d in mine if not d.dead and d.time <= (present if time is None else time)]
        immediate = [d for d in mine[-256:] if not d.dead and d.time == d.recorded][-1:]
        if time is None and immediate:
            found = immediate + [d for d in found if d.time != d.recorded]
        return max(found, key=lambda d: (d.time, d.order)).subject if found else None

    def object(self, id_, spec=None):  # a blob of this spec, or else a manifest
        data = b"".join(self.pieces[piece] for piece in sorted(self.pieces) if piece[0] == id_)
        need(id_ == (blob_id(*spec, data) if spec else digest("manifest", data)), "an object's id")
        return data

    def manifest(self, id_):
        _, every = Cursor(self.object(self.commits[id_].manifest)).get("version,*file")
        files = [e for e in every if e.path[:5] != ".mvc/"]  # the others are attached
        states = [(e.path, tree((t.key, t.id) for t in e.tensors)) for e in files if e.tensors]
        need((tree(states) if len(states) != 1 else states[0][1]) == self.commits[id_].root, "root")
        return files

    def checkout(self, commit):  # {path: bytes}
        return {e.path: self.file(e) for e in self.manifest(commit)}

    def file(self, e):
        contents = [(c.gap, self.object(c.id, c.spec)) for c in e.contents]
        rest = e.size - sum(len(data) for _, data in contents)
        skeleton = Cursor(self.object(e.skeleton, ("raw", [rest])) if rest else b"")
        out = bytearray().join(skeleton.take(gap) + data for gap, data in contents)
        out += skeleton.take(rest - skeleton.at)
        for position, start, n in e.checks:
            out[position : position + 4] = struct.pack("<I", zlib.crc32(out[start : start + n]))
        return bytes(out)

    def tensors(self, commit):  # {path: {key: (dtype, shape, bytes)}}
        return {e.path: {t.key: self._tensor(t) for t in e.tensors} for e in self.manifest(commit)}

    def _tensor(self, t):
        data, n = self.object(t.content.id, t.content.spec), SIZES[t.spec[0]]
        if hasattr(t, "strides"):
            strides = [n * stride for stride in t.strides]
            data = np.ndarray(t.spec[1], f"V{n}", data, n * t.offset, strides).tobytes()
            need(blob_id(*t.spec, data) == t.id, f"tensor {t.key} differs from its hash")
        return *t.spec, data
