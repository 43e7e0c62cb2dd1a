"""Writes the difference of two versions of a model, in the format of inference engines.

An engine such as SGLang applies the difference to the weights that it has loaded. The result is a
Hugging Face folder. For each changed tensor, a safetensors file contains ``new ^ old``, compressed
by zstd, and the checksum of the new bytes (docs/commands/checkout.md, "A delta for an engine").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import zstandard
from blake3 import blake3

from mvc.adapters.files.safetensors import LENGTH_BYTES, header_bytes
from mvc.errors import MvcError, WrongUsage
from mvc.io.files import FileSystem, WriteFile
from mvc.io.process import cpu_count
from mvc.model.hashing import hash_threads, verify_pieces
from mvc.model.manifest import Content, FileEntry
from mvc.names import printable
from mvc.repo.checkout.checkout import Further
from mvc.repo.checkout.states import SAFETENSORS
from mvc.store.recovery.recover import Recovery, mismatch, piece_reader

Changes: TypeAlias = dict[str, tuple[Content, Content]]
"""Maps the name of a tensor to its data in the new version and its data in the old version."""

_SHARD, _INDEX = ".safetensors", "model.safetensors.index.json"
_MARK = "delta_encoding"  # if an index has this key, its folder contains a delta
_NUMBERED = "weight_v"  # prefix of folders for SGLang and slime
_LONGEST = (10**15, 10**15, "f" * 64)
# A sparse difference has long runs of zeros. Only the optimal parser of zstd compresses such a run
# to one match. For dense differences, this parser saves few bytes and is very slow.
_SPARSE = zstandard.ZstdCompressionParameters(
    threads=cpu_count(),
    strategy=zstandard.STRATEGY_BTOPT,
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=3,
    target_length=4095,
)
_DENSE = zstandard.ZstdCompressionParameters.from_level(1, threads=cpu_count())
_SPARSE_SHARE = 32  # sparse: at most one byte in 32 has changed


def compared(
    new: Sequence[FileEntry], old: Sequence[FileEntry]
) -> tuple[list[Changes], dict[str, FileEntry]]:
    """Returns the changed tensors of each weights file, and the changed files without weights.

    Raises WrongUsage if the format cannot express a change, such as a new shape.
    """
    (tensors, files), (base, base_files) = _model(new), _model(old)
    changed = {
        name: entry
        for name, entry in files.items()
        if name not in base_files or base_files[name].content_id != entry.content_id
    }
    kinds, base_kinds = ({(name, c.spec) for name, c in side.items()} for side in (tensors, base))
    odd = {name for name, _ in kinds ^ base_kinds} | {n for n in changed if n.endswith(_SHARD)}
    if odd:
        raise WrongUsage(
            f"a delta cannot express the change of {printable(min(odd))}: both versions must "
            "have the tensor, with equal dtype and shape",
            hint="check out the whole version, without --delta-from",
        )
    by_file = [[t.key for t in entry.tensors] for entry in new if entry.format in SAFETENSORS]
    shards = [
        {name: (tensors[name], base[name]) for name in names if tensors[name].id != base[name].id}
        for names in by_file
    ]
    return [changes for changes in shards if changes], changed


def _model(entries: Sequence[FileEntry]) -> tuple[dict[str, Content], dict[str, FileEntry]]:
    """Returns two mappings: from names to a model's tensors, and from names to its other files."""
    weights = [entry for entry in entries if entry.format in SAFETENSORS]
    tensors = {t.key: e.contents[t.content] for e in weights for t in e.tensors}
    folders = {e.path.rpartition("/")[0] for e in weights}
    if len(folders) != 1 or len(tensors) < sum(len(entry.tensors) for entry in weights):
        raise WrongUsage(
            "a delta needs one model: safetensors files in one folder, with unique tensor names",
            hint="name the folder or the file of the model after the revision",
        )
    inside = f"{folders.pop()}/".removeprefix("/")
    files = {
        e.path.removeprefix(inside): e
        for e in entries
        if e.format not in SAFETENSORS and e.path.startswith(inside)
    }
    return tensors, {name: e for name, e in files.items() if name != _INDEX}


