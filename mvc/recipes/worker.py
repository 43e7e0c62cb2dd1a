"""The replay process, which runs recorded trainings again: it receives jobs and sends events.

A job is a training to run again. Events report the progress of a job. ``mvc.recipes.replay`` starts
this process as ``python -m mvc.recipes.worker PARENT PIPE``. ``PARENT`` is the process id of the
parent. ``PIPE`` is an inherited file descriptor. Jobs and events are JSON objects in this pipe.

A job with ``fork`` runs in a fork of this process. So torch is imported once for many jobs, and no
job sees changes that another job made. Without ``fork``, this process runs the job and ends. During
a job, the process ends when the pipe closes, so it never outlives its parent.
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
    """Runs jobs until the pipe is closed, or one job without ``fork``. Returns the exit code."""
    _end_with(parent)
    while (job := _next_job(pipe)) is not None:
        if not job.fork:
            return _do(job, pipe)
        torch.optim.SGD([torch.zeros(1)])  # imports modules that the first optimizer needs
        server = os.getpid()
        worker = os.fork()
        if worker == 0:
            _end_with(server)
            _end(_do(job, pipe))
        os.waitpid(worker, 0)
        _send(pipe, Idle())
    return 0


def _next_job(pipe: Connection[Any, Any]) -> Job | None:
    """The next job; None if the pipe is closed."""
    try:
        return json.decode(pipe.recv_bytes(), type=Job)
    except EOFError:
        return None


def _do(job: Job, events: Connection[Any, Any]) -> int:
    """Runs one job; returns the exit code."""
    threading.Thread(target=_end_with_pipe, args=(events.fileno(),), daemon=True).start()
    os.chdir(job.folder)
    try:
        with Repository.open(job.repository, discover=False) as repo:
            _work(repo, job, events)
    except MvcError as error:
        _send(events, Failed(error.message, error.hint, type(error).__name__))
        return 1
    except Exception as error:
        import traceback

        traceback.print_exc()
        _send(events, Failed(f"{type(error).__name__}: {error}", None, ""))
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """Ends a fork without finalizing the Python interpreter, which would copy shared memory."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _end_with_pipe(pipe: int) -> None:
    """Waits until the parent closes the pipe or ends. Then ends this process.

    During a job, the parent sends nothing through the pipe.
    """
    os.read(pipe, 1)
    os._exit(3)


def _end_with(parent: int) -> None:
    """On Linux: makes the kernel kill this process when the process ``parent`` ends, even while
    code holds Python's global lock.
    """
    if sys.platform == "linux" and os.getppid() == parent:
        signal_at_end_of_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(3)


def _send(events: Connection[Any, Any], event: Event) -> None:
    events.send_bytes(json.encode(event))


def _work(repo: Repository, job: Job, events: Connection[Any, Any]) -> None:
    began, last = time.monotonic(), 0.0  # ``Ended.seconds`` includes the preparation
    commit = CommitId.parse(job.version)
    recipe = recipe_of(repo, commit)
    # The version that stores the code, the environment and the training state at the start.
    carrier = recipe.carrier(commit)
    recorded = Environment.decode(attached_bytes(repo, carrier, environment.NAME), recipe.packages)
    apply_settings(recorded)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    current = environment.capture()
    compared = recorded.compare(current)
    _send(events, Compared(_in_a_line(current), compared.differences))
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
    _send(events, Stepped(0))

    def step(number: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            _send(events, Stepped(number))

    set_rng_state(start["rng"])
    with counting_steps(step) as steps:
        if isinstance(recipe, StepRecipe):
            training = Stepping(service, model, **arguments)
            # ``Ended.seconds`` does not include the time to write weights of ``job.wanted``.
            began += sum(_versions(repo, commit, training, job=job, events=events, began=began))
        else:
            service(model, **arguments)
    seconds = time.monotonic() - began
    result = dict(model.state_dict())
    torch.save(result, job.result)
    wrong = tuple(name for name, value in result.items() if not _is_finite(value))
    _send(events, Ended(seconds, steps.count, wrong))


def _versions(
    repo: Repository,
    commit: CommitId,
    training: Stepping,
    job: Job,
    events: Connection[Any, Any],
    began: float,
) -> Iterator[float]:
    """Repeats the training steps from the preceding full state to ``commit``.

    A full state is a version that stores the whole training state. ``training`` has this state when
    the function is called. Writes the weights of each version in ``job.wanted``, and yields the
    seconds that each write took.
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
            _send(events, Reached(version.hex(), done - began - wrote))
            wrote += (writing := time.monotonic() - done)
            yield writing


def _is_finite(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return True
    narrow = (
        value.is_floating_point() and value.dtype.itemsize == 1
    )  # torch.isfinite does not support 8-bit floats
    return bool(torch.isfinite(value.float() if narrow else value).all())


def _in_a_line(environment: Environment) -> str:
    fields = environment.fields()
    return (
        f"Python {fields.get('python.release')}, torch {fields.get('torch.version')}, "
        f"{fields.get('cpu.capability')}, {fields.get('threads.torch')} threads"
    )


def _prepare(
    model: torch.nn.Module, recorded: Model, weights: Mapping[str, Any], buffers: Mapping[str, Any]
) -> None:
    """Gives a newly built model the recorded weights, buffers, dtypes and device.

    Freezes the recorded parameters, and sets each module to the recorded mode (train or eval).
    """
    adopt_dtypes(model, weights)
    try:
        model.to(recorded.device)
    except (RuntimeError, AssertionError) as error:
        raise CannotRetrain(
            f"the training ran on {recorded.device}, which this machine does not have"
        ) from error
    try:
        load_model(model, weights, buffers)
    except RuntimeError as error:
        raise CannotRetrain(f"the base's weights do not match the model: {error}") from error
    frozen, evaluating = set(recorded.frozen), set(recorded.evaluating)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in evaluating


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Connection(int(sys.argv[2]))))
