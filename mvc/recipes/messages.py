"""What ``replay`` and the process that trains again tell each other: jobs, and events of them.

That process is ``mvc.recipes.worker``.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from mvc.models.environment import EnvironmentDifference


class Job(Struct, frozen=True):
    """What the process is told. ``base``: a file with the weights, empty if they are stored.

    ``folder`` is what it works in. ``fork``: a fork of the process does it. ``wanted``: versions on
    the way that are written, too.
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
    """The environment here, in a line, and how it differs from the recorded one."""

    where: str
    differences: tuple[EnvironmentDifference, ...]


class Stepped(_Event, frozen=True):
    """An optimizer has made its step of this number; 0: the training begins."""

    step: int


class Reached(_Event, frozen=True):
    """A wanted version on the way is written, to the result's path and its id."""

    version: str
    seconds: float


class Ended(_Event, frozen=True):
    """The training is done. ``not_finite``: tensors with an infinite value or NaN."""

    seconds: float
    steps: int
    not_finite: tuple[str, ...]


class Failed(_Event, frozen=True):
    """It failed with an error of class ``kind``; empty if it is none of mvc."""

    message: str
    hint: str | None
    kind: str


class Idle(_Event, frozen=True):
    """The fork that did the job has ended; the next job may come."""


Event: TypeAlias = Compared | Stepped | Reached | Ended | Failed | Idle
