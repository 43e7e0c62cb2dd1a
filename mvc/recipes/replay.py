"""``mvc retrain``: runs the training of a version again (a replay), and verifies the weights.

A version's *recipe* says how it was trained: the code, the data, and the base. The base is the
version whose weights the training starts from. If the weights of the base are not stored, the base
is replayed first. Trainings run in another process. If a replay reproduces the weights of a version
bit for bit, this is recorded as a *proof* of the recipe.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, json

from mvc.api import FileEntry, Proof, Repository
from mvc.errors import (
    CannotBuild,
    CannotRetrain,
    DamagedData,
    MvcError,
    MvcWarning,
    NotTrusted,
    RetrainingDiffers,
    StateForgotten,
    WrongUsage,
    need_torch,
)
from mvc.files import parse
from mvc.ids import CommitId
from mvc.models import environment
from mvc.models.environment import Environment, variables
from mvc.models.models import attached_bytes, code_of
from mvc.recipes import dataset
from mvc.recipes.messages import Compared, Ended, Event, Failed, Idle, Job, Reached, Stepped
from mvc.recipes.recipe import Data, Recipe, StepRecipe, missing_weights, recipe_of, segment
from mvc.state import Distance, StateFile, distance_of
from mvc.system import FileSystem, import_path
from mvc.text import listed, printable
from mvc.times import check_seconds
from mvc.types import Progress

_LOG = 1 << 16  # bytes read from the end of the training's output
_SHOWN = 5
_CALL = 200  # limit of characters of a function call in a message
_ENDING = 10  # seconds within which a process must end after the training
_ORPHAN = 1.0  # seconds within which a fork must end after its parent was killed
_SILENT = 5.0  # seconds without an event until ``progress`` reports that mvc is waiting
_FAILURES: dict[str, type[MvcError]] = {
    error.__name__: error for error in (CannotBuild, DamagedData, StateForgotten)
}


class ReplayOptions(Struct, frozen=True):
    """How to replay versions: the keyword arguments of ``mvc.retrain``.

    ``trusted``: only the stored code of these versions may run. ``start``: the weights of the base
    version. Without ``start``, a base that is not stored is trained first. ``tolerance``: accept
    weights that differ from the stored weights by at most this number. They are no proof.
    """

    trusted: Collection[CommitId] = ()
    anyway: bool = False
    threads: int | None = None
    timeout: float | None = None
    progress: Progress | None = None
    start: Mapping[str, Any] | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.tolerance is not None and not self.tolerance >= 0:
            raise WrongUsage(f"tolerance must be at least 0, but is {self.tolerance}")


class TensorDifference(Struct, frozen=True):
    """A tensor that a replay did not reproduce.

    ``distance``: the difference from the original tensor; None if the original is not stored, or if
    it has another dtype or shape.
    """

    name: str
    distance: Distance | None

    def __str__(self) -> str:
        if self.distance is None:
            return self.name
        share, most = self.distance.changed_share, self.distance.max_abs
        return f"{self.name} ({share:.1%} of it, by at most {most:.3g})"


class Retrained(Struct, frozen=True):
    """A version that was replayed and verified.

    ``file``: the resulting file. ``state``: its content, as ``checkout`` returns it. ``replayed``:
    the trained versions, in order (bases before ``commit``). ``seconds``, ``steps``: duration and
    optimizer steps of this version's training. ``differences``: describe differences from the
    recorded environment. ``not_finite``: tensors with an infinity or NaN. ``distance``: None if all
    bits are equal to the version's; otherwise the largest difference of an element.
    """

    commit: CommitId
    path: str
    file: StateFile
    replayed: tuple[CommitId, ...]
    seconds: float
    steps: int
    differences: tuple[str, ...]
    not_finite: tuple[str, ...] = ()
    distance: float | None = None

    @property
    def state(self) -> Any:
        return self.file.nested()

    def __repr__(self) -> str:
        return (
            f"<Retrained: {self.commit.short} {printable(self.path)}, "
            f"{len(self.replayed)} replayed, {self.steps:,} steps in {self.seconds:.3g} s>"
        )


# -- the versions to replay --------------------------------------------------------------------


def _order(repo: Repository, commit: CommitId) -> list[CommitId]:
    """The versions to train, in order: bases that are not stored, then ``commit``."""
    order = [commit]
    while True:
        recipe = recipe_of(repo, order[-1])
        base = recipe.base.version
        repo.manifest(base)  # downloads the list of files if it is absent here
        missing = missing_weights(repo, base)
        if missing is None or missing.path != recipe.base.path:
            return order[::-1]
        order.append(base)


@contextmanager
def replaying(
    repo: Repository, commit: CommitId, options: ReplayOptions, worker: ReplayProcess | None = None
) -> Iterator[Retrained]:
    """Trains a version, and yields the verified state. Bases that are not stored are trained first.

    During the block, the version can be read like a stored version. If the repository is writable,
    versions reproduced bit for bit are recorded as proven. Raises NotTrusted for an untrusted
    version, before any code runs; CannotRetrain if a training is impossible or fails;
    RetrainingDiffers if the resulting weights differ from the version's weights by more than the
    tolerance. ``worker``: an existing process to use.
    """
    need_torch("training a version again")
    order = [commit] if options.start is not None else _order(repo, commit)
    recipes = {version: recipe_of(repo, version) for version in order}
    _refuse_untrusted(recipes, options.trusted)
    with (
        repo.storage.work_folder() as folder,
        nullcontext(worker) if worker else ReplayProcess(folder) as process,
    ):
        base, replay = "", None
        if options.start is not None:
            import torch

            base = str(folder / "start.pt")
            torch.save(dict(options.start), base)
        for number, (version, recipe) in enumerate(recipes.items()):
            work_folder = folder / str(number)
            FileSystem().make_dirs(work_folder)
            replay = _Replay(repo, version, recipe, folder=work_folder, options=options)
            if len(order) > 1:
                replay.title += f" ({number + 1} of {len(order)})"
            replay.run(base, process)
            base = str(replay.result)
            if version != commit:
                replay.proven()  # raises RetrainingDiffers for the base
        assert replay is not None
        file = replay.proven()
        if (distance := replay.distance) is not None:
            repo.annotate(
                commit, note=f"replayed within {distance:.3g}, not bit for bit: {replay.where}"
            )
        with (
            nullcontext()
            if distance is not None
            else repo.providing(commit, replay.entry.path, file)
        ):
            yield Retrained(
                commit,
                replay.entry.path,
                file,
                replayed=tuple(order),
                seconds=replay.done.seconds,
                steps=replay.done.steps,
                differences=tuple(replay.differences),
                not_finite=replay.done.not_finite,
                distance=distance,
            )


def _refuse_untrusted(recipes: Mapping[CommitId, Recipe], trusted: Collection[CommitId]) -> None:
    """Raises NotTrusted, which names each untrusted version whose code would run.

    ``recipes``: maps the versions to train to their recipes. The requested version is last.
    """
    *bases, commit = recipes
    unnamed = {version: recipes[version] for version in recipes if version not in trusted}
    if not unnamed:
        return
    files = {name: None for recipe in unnamed.values() for name in sorted(recipe.code)}
    calls = [
        f"{version.short}: " * bool(bases) + call.text[:_CALL] + "…" * (len(call.text) > _CALL)
        for version, recipe in unnamed.items()
        for call in recipe.calls
        if not call.stored
    ]
    of = f" of {', '.join(version.short for version in unnamed)}" if bases else ""
    would = filter(None, (", ".join(files), _among("calls of installed code: ", calls)))
    allow = "add --trust-code (trust=True)"
    if set(unnamed) != {commit}:
        names = [version.short for version in recipes]
        allow = (
            f"name each of them: {' '.join(f'--trust {name}' for name in names)} (trust={names})"
        )
    error = NotTrusted(
        f"retraining {commit.short} would run code{of}: " + "; ".join(would),
        hint=_among(
            "read the code with ", [f"'mvc show --code {version.short}'" for version in unnamed]
        )
        + f", then {allow}",
    )
    error.versions = tuple(unnamed)
    raise error


# -- one replay --------------------------------------------------------------------------------


class _Replay:
    """The replay of one version from its base. ``where``: the replay's environment in one line."""

    def __init__(
        self,
        repo: Repository,
        commit: CommitId,
        recipe: Recipe,
        folder: Path,
        options: ReplayOptions,
    ) -> None:
        self._repo, self._commit, self._recipe = repo, commit, recipe
        self._folder, self._options = folder, options
        self.title = f"retraining {commit.short}"
        self.entry = repo.manifest(commit).by_path[recipe.makes.path]
        self.result = folder / "result.pt"
        self._proofs = list[Proof]()
        self.done = Ended(0.0, 0, ())
        self.differences: list[str] = []
        self.where = ""

    def run(self, base: str, worker: ReplayProcess) -> None:
        """Trains the version. ``base``: a file with the weights of the base version; empty if the
        repository has these weights.

        Raises CannotRetrain, CannotBuild, DamagedData.
        """
        worker.begin(*self._prepare(base, worker), timeout=self._options.timeout)
        self._follow(worker)
        if not self.result.exists():
            last_line = self._last_line(worker.log)
            raise CannotRetrain(
                f"the process that retrained {self._commit.short} ended without a result"
                + (f": {last_line}" if last_line else ""),
            )

    def _prepare(self, base: str, worker: ReplayProcess) -> tuple[Job, dict[str, str]]:
        """Returns the job for the process, and the environment variables of the process.

        Raises an error if data sets or code of the recipe are missing or changed.
        """
        repo, commit, recipe = self._repo, self._commit, self._recipe
        carrier = recipe.carrier(commit)
        code_of(repo, carrier, recipe.code, recipe.packages)
        recorded = Environment.decode(
            attached_bytes(repo, carrier, environment.NAME), recipe.packages
        )
        steps = [*segment(repo, commit)] if isinstance(recipe, StepRecipe) else []
        proven = repo.storage.proofs(steps)
        data = {version.name: str(worker.place(repo, version)) for version in recipe.data}
        work = self._folder / "work"
        FileSystem().make_dirs(work)
        job = Job(
            repository=str(repo.root),
            version=commit.hex(),
            base=base,
            data=data,
            anyway=self._options.anyway,
            threads=self._options.threads,
            folder=str(work),
            result=str(self.result),
            fork=sys.platform == "linux" and recipe.model.device == "cpu",
            wanted=tuple(version.hex() for version in steps if version not in {commit, *proven}),
        )
        return job, variables(recorded, {**os.environ, "PYTHONPATH": import_path()})

    def _follow(self, worker: ReplayProcess) -> None:
        """Reads the events of the process, until the process is idle or has ended."""
        began, total, done = 0.0, self._recipe.steps, 0
        self._report(0, total, "starts")
        for event in worker.events():
            if event is None:
                self._report(done, total, f"waits for process {worker.pid}, at step {done}")
            elif isinstance(event, Compared):
                self._compared(event)
            elif isinstance(event, Stepped) and not event.step:
                began, seconds = time.monotonic(), self._recipe.seconds
                self._report(0, total, f"takes about {seconds:.3g} s" if seconds else "trains")
            elif isinstance(event, Stepped):
                done, passed = event.step, time.monotonic() - began
                left = passed / max(done, 1) * max(total - done, 0)
                self._report(done, total, f"{left:.0f} s left" if total else f"{passed:.0f} s")
            elif isinstance(event, Reached):
                self._reached(CommitId.parse(event.version), event.seconds)
            elif isinstance(event, Ended):
                self.done = event
                worker.deadline = time.monotonic() + _ENDING
            elif isinstance(event, Failed):
                failure = _FAILURES.get(event.kind, CannotRetrain)
                raise failure(
                    f"{self._commit.short} cannot be retrained: {event.message}", hint=event.hint
                )
        if not self.result.exists() and time.monotonic() >= worker.deadline:
            raise CannotRetrain(
                f"retraining {self._commit.short} took more than {self._options.timeout:g} s: its "
                f"process was ended at step {done}" + (f" of {total}" if total else ""),
                hint="raise the limit: --timeout SECONDS (timeout=SECONDS)",
            )

    def _report(self, done: int, total: int, text: str) -> None:
        if self._options.progress is not None:
            self._options.progress(done, max(total, done), f"{self.title}, {text}")

    def _compared(self, event: Compared) -> None:
        self.where = event.where
        graded = [
            (
                f"{difference.field}: {difference.recorded}, here {difference.other}",
                difference.grade,
            )
            for difference in event.differences
            if difference.grade != "ignored"
        ]
        exact = [text for text, grade in graded if grade == "exact"]
        self.differences = [*exact, *(text for text, grade in graded if grade != "exact")]
        if exact and not self._options.anyway:
            raise CannotRetrain(
                f"{self._commit.short} was trained in another environment"
                + _among(": ", exact, "; "),
                hint="restore that environment; or train anyway (anyway=True, --anyway): "
                "the result is verified, and other weights are refused",
            )

    def _last_line(self, log: Path) -> str:
        lines = log.read_bytes()[-_LOG:].decode("utf-8", "replace").strip().splitlines()
        return printable(lines[-1])[:300] if lines else ""

    def proven(self) -> StateFile:
        """Returns the resulting file. Raises RetrainingDiffers if its weights differ too much.

        Records a proof if all bits are equal, unless the option ``threads`` overrides the recorded
        number of threads.
        """
        try:
            file = self._checked(self._commit, self.done.seconds, self.result)
        finally:
            self._record()
        if self.done.not_finite:
            names = _among("", list(map(printable, self.done.not_finite)))
            text = f"{self._commit.short} was reproduced, with values that are not "
            warnings.warn(f"{text}finite: {names}", MvcWarning, 2)
        return file

    def _reached(self, commit: CommitId, seconds: float) -> None:
        """Compares the replayed weights of an intermediate version with the recorded weights.

        If the weights differ, records the proofs of earlier versions, then raises
        RetrainingDiffers.
        """
        result = Path(f"{self.result}.{commit.hex()}")
        try:
            self._checked(commit, seconds, result)
        except RetrainingDiffers:
            self._record()
            raise
        result.unlink()

    def _checked(self, commit: CommitId, seconds: float, result: Path) -> StateFile:
        """Reads the file ``result``, and compares its tensors with those of the version.

        Raises RetrainingDiffers if they differ by more than the tolerance.
        """
        with FileSystem().open_read(result) as source:
            file = StateFile.of(parse(source, "result.pt").nested())
        entry = self._repo.manifest(commit).by_path[self._recipe.makes.path]
        self.distance: float | None = None
        if file.root == entry.state.root:
            base = self._recipe.base.version
            self._proofs.append(Proof(commit, entry.path, file.root, base=base, seconds=seconds))
        else:
            self._compare(commit, entry, file)
        return file

    def _record(self) -> None:
        if self._options.threads is None:
            self._repo.storage.prove(self._proofs, where=self.where)

    def _compare(self, commit: CommitId, entry: FileEntry, file: StateFile) -> None:
        """Raises RetrainingDiffers unless all differences are within the tolerance."""
        recorded = {tensor.key: tensor for tensor in entry.tensors}
        replayed = {tensor.key: tensor for tensor in file.entry.tensors}
        stored = None
        if missing_weights(self._repo, commit) is None:
            stored = self._repo.open_file(commit, entry.path, counted=False)
        differing = []
        for key in sorted({*replayed, *recorded}):
            a, b = recorded.get(key), replayed.get(key)
            if a is not None and b is not None and a.id == b.id:
                continue
            distance = None
            if stored and a is not None and b is not None and a.spec == b.spec:
                distance = distance_of(
                    a.spec.dtype, [stored.tensor_bytes(a)],
                    b.spec.dtype, [file.tensor_bytes(b)],
                )  # fmt: skip
            differing.append(TensorDifference(key, distance))
        self.distance = max(
            (
                math.inf if d is None or d.nonfinite else d.max_abs
                for d in (one.distance for one in differing)
            ),
            default=math.inf,
        )
        if self._options.tolerance is not None and self.distance <= self._options.tolerance:
            return
        furthest = sorted(differing, key=lambda d: -(d.distance.max_abs if d.distance else 0))
        why = "; ".join(self.differences[:_SHOWN])
        error = RetrainingDiffers(
            f"retraining {commit.short} produced other weights, which are not used: "
            f"{len(differing)} of {len(recorded)} tensors differ"
            + _among(": ", [*map(str, furthest)]),
            hint=f"the environment differs: {why}"
            if why
            else "the environment is the same: the recipe does not determine the training fully; "
            "'mvc probe' finds the layer that differs",
        )
        error.tensors = tuple(differing)
        raise error