def metadata(name: str, version: str, base: str) -> dict[str, str]:
    """Metadata of the index in the folder ``name``, with the ids of the version and its base.

    Some engines number versions: the folder ``weight_v000007`` contains a delta from version
    000006. For such a folder, ``version`` and ``base_version`` are these numbers.
    """
    ids = {"version": version, "base_version": base}
    own = {f"mvc_{key}": text for key, text in ids.items()}
    number = name.removeprefix(_NUMBERED)
    if number != name and number.isdecimal() and int(number):
        ids = {"version": f"{int(number):06d}", "base_version": f"{int(number) - 1:06d}"}
    return {**ids, _MARK: "xor", "compression_format": "zstd", "checksum_format": "blake3", **own}


def is_delta(fs: FileSystem, folder: Path) -> bool:
    """Whether a folder contains a delta instead of a whole model."""
    with suppress(MvcError), fs.open_read(folder / _INDEX) as file:
        return f'"{_MARK}"'.encode() in file.read(0, 1000)  # the index begins with the metadata
    return False


def writers(recovery: Recovery, shards: Sequence[Changes], metadata: Mapping[str, str]) -> Further:
    """Maps each file name of a delta folder to a number of bytes, for progress, and to a function
    that writes the file. The index is last.
    """
    count = len(shards)
    named = {f"model-{i:05d}-of-{count:05d}{_SHARD}": c for i, c in enumerate(shards)}
    weight_map = {key: name for name, changes in named.items() for key in changes}
    text = json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2)
    sizes = {name: sum(new.spec.nbytes for new, _ in c.values()) for name, c in named.items()}
    return {
        **{name: (sizes[name], partial(_write_shard, recovery, c)) for name, c in named.items()},
        _INDEX: (0, lambda _, file: file.write(text.encode())),
    }


def _write_shard(
    recovery: Recovery, changes: Changes, advance: Callable[[int], None], file: WriteFile
) -> None:
    """Writes compressed tensors (frames) after an empty space, then the header into this space."""
    file.position = space = len(_header(dict.fromkeys(changes, _LONGEST)))
    frames = {}
    for name, (new, old) in changes.items():
        start, checksum = file.position - space, blake3(max_threads=hash_threads(parallel=True))
        for part, frame in _frame(recovery, new, old):
            checksum.update(part)
            file.write(frame)
            advance(len(part))
        frames[name] = start, file.position - space, checksum.hexdigest()
    file.write_at(0, _header(frames, space))


def _header(frames: Mapping[str, tuple[int, int, str]], size: int = LENGTH_BYTES) -> bytes:
    """A safetensors header of ``size`` bytes. ``frames`` maps names to (start, end, checksum)."""
    entries = {
        name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
        for name, (start, end, _) in frames.items()
    }
    sums = {name: checksum for name, (_, _, checksum) in frames.items()}
    return header_bytes(json.dumps({"__metadata__": sums, **entries}).ljust(size - LENGTH_BYTES))


def _frame(recovery: Recovery, new: Content, old: Content) -> Iterator[tuple[memoryview, bytes]]:
    """Compresses ``new ^ old``. Yields parts of the new tensor, each with some compressed bytes.

    Raises DamagedData if stored bytes do not match their hash.
    """
    readers = (
        verify_pieces(c.id, c.spec, piece_reader(recovery.piece, c.id, c.spec), mismatch(c.id))
        for c in (new, old)
    )
    for (start, part), (_, base) in zip(*readers, strict=True):
        changed = np.frombuffer(part, np.uint8) ^ np.frombuffer(base, np.uint8)
        if start == 0:
            sparse = np.count_nonzero(changed) * _SPARSE_SHARE <= changed.size
            compressor = zstandard.ZstdCompressor(compression_params=_SPARSE if sparse else _DENSE)
            frame = compressor.compressobj(size=new.spec.nbytes)
        yield part, frame.compress(changed.data)
    yield memoryview(b""), frame.flush()
