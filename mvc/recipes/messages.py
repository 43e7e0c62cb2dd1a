"""Messages between ``mvc.recipes.replay`` and the process that trains (``mvc.recipes.worker``)."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from mvc.models.environment import EnvironmentDifference


class Job(Struct, frozen=True):
    """A training for the process to replay.

    ``base``: the path of a file with the initial weights; empty if the repository has these
    weights. ``folder``: the working folder of the training. ``fork``: whether a fork of the process
    runs the job. ``wanted``: ids of intermediate versions whose weights the process writes, in
    addition to the result.
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
    """``where``: the current environment in one line. ``differences``: how the current environment
    differs from the recorded one.
    """

    where: str
    differences: tuple[EnvironmentDifference, ...]


class Stepped(_Event, frozen=True):
    """An optimizer has made step number ``step``. If ``step`` is 0, the training starts."""

    step: int


class Reached(_Event, frozen=True):
    """An intermediate version in ``Job.wanted`` was written to the file ``RESULT.ID``."""

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
    """The job failed. ``kind``: the name of the error's class if mvc defines this class; otherwise
    empty.
    """

    message: str
    hint: str | None
    kind: str


class Idle(_Event, frozen=True):
    """The fork that ran the job has ended, and the process accepts the next job."""


Event: TypeAlias = Compared | Stepped | Reached | Ended | Failed | Idle
