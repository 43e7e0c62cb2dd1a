"""The commands by name, and removed commands and options with their replacements."""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Every day": {
        "commit": "Record model files as a new version.",
        "status": "Show changes since the last commit.",
        "log": "Show the history of a version.",
        "show": "Show a version: its changes, a tensor or its code.",
        "diff": "Compare two versions by tensors, or their environments.",
        "checkout": "Restore a version by name, or by the time it was live.",
        "deploy": "Record that a version went live, or list deployments.",
        "live": "Show the live version of a target, now or at a time.",
        "rollback": "Deploy the previous version of a target again.",
        "undo": "Undo an operation, or list the operations.",
    },
    "Start": {
        "init": "Create an empty repository.",
        "import": "Import checkpoint files as versions, or store a data set.",
        "config": "Show or change settings.",
        "help": "Explain a command or a topic.",
        "completion": "Print a completion script for a shell.",
        "train-distributed": "Train one model in processes that communicate rarely.",
    },
    "Inspect": {
        "ls": "List the files and tensors of a version, or data sets.",
        "annotate": "Add metrics, params or a note to an existing version.",
        "identify": "Find the versions that introduced the state of a file.",
        "verify": "Check the signatures of deployments or versions.",
        "stats": "Show sizes, counts and recovery times of the repository.",
        "report": "Write the history as an HTML page with charts.",
        "pipeline": "Explain pipelines, or choose one.",
        "probe": "Compare two runs of a model layer by layer.",
        "retrain": "Replay recipes, to store weights or prove the recipes.",
    },
    "Branches": {
        "switch": "Switch to another branch.",
        "branch": "List, create, rename or delete branches.",
        "merge": "Merge a version into the current branch, by tensors.",
        "tag": "List, create or delete tags.",
        "average": "Average the weights of versions.",
    },
    "Remotes": {
        "clone": "Copy a repository with its history into a new folder.",
        "remote": "List, add, remove or show remotes.",
        "fetch": "Download new versions and refs from a remote.",
        "pull": "Fetch, and fast-forward the current branch.",
        "push": "Send branches and tags to a remote.",
        "follow": "Keep a local file in sync with a target of a remote.",
        "serve": "Serve repositories over https or ssh.",
    },
    "Storage": {
        "repack": "Choose which versions are stored in full.",
        "gc": "Delete unreachable versions, and free their space.",
        "forget": "Delete the states of versions for good.",
        "fsck": "Check every stored byte, and repair damage.",
        "backup": "Copy the repository to a folder, or update that copy.",
        "restore": "Create a repository from a backup.",
    },
}
"""Commands by section, in the order of ``mvc help --all``, each with the first line of its help."""

COMMANDS: dict[str, str] = {
    name: line for section in SECTIONS.values() for name, line in section.items()
}

ELSEWHERE: dict[str, str] = {
    "add": "'mvc commit PATH' records files directly; there is no staging area",
    "bisect": "'mvc diff A B' compares versions; 'mvc log --where CONDITION' finds versions",
    "cherry-pick": "'mvc checkout REV PATH' and 'mvc commit PATH' record a file of another version",
    "export": "'mvc checkout REV -o DIR' writes a version to another folder",
    "history": "'mvc log' lists versions",
    "mv": "rename the file; 'mvc commit -a NEW' records the new name",
    "prune": "'mvc gc' deletes unreachable versions",
    "rebase": "versions do not change; 'mvc switch -c NAME REV' creates a branch at any version",
    "reflog": "'mvc undo --list' lists the operations",
    "reset": "'mvc undo' undoes an operation; 'mvc checkout -f HEAD' discards changes of files",
    "retract": "'mvc deploy REV TARGET --retract' withdraws a deployment",
    "revert": "'mvc checkout REV PATH' and 'mvc commit PATH' record an older state again",
    "stash": "'mvc switch -c NAME', then 'mvc commit -a', stores the changes on a branch",
    "track": "'mvc commit PATH' tracks a file",
    "ui": "'mvc report' writes an HTML page",
    "version": "'mvc --version' prints the version",
    "web": "'mvc report' writes an HTML page",
}
"""What to use instead of commands known from git."""


_FOLDERS = {
    name: section.lower().replace(" ", "_") for section, names in SECTIONS.items() for name in names
}


def module_of(name: str) -> str:
    """The module that defines a command; ``import_`` for ``import``, a keyword of Python."""
    module = "import_" if name == "import" else name.replace("-", "_")
    return f"mvc.cli.commands.{_FOLDERS[name]}.{module}"


