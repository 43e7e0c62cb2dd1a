"""Writes a version into a folder, with code that builds the model without mvc.

The export does not run this code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from mvc.api import Repository, Restored, Rev
from mvc.errors import WouldOverwrite
from mvc.models import environment, models
from mvc.names import printable
from mvc.system import FileSystem, WriteFile
from mvc.types import PathName, Progress

LOADER = "load.py"

_LOADER = b'''"""Builds the model of this folder: from load import load_model, or python load.py.

It runs the files in ``code``: read them first. It needs torch, safetensors, and the packages
that model.json names.
"""

import base64
import importlib
import json
import struct
import sys
from pathlib import Path

from safetensors.torch import load_file

FOLDER = Path(__file__).resolve().parent


def load_model():
    record = json.loads((FOLDER / "model.json").read_text())
    sys.path.insert(0, str(FOLDER / "code"))
    build = importlib.import_module(record["module"])
    for name in record["name"].split("."):
        build = getattr(build, name)
    model = build(**plain(record["arguments"]))
    model.load_state_dict(load_file(FOLDER / record["weights"]))
    return model


def plain(node):
    if isinstance(node, list):
        return [plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, value),) = node.items()
    if tag in ("dict", "ordered"):
        pairs = value.items() if isinstance(value, dict) else map(plain, value)
        return {key: plain(item) if isinstance(value, dict) else item for key, item in pairs}
    if tag == "tuple":
        return tuple(plain(value))
    if tag == "int":
        return int(value, 16)
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(value))[0]
    if tag == "complex":
        return complex(*plain(value))
    return base64.b64decode(value)


if __name__ == "__main__":
    print(load_model())
'''


def _writer(data: bytes) -> Callable[[WriteFile], None]:
    return lambda file: file.write(data)


def export_model(
    repo: Repository,
    rev: Rev,
    folder: PathName,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Writes the files of a version, its code, and ``load.py``, which builds the model.

    Raises UnknownPath if the version has no code; WouldOverwrite if a file exists and ``force`` is
    false; DamagedData.
    """
    fs, commit, output = FileSystem(), repo.find(rev), Path(folder)
    model = models.read_model(repo, commit)
    files = {
        **models.code_of(repo, commit, model.files, model.packages).files,
        models.NAME: model.encoded,
        LOADER: _LOADER,
    }
    if environment.NAME in repo.version(commit).attached:
        files[environment.NAME] = models.attached_bytes(repo, commit, environment.NAME)
    own = sorted(files.keys() & repo.manifest(commit).by_path.keys())
    if own:
        raise WouldOverwrite(f"the version itself has a file {printable(own[0])}")
    existing = [name for name in files if fs.stat(output / name) is not None]
    if existing and not force:
        raise WouldOverwrite(
            f"{printable(str(output / existing[0]))} exists already", hint="add -f to replace it"
        )
    done = repo.checkout(commit, to=f"{output}/", force=force, progress=progress)
    real = fs.realpath(output)
    for name, data in sorted(files.items()):
        place = real / name
        fs.make_dirs(place.parent, within=real)
        fs.replace_file(place, _writer(data), mode=None, durable=True, within=real)
    written = (*done.written, *(str(output / name) for name in sorted(files)))
    return replace(done, written=written)
