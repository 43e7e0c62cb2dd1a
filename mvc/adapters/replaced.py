"""A parsed file or Python state with some of its contents replaced."""

from __future__ import annotations

from collections.abc import Mapping

from mvc.adapters.parsed import ParsedFile, StepFrom


class ReplacedFile(ParsedFile):
    """A file whose contents are those of another file, except the replaced ones.

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
        """The replaced content. For all other contents, as the original file does."""
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
        """The replaced content without a copy. For all other contents, a copy."""
        replaced = self._replaced.get(content)
        return self._parsed.copied(content) if replaced is None else replaced
