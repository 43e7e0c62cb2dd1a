"""A parsed file or Python state with some of its contents replaced."""

from __future__ import annotations

from collections.abc import Mapping

from mvc.adapters.parsed import ParsedFile, StepFrom


class ReplacedFile(ParsedFile):
    """``made`` has the new contents by position. ``steps``: as of ``ParsedFile``."""

    def __init__(
        self, parsed: ParsedFile, made: Mapping[int, memoryview], steps: Mapping[int, StepFrom]
    ) -> None:
        self._parsed = parsed
        self._made = made
        self.steps = steps
        self.format = parsed.format
        self.size = parsed.size
        self.contents = parsed.contents
        self.checks = parsed.checks
        self.tensors = parsed.tensors

    def borrow(self, content: int) -> memoryview | None:
        """The replaced content, or the file's own."""
        made = self._made.get(content)
        return self._parsed.borrow(content) if made is None else made

    def read(self, content: int, start: int, out: memoryview) -> None:
        made = self._made.get(content)
        if made is None:
            self._parsed.read(content, start, out)
        else:
            out[:] = made[start : start + len(out)]

    def skeleton(self) -> bytes:
        """The file's own skeleton: names, shapes and all bytes outside contents."""
        return self._parsed.skeleton()

    def copied(self, content: int) -> memoryview:
        """The replaced content itself, and copies of all others."""
        made = self._made.get(content)
        return self._parsed.copied(content) if made is None else made
