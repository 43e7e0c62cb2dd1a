"""A parsed model file in which some tensors have new bytes, for example lossy weights."""

from __future__ import annotations

from collections.abc import Mapping

from mvc.adapters.parsed import ParsedFile, StepFrom


class ReplacedFile(ParsedFile):
    """The file ``parsed``, but some of its contents (bytes of tensors) are replaced.

    ``replaced``: maps the index of a content to its new bytes. ``steps``: see ``ParsedFile``.
    """

    def __init__(
        self, parsed: ParsedFile, replaced: Mapping[int, memoryview], steps: Mapping[int, StepFrom]
    ) -> None:
        self._parsed = parsed
        self._replaced = replaced
        self.steps = steps
        self.format = parsed.format
        self.size = parsed.size
        self.contents = parsed.contents
        self.checks = parsed.checks
        self.tensors = parsed.tensors

    def borrow(self, content: int) -> memoryview | None:
        """The new bytes if the content is replaced, else what ``parsed.borrow`` returns."""
        replaced = self._replaced.get(content)
        return self._parsed.borrow(content) if replaced is None else replaced

    def read(self, content: int, start: int, out: memoryview) -> None:
        replaced = self._replaced.get(content)
        if replaced is None:
            self._parsed.read(content, start, out)
        else:
            out[:] = replaced[start : start + len(out)]

    def skeleton(self) -> bytes:
        """The original file's skeleton: names, shapes and all bytes outside contents."""
        return self._parsed.skeleton()

    def copied(self, content: int) -> memoryview:
        """The new bytes (not copied) if the content is replaced, else a copy of the content."""
        replaced = self._replaced.get(content)
        return self._parsed.copied(content) if replaced is None else replaced
