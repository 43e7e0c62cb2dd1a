"""The weighted mean of versions, computed piece by piece: the same bits on every machine.

    mean = rounded(w_1 * x_1 + w_2 * x_2 + ... + w_n * x_n)

in float64, each product and each sum rounded, from left to right; the mean is rounded once to the
dtype of the tensor (``rounded``). The weights are those that were given, divided by their
sum (``math.fsum``). A tensor that is the same in every version stays as it is.
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
from mvc.repo.content.compare import rest
from mvc.repo.content.predecessors import content_names
from mvc.repo.derived import DerivedFile
from mvc.repo.diff.distance import ROUNDED, rounded, to_float64
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import head
from mvc.store.recovery.recover import Recovery
from mvc.store.store import Store
from mvc.types import PathName, Progress

_BLOCK = 64 << 10  # bytes of a version that are added at once, in the processor's cache
_TOGETHER = 5  # versions whose pieces are in memory together


class Averaged(Struct, frozen=True):
    """``result``: the new version, if there is one; ``written``: the files that were written.

    ``copied``: what differs between the versions but has no mean, and is that of the last one:
    ``PATH: TENSOR`` for integers, ``PATH`` for a file without tensors, and ``PATH: what is beside
    its tensors`` for metadata, and for numbers that are read as no tensors.
    """

    copied: tuple[str, ...]
    result: CommitResult | None
    written: tuple[str, ...]


def ema_weights(count: int, decay: float) -> tuple[float, ...]:
    """The weights of an exponential moving average over so many versions, oldest first.

    That is m = decay * m + (1 - decay) * x, beginning with m = x. Raises WrongUsage.
    """
    if not 0 <= decay < 1:
        raise WrongUsage(f"a decay is a number from 0 to below 1, not {decay:g}")
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
    """Writes the mean to ``to``, or has ``commit`` store it for ``branch``.

    On the current branch it then replaces those files of the working folder that are there. Raises
    WouldOverwrite before anything is computed if one of them holds work that is not committed, and
    WrongUsage for versions that have no mean, and for weights without one.
    """
    shares, copied = _shares(len(versions), weights), list[str]()
    files = _files(store, versions, shares, copied)
    if to is not None:
        if not names_folder(store.fs, to):
            files = {path: file for path, file in files.items() if file.tensors}
        done = export(
            store,
            versions[-1],
            (),
            to,
            options=WriteOptions(force=force, progress=progress),
            derived=Manifest(file.entry for file in files.values()),
            parts={id_: read for file in files.values() for id_, read in file.parts.items()},
        )
        return Averaged(tuple(copied), None, done.written)
    at = head(store.fresh())
    here = files if branch in {None, at.branch} and not store.bare else ()
    paths = [path for path in here if store.fs.stat(store.root / path) is not None]
    plan(
        store,
        None,
        [],
        old=manifests.of_commit(store, at.commit),
        gone=[files[path].entry for path in paths],
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
    given = [1.0] * count if weights is None else [float(weight) for weight in weights]
    sound = [weight for weight in given if abs(weight) <= 1e100]
    total = math.fsum(sound)
    problems = {
        "an average is of two versions or more": count < 2,
        f"there are {count} versions, with {len(given)} weights": len(given) != count,
        "a weight is a finite number, at most 1e100": sound != given,
        f"the sum of the weights is {total:g}, and they are divided by it": abs(total) < 1e-100,
    }
    for problem in (text for text, there in problems.items() if there):
        raise WrongUsage(problem)
    return tuple(weight / total for weight in given)


def _files(
    store: Store, versions: Sequence[CommitId], shares: Sequence[float], copied: list[str]
) -> dict[str, DerivedFile]:
    """The files of the mean by path; ``copied`` gets what has none."""
    found, files = dict[CommitId, Manifest](), dict[str, DerivedFile]()
    for id_ in versions:
        found[id_] = manifests.of_commit(store, id_)
        check_available(store, id_, found[id_].entries)
    models = {e.path for each in found.values() for e in each.entries if e.tensors}
    for path in sorted(models | found[versions[-1]].by_path.keys()):
        nothing = FileEntry(path, "opaque", 0, contents=(), skeleton=None)
        entries = {id_: found[id_].by_path.get(path, nothing) for id_ in versions}
        _check_alike(entries)
        files[path] = _derived(store, [entries[id_] for id_ in versions], shares, copied)
    if not any(file.parts for file in files.values()):
        raise WrongUsage("the versions have no floats that differ: there is nothing to average")
    return files


def _check_alike(entries: Mapping[CommitId, FileEntry]) -> None:
    """Raises WrongUsage unless a file has the same tensors, but for their values, everywhere."""
    tensors = {
        id_: {t.key: f"{t.spec} in {t.view}" if t.view else str(t.spec) for t in entry.tensors}
        for id_, entry in entries.items()
    }
    last, wanted = tensors.popitem()
    for id_, found in tensors.items():
        for key, _ in sorted(found.items() ^ wanted.items()):
            here, there = (each.get(key, "not there") for each in (found, wanted))
            raise WrongUsage(
                f"{printable(key)} of {printable(entries[id_].path)} is {here} in {id_.short}, and "
                f"{there} in {last.short}",
                hint="versions are averaged that have the same tensors, dtypes and shapes",
            )


def _derived(
    store: Store, entries: Sequence[FileEntry], shares: Sequence[float], copied: list[str]
) -> DerivedFile:
    """The mean of a file, laid out as the last of ``entries``.

    Raises WrongUsage for tensors that are of one storage there, and not in every other.
    """
    last, sources = entries[-1], dict[int, tuple[str, Sequence[BlobId]]]()
    named = [{t.key: e.contents[t.content] for t in e.tensors} for e in entries]
    names = content_names(last.contents, last.tensors)
    dtypes: list[set[str]] = [set() for _ in last.contents]
    for tensor in last.tensors:
        first = names[tensor.content]
        if any(each[tensor.key].id != each[first].id for each in named):
            raise WrongUsage(
                f"{printable(tensor.key)} of {printable(last.path)} has the storage of "
                f"{printable(first)} in the last version, and one of its own in another",
                hint="name a version last in which each of them has its own",
            )
        dtypes[tensor.content].add(tensor.spec.dtype)
    for i, name in enumerate(names):
        spec, dtype = last.contents[i].spec, min(dtypes[i], default="raw")
        ids = [c.id for each in named if (c := each.get(name)) is not None and c.spec == spec]
        whole = len(dtypes[i]) == 1 and not spec.nbytes % DTYPES[dtype].itemsize
        if len(ids) == len(shares) and whole and dtype in ROUNDED and len(set(ids)) > 1:
            sources[i] = dtype, ids
        elif dtypes[i] and (len(ids) < len(shares) or len(set(ids)) > 1):
            copied.append(f"{printable(last.path)}: {printable(name)}")
    # With checksums of its tensors a skeleton always differs.
    if len({rest(entry)[bool(entry.checks) :] for entry in entries}) > 1:
        beside = ": what is beside its tensors" if last.tensors else ""
        copied.append(printable(last.path) + beside)

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
    """Fills ``out`` with the sum of one piece of the contents ``ids``, each times its share."""
    count = len(ids) if len(set(ids)) <= _TOGETHER else 2  # beside sums of eight bytes each
    sums: dict[int, NDArray[np.float64]] = {}
    np.empty(16 << 20, np.uint8)  # once that was freed, malloc keeps the memory of blocks

    def add(begins: range) -> None:
        with np.errstate(all="ignore"):
            for begin in begins:
                total: NDArray[np.float64] | float = sums.pop(begin, -0.0)  # adds nothing
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
        rooms = (np.empty(len(out), np.uint8).data for _ in batch[1:])
        pieces: dict[bytes, memoryview] = dict(zip(batch, (*rooms, out), strict=True))
        try:
            recovery.pieces(pieces, start)
        except DamagedData:  # perhaps there are paths around the damage
            for id_, piece in pieces.items():
                recovery.piece(id_, start, piece)
        begins = range(0, len(out), _BLOCK)
        list(recovery.pool.map(add, (begins[i::8] for i in range(8))))
