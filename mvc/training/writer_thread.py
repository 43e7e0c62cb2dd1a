"""The writer thread of a Recorder: commits copied states in order while the training continues.

Hashing, compression and writing release the GIL, so the training seldom waits for this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import replace

from mvc.api import (
    CommitOptions,
    CommitResult,
    FileEntry,
    GitCode,
    RecordingNotice,
    Repository,
)
from mvc.errors import StateForgotten, WrongUsage
from mvc.ids import CommitId
from mvc.names import check_path, training_path
from mvc.pipelines import Pipeline
from mvc.state import ServedVersion, StateFile
from mvc.training.approximator import Approximator, newest
from mvc.training.checks import RecorderOptions
from mvc.training.production import StateReducer
from mvc.training.pushing import Pusher
from mvc.training.staging import Item, Queue, copied
from mvc.training.state.parts import PRODUCTION, StateSource


class WriterThread(threading.Thread):
    """The writer thread, with its counts and errors. Close the queue before you ``join`` the
    thread.

    ``newest``: step and commit of the newest durable version. ``production``: the newest durable
    version for the caller or ``on_deploy``. ``reducer``: makes production weights; None if the
    pipeline is not lossy and stores every version.
    """

    def __init__(
        self,
        repo: Repository,
        queue: Queue,
        source: StateSource,
        options: RecorderOptions,
        *,
        recording: RecordingNotice,
        pusher: Pusher | None = None,
    ) -> None:
        """Raises WrongUsage if options and pipeline contradict each other."""
        super().__init__(name="mvc-recorder", daemon=True)
        self._repo = repo
        self._queue = queue
        self._pusher = pusher
        setting = str(repo.config.get("commit.pipeline"))
        if options.pipeline is None and Pipeline.parse(setting).forward_only:
            options = replace(options, pipeline=setting)
        self._options = options
        self._weights = source.weights
        self.reducer = _reducer_for(repo, source, options)
        self._approximator: Approximator | None = None
        self._exact: frozenset[str] = frozenset()
        self._coding = options.stages.coding()
        if options.stages.forward_only:
            buffers = getattr(source, "exact", tuple)
            self._exact = frozenset({*buffers(), *(options.exact or ())})
            self._approximator = Approximator(repo, self._coding, options.branch)
        self._stored: StateFile | None = None  # the newest model, if the pipeline approximates
        self._code: GitCode | None = None  # the git commit of the code when the training began
        self._files = _files_of(options)
        self._named: CommitId | None = None  # the newest version's origin, not to be named again
        self._recording = recording
        self.production: ServedVersion | None = None
        self._served: ServedVersion | None = None  # the version that ``_serve`` passed on
        self.durable = 0
        self.skipped = 0
        self.failed = 0
        self.newest: tuple[int, CommitResult] | None = None
        self.first_failure: BaseException | None = None
        self._failure: BaseException | None = None  # an error that the caller has not seen yet
        self.start()

    def raise_failure(self) -> None:
        """Raises the first error that occurred since the previous call."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def run(self) -> None:
        """Commits queued items until the queue is closed and empty."""
        while (item := self._queue.next_item()) is not None:
            done = False
            try:
                result = self._commit(item)
                done = True
                if result is None:
                    self.skipped += 1
                else:
                    self._named = item.origin
                    if self._options.steps is not None:
                        self._options.steps.committed(item.position, item.step, result.id)
                    self.newest = item.step, result
                    self.durable += 1
                    if self._pusher is not None:
                        self._pusher.committed()
                    self._hand_out(item, result)
                    if self._approximator is not None:
                        self._approximator.committed()
            except BaseException as error:
                # Later versions are committed nevertheless, because each is a complete state.
                self.failed += not done
                self._failure = self._failure or error
                self.first_failure = self.first_failure or error
            finally:
                self._queue.release(item)
        if self.reducer is not None:
            try:
                self.reducer.remember()
            except BaseException as error:
                self.first_failure = self.first_failure or error

    def _commit(self, item: Item) -> CommitResult | None:
        """Commits a staged state; None if the pipeline skips it."""
        item.slot.ready()
        if self.reducer is None:
            return self._store(item, item.slot.state["model"])
        training, loss = item.slot.state["model"], item.metrics.get("loss")
        result = self.reducer.offer(training, loss=loss, data=item.data)
        if result is None:
            return None
        try:
            return self._store(item, result)
        except BaseException:
            self.reducer.take_back()
            raise

    def _store(self, item: Item, model: Mapping[str, Any]) -> CommitResult:
        options = self._options
        training = item.slot.state["training"]
        reduced, full = self.reducer is not None, bool(training)
        self._stored = None
        if self.reducer is not None and self._approximator is not None:
            training["decisions"] = self.reducer.memory()
        elif self.reducer is not None:
            weights = item.slot.state["model"] if options.keep_training else None
            training |= {
                "of": training.get("schema"),
                "schema": PRODUCTION,
                "weights": weights,
                "pipeline": options.pipeline,
                "decisions": self.reducer.memory(),
            }
        if item.origin is not None:
            training["origin"] = str(item.origin)
        files, path = self._files_to_store(), training_path(options.name)
        if self._weights:
            files[options.name] = self._hashed(model, training)
        if full:
            files[path] = self._file(path, training)
        notes = options.steps
        attachments, needs = ({}, ()) if notes is None else notes.attachments(item.position)
        act, serve = options.on_deploy, None
        if act is not None and options.deploy_first and self._weights:
            serve = partial(self._serve, act, self._state_to_serve(item))
        # A deployment has the time of the call of ``step`` if the weights existed at this time.
        # Production weights and approximated weights are computed later.
        derived = reduced or self._approximator is not None
        as_of_call = options.deploy is not None and not derived and serve is None
        result = self._repo.commit(
            files,
            message=self._message(item),
            metrics=item.metrics,
            params=item.params,
            deploy=options.deploy,
            pipeline=self._coding.text if reduced else options.pipeline,
            attachments=attachments,
            options=CommitOptions(
                needs=needs,
                at=item.called_ns if as_of_call else None,
                time=item.called_ns,
                code=self._code,
                progress=self._queue.note_progress,
                max_recovery=options.max_recovery,
                allow_empty=True,
                author=options.author,
                produced_by=options.pipeline if derived else None,
                branch=options.branch,
                new_branch=options.branch is not None,
                run=self._run(item),
                recording=self._recording,
                before=serve,
            ),
        )
        self._code = result.code
        return result

    def _hashed(self, model: Mapping[str, Any], training: dict[str, Any]) -> StateFile:
        """The file of the model to commit. Adds the Merkle root of the file to ``training``."""
        file = self._file(self._options.name, model, self._exact)
        if self._approximator is not None:
            self._stored = file
            if file.approximated:
                training["approximated"] = self._options.pipeline
        training["root"] = file.root.hex()
        return file

    def _file(self, path: str, state: Mapping[str, Any], exact: Collection[str] = ()) -> StateFile:
        if self._approximator is None:
            return StateFile.of(state)
        return self._approximator.approximated(path, state, exact)

    def _files_to_store(self) -> dict[str, StateFile]:
        """The additional files that the branch's newest version lacks or has with other content."""
        if not self._files or not self._weights:
            return {}
        at = newest(self._repo, self._options.branch)
        entries: Mapping[str, FileEntry] = {}
        with suppress(StateForgotten):
            entries = self._repo.manifest(at).by_path if at else {}
        return {
            path: file
            for path, file in self._files.items()
            if path not in entries or entries[path].content_id != file.entry.content_id
        }

    def _run(self, item: Item) -> str:
        """The name of the training. A resumed training has the name of the earlier training by
        default.
        """
        if self._options.run is not None or item.origin is None:
            return self._options.run or ""
        return self._repo.version(item.origin).run

    def _message(self, item: Item) -> str:
        prefix = self._options.message
        text = f"{prefix}: step {item.step}" if prefix else f"step {item.step}"
        if item.origin is not None and item.origin != self._named:
            text += f" (resumed from {item.origin.short})"
        return text

    def _hand_out(self, item: Item, result: CommitResult) -> None:
        """Passes the durable version to ``on_deploy``, unless ``_serve`` has done so."""
        act = self._options.on_deploy
        if not self._weights or (self.reducer is None and act is None and not item.awaited):
            return
        if self._served is not None and self._served.commit == result.id:
            self.production = self._served
            return
        moment = (self._served or result.deployment or result.commit).time_ns
        self.production = ServedVersion(self._state_to_serve(item), result.id, moment)
        if act is not None:
            act(self.production)

    def _serve(
        self, act: Callable[[ServedVersion], object], state: Any, commit: CommitId, time_ns: int
    ) -> None:
        """Passes a version to ``on_deploy`` before it is stored."""
        self._served = ServedVersion(state, commit, time_ns)
        act(self._served)

    def _state_to_serve(self, item: Item) -> Any:
        """A copy of the version's weights."""
        if self._stored is not None:
            return copied(self._stored.nested())
        if self.reducer is not None:
            return self.reducer.live_state()
        return copied(item.slot.state["model"])


