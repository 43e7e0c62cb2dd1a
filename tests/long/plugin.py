"""A plugin for pytest: runs the tests that a file names, in its order, and notes what passed.

With pytest-xdist it runs in every worker, which choose alike, and in the controller, which
alone gets to know what came of the tests. What has passed is on disk before the next one ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["FINISHED"]

FINISHED = "finished.jsonl"
PROCESSOR = "processor seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("long suite")
    group.addoption("--long-tests", metavar="FILE", required=True, help="ids, one a line")
    group.addoption("--long-folder", metavar="FOLDER", required=True)
    group.addoption("--long-run", metavar="NAME", required=True, help="of this run's counters")
    group.addoption("--long-commit", metavar="ID", required=True, help="of the code that runs")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Noting(config), "noting the long suite")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = Path(config.getoption("--long-tests")).read_text(encoding="utf-8").splitlines()
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[name] for name in names]


_began: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Adds to the last report of a test the processor time that it took, with its children."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append((PROCESSOR, _processor() - _began.pop(item.nodeid)))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    _began[nodeid] = _processor()


def _processor() -> float:
    return sum(os.times()[:4])


class _Noting:
    def __init__(self, config: pytest.Config) -> None:
        folder = Path(config.getoption("--long-folder"))
        self.path = folder / FINISHED
        self.run = config.getoption("--long-run")
        self.commit = config.getoption("--long-commit")
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration
        if report.failed:
            self.failed.add(name)
        if report.when == "teardown" and name not in self.failed:
            noted = {"test": name, "seconds": round(self.seconds[name], 2),
                     "processor": round(dict(report.user_properties)[PROCESSOR], 2),
                     "run": self.run, "commit": self.commit}  # fmt: skip
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(noted) + "\n")
