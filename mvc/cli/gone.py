"""Commands and options that went, each with what takes its place."""

from __future__ import annotations

_RELATIONS = "'mvc diff' and 'mvc show' print how models relate"
COMMANDS: dict[str, str] = {
    "bench": "examples/bench.py of the source tree measures pipelines on files of yours",
    "cat": "use 'mvc show REV TENSOR'",
    "data": "use 'mvc ls --data' and 'mvc import --data SOURCE'",
    "deployments": "use 'mvc deploy --list [TARGET]'",
    "env": "use 'mvc diff --environment' and 'mvc show --environment'",
    "family": _RELATIONS,
    "ls-remote": "use 'mvc remote show [NAME|URL]'",
    "nodes": "use 'mvc live --nodes'",
    "oplog": "use 'mvc undo --list'",
    "plot": "use 'mvc report', whose page has all charts",
    "rm": "delete the file; 'mvc commit PATH' or 'mvc commit -a' takes it out of the next version",
}

_RETRAIN = "'mvc retrain REV' stores the weights again, or proves the recipe"
_PAGE = "'mvc report' draws all charts on its page"
_SETTINGS = (
    "rho", "rate", "radius", "relative", "period", "safe", "every", "barrier", "rebalance",
    "outer-rate", "outer-momentum", "up", "down", "seed", "push", "worker-models", "resume",
    "restarts", "timeout", "host", "port", "log",
)  # fmt: skip
OPTIONS: dict[str, str] = {
    **{
        f"{command} {option}": _RETRAIN
        for command in ("checkout", "diff", "probe", "switch")
        for option in ("--retrain", "--anyway", "--trust-code", "--trust", "--timeout")
    },
    **{f"repack {option}": _RETRAIN for option in ("--trust-code", "--trust", "--timeout")},
    "commit --drop-weights": "'mvc forget --weights REV' gives up proven weights",
    "commit --file": "'-m -' reads the message from stdin",
    "commit -F": "'-m -' reads the message from stdin",
    "commit --force": "name the file: 'mvc commit PATH' records an older one",
    "commit -f": "name the file: 'mvc commit PATH' records an older one",
    "commit --patch": "set commit.patch to true",
    "commit --timeout": "leave out the replay with --no-verify; 'mvc retrain --timeout' makes it",
    "forget --live-between": "name the versions that 'mvc live --between' lists",
    "forget --target": "name the versions that 'mvc live TARGET --between' lists",
    **{
        f"{command} --message": "use --reason, or -m"
        for command in ("deploy", "forget", "gc", "repack", "rollback", "undo")
    },
    **{f"{command} --unfold": "-v lists them" for command in ("diff", "report", "show")},
    "report --layer-seconds": "use --layers SECONDS",
    "follow --exec-timeout": "CMD has 600 seconds; have it start longer work in the background",
    "follow --target": "it is the second argument: 'mvc follow SOURCE TARGET -o FILE'",
    "fetch --exit-code": "--json says what was new",
    "live --follow": "use 'mvc follow . TARGET -o FILE'",
    "live --force": "use 'mvc checkout --target TARGET -o FILE -f'",
    "live --model": "use 'mvc checkout --model --target TARGET -o DIR'",
    "live --output": "use 'mvc checkout --target TARGET -o FILE'",
    "live -o": "use 'mvc checkout --target TARGET -o FILE'",
    "import --anyway": "import it without --deploy, then 'mvc deploy --anyway'",
    "log --best": "use '--sort NAME -n 1'",
    "log --price": "use 'mvc stats --versions'",
    "log --relations": _RELATIONS,
    "log --signatures": "'mvc verify' and 'mvc show' print who vouches",
    "log --tree": _RELATIONS,
    "show --force": "delete the file first",
    "show -f": "delete the file first",
    "show --path": "name it PATH:TENSOR",
    "show --short": "'mvc log --oneline -n 1 REV' begins with ten digits",
    "pipeline --bench": COMMANDS["bench"],
    "ls --name-only": "--json has the paths",
    "probe --path": "commit the states as versions of their own, or call mvc.probe in Python",
    "probe --time": "torch.profiler times the layers",
    "repack --drop-weights": "'mvc forget --weights REV' gives up proven weights",
    "repack --outside-data": "store the data with 'mvc import --data', and train on those",
    "repack --super-step": "repo.storage.repack(super_step=M) in Python",
    "repack --curve": "the storage curve is on the page of 'mvc report'",
    "report --text": _PAGE,
    "report --svg": _PAGE,
    "report --bytes": _PAGE,
    "report --distance": _PAGE,
    "report --target": _PAGE,
    "status --no-untracked": "name what to leave out in .mvcignore",
    **{
        f"train-distributed --{name}": f"use '--option {name.replace('-', '_')}=VALUE'"
        for name in _SETTINGS
    },
    "undo --max-count": "the list is newest first: 'mvc undo --list | head'",
    "stats --prometheus": "'mvc serve' answers /metrics",
}
"""By command and long name."""
GLOBAL = {"--log-format": "Python's logging formats the records of the loggers mvc.*"}
"""Options that every command had."""


def instead_of(command: str | None, option: str) -> str | None:
    """What takes the place of an option that went; None if it never was one."""
    return GLOBAL.get(option) or OPTIONS.get(f"{command} {option}")
