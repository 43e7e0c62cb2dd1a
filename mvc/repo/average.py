"""The weighted mean of versions, computed piece by piece, with equal bits on every machine.

    mean = rounded(w_1 * x_1 + w_2 * x_2 + ... + w_n * x_n)

x_i is a tensor in version i. w_i is the weight of version i, divided by the sum of all weights
(``math.fsum``). Products and sums are computed in float64, from left to right. ``rounded`` rounds
the result once to the tensor's dtype. A tensor that is equal in all versions is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.adapters.state_file import StateFile
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import BlobId, CommitId
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import DTYPES
from mvc.names import printable
from mvc.repo.checkout.checkout import plan, restore
from mvc.repo.checkout.export import WriteOptions, export
from mvc.repo.checkout.outputs import names_folder
from mvc.repo.commit.request import CommitOptions
from mvc.repo.commit.result import CommitResult
from mvc.repo.content.compare import outside_tensors
from mvc.repo.content.predecessors import content_names
from mvc.repo.derived import DerivedFile
from mvc.repo.diff.distance import ROUNDED, rounded, to_float64
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import head
from mvc.store.recovery.recover import Recovery
from mvc.store.store import Store
from mvc.types import PathName, Progress

_BLOCK = 64 << 10  # bytes of a tensor that are added at a time: a block fits into the CPU cache
_TOGETHER = 5  # number of versions whose pieces (parts of a tensor) are in memory together


class Averaged(Struct, frozen=True):
    """``result``: the new version; None if files were written. ``written``: paths of written files.

    ``copied``: what differs between the versions but has no mean, and so is copied from the last
    version: ``PATH: TENSOR`` for integers, ``PATH`` for files without tensors, ``PATH: metadata``
    for metadata and other bytes outside the tensors.
    """

    copied: tuple[str, ...]
    result: CommitResult | None
    written: tuple[str, ...]


def ema_weights(count: int, decay: float) -> tuple[float, ...]:
    """The weights of an exponential moving average over ``count`` versions, oldest first.

    The average m of versions x is m = decay * m + (1 - decay) * x, starting with m = the first x.
    Raises WrongUsage.
    """
    if not 0 <= decay < 1:
        raise WrongUsage(f"a decay must be at least 0 and below 1, not {decay:g}")
    return tuple(decay ** (count - 1 - i) * (1 - decay if i else 1) for i in range(count))


def average(
    store: Store,
    versions: Sequence[CommitId],
    weights: Sequence[float] | None,
    commit: Callable[..., CommitResult],
    *,
    branch: str | None,
    to: PathName | None,
    force: bool,
    progress: Progress | None,
) -> Averaged:
    """Writes the mean to ``to``, or calls ``commit`` to store the mean on ``branch``.

    If ``branch`` is None or the current branch, files of the mean then replace the files of the
    same path in the working folder. Raises WouldOverwrite, before computing, if such a file has
    uncommitted changes. Raises WrongUsage if no mean can be computed.
    """
    shares, copied = _shares(len(versions), weights), list[str]()
    files = _files(store, versions, shares, copied)
    if to is not None:
        if not names_folder(store.fs, to):
            files = {path: file for path, file in files.items() if file.tensors}
        exported = export(
            store,
            versions[-1],
            (),
            to,
            options=WriteOptions(force=force, progress=progress),
            derived=Manifest(file.entry for file in files.values()),
            parts={id_: read for file in files.values() for id_, read in file.parts.items()},
        )
        return Averaged(tuple(copied), None, exported.written)
    at = head(store.fresh())
    updated = files if branch in {None, at.branch} and not store.bare else ()
    paths = [path for path in updated if store.fs.stat(store.root / path) is not None]
    plan(
        store,
        None,
        [],
        old=manifests.of_commit(store, at.commit),
        removed=[files[path].entry for path in paths],
        force=False,
    )
    result = commit(
        states={path: StateFile(file) for path, file in files.items()},
        params={
            f"average.{i:03}": f"{id_.hex()} {share!r}"
            for i, id_, share in zip(count(1), versions, shares, strict=False)
        },
        options=CommitOptions(
            branch=branch,
            new_branch=branch is not None,
            parents=versions,
            progress=progress,
        ),
    )
    return Averaged(
        copied=tuple(copied),
        result=result,
        written=restore(store, result.id, paths, progress=progress).written if paths else (),
    )


def _shares(count: int, weights: Sequence[float] | None) -> tuple[float, ...]:
    numbers = [1.0] * count if weights is None else [float(weight) for weight in weights]
    finite = [weight for weight in numbers if abs(weight) <= 1e100]
    total = math.fsum(finite)
    problems = {
        "an average needs two versions or more": count < 2,
        f"{count} versions need as many weights, not {len(numbers)}": len(numbers) != count,
        "a weight must be a finite number of at most 1e100": finite != numbers,
        f"the weights cannot be divided by their sum, which is {total:g}": abs(total) < 1e-100,
    }
    for problem in (text for text, applies in problems.items() if applies):
        raise WrongUsage(problem)
    return tuple(weight / total for weight in numbers)


def _files(
    store: Store, versions: Sequence[CommitId], shares: Sequence[float], copied: list[str]
) -> dict[str, DerivedFile]:
    """Maps paths to the files of the mean. Fills ``copied``, see ``Averaged``."""
    by_id, files = dict[CommitId, Manifest](), dict[str, DerivedFile]()
    for id_ in versions:
        by_id[id_] = manifests.of_commit(store, id_)
        check_available(store, id_, by_id[id_].entries)
    models = {e.path for manifest in by_id.values() for e in manifest.entries if e.tensors}
    for path in sorted(models | by_id[versions[-1]].by_path.keys()):
        empty = FileEntry(path, "opaque", 0, contents=(), skeleton=None)
        entries = {id_: by_id[id_].by_path.get(path, empty) for id_ in versions}
        _check_alike(entries)
        files[path] = _derived(store, [entries[id_] for id_ in versions], shares, copied)
    if not any(file.parts for file in files.values()):
        raise WrongUsage("nothing to average: no floats differ between the versions")
    return files


def _check_alike(entries: Mapping[CommitId, FileEntry]) -> None:
    """Raises WrongUsage if a file has other tensor names, dtypes or shapes in some version.

    ``entries`` maps each version to its entry for the file.
    """
    tensors = {
        id_: {t.key: f"{t.spec} in {t.view}" if t.view else str(t.spec) for t in entry.tensors}
        for id_, entry in entries.items()
    }
    last, wanted = tensors.popitem()
    for id_, specs in tensors.items():
        for key, _ in sorted(specs.items() ^ wanted.items()):
            spec, in_last = (side.get(key, "missing") for side in (specs, wanted))
            raise WrongUsage(
                f"{printable(key)} of {printable(entries[id_].path)} is {spec} in {id_.short}, but "
                f"{in_last} in {last.short}",
                hint="averaged versions need equal tensor names, dtypes and shapes",
            )


def _derived(
    store: Store, entries: Sequence[FileEntry], shares: Sequence[float], copied: list[str]
) -> DerivedFile:
    """The mean of a file, with the layout of the last of ``entries``.

    Raises WrongUsage if tensors share storage in the last version but not in another version.
    """
    last, sources = entries[-1], dict[int, tuple[str, Sequence[BlobId]]]()
    named = [{t.key: e.contents[t.content] for t in e.tensors} for e in entries]
    names = content_names(last.contents, last.tensors)
    dtypes: list[set[str]] = [set() for _ in last.contents]
    for tensor in last.tensors:
        first = names[tensor.content]
        if any(contents[tensor.key].id != contents[first].id for contents in named):
            raise WrongUsage(
                f"{printable(tensor.key)} and {printable(first)} of {printable(last.path)} share "
                "storage in the last version, but not in another one",
                hint="name a version last in which they do not share storage",
            )
        dtypes[tensor.content].add(tensor.spec.dtype)
    for i, name in enumerate(names):
        spec, dtype = last.contents[i].spec, min(dtypes[i], default="raw")
        ids = [c.id for by_key in named if (c := by_key.get(name)) and c.spec == spec]
        whole = len(dtypes[i]) == 1 and not spec.nbytes % DTYPES[dtype].itemsize
        if len(ids) == len(shares) and whole and dtype in ROUNDED and len(set(ids)) > 1:
            sources[i] = dtype, ids
        elif dtypes[i] and (len(ids) < len(shares) or len(set(ids)) > 1):
            copied.append(f"{printable(last.path)}: {printable(name)}")
    # The skeleton of a file is all bytes outside of tensors. If a file has checksums of tensors,
    # skeletons always differ. Then they are not compared.
    if len({outside_tensors(entry)[bool(entry.checks) :] for entry in entries}) > 1:
        copied.append(printable(last.path) + (": metadata" if last.tensors else ""))

    def compute(content: int, start: int, out: memoryview) -> None:
        fill(store.recovery, *sources[content], shares, start, out=out)

    return DerivedFile(store, last, sources, compute)


def fill(
    recovery: Recovery,
    dtype: str,
    ids: Sequence[BlobId],
    shares: Sequence[float],
    start: int,
    *,
    out: memoryview,
) -> None:
    """Fills ``out`` with one piece of the weighted sum of the contents (tensor data) ``ids``.

    The piece begins at the byte ``start`` of the contents.
    """
    # If there are many versions, only two pieces are in memory, because ``sums`` needs memory, too.
    count = len(ids) if len(set(ids)) <= _TOGETHER else 2
    sums: dict[int, NDArray[np.float64]] = {}
    np.empty(16 << 20, np.uint8)  # when this array is freed, malloc begins to cache large blocks

    def add(begins: range) -> None:
        with np.errstate(all="ignore"):
            for begin in begins:
                total: NDArray[np.float64] | float = sums.pop(begin, -0.0)  # -0.0 + x is x
                for id_, share in zip(batch, shares[at:], strict=False):
                    part = to_float64(pieces[id_][begin : begin + _BLOCK], dtype)
                    part *= share
                    part += total
                    total = part
                if at + count < len(ids):
                    sums[begin] = part
                else:
                    out[begin : begin + _BLOCK] = rounded(part, dtype).view(np.uint8).data

    for at in range(0, len(ids), count):
        batch = ids[at : at + count]
        buffers = (np.empty(len(out), np.uint8).data for _ in batch[1:])
        pieces: dict[bytes, memoryview] = dict(zip(batch, (*buffers, out), strict=True))
        try:
            recovery.pieces(pieces, start)
        except DamagedData:  # decoding the pieces one by one may avoid the damaged deltas
            for id_, piece in pieces.items():
                recovery.piece(id_, start, piece)
        begins = range(0, len(out), _BLOCK)
        list(recovery.pool.map(add, (begins[i::8] for i in range(8))))
