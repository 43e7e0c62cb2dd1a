"""Commands and options that went, each with what takes its place."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "bench": "examples/bench.py of the source tree measures pipelines on files of yours",
    "cat": "use 'mvc show REV TENSOR'",
    "data": "use 'mvc ls --data' and 'mvc import --data SOURCE'",
    "deployments": "use 'mvc deploy --list [TARGET]'",
    "env": "use 'mvc diff --environment' and 'mvc show --environment'",
    "family": "'mvc diff' and 'mvc log --relations' print how models relate",
    "oplog": "use 'mvc undo --list'",
    "plot": "use 'mvc report', whose page has all charts",
}

_PAGE = "'mvc report' draws all charts on its page"
OPTIONS: dict[str, str] = {
    "log --tree": "'mvc diff' and 'mvc log --relations' print how models relate",
    "pipeline --bench": COMMANDS["bench"],
    "repack --curve": "the storage curve is on the page of 'mvc report'",
    "report --text": _PAGE,
    "report --svg": _PAGE,
    "report --bytes": _PAGE,
    "report --distance": _PAGE,
    "report --target": _PAGE,
    "stats --prometheus": "'mvc serve' answers /metrics",
}
"""By command and long name."""
GLOBAL = {"--log-format": "Python's logging formats the records of the loggers mvc.*"}
"""Options that every command had."""


def instead_of(command: str | None, option: str) -> str | None:
    """What takes the place of an option that went; None if it never was one."""
    return GLOBAL.get(option) or OPTIONS.get(f"{command} {option}")
