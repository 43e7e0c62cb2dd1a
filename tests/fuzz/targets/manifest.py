# ruff: noqa: E501
"""A manifest's canonical bytes."""

from mvc.ids import BlobId
from mvc.model.manifest import Check, Content, FileEntry, LogicalTensor, Manifest, View
from mvc.model.tensor import TensorSpec


def run(data: bytes) -> None:
    manifest = Manifest.decode(data)
    assert manifest.encoded == data
    assert len(manifest.root) == 32
    for entry in manifest.entries:
        assert entry.skeleton_size >= 0 and len(entry.content_id) == 32


def seeds() -> list[bytes]:
    id_, spec = BlobId(bytes(32)), TensorSpec("float32", (2, 3))
    raw = TensorSpec("raw", (24,))
    view = LogicalTensor("v", TensorSpec("float32", (2,)), id_, 0, View(1, (2,)))
    entries = [
        FileEntry("a.npy", "npy", 40, (Content(16, spec, id_),), id_, (), (LogicalTensor("w", spec, id_, 0),)),
        FileEntry("b/c.pt", "torch", 40, (Content(8, raw, id_),), id_, (Check(0, 8, 24),), (view,)),
        FileEntry("d", "opaque", 0, (), None),
    ]  # fmt: skip
    return [Manifest(entries[:n]).encoded for n in range(4)]
