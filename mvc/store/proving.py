"""Proofs: what will be published is read again by the readers' own code.

Those of records are in ``mvc.store.writing.proof``; commands that store no tensors do without its
imports.
"""

from __future__ import annotations

from mvc.errors import DamagedData, EncodingFailed, InvalidPipeline, WrongUsage


class proof_of:  # noqa: N801 (named as ``contextlib.suppress`` is)
    """Raises EncodingFailed where the block, which reads ``what`` again, fails."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, DamagedData | InvalidPipeline | WrongUsage):
            raise EncodingFailed(
                f"{self._what} cannot be read again as it was given, so nothing was published: "
                f"{error.message}",
                hint="run it again; if it fails again, use another pipeline, such as lossless, "
                "and report it: this is a fault of mvc or of this machine's memory",
            ) from error


def prove_equal(one: object, other: object) -> None:
    """Raises DamagedData unless both are equal."""
    if one != other:
        raise DamagedData("something else comes back")
