"""The protocol of an experiment, and how its options are stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol, TypeVar

from mvc.errors import WrongUsage

from .workspace import Workspace

__all__ = ["Experiment", "Report", "Row", "argument", "known", "option", "reproduce"]

Row = dict[str, Any]
"""The figures of one case, as plain values."""

Report = dict[str, Any]
"""What ``render`` shows, as plain values. ``schema`` names the experiment's folder."""

Case = TypeVar("Case")
T = TypeVar("T")


class Experiment(Protocol[Case]):
    """A dataclass; ``option`` and ``argument`` make its fields options of its command.

    Its docstring is the command's help. A field may be a dataclass with options of its own.
    """

    def cases(self) -> Sequence[Case]:
        """What is measured. Raises WrongUsage for options that do not fit, before anything runs."""

    def run(self, case: Case, place: Workspace) -> Row:
        """Measures one case, or takes what ``place`` has of it."""

    def report(self, rows: Sequence[Row]) -> Report:
        """All rows together. ``name`` is that of the report's files."""


def option(default: Any, text: str, metavar: str | None = None, **details: Any) -> Any:
    """A field that is an option of a command. ``details``: more for ``click.Option``."""
    return field(default=default, metadata={"option": details | {"help": text, "metavar": metavar}})


def argument(default: Any, metavar: str, **details: Any) -> Any:
    """A field that is a command's argument; a tuple takes all words."""
    return field(default=default, metadata={"argument": details | {"metavar": metavar}})


def reproduce(experiment: Experiment[Any], place: Workspace) -> Report:
    """Runs every case and gives the report, which ``place`` does not have yet."""
    cases = experiment.cases()
    rows = []
    for number, case in enumerate(cases):
        place.progress(str(getattr(case, "name", case)), number, len(cases))
        rows.append(experiment.run(case, place))
    return experiment.report(rows)


def known(kind: str, choices: dict[str, T], name: str) -> T:
    """The choice of this name; WrongUsage if there is none."""
    if name not in choices:
        raise WrongUsage(f"there is no {kind} {name}: it must be one of {', '.join(choices)}")
    return choices[name]
