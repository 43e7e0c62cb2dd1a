"""Messages between ``replay`` and the process that runs it (``mvc.recipes.worker``)."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from mvc.models.environment import EnvironmentDifference


class Job(Struct, frozen=True):
    """A job for the process. ``base``: a file with the weights; empty if they are stored.

    ``folder``: its working folder. ``fork``: a fork of the process runs the job. ``wanted``:
    intermediate versions that are written, too.
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
    """The current environment in one line, and its differences from the recorded one."""

    where: str
    differences: tuple[EnvironmentDifference, ...]


class Stepped(_Event, frozen=True):
    """An optimizer has made the step of this number; 0: the training starts."""

    step: int


class Reached(_Event, frozen=True):
    """A wanted intermediate version was written, to the result's path plus its id."""

    version: str
    seconds: float


class Ended(_Event, frozen=True):
    """The training is done. ``not_finite``: tensors with an infinite value or NaN."""

    seconds: float
    steps: int
    not_finite: tuple[str, ...]


class Failed(_Event, frozen=True):
    """The job failed with an error of class ``kind``; empty if it is not of mvc."""

    message: str
    hint: str | None
    kind: str


class Idle(_Event, frozen=True):
    """The fork that ran the job has ended; the next job may follow."""


Event: TypeAlias = Compared | Stepped | Reached | Ended | Failed | Idle
