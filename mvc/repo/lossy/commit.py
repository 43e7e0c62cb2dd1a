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

from mvc.adapters.parsed import ParsedFile
from mvc.adapters.python.arrays import array_bytes
from mvc.adapters.python.state import to_state
from mvc.codecs.lossy.floats import FORMATS
from mvc.codecs.pipeline import Pipeline
from mvc.errors import MvcError, NothingToCommit, SourceChanged, UnknownPath, WrongUsage
from mvc.io.files import FileIdentity, WriteFile
from mvc.model.manifest import FileEntry
from mvc.repo.checkout.outputs import check_places
from mvc.repo.commit.base_cache import BaseCache
from mvc.repo.commit.request import Change
from mvc.repo.commit.result import CommitResult
from mvc.repo.content.contents import write_file
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.lossy.reduce import ProducedFile, Weights, is_optimizer, reduce, weights_before

__all__ = ["LossyCommit"]


class LossyCommit:
    """One lossy commit: replaces the weights of its changes by production weights."""

    def __init__(
        self,
        context: Context,
        text: str,
        pipeline: Pipeline,
        exact: Sequence[str],
        loss: float | None,
        setting: str | None,
    ) -> None:
        self.text = text
        self._setting = setting
        self._context = context
        self._pipeline = pipeline
        self._exact = frozenset(exact)
        self._loss = loss
        self._unknown = set(exact)
        self._unseen: set[str] = set()
        self._given_back = False
        self._made: dict[str, ProducedFile] = {}
        self._read: dict[str, FileIdentity | None] = {}

    @classmethod
    def of(
        cls,
        context: Context,
        text: str | None,
        exact: Sequence[str],
        loss: float | None,
        files: Sequence[Change] | None = None,
    ) -> Self | None:
        """A lossy commit by the pipeline ``text``, by default that of the settings.

        Returns None if the pipeline is lossless. The pipeline of the settings does not apply to
        ``files`` without tensors; ``files`` is None if a state is committed. Raises WrongUsage
        if the pipeline has a save decision.
        """
        setting = None if text else str(context.config.get("commit.pipeline"))
        text = text or str(setting)
        pipeline = Pipeline.parse(text)
        if not pipeline.decisions and not pipeline.lossy:
            return None
        if setting and files is not None and not any(map(_has_tensors, files)):
            return None
        if pipeline.decisions and setting:
            raise WrongUsage(
                f"commit.pipeline is {setting}, whose stage {pipeline.decisions[0].text} decides "
                "whether a version is saved, and a commit always saves",
                hint="mvc.Recorder decides; for this commit name another one, such as "
                "--pipeline lossless",
            )
        if pipeline.decisions:
            decided = {stage.text for stage in pipeline.decisions}
            words = [word.strip() for word in pipeline.text.split("|")]
            raise WrongUsage(
                f"stage {pipeline.decisions[0].text} decides whether a version is saved, "
                "and a commit always saves",
                hint="use mvc.Recorder, which decides, or leave it out: "
                + " | ".join(word for word in words if word not in decided),
            )
        return cls(context, text, pipeline, exact, loss, setting)

    def check_places(
        self, changes: Sequence[Change], output: Path | None, *, in_place: bool
    ) -> None:
        """Raises before anything is stored if the production weights cannot be written."""
        check_places(self._context, changes, output, in_place=in_place, setting=self._setting)

    def changes(self, changes: Sequence[Change], *, given_back: bool) -> list[Change]:
        """The same paths with production weights; ``given_back``: ``state`` will be called."""
        self._given_back = given_back
        self._unseen = {change.path for change in changes if change.open is not None}
        return [
            change
            if change.open is None
            else Change(change.path, partial(self._opened, change, change.open), change.last)
            for change in changes
        ]

    @contextmanager
    def _opened(self, change: Change, open_: Callable[[], Any]) -> Iterator[ParsedFile]:
        path = change.path
        self._read[path] = self._context.store.fs.stat(self._context.root / path)
        with open_() as parsed:
            made = self._produced(parsed, path, change.last)
            if self._given_back:
                self._made[path] = made
            yield made

    def _produced(self, parsed: ParsedFile, path: str, last: BaseCache | None) -> ProducedFile:
        self._unknown -= {tensor.key for tensor in parsed.tensors}
        self._check_exact(path)
        weights = Weights.of(parsed)
        names = [
            name
            for name, i in weights.contents.items()
            if parsed.contents[i].spec.dtype in FORMATS
            and name not in self._exact
            and not is_optimizer(name)
        ]
        at = head(self._context).commit
        entry = manifests.of_commit(self._context, at).by_path.get(path)
        made = reduce(
            self._pipeline,
            weights_before(self._context, entry, names, last) or None,
            {name: weights.arrays[name] for name in names},
            loss=self._loss,
            dtypes=weights.dtypes,
        )
        contents = {weights.contents[name]: array_bytes(array) for name, array in made.items()}
        return ProducedFile(parsed, contents)

    def _check_exact(self, path: str) -> None:
        """Raises UnknownPath after the last file if no tensor has a name of ``exact``."""
        self._unseen.discard(path)
        if self._unknown and not self._unseen:
            raise UnknownPath(
                f"there is no tensor {sorted(self._unknown)[0]} to be kept exactly",
                hint="'mvc ls' lists the names",
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replaces a NothingToCommit by one that speaks of production weights."""
        try:
            yield
        except NothingToCommit as error:
            raise NothingToCommit(
                "nothing to commit: the production weights are those that HEAD has",
                hint="'mvc checkout HEAD PATH -o FILE' writes them; to record a version all the "
                "same, add --allow-empty",
            ) from error

    def state(self, entry: FileEntry) -> Any:
        """The production weights of a Python state, nested like the given state."""
        made = self._made[entry.path]
        return to_state(entry, made.skeleton(), made.copied)

    def write(self, kept: CommitResult, output: Path | None) -> tuple[Path, ...]:
        """Writes the production files to ``output``, or in place of the files that were read.

        Each file is recovered from the repository, so that it equals the stored version. Raises
        SourceChanged if a file to be replaced was written to meanwhile.
        """
        written = []
        for path, entry in kept.entries.items():
            if output is None and not entry.tensors:
                continue
            target = self._context.root / path if output is None else output
            if output is None and self._context.store.fs.stat(target) != self._read[path]:
                raise SourceChanged(
                    f"{path} was written again while it was being committed",
                    hint=f"its production weights are in the commit: 'mvc checkout "
                    f"{kept.id.short} {path} -o FILE'",
                )
            self._write_one(kept, entry, target, None if output else self._context.root)
            written.append(target)
        return tuple(written)

    def _write_one(
        self, kept: CommitResult, entry: FileEntry, target: Path, within: Path | None
    ) -> None:
        def fill(file: WriteFile) -> None:
            write_file(self._context, entry, file.write_at)

        try:
            self._context.store.fs.replace_file(
                target, fill, mode=None, durable=True, within=within
            )
        except MvcError as error:
            hint = f"'mvc checkout {kept.id.short} {entry.path} -o FILE' writes it"
            raise type(error)(
                f"version {kept.id.short} is committed, but its production weights could not be "
                f"written: {error.message}",
                hint=hint,
            ) from error


def _has_tensors(change: Change) -> bool:
    if change.open is None:
        return False
    with change.open() as parsed:
        return bool(parsed.tensors)
