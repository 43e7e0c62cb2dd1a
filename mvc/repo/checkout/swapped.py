"""A folder that is swapped as a whole: a symbolic link, and beside it the folder that it leads to.

The one that it led to before is kept until the next swap begins: somebody may still read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mvc.errors import MvcError, WouldOverwrite
from mvc.io.files import SWAPPED, FileSystem
from mvc.names import printable
from mvc.repo.checkout.outputs import refuse_nameless, refuse_store

_GOING = ".old"  # the end of the name of a folder that is being deleted


class SwappedFolder:
    """The link ``output``, in a folder that exists. Raises WrongUsage for ``.``, and in a store."""

    def __init__(self, fs: FileSystem, output: Path) -> None:
        refuse_nameless(output)
        self._fs, self._shown = fs, printable(str(output))
        self.parent, self._name = fs.realpath(output.parent), output.name
        refuse_store(fs, self.parent)
        self._link = self.parent / self._name
        begins = re.escape(f"{SWAPPED}{self._name}.")
        self._ours = re.compile(begins + "[0-9a-f]{10}-[0-9a-f]{8}")

    def target(self, *, force: bool = False) -> str | None:
        """The name of the folder that it leads to; None where nothing is, or an empty folder.

        Raises WouldOverwrite for what mvc did not make; ``force``: not for a link.
        """
        present, target = self._fs.stat(self._link, follow=False), self._fs.read_link(self._link)
        is_free = present is None or (present.is_dir and not self._fs.list(self._link))
        if target is None and not is_free:
            raise WouldOverwrite(
                f"{self._shown} is no symbolic link: it cannot be swapped in one step",
                hint="move it away first: a link takes its place",
            )
        if target is not None and not self._ours.fullmatch(target) and not force:
            raise WouldOverwrite(
                f"{self._shown} leads to {printable(target)}, which mvc did not make",
                hint="name another place; 'mvc checkout -f' lets it lead to a new folder",
            )
        return target

    @contextmanager
    def alone(
        self, keep: Collection[str] = (), *, force: bool = False, tidy: bool = True
    ) -> Iterator[None]:
        """Others that swap the same folder wait; folders of earlier swaps, but ``keep``, go."""
        fs = self._fs
        with fs.lock(self.parent / f"{SWAPPED}{self._name}.lock"):
            kept = {self.target(force=force), *keep}
            for other in fs.list(self.parent) if tidy else ():
                is_ours = self._ours.fullmatch(other.removesuffix(_GOING)) and other not in kept
                if is_ours and fs.read_link(self.parent / other) is None:  # else it was moved away
                    _remove_at_once(fs, self.parent / other)
            yield

    @contextmanager
    def next(self, label: str, *, force: bool = False, tidy: bool = True) -> Iterator[Path]:
        """A new folder for the version ``label``; it goes if the block fails before ``lead_to``.

        Without ``tidy`` folders of earlier swaps stay.
        """
        fs = self._fs
        new = self.parent / f"{SWAPPED}{self._name}.{label}-{os.urandom(4).hex()}"
        with self.alone(force=force, tidy=tidy):
            try:
                fs.make_dir(new)
                yield new
            except BaseException:
                with suppress(MvcError):
                    if fs.read_link(self._link) != new.name:
                        fs.remove_tree(new)
                raise

    def lead_to(self, name: str) -> None:
        """Makes the link lead to a folder beside it, in one step; durable on return."""
        fs, link = self._fs, self.parent / f"{SWAPPED}{self._name}.link"
        fs.unlink(link, missing_ok=True)
        fs.symlink(name, link)
        fs.sync_dir(self.parent)
        there = fs.stat(self._link, follow=False)
        if there is not None and there.is_dir:
            fs.remove_dir(self._link)
        fs.replace(link, self._link)
        fs.sync_dir(self.parent)


def _remove_at_once(fs: FileSystem, folder: Path) -> None:
    """Deletes a folder that has another name by then: a reader finds all of it, or nothing."""
    going = folder.with_name(folder.name.removesuffix(_GOING) + _GOING)
    if going != folder:
        fs.replace(folder, going)
    fs.remove_tree(going)
