"""Larger damage than a bit: files cut, sectors zeroed, exchanged or doubled, files lost.

After each, everything is asked of the repository (``Subject.everything``): it must be
refused at opening, or fsck must report it and name just the versions that do not come
back. Where the journal's end is cut within the second copy of the last entry all answers
are as before and a note says so. A cut at the end of a pack that no entry names is none.

Run as a process: ``python -m tests.damage.cuts ROOT SEED FIRST STEP COUNT`` checks COUNT
of the enumerated cases from FIRST on, every STEP-th, as far as there are any, then random
ones, and prints its counters. With STEP 0 it takes random ones alone, in the repository of
64 KiB, in which a sector of 4 KiB is not most of a file.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

from tests.damage import made
from tests.damage.subject import Subject, Wrong
from tests.oracle.holding import frame_length

__all__ = ["Case", "check", "entries_moved", "enumerated", "random_case"]

Files = dict[Path, bytes]
Case = tuple[str, Callable[[], Files]]
"""What it is, and what the files then are."""

SECTORS = (512, 4096)


def _with(files: Files, path: Path, data: bytes) -> Files:
    return {**files, path: data}


def _without(files: Files, path: Path) -> Files:
    return {p: d for p, d in files.items() if p != path}


def _over(files: Files, path: Path, at: int, data: bytes) -> Files:
    """``data`` written over the file, which keeps its length."""
    old = files[path]
    return _with(files, path, (old[:at] + data + old[at + len(data) :])[: len(old)])


def _exchanged(files: Files, a: Path, b: Path) -> Files:
    return {**files, a: files[b], b: files[a]}


def _renamed(files: Files, path: Path, to: Path) -> Files:
    return {**_without(files, path), to: files[path]}


def entries_moved(files: Files) -> Iterator[Case]:
    """Whole entries of the journal left out, doubled, exchanged: each is sound in itself."""
    (path,) = (path for path in files if path.name == "journal")
    data, cuts = files[path], [0]
    while cuts[-1] < len(data):
        cuts.append(cuts[-1] + 2 * frame_length(data, cuts[-1]))
    entries = [data[a:b] for a, b in pairwise(cuts)]
    for i in range(len(entries)):
        shorter = b"".join(entries[:i] + entries[i + 1 :])
        yield "entry left out", partial(_with, files, path, shorter)
        longer = b"".join(entries[: i + 1] + entries[i:])
        yield "entry doubled", partial(_with, files, path, longer)
        if i:
            order = [*entries[: i - 1], entries[i], entries[i - 1], *entries[i + 1 :]]
            yield "entries exchanged", partial(_with, files, path, b"".join(order))


def enumerated(files: Files) -> Iterator[Case]:
    """Every truncation, every whole sector zeroed, every file deleted, renamed, exchanged."""
    known = [path for path in files if path.name != "witness"]
    packs = [path for path in known if path.suffix == ".pack"]
    for path in known:
        yield "deleted", partial(_without, files, path)
        yield "empty", partial(_with, files, path, b"")
    for path in packs:
        yield "renamed", partial(_renamed, files, path, path.with_name("00000077.pack"))
        yield "renamed", partial(_renamed, files, path, path.with_name("lost"))
    for a in known:
        for b in known[known.index(a) + 1 :]:
            yield "exchanged", partial(_exchanged, files, a, b)
            yield "replaced", partial(_with, files, a, files[b])
    yield from entries_moved(files)
    for path in known:
        for size in SECTORS:
            for at in range(0, len(files[path]), size):
                yield f"zeroed {size}", partial(_over, files, path, at, bytes(size))
    for path in known:
        for length in range(len(files[path])):
            yield "truncated", partial(_with, files, path, files[path][:length])


def random_case(files: Files, rng: random.Random) -> Case:
    """A sector zeroed, garbled, doubled or exchanged with another one; or some of it, twice."""
    size = rng.choice(SECTORS)
    known = [path for path in files if path.name not in {"witness", "format"}]
    path, other = (rng.choice(known) for _ in range(2))
    data, source = files[path], files[other]
    # Sectors lie where a file system cuts a file; small files have few, so also between.
    step = rng.choice((size, 64, 1))
    at, from_ = (rng.randrange(0, len(x), step) for x in (data, source))
    sector, theirs = data[at : at + size], source[from_ : from_ + size]
    kind = rng.choice(("zeroed", "garbled", "doubled", "exchanged", "moved"))
    if kind == "zeroed":
        return f"zeroed {size}", partial(_over, files, path, at, bytes(size))
    if kind == "garbled":
        return f"garbled {size}", partial(_over, files, path, at, rng.randbytes(size))
    if kind == "doubled":
        return f"doubled {size}", partial(_over, files, path, at, theirs)
    if kind == "moved":  # what stands behind it moves up, as if a write had been lost
        return f"left out {size}", partial(_with, files, path, data[:at] + data[at + size :])

    def exchange() -> Files:
        return _over(_over(files, path, at, theirs), other, from_, sector)

    return f"exchanged {size}", exchange


def check(subject: Subject, case: Case, counted: Counter[str]) -> None:
    """Applies one case, asks everything, counts; raises Wrong."""
    kind, make = case
    files = make()
    if files == subject.sound:
        return
    counted["tried"] += 1
    subject.fs.files = dict(files)
    try:
        verdict = subject.everything()
        if verdict.refused is not None:
            counted["refused_at_opening"] += 1
        elif verdict.found:
            counted["found_by_fsck"] += 1
        elif not verdict.noted:
            raise Wrong("neither opening nor fsck sees it")
        else:
            counted["noted_and_whole"] += 1
        if verdict.refused is None and verdict.named != verdict.lost:
            named, lost = ({v.short for v in x} for x in (verdict.named, verdict.lost))
            raise Wrong(f"fsck names {named} as lost, but what does not come back is {lost}")
        counted["versions_lost"] += len(verdict.lost) if verdict.refused is None else 0
    except Exception as error:
        changed = [
            (path.name, next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1))
            for path, a in subject.sound.items()
            if (b := files.get(path, b"")) != a
        ]
        raise Wrong(f"{kind}, first differing bytes {changed}: {error!r}") from error
    finally:
        subject.mend()


def main(root: Path, seed: int, first: int, step: int, number: int) -> Counter[str]:
    (made.tiny if step else made.small)(root)
    subject = Subject(root)
    rng = random.Random(seed)
    counted: Counter[str] = Counter()
    for case in islice(enumerated(subject.sound), first, None, step) if step else ():
        if counted["tried"] >= number:
            break
        check(subject, case, counted)
    while counted["tried"] < number:
        check(subject, random_case(subject.sound, rng), counted)
    return counted


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
