"""Functions and classes that list folders and parse model files.

Each name is imported at its first use, so that commands start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.adapters.files.pickle_nodes import PickledDict, read_pickle
    from mvc.adapters.files.zip_layout import read_members
    from mvc.adapters.opening import external_files, open_file, parse
    from mvc.adapters.parsed import MemorySource, Source, read_exactly
    from mvc.repo.checkout.outputs import refuse_slash, refuse_store
    from mvc.repo.worktree.worktree import (
        REPORT_BEGIN,
        FoundFile,
        dead_link,
        files_in,
        is_link,
        is_report,
        sorted_files_in,
    )

__all__ = [
    "REPORT_BEGIN",
    "FoundFile",
    "MemorySource",
    "PickledDict",
    "Source",
    "dead_link",
    "external_files",
    "files_in",
    "is_link",
    "is_report",
    "open_file",
    "parse",
    "read_exactly",
    "read_members",
    "read_pickle",
    "refuse_slash",
    "refuse_store",
    "sorted_files_in",
]

_IN = {
    "FoundFile": "mvc.repo.worktree.worktree",
    "MemorySource": "mvc.adapters.parsed",
    "PickledDict": "mvc.adapters.files.pickle_nodes",
    "REPORT_BEGIN": "mvc.repo.worktree.worktree",
    "Source": "mvc.adapters.parsed",
    "dead_link": "mvc.repo.worktree.worktree",
    "external_files": "mvc.adapters.opening",
    "files_in": "mvc.repo.worktree.worktree",
    "is_link": "mvc.repo.worktree.worktree",
    "is_report": "mvc.repo.worktree.worktree",
    "open_file": "mvc.adapters.opening",
    "parse": "mvc.adapters.opening",
    "read_exactly": "mvc.adapters.parsed",
    "read_members": "mvc.adapters.files.zip_layout",
    "read_pickle": "mvc.adapters.files.pickle_nodes",
    "refuse_slash": "mvc.repo.checkout.outputs",
    "refuse_store": "mvc.repo.checkout.outputs",
    "sorted_files_in": "mvc.repo.worktree.worktree",
}

__getattr__ = face(__name__, _IN)
