"""Lossy commits: reduce the tensors of each path, and write the production weights.

A commit always saves, so a pipeline with a save decision is refused. Production files are
written after the commit is durable: a crash in between leaves the old file, and a version that
can be checked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.adapters.parsed import ParsedFile
from mvc.adapters.replaced import ReplacedFile
from mvc.errors import (
    IoFailed,
    MvcError,
    SourceChanged,
    UnknownPath,
    WouldOverwrite,
    WrongUsage,
)
from mvc.ids import BlobId
from mvc.io.files import FileIdentity, FileSystem
from mvc.lossy.reducer import Reducer
from mvc.model.manifest import FileEntry
from mvc.names import printable
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.checkout.checkout import fill_file
from mvc.repo.checkout.outputs import refuse_store
from mvc.repo.commit.reduced_file import reduced
from mvc.repo.commit.request import Change, CommitRequest
from mvc.repo.commit.result import CommitResult
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import tip


class LossyCommit(Struct):
    """One lossy commit: replaces the weights of its changes by production weights.

    ``text`` is the pipeline as it was named. The weights are reduced against those of the branch
    of ``request``, but for the tensors that it names as exact.
    """

    context: Context
    text: str
    pipeline: Pipeline
    request: CommitRequest
    _unknown: set[str] = field(default_factory=set)
    _unseen: set[str] = field(default_factory=set)
    _given_back: bool = False
    _made: dict[str, ReplacedFile] = field(default_factory=dict)
    _read: dict[str, FileIdentity | None] = field(default_factory=dict)

    @classmethod
    def of(cls, context: Context, text: str, request: CommitRequest) -> Self:
        """A commit by the lossy pipeline ``text``, of the request or else of the settings.

        Raises WrongUsage if the pipeline has a save decision.
        """
        pipeline = Pipeline.parse(text)
        if pipeline.decisions:
            stage = pipeline.decisions[0].text
            decided = {each.text for each in pipeline.decisions}
            words = [word.strip() for word in pipeline.text.split("|")]
            rest = " | ".join(word for word in words if word not in decided)
            origin = "" if request.pipeline else f"commit.pipeline is {text}: "
            raise WrongUsage(
                f"{origin}stage {stage} decides whether a version is saved, and a commit always "
                "saves",
                hint=f"use mvc.Recorder, which decides, or leave out stage and bound: {rest}",
            )
        return cls(context, text, pipeline, request)

    def check_places(
        self, changes: Sequence[Change], output: Path | None, *, in_place: bool
    ) -> None:
        """Raises unless production files have a place to be written to, and can be written there.

        Raises WrongUsage, UnknownPath, IoFailed, WouldOverwrite.
        """
        files = sum(change.open is not None for change in changes)
        if not files and output is None:
            return
        if output is not None and in_place:
            raise WrongUsage("name one place for the production weights: a file, or in place")
        if output is None and not in_place:
            raise WrongUsage(
                "a lossy pipeline makes production weights, and those are what is to be deployed",
                hint="say where they go: -o FILE, or --in-place",
            )
        if output is not None and files != 1:
            raise WrongUsage(
                f"the production weights of {files} files do not fit into one",
                hint="commit one file, or use --in-place",
            )
        if output is not None:
            _check_output(self.context.store.fs, output)

    def changes(self, changes: Sequence[Change], *, given_back: bool) -> list[Change]:
        """The same paths with production weights; ``given_back``: ``state`` will be called."""
        self._given_back = given_back
        self._unknown = set(self.request.options.exact)
        self._unseen = {change.path for change in changes if change.open is not None}
        return [
            change
            if change.open is None
            else replace(change, open=partial(self._opened, change.path, change.open))
            for change in changes
        ]

    @contextmanager
    def _opened(self, path: str, open_: Callable[[], Any]) -> Iterator[ParsedFile]:
        self._read[path] = self.context.store.fs.stat(self.context.root / path)
        with open_() as parsed:
            made = self._produced(parsed, path)
            if self._given_back:
                self._made[path] = made
            yield made

    def _produced(self, parsed: ParsedFile, path: str) -> ReplacedFile:
        self._unknown -= {tensor.key for tensor in parsed.tensors}
        self._unseen.discard(path)
        if self._unknown and not self._unseen:
            raise UnknownPath(
                f"there is no tensor {sorted(self._unknown)[0]} to be kept exactly",
                hint="'mvc ls' lists the names",
            )
        at = tip(self.context, self.request.options.branch)
        entry = manifests.of_commit(self.context, at.commit).by_path.get(path)
        held: dict[BlobId, memoryview] = {}
        last = self.context.caches.in_use.get(path)
        if entry is not None and last is not None:
            for tensor in entry.tensors:
                if (data := last.content(tensor.key, tensor.id, tensor.spec)) is not None:
                    held[tensor.id] = data
        reducer = Reducer(self.pipeline, frozenset(self.request.options.exact))
        loss = self.request.metrics.get("loss")
        return reduced(self.context, reducer, parsed, entry, held=held, loss=loss)

    def state(self, entry: FileEntry) -> Any:
        """The production weights of a Python state, nested like the given state."""
        return self._made[entry.path].nested(entry)

    def write(self, kept: CommitResult, output: Path | None) -> tuple[Path, ...]:
        """Writes the production files to ``output``, or in place of the files that were read.

        Each file is recovered from the repository, so that it equals the stored version. Raises
        SourceChanged if a file to be replaced was written to meanwhile.
        """
        fs, root, version = self.context.store.fs, self.context.root, kept.id.short
        written = []
        for path, entry in kept.entries.items():
            if path not in self._read or (output is None and not entry.tensors):
                continue  # not a file that was committed, or one without weights
            target = root / path if output is None else output
            by_hand = f"'mvc checkout {version} {path} -o FILE'"
            if output is None and fs.stat(target) != self._read[path]:
                raise SourceChanged(
                    f"{path} was written again while it was being committed",
                    hint=f"its production weights are in the commit: {by_hand}",
                )
            try:
                fs.replace_file(
                    target,
                    partial(fill_file, self.context.store.recovery, entry),
                    mode=None,
                    durable=True,
                    within=None if output else root,
                )
            except MvcError as error:
                raise type(error)(
                    f"version {version} is committed, but its production weights could not be "
                    f"written: {error.message}",
                    hint=f"{by_hand} writes it",
                ) from error
            written.append(target)
        return tuple(written)


def _check_output(fs: FileSystem, output: Path) -> None:
    """Production weights may replace a model file, but no other file."""
    refuse_store(fs, output)
    shown = printable(str(output))
    identity = fs.stat(output)
    if identity is not None and not identity.is_file:
        raise WrongUsage(f"{shown} is no file", hint="name a file for the production weights")
    into = f"{printable(str(output.parent))} to write {printable(output.name)} into"
    folder = fs.stat(output.parent)
    if folder is None or not folder.is_dir:
        raise UnknownPath(f"there is no folder {into}", hint="make it first; nothing was committed")
    if not fs.is_writable_dir(output.parent):
        raise IoFailed(
            f"there is no permission for {into}", hint="name another place; nothing was committed"
        )
    if identity is not None and identity.size:
        with open_file(fs, output, output.name) as parsed:
            model = parsed.format != "opaque"
        if not model:
            raise WouldOverwrite(
                f"{shown} exists and is no model file",
                hint="production weights replace a model file or none: name another place",
            )