def _files_of(options: RecorderOptions) -> dict[str, StateFile]:
    """Maps paths to the additional files of each version."""
    folder = PurePosixPath(options.name).parent
    files = options.files.items()
    return {check_path(str(folder / name)): StateFile.of_bytes(data) for name, data in files}


def _reducer_for(
    repo: Repository, source: StateSource, options: RecorderOptions
) -> StateReducer | None:
    stages = options.stages
    if options.keep_training and stages.forward_only:
        raise WrongUsage(
            f"keep_training stores exact weights next to production weights, but {stages.text} "
            "approximates the training state itself",
            hint="remove keep_training, or choose another pipeline for exact weights",
        )
    if not (stages.lossy or stages.decisions):
        if options.keep_training:
            raise WrongUsage(
                "keep_training is only for lossy pipelines: all other pipelines store exact weights"
            )
        return None
    if not (source.weights or stages.forward_only):
        raise WrongUsage(
            "a lossy pipeline makes production weights, but the model is not recorded",
            hint="record with 'model' in include",
        )
    buffers = getattr(source, "exact", None)
    if buffers is None and options.exact is None and not stages.forward_only:
        raise WrongUsage(
            "a lossy pipeline must know which tensors are buffers, and this source names none",
            hint="name the buffers: exact=[...]",
        )
    named = frozenset(options.exact or ())
    return StateReducer(
        repo, options.name, stages, evaluate=options.evaluate, monitor=options.monitor,
        exact=named if buffers is None else named.union(buffers()), named=named,
        origin=options.origin, branch=options.branch,
    )  # fmt: skip