_RELATIONS = "'mvc diff' and 'mvc show' print the relations of models"
REMOVED: dict[str, str] = {
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
    "rm": "delete the file; 'mvc commit PATH' or 'mvc commit -a' removes it from the next version",
}

_RETRAIN = "'mvc retrain REV' stores the weights again or proves the recipe"
_PAGE = "'mvc report' draws all charts on its page"
_SETTINGS = (
    "rho", "rate", "radius", "relative", "period", "safe", "every", "barrier", "rebalance",
    "outer-rate", "outer-momentum", "up", "down", "seed", "push", "worker-models", "resume",
    "timeout",
)  # fmt: skip
REMOVED_OPTIONS: dict[str, str] = {
    **{
        f"{command} {option}": _RETRAIN
        for command in ("checkout", "diff", "probe", "switch")
        for option in ("--retrain", "--anyway", "--trust-code", "--trust", "--timeout")
    },
    **{f"repack {option}": _RETRAIN for option in ("--trust-code", "--trust", "--timeout")},
    "commit --drop-weights": "'mvc forget --weights REV' drops proven weights",
    "commit --file": "'-m -' reads the message from stdin",
    "commit -F": "'-m -' reads the message from stdin",
    "commit --force": "name the file: 'mvc commit PATH' records an older one",
    "commit -f": "name the file: 'mvc commit PATH' records an older one",
    "commit --patch": "set commit.patch to true",
    "commit --timeout": "--no-verify skips the replay; 'mvc retrain --timeout' does it later",
    "forget --live-between": "name the versions that 'mvc live --between' lists",
    "forget --target": "name the versions that 'mvc live TARGET --between' lists",
    **{
        f"{command} --message": "use --reason, or -m"
        for command in ("deploy", "forget", "gc", "repack", "rollback", "undo")
    },
    **{f"{command} --unfold": "-v lists them" for command in ("diff", "report", "show")},
    "report --layer-seconds": "use --layers SECONDS",
    "follow --target": "it is the second argument: 'mvc follow SOURCE TARGET -o FILE'",
    "fetch --exit-code": "--json lists the updates",
    "live --follow": "use 'mvc follow . TARGET -o FILE'",
    "live --force": "use 'mvc checkout --target TARGET -o FILE -f'",
    "live --model": "use 'mvc checkout --model --target TARGET -o DIR'",
    "live --output": "use 'mvc checkout --target TARGET -o FILE'",
    "live -o": "use 'mvc checkout --target TARGET -o FILE'",
    "import --anyway": "import it without --deploy, then 'mvc deploy --anyway'",
    "log --best": "use '--sort NAME -n 1'",
    "log --price": "use 'mvc stats --versions'",
    "log --relations": _RELATIONS,
    "log --signatures": "'mvc verify' and 'mvc show' print the signer",
    "log --tree": _RELATIONS,
    "show --force": "delete the file first",
    "show -f": "delete the file first",
    "show --path": "name it PATH:TENSOR",
    "show --short": "'mvc log --oneline -n 1 REV' begins with ten digits",
    "pipeline --bench": REMOVED["bench"],
    "ls --name-only": "--json has the paths",
    "probe --path": "commit the states as versions of their own, or call mvc.probe in Python",
    "probe --time": "torch.profiler times the layers",
    "repack --drop-weights": "'mvc forget --weights REV' drops proven weights",
    "repack --outside-data": "store the data with 'mvc import --data', and train on that",
    "repack --super-step": "repo.storage.join_steps(M) in Python joins approximate steps",
    "repack --curve": "'mvc report' draws the storage curve",
    "report --text": _PAGE,
    "report --svg": _PAGE,
    "report --bytes": _PAGE,
    "report --distance": _PAGE,
    "report --target": _PAGE,
    "status --no-untracked": "list ignored files in .mvcignore",
    **{
        f"train-distributed --{name}": f"use '--option {name.replace('-', '_')}=VALUE'"
        for name in _SETTINGS
    },
    **{
        f"train-distributed --{name}": "torchrun has it: docs/distributed.md"
        for name in ("restarts", "host", "port")
    },
    "train-distributed --log": "the order of events is no longer recorded",
    "undo --max-count": "the list is newest first: 'mvc undo --list | head'",
    "stats --prometheus": "'mvc serve' answers /metrics",
}
"""By command and long name."""
REMOVED_EVERYWHERE = {"--log-format": "Python's logging formats the records of the loggers mvc.*"}
"""Options that every command had."""


def replacement_of(command: str | None, option: str) -> str | None:
    """The replacement of a removed option; None if it never existed."""
    return REMOVED_EVERYWHERE.get(option) or REMOVED_OPTIONS.get(f"{command} {option}")
