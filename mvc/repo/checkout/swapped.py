"""Replaces a folder in one step.

The name of the folder is a symbolic link. The link is switched to a new folder next to the link.
The previous folder remains until the next swap begins, because readers may still use it.
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

_GOING = ".old"  # suffix of a folder that is being deleted


class SwappedFolder:
    """Manages the link ``output``. The folder that contains the link must exist.

    Raises WrongUsage if ``output`` is ``.`` or inside ``.mvc``.
    """

    def __init__(self, fs: FileSystem, output: Path) -> None:
        refuse_nameless(output)
        self._fs, self._shown = fs, printable(str(output))
        self.parent, self._name = fs.realpath(output.parent), output.name
        refuse_store(fs, self.parent)
        self._link = self.parent / self._name
        begins = re.escape(f"{SWAPPED}{self._name}.")
        self._ours = re.compile(begins + "[0-9a-f]{10}-[0-9a-f]{8}")

    def target(self, *, force: bool = False) -> str | None:
        """The name of the folder that the link points to.

        None if ``output`` is missing or an empty folder. Raises WouldOverwrite if ``output`` is a
        link that mvc did not create, a file, or a folder with files. With ``force``, any link is
        accepted.
        """
        present, target = self._fs.stat(self._link, follow=False), self._fs.read_link(self._link)
        is_free = present is None or (present.is_dir and not self._fs.list(self._link))
        if target is None and not is_free:
            raise WouldOverwrite(
                f"{self._shown} is not a symbolic link, so it cannot be replaced in one step",
                hint="move it away first: mvc will write a link with this name",
            )
        if target is not None and not self._ours.fullmatch(target) and not force:
            raise WouldOverwrite(
                f"{self._shown} points to {printable(target)}, which mvc did not create",
                hint="name another output, or replace the link with 'mvc checkout -f'",
            )
        return target

    @contextmanager
    def alone(
        self, keep: Collection[str] = (), *, force: bool = False, tidy: bool = True
    ) -> Iterator[None]:
        """A ``with`` block during which no other process swaps this folder.

        ``tidy``: first delete folders of earlier swaps, except the folders named in ``keep``.
        """
        fs = self._fs
        with fs.lock(self.parent / f"{SWAPPED}{self._name}.lock"):
            retained = {self.target(force=force), *keep}
            for name in fs.list(self.parent) if tidy else ():
                is_ours = self._ours.fullmatch(name.removesuffix(_GOING)) and name not in retained
                if is_ours and fs.read_link(self.parent / name) is None:  # mvc creates no such link
                    _remove_at_once(fs, self.parent / name)
            yield

    @contextmanager
    def next(self, label: str, *, force: bool = False, tidy: bool = True) -> Iterator[Path]:
        """A ``with`` block with a new folder for the version ``label``.

        If the block fails before it calls ``lead_to``, the new folder is deleted. ``tidy``: first
        delete folders of earlier swaps.
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
        """Switches the link in one step to the folder ``name`` next to the link.

        The switch is durable when the call returns.
        """
        fs, link = self._fs, self.parent / f"{SWAPPED}{self._name}.link"
        fs.unlink(link, missing_ok=True)
        fs.symlink(name, link)
        fs.sync_dir(self.parent)
        existing = fs.stat(self._link, follow=False)
        if existing is not None and existing.is_dir:
            fs.remove_dir(self._link)
        fs.replace(link, self._link)
        fs.sync_dir(self.parent)


def _remove_at_once(fs: FileSystem, folder: Path) -> None:
    """Deletes a folder after renaming it, so that readers see all files or no folder."""
    going = folder.with_name(folder.name.removesuffix(_GOING) + _GOING)
    if going != folder:
        fs.replace(folder, going)
    fs.remove_tree(going)
