"""Pickles as trees of nodes, and the tensors in them."""

import io
import zipfile

from mvc.adapters.files.pickle_nodes import read_pickle
from mvc.adapters.files.torch_files import find_tensors
from tests.adapters import test_fuzz


def run(data: bytes) -> None:
    find_tensors(read_pickle(data))


def seeds() -> list[bytes]:
    found = []
    for name in ("torch", "views"):
        with zipfile.ZipFile(io.BytesIO(test_fuzz.SEEDS[name])) as archive:
            found += [archive.read(n) for n in archive.namelist() if n.endswith("data.pkl")]
    return found
