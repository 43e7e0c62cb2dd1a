"""The commands in their sections, and hints for commands and options that mvc lacks."""

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
        "pipeline": "Explain or choose the pipeline that encodes tensors.",
        "probe": "Compare two runs of a model layer by layer.",
        "retrain": "Run recorded trainings again, to restore weights or prove recipes.",
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
        "pull": "Fetch, then fast-forward the current branch.",
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
"""Commands by section, in the order of ``mvc help --all``, with the first lines of their help."""

COMMANDS: dict[str, str] = {
    name: line for section in SECTIONS.values() for name, line in section.items()
}

ELSEWHERE: dict[str, str] = {
    "add": "'mvc commit PATH' records files directly; there is no staging area",
    "bisect": "'mvc log --metrics' shows where a metric changed, 'mvc diff A..B' which tensors",
    "blame": "'mvc log PATH' lists the versions that changed a file",
    "cat": "'mvc show REV TENSOR' prints a tensor, 'mvc checkout REV PATH -o -' a file",
    "cherry-pick": "'mvc checkout REV PATH' and 'mvc commit PATH' copy files of a version",
    "export": "'mvc checkout REV -o DIR' writes the files of a version",
    "history": "'mvc log' lists versions, 'mvc deploy --list TARGET' deployments",
    "list": "'mvc ls' lists the files of a version, 'mvc log' the versions",
    "ls-files": "'mvc ls' lists the files of a version",
    "ls-remote": "'mvc remote show [NAME|URL]' lists the refs of a remote",
    "mv": "rename the file; 'mvc commit -a NEW' records the new name",
    "prune": "'mvc gc' deletes objects that no ref or deployment needs",
    "rebase": "versions do not change; 'mvc switch -c NAME REV' creates a branch at any version",
    "reflog": "'mvc undo --list' lists the operations",
    "reset": "'mvc undo' undoes an operation; 'mvc checkout -f HEAD' discards changes of files",
    "retract": "'mvc deploy REV TARGET --retract' withdraws a deployment",
    "rev-parse": "'mvc show --id REV' prints the id of a version",
    "revert": "'mvc checkout REV PATH' and 'mvc commit PATH' record an older state again",
    "rm": "delete the file; 'mvc commit PATH' or 'commit -a' removes it from the next version",
    "save": "'mvc commit PATH' records a version",
    "stash": "'mvc switch -c NAME' and 'mvc commit -a' keep changes; 'mvc switch main' goes back",
    "track": "'mvc commit PATH' tracks a file from then on",
    "ui": "'mvc report -o FILE.html' writes a page with all charts",
    "web": "'mvc report -o FILE.html' writes a page with all charts",
}
"""Maps commands of git and of other programs to hints on what to use instead."""


_FOLDERS = {
    name: section.lower().replace(" ", "_") for section, names in SECTIONS.items() for name in names
}


def module_of(name: str) -> str:
    """The module that defines a command: ``import_`` for ``import``, a keyword of Python."""
    module = "import_" if name == "import" else name.replace("-", "_")
    return f"mvc.cli.commands.{_FOLDERS[name]}.{module}"


OPTIONS_ELSEWHERE: dict[str, str] = {
    "commit --amend": "'mvc undo' undoes the commit; then commit again",
    "commit -F": "'-m -' reads the message from stdin",
    "log --author": "use --where 'author = NAME'",
    "log --follow": "'mvc log PATH' lists the versions that changed a file",
    "rollback TARGET REV": "'--to REV' names the version: mvc rollback TARGET --to REV",
    "show --stat": "use 'mvc log -n 1 --stat REV'",
}
"""Maps options of git commands that mvc lacks to hints on what to use instead."""