def _among(prefix: str, texts: Sequence[str], between: str = ", ") -> str:
    """``prefix`` and the first few texts; empty if there are no texts."""
    return prefix + listed(texts, _SHOWN, between) if texts else ""


class ReplayProcess:
    """The process that runs jobs (trainings to replay), one after another.

    A pipe carries jobs to the process, and events of the training from the process. A job with
    other environment variables starts a new process. After ``deadline``, no more events are read.
    ``folder`` contains the log of the process, and copies of data sets.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.deadline = math.inf
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._variables: Mapping[str, str] = {}
        self._idle = False
        self._places: dict[Data, Path] = {}

    def place(self, repo: Repository, data: Data) -> Path:
        """The path at which the process finds a data set. Raises as ``dataset.place`` does."""
        if data not in self._places:
            folder = self._folder / "data" / str(len(self._places))
            self._places[data] = dataset.place(repo, data, folder)
        return self._places[data]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def begin(self, job: Job, variables: Mapping[str, str], *, timeout: float | None) -> None:
        """Sends a job to the idle process, or starts a new process for the job."""
        if not self._idle or variables != self._variables:
            self._end()
            self._start(variables)
        self.log.write_bytes(b"")
        self.deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        self._idle = False
        with suppress(OSError):  # the process has ended, which ``events`` will notice
            self._pipe.send_bytes(json.encode(job))

    def events(self) -> Iterator[Event | None]:
        """Yields the events of the process. Yields None after some seconds without an event.

        Stops when the process is idle or has ended, and at the deadline. A process counts as ended
        even if a child of it still has the pipe open.
        """
        while not self._idle and (left := self.deadline - time.monotonic()) > 0:
            if self._pipe.poll(min(left, _SILENT)):
                try:
                    event = json.decode(self._pipe.recv_bytes(), type=Event)
                except (EOFError, OSError):
                    return
                self._idle = isinstance(event, Idle)
                yield event
            elif self._process is None or self._process.poll() is not None:
                return
            else:
                yield None

    def _start(self, variables: Mapping[str, str]) -> None:
        self._pipe, child = Pipe()
        command = [sys.executable, "-P", "-m", "mvc.recipes.worker"]
        try:
            with child, self.log.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [*command, str(os.getpid()), str(child.fileno())],
                    env=dict(variables),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[child.fileno()],
                )
        except OSError as error:
            raise CannotRetrain(f"no process can be started: {error.strerror}") from error
        self._variables = variables

    def _end(self) -> None:
        if (process := self._process) is None:
            return
        process.kill()
        process.wait()
        self.deadline = time.monotonic() + _ORPHAN
        for _ in self.events():  # waits until a busy fork of the process has ended
            pass
        self._pipe.close()
        self._process, self._idle = None, False
