"""A receiver of deltas, written after those of SGLang (``/pull_weights``) and ModelExpress.

It knows nothing of mvc: it reads a published folder by its keys, and patches a local model.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3

INDEX = "model.safetensors.index.json"


class Refused(Exception):
    """The delta does not lead from the local model to what it says."""


def header(data: bytes) -> tuple[dict[str, Any], int]:
    """Of a safetensors file, and where its tensors begin."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), end


def tensors(folder: Path) -> dict[str, tuple[Path, int, int]]:
    """File, first byte and size of each tensor of a model, whatever its files are called."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        entries, start = header(path.read_bytes())
        for name, entry in entries.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (path, start + begin, end - begin)
    return found


def pull(local: Path, published: Path, applied: str) -> str:
    """Patches the local model, which is version ``applied``; the version that it then is."""
    said = json.loads((published / INDEX).read_bytes())
    metadata, weight_map = said["metadata"], said["weight_map"]
    if metadata["base_version"] != applied:
        raise Refused(f"local at {applied}, the delta builds on {metadata['base_version']}")
    formats = [metadata[f"{kind}"] for kind in ("delta_encoding", "compression_format")]
    assert formats == ["xor", "zstd"]
    assert metadata["checksum_format"] == "blake3"
    places, shards = tensors(local), {}
    files = {path: bytearray(path.read_bytes()) for path, _, _ in places.values()}
    for shard in sorted(published.glob("*.safetensors")):
        data = shard.read_bytes()
        entries, start = header(data)
        sums = entries.pop("__metadata__")
        for name, entry in entries.items():
            shards[name] = shard.name
            begin, end = entry["data_offsets"]
            assert (entry["dtype"], entry["shape"]) == ("U8", [end - begin])
            path, offset, size = places[name]
            # One frame: this reader stops at its end.
            frame = io.BytesIO(data[start + begin : start + end])
            change = zstandard.ZstdDecompressor().stream_reader(frame).read(size + 1)
            if len(change) != size:
                raise Refused(f"{name} has another size")
            old = np.frombuffer(files[path], np.uint8, size, offset)
            new = (old ^ np.frombuffer(change, np.uint8)).tobytes()
            if blake3(new).hexdigest() != sums[name]:
                raise Refused(f"the checksum of {name} does not match")
            files[path][offset : offset + size] = new
    assert shards == weight_map
    for path, content in files.items():
        path.write_bytes(content)
    return str(metadata["version"])
