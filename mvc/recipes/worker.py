"""The process that trains again: ``python -m mvc.recipes.worker PARENT PIPE``, by ``replay``.

Jobs come and events go through the pipe, a descriptor that ``replay`` hands on; each is a JSON
object. On Linux each job is done by a fork of this process, which imports torch once, so no
training sees what another one left behind; a job that says so is done by the process itself, and
is its last one. A process that works ends when the pipe does, so that it never outlives who
started it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
from msgspec import json

from mvc.api import Repository
from mvc.errors import CannotRetrain, MvcError
from mvc.ids import CommitId
from mvc.models import environment
from mvc.models.environment import Environment
from mvc.models.models import adopt_dtypes, attached_bytes
from mvc.models.settings import apply_settings
from mvc.recipes.messages import Compared, Ended, Event, Failed, Idle, Job, Reached, Stepped
from mvc.recipes.recipe import DRAWN, Model, StepRecipe, recipe_of, segment
from mvc.recipes.service import START, Rebuilt, counting_steps
from mvc.recipes.stepwise.stepping import Stepping, rows_in
from mvc.system import signal_at_end_of_parent
from mvc.training.resume import load_model
from mvc.training.state.rng import check_rng, set_rng_state

_EVERY = 0.1  # seconds between two reports of progress


def main(parent: int, pipe: Connection[Any, Any]) -> int:
    """Does jobs until there are no more; returns the exit code."""
    _end_with(parent)
    while (job := _next_job(pipe)) is not None:
        if not job.fork:
            return _do(job, pipe)
        torch.optim.SGD([torch.zeros(1)])  # imports what the first optimizer needs
        server = os.getpid()
        worker = os.fork()
        if worker == 0:
            _end_with(server)
            _end(_do(job, pipe))
        os.waitpid(worker, 0)
        _tell(pipe, Idle())
    return 0


def _next_job(pipe: Connection[Any, Any]) -> Job | None:
    """None if there are no more."""
    try:
        return json.decode(pipe.recv_bytes(), type=Job)
    except EOFError:
        return None


def _do(job: Job, events: Connection[Any, Any]) -> int:
    """Does one job; returns the exit code."""
    threading.Thread(target=_end_with_pipe, args=(events.fileno(),), daemon=True).start()
    os.chdir(job.folder)
    try:
        with Repository.open(job.repository, discover=False) as repo:
            _work(repo, job, events)
    except MvcError as error:
        _tell(events, Failed(error.message, error.hint, type(error).__name__))
        return 1
    except Exception as error:
        import traceback

        traceback.print_exc()
        _tell(events, Failed(f"{type(error).__name__}: {error}", None, ""))
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """Ends a fork without taking down the interpreter, which touches all that it shares."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _end_with_pipe(pipe: int) -> None:
    """During a job nothing comes but the end of the pipe."""
    os.read(pipe, 1)
    os._exit(3)


def _end_with(parent: int) -> None:
    """Has Linux end this process with its parent, also while code keeps Python's lock."""
    if sys.platform == "linux" and os.getppid() == parent:
        signal_at_end_of_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(3)


def _tell(events: Connection[Any, Any], event: Event) -> None:
    events.send_bytes(json.encode(event))


def _work(repo: Repository, job: Job, events: Connection[Any, Any]) -> None:
    began, last = time.monotonic(), 0.0  # a recovery includes what makes a training ready
    commit = CommitId.parse(job.version)
    recipe = recipe_of(repo, commit)
    carrier = recipe.carrier(commit)
    recorded = Environment.decode(attached_bytes(repo, carrier, environment.NAME), recipe.packages)
    apply_settings(recorded)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    here = environment.capture()
    compared = recorded.compare(here)
    _tell(events, Compared(_in_a_line(here), compared.differences))
    if compared.verdict == "different" and not job.anyway:
        return
    data = {name: Path(path) for name, path in job.data.items()}
    rebuilt = Rebuilt(repo, carrier, recipe, data)
    model = rebuilt.model()
    weights = (
        torch.load(job.base, weights_only=True)
        if job.base
        else repo.checkout(recipe.base.version, path=recipe.base.path)
    )
    start = rebuilt.state(START)
    check_rng(start["rng"])
    _prepare(model, recipe.model, weights, start["buffers"])
    rebuilt.objects()
    service = rebuilt.value(recipe.service)
    arguments = {name: rebuilt.value(value) for name, value in recipe.arguments.items()}
    _tell(events, Stepped(0))

    def step(number: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            _tell(events, Stepped(number))

    set_rng_state(start["rng"])
    with counting_steps(step) as steps:
        if isinstance(recipe, StepRecipe):
            training = Stepping(service, model, **arguments)
            began += sum(_versions(repo, commit, training, job=job, events=events, began=began))
        else:
            service(model, **arguments)
    seconds = time.monotonic() - began
    result = dict(model.state_dict())
    torch.save(result, job.result)
    wrong = tuple(name for name, value in result.items() if not _is_finite(value))
    _tell(events, Ended(seconds, steps.count, wrong))


def _versions(
    repo: Repository,
    commit: CommitId,
    training: Stepping,
    job: Job,
    events: Connection[Any, Any],
    began: float,
) -> Iterator[float]:
    """Makes the versions from a full state to ``commit``, and writes those that the job names.

    Yields the seconds that the writing took.
    """
    wrote = 0.0
    for version, batches in segment(repo, commit).items():
        drawn = repo.attachment(version, DRAWN) if batches.drawn else {}
        for number, rows in enumerate(batches.rows):
            if number in batches.drawn:
                check_rng(drawn.get(str(number)))
                set_rng_state(drawn[str(number)])
            training.step(rows_in(rows))
        if version.hex() in job.wanted:
            done = time.monotonic()
            torch.save(dict(training.model.state_dict()), f"{job.result}.{version.hex()}")
            _tell(events, Reached(version.hex(), done - began - wrote))
            wrote += (spent := time.monotonic() - done)
            yield spent


def _is_finite(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return True
    narrow = value.is_floating_point() and value.dtype.itemsize == 1  # torch lacks it for these
    return bool(torch.isfinite(value.float() if narrow else value).all())


def _in_a_line(here: Environment) -> str:
    fields = here.fields()
    return (
        f"Python {fields.get('python.release')}, torch {fields.get('torch.version')}, "
        f"{fields.get('cpu.capability')}, {fields.get('threads.torch')} threads"
    )


def _prepare(
    model: torch.nn.Module, kept: Model, weights: Mapping[str, Any], buffers: Mapping[str, Any]
) -> None:
    """Gives a new model the weights, dtypes, device and modes that it had."""
    adopt_dtypes(model, weights)
    try:
        model.to(kept.device)
    except (RuntimeError, AssertionError) as error:
        raise CannotRetrain(f"the training ran on {kept.device}, which is not here") from error
    try:
        load_model(model, weights, buffers)
    except RuntimeError as error:
        raise CannotRetrain(f"the base's weights do not fit the model: {error}") from error
    frozen, evaluating = set(kept.frozen), set(kept.evaluating)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in evaluating


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Connection(int(sys.argv[2]))))
