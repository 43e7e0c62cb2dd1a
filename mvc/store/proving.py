"""Proofs: what will be published is read again by the readers' own code.

Those of records are in ``mvc.store.writing.proof``; commands that store no tensors do without its
imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mvc.errors import DamagedData, EncodingFailed, InvalidPipeline, WrongUsage


@contextmanager
def proof_of(what: str) -> Iterator[None]:
    """Raises EncodingFailed where the block, which reads ``what`` again, fails."""
    try:
        yield
    except (DamagedData, InvalidPipeline, WrongUsage) as error:
        raise EncodingFailed(
            f"{what} cannot be read again as it was given, so nothing was published: "
            f"{error.message}",
            hint="run it again; if it fails again, use another pipeline, such as lossless, and "
            "report it: this is a fault of mvc or of this machine's memory",
        ) from error


def prove_equal(one: object, other: object) -> None:
    """Raises DamagedData unless both are equal."""
    if one != other:
        raise DamagedData("something else comes back")
