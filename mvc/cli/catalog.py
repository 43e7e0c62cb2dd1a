"""The closed table of commands: name, module, one line of help.

``mvc --help`` prints it without importing a command; a test keeps the lines equal
to the commands' own docstrings.
"""

from __future__ import annotations

__all__ = ["COMMANDS", "SECTIONS", "module_of"]

SECTIONS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "Make an empty repository.",
        "import": "Turn existing checkpoint files into history.",
        "config": "Show or change settings.",
        "pipeline": "Check and explain a pipeline, or choose one by requirement.",
        "completion": "Print the completion script of a shell.",
    },
    "Record": {
        "status": "Show what changed since the last commit.",
        "commit": "Record model files as a new version.",
        "rm": "Take files out of the next commit.",
    },
    "Look": {
        "log": "Show the history of a version.",
        "show": "Show one commit and what it changed.",
        "diff": "Compare two versions tensor by tensor.",
        "ls": "List the files and tensors of a version.",
        "cat": "Print one tensor, or save it as .npy.",
        "identify": "Find the versions that hold a file's state.",
        "stats": "Show what the repository holds and costs.",
        "bench": "Measure every pipeline on your own models.",
    },
    "Go back": {
        "checkout": "Restore a version, by name or by the moment it was live.",
        "switch": "Go to another branch.",
        "branch": "List, make, rename or delete branches.",
        "tag": "List, make or delete tags.",
        "rev-parse": "Print the full id of a revision.",
    },
    "Deploy": {
        "deploy": "Record that a version went live on a target.",
        "deployments": "List what was live, where and when.",
    },
    "Undo": {
        "undo": "Take back an operation.",
        "oplog": "List the operations on the repository.",
    },
    "Maintenance": {
        "repack": "Choose which versions are stored in full.",
        "gc": "Delete unreachable versions and objects, and free their space.",
        "forget": "Delete the states of versions for good.",
        "fsck": "Check every stored byte.",
    },
}
"""Commands by section, in the order ``mvc --help`` lists them."""

COMMANDS: dict[str, str] = {
    name: line for section in SECTIONS.values() for name, line in section.items()
}


def module_of(name: str) -> str:
    """The module that defines a command; ``import`` is a word of Python and gets a line."""
    return "mvc.cli.commands." + ("import_" if name == "import" else name.replace("-", "_"))
