"""How versions, deployments and what is live look in an interactive session."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, overload

from mvc.errors import NotInstalled, how_to_install
from mvc.text import html_table, number, text_table
from mvc.times import format_time

if TYPE_CHECKING:
    from pandas import DataFrame

    from mvc.repo.content.compare import FileDiff
    from mvc.repo.deployments import Deployed
    from mvc.repo.history.log import LogEntry
    from mvc.repo.live import Live


_SHOWN = 20  # versions


class Log(Sequence["LogEntry"]):
    """Versions from the newest back, as a list that is read as far as somebody looks.

    ``len`` and negative indices read the whole history. Reading raises DamagedData where the
    history goes on with entries that are lost.
    """

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self._read: list[LogEntry] = []
        self._rest = iter(entries)

    def _entries(self, stop: int | None) -> list[LogEntry]:
        """At least the first ``stop`` entries, as far as there are any; None: all."""
        if stop is None:
            self._read.extend(self._rest)
        elif stop > len(self._read):
            self._read.extend(islice(self._rest, stop - len(self._read)))
        return self._read

    @overload
    def __getitem__(self, index: int) -> LogEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogEntry]: ...
    def __getitem__(self, index: int | slice) -> LogEntry | list[LogEntry]:
        if isinstance(index, int):
            return self._entries(index + 1 if index >= 0 else None)[index]
        stop = index.stop
        bounded = stop is not None and min(index.start or 0, stop, index.step or 1) >= 0
        return self._entries(stop if bounded else None)[index]

    def __len__(self) -> int:
        return len(self._entries(None))

    def _rows(self) -> tuple[list[Sequence[str]], bool]:
        """The first versions, and whether there are more."""
        entries = self._entries(_SHOWN + 1)
        return [_log_row(entry) for entry in entries[:_SHOWN]], len(entries) > _SHOWN

    def __repr__(self) -> str:
        rows, more = self._rows()
        return text_table(rows) + ("\n..." if more else "") if rows else "<Log: no versions>"

    def _repr_html_(self) -> str:
        rows, more = self._rows()
        names = ("version", "refs", "deployed to", "committed", "message", "metrics", "params")
        return html_table(names, rows) + ("<p>...</p>" if more else "")

    def to_pandas(self) -> DataFrame:
        """A table of all versions, newest first, with columns ``metrics.NAME``, ``params.NAME``.

        ``time`` is in UTC; a param of which every text is a number is a column of numbers. Raises
        NotInstalled without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise NotInstalled("to_pandas needs pandas", hint=how_to_install("pandas")) from None
        entries = self._entries(None)
        table = pandas.DataFrame({
            "version": [str(entry.id) for entry in entries],
            "time": pandas.to_datetime([e.commit.time_ns for e in entries], utc=True),
            "author": [entry.commit.author for entry in entries],
            "message": [entry.commit.message for entry in entries],
            "run": [entry.commit.run for entry in entries],
            "refs": [list(entry.refs) for entry in entries],
            "deployed": [_deployed_to(entry) for entry in entries],
        })  # fmt: skip
        metrics = {name: None for entry in entries for name in sorted(entry.metrics)}
        params = {name: None for entry in entries for name in sorted(entry.params)}
        for name in metrics:
            column = [entry.metrics.get(name, math.nan) for entry in entries]
            table[f"metrics.{name}"] = pandas.Series(column, dtype=float)
        for name in params:
            texts = [entry.params.get(name) for entry in entries]
            table[f"params.{name}"] = pandas.Series(_numbers(texts) or texts)
        return table


class Deployments(list["Deployed"]):
    """Deployments; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        names = ("version", "target", "live from", "by", "why", "")
        return html_table(names, map(_deployed_row, self))


class LiveVersions(tuple["Live", ...]):
    """What was live; a notebook shows it as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        names = ("target", "version", "since", "until", "message", "metrics", "by", "why")
        return html_table(names, map(_live_row, self))


def _live_row(live: Live) -> Sequence[str]:
    return (
        live.target,
        live.commit.short,
        format_time(live.since_ns),
        "" if live.until_ns is None else format_time(live.until_ns),
        live.message.strip().partition("\n")[0],
        _metrics(live.metrics),
        live.who,
        live.why,
    )


def _metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name}={number(value)}" for name, value in sorted(metrics.items()))


def _deployed_row(deployed: Deployed) -> Sequence[str]:
    return (
        deployed.commit.short,
        deployed.target,
        format_time(deployed.time_ns),
        deployed.author,
        deployed.reason,
        "retracted" if deployed.retracted else "",
    )


def _deployed_to(entry: LogEntry) -> list[str]:
    return list(dict.fromkeys(d.target for d in entry.deployments if not d.retracted))


def _numbers(texts: Iterable[str | None]) -> list[float] | None:
    """The texts as numbers, NaN for None; None if one of them is no number."""
    try:
        return [math.nan if text is None else float(text) for text in texts]
    except ValueError:
        return None


def _log_row(entry: LogEntry) -> Sequence[str]:
    commit = entry.commit
    return (
        entry.id.short,
        ", ".join(entry.refs),
        ", ".join(_deployed_to(entry)),
        format_time(commit.time_ns, precise=False),
        commit.message.strip().partition("\n")[0],
        _metrics(entry.metrics),
        "  ".join(f"{name}={value}" for name, value in sorted(entry.params.items())),
    )


def diff_rows(files: Iterable[FileDiff]) -> list[Sequence[str]]:
    """A row for every file that differs: path, kind, tensors that differ of those there are."""
    rows: list[Sequence[str]] = []
    for file in files:
        if file.kind != "unchanged":
            differ = sum(tensor.kind != "unchanged" for tensor in file.tensors)
            old = f" (was {file.renamed_from})" if file.renamed_from is not None else ""
            rows.append((file.path + old, file.kind, f"{differ:,} of {len(file.tensors):,}"))
    return rows
