"""Verifies new bytes before they become part of the repository, by decoding them as readers do.

``mvc.store.writing.proof`` verifies records with these functions. That module is imported only by
commands that store tensors.
"""

from __future__ import annotations

from mvc.errors import DamagedData, EncodingFailed, InvalidPipeline, WrongUsage


class proof_of:  # noqa: N801 (named as ``contextlib.suppress`` is)
    """For a ``with`` block that decodes new bytes. Raises EncodingFailed if the block fails.

    ``subject``: a name of the new bytes, for the message.
    """

    __slots__ = ("_subject",)

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, DamagedData | InvalidPipeline | WrongUsage):
            raise EncodingFailed(
                f"{self._subject} does not decode to its original bytes, so nothing was "
                f"published: {error.message}",
                hint="retry; if the error occurs again, use another pipeline, such as lossless, "
                "and report the error: mvc or this machine's memory has a fault",
            ) from error


def prove_equal(one: object, other: object) -> None:
    """Raises DamagedData unless ``one`` is equal to ``other``."""
    if one != other:
        raise DamagedData("the decoded bytes differ")
