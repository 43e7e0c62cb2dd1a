"""Messages between ``mvc.recipes.replay`` and the process ``mvc.recipes.worker``.

A replay runs a recorded training again, to compute the weights of a version. It sends a ``Job`` to
the process, which trains and answers with the events below.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from mvc.models.environment import EnvironmentDifference


class Job(Struct, frozen=True):
    """A training for the process to replay.

    ``base``: the path of a file with the initial weights; empty if the repository has these
    weights. ``anyway``: whether to train although the environment differs from the recorded one.
    ``folder``: the working folder of the training. ``result``: the file for the computed weights.
    ``fork``: whether a fork of the process trains. ``wanted``: ids of intermediate versions whose
    weights the process writes, too.
    """

    repository: str
    version: str
    base: str
    data: dict[str, str]
    anyway: bool
    threads: int | None
    folder: str
    result: str
    fork: bool
    wanted: tuple[str, ...] = ()


class _Event(Struct, frozen=True, tag_field="event", tag=str.lower):
    pass


class Compared(_Event, frozen=True):
    """The process has compared its environment with the recorded environment.

    ``where``: the environment of the process, in one line.
    """

    where: str
    differences: tuple[EnvironmentDifference, ...]


class Stepped(_Event, frozen=True):
    """An optimizer has made step number ``step``. If ``step`` is 0, the training starts."""

    step: int


class Reached(_Event, frozen=True):
    """The weights of a version in ``Job.wanted`` were written to the file ``RESULT.ID``."""

    version: str
    seconds: float


class Ended(_Event, frozen=True):
    """The training is done. ``not_finite``: names of tensors that contain an infinite value or
    NaN.
    """

    seconds: float
    steps: int
    not_finite: tuple[str, ...]


class Failed(_Event, frozen=True):
    """The job failed. ``kind``: the error's class in ``mvc.errors``; empty for any other class."""

    message: str
    hint: str | None
    kind: str


class Idle(_Event, frozen=True):
    """The fork that ran the job has ended, and the process accepts the next job."""


Event: TypeAlias = Compared | Stepped | Reached | Ended | Failed | Idle
