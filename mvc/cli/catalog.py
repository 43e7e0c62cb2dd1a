"""The commands by name: those that there are; and commands and options that went, each with what
takes its place.
"""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Every day": {
        "commit": "Record model files as a new version.",
        "status": "Show what changed since the last commit.",
        "log": "Show the history of a version.",
        "show": "Show a version: what it changed, a tensor, its code.",
        "diff": "Compare two versions tensor by tensor, or where they were made.",
        "checkout": "Restore a version, by name or by the moment it was live.",
        "deploy": "Record that a version went live on a target, or list all.",
        "live": "Show what is live, or was at a moment.",
        "rollback": "Deploy what was live on a target before.",
        "undo": "Take back an operation, or list the operations.",
    },
    "Start": {
        "init": "Make an empty repository.",
        "import": "Turn existing checkpoint files into history, or store a data set.",
        "config": "Show or change settings.",
        "help": "Explain a command or a topic.",
        "completion": "Print the completion script of a shell.",
        "train-distributed": "Train one model in several processes that communicate rarely.",
    },
    "Look": {
        "ls": "List the files and tensors of a version, or data sets.",
        "annotate": "Add what was found out about a version later.",
        "identify": "Find the versions that introduced a file's state.",
        "verify": "Say who vouches for what was live, or for versions.",
        "stats": "Show what the repository holds and costs.",
        "report": "Draw the history as a page.",
        "pipeline": "Explain pipelines, or choose one.",
        "probe": "Compare two runs of a model layer by layer.",
        "retrain": "Make weights again by their recipe, and store or prove them.",
    },
    "Branches": {
        "switch": "Go to another branch.",
        "branch": "List, make, rename or delete branches.",
        "merge": "Merge a version into the current branch, tensor by tensor.",
        "tag": "List, make or delete tags.",
        "average": "Average the weights of versions.",
    },
    "Remotes": {
        "clone": "Make a repository with all that another one has.",
        "remote": "List, add, remove or show other repositories.",
        "fetch": "Bring what is new in a remote.",
        "pull": "Fetch, and move the current branch forward.",
        "push": "Send branches and tags to a remote.",
        "follow": "Keep a file or folder what is live at a remote.",
        "serve": "Serve repositories to others, by https or through ssh.",
    },
    "Storage": {
        "repack": "Choose which versions are stored in full.",
        "gc": "Delete unreachable versions and objects, and free their space.",
        "forget": "Delete the states of versions for good.",
        "fsck": "Check every stored byte.",
        "backup": "Copy the repository, or what is new of it, to a folder.",
        "restore": "Make a repository out of a backup.",
    },
}
"""Commands by section, in the order of ``mvc help --all``, each with its line of help.

``mvc --help`` has the lines of the first section, and of the others the names. A test keeps the
lines equal to the commands' own docstrings.
"""

COMMANDS: dict[str, str] = {
    name: line for section in SECTIONS.values() for name, line in section.items()
}

ELSEWHERE: dict[str, str] = {
    "add": "'mvc commit PATH' records files at once: nothing is staged before",
    "mv": "rename the file yourself; 'mvc commit -a NEW' records that",
    "rebase": "versions do not change; 'mvc switch -c NAME REV' begins a branch at any of them",
    "reflog": "'mvc undo --list' lists the operations",
    "reset": "'mvc undo' takes back an operation, 'mvc checkout -f HEAD' the changes of files",
    "retract": "'mvc deploy REV TARGET --retract' says that a deployment did not happen",
    "revert": "'mvc checkout REV PATH' and 'mvc commit PATH' record an older state anew",
}
"""What to do instead of a command that people know from git or expect here."""


_FOLDERS = {
    name: section.lower().replace(" ", "_") for section, names in SECTIONS.items() for name in names
}


def module_of(name: str) -> str:
    """The module that defines a command; ``import`` is a word of Python and gets a line."""
    module = "import_" if name == "import" else name.replace("-", "_")
    return f"mvc.cli.commands.{_FOLDERS[name]}.{module}"


_RELATIONS = "'mvc diff' and 'mvc show' print how models relate"
GONE: dict[str, str] = {
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
    "rev-parse": "use 'mvc show --id REV'",
    "rm": "delete the file; 'mvc commit PATH' or 'mvc commit -a' takes it out of the next version",
}

_RETRAIN = "'mvc retrain REV' stores the weights again, or proves the recipe"
_PAGE = "'mvc report' draws all charts on its page"
_SETTINGS = (
    "rho", "rate", "radius", "relative", "period", "safe", "every", "barrier", "rebalance",
    "outer-rate", "outer-momentum", "up", "down", "seed", "push", "worker-models", "resume",
    "timeout",
)  # fmt: skip
GONE_OPTIONS: dict[str, str] = {
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
    "pipeline --bench": GONE["bench"],
    "ls --name-only": "--json has the paths",
    "probe --path": "commit the states as versions of their own, or call mvc.probe in Python",
    "probe --time": "torch.profiler times the layers",
    "repack --drop-weights": "'mvc forget --weights REV' gives up proven weights",
    "repack --outside-data": "store the data with 'mvc import --data', and train on those",
    "repack --super-step": "repo.storage.join_steps(M) in Python joins approximate steps",
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
    **{
        f"train-distributed --{name}": "torchrun has it: docs/distributed.md"
        for name in ("restarts", "host", "port")
    },
    "train-distributed --log": "the order of events is not kept any more",
    "undo --max-count": "the list is newest first: 'mvc undo --list | head'",
    "stats --prometheus": "'mvc serve' answers /metrics",
}
"""By command and long name."""
GONE_EVERYWHERE = {"--log-format": "Python's logging formats the records of the loggers mvc.*"}
"""Options that every command had."""


def instead_of(command: str | None, option: str) -> str | None:
    """What takes the place of an option that went; None if it never was one."""
    return GONE_EVERYWHERE.get(option) or GONE_OPTIONS.get(f"{command} {option}")
