"""The Python API for repositories: ``Repository``, and the types of its arguments and results.

Most methods of ``Repository`` resolve their arguments, and call one function of another package. A
name of this package is imported from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.api.clone import clone, visit
    from mvc.api.healing import heal, rebuild_index
    from mvc.api.node_status import NodeStatus, nodes
    from mvc.api.opening import opened, version_with
    from mvc.api.remotes import refs_of
    from mvc.api.repository import Repository
    from mvc.api.storage import Storage
    from mvc.io.ssh_keygen import Checked
    from mvc.maintenance.backup import restore
    from mvc.maintenance.forget import Chosen, ForgetPreview
    from mvc.maintenance.gc import Collection
    from mvc.maintenance.overview import History
    from mvc.maintenance.receipts import ForgottenState, Receipt
    from mvc.maintenance.repack.plan import LayoutMetrics
    from mvc.maintenance.repack.repack import Repacked
    from mvc.maintenance.report import FsckReport, Problem, Repaired
    from mvc.maintenance.stats import Stats
    from mvc.maintenance.weights import Alternative, Proof
    from mvc.model.commit import Commit
    from mvc.model.manifest import FileEntry, LogicalTensor, Manifest
    from mvc.model.statement import Statement
    from mvc.model.tensor import TensorSpec
    from mvc.remote.clone import CloneOptions, clone_into
    from mvc.remote.push import Pushed
    from mvc.remote.transfer import RefUpdate, Transferred
    from mvc.remote.unsent import Unsent
    from mvc.repo.average import Averaged, ema_weights
    from mvc.repo.checkout.checkout import Restored
    from mvc.repo.checkout.reader import VersionFile
    from mvc.repo.commit.request import CommitOptions, FileOptions
    from mvc.repo.commit.result import CommitResult
    from mvc.repo.config import KEYS, Config, set_value, settings, unset_value, user_file
    from mvc.repo.content.compare import FileDiff, TensorDiff
    from mvc.repo.content.relation import Relation
    from mvc.repo.diff.diff import Diff
    from mvc.repo.diff.nearest import Nearest
    from mvc.repo.handle import Tuning
    from mvc.repo.history.log import LogEntry, LogOptions
    from mvc.repo.killed import Interrupted
    from mvc.repo.lookup.availability import Availability, Dropped, Gone, Stored
    from mvc.repo.lookup.manifests import clear_caches
    from mvc.repo.lookup.refs import Ref
    from mvc.repo.merge.merge import Merged
    from mvc.repo.merge.plan import Conflict
    from mvc.repo.oplog.oplog import Operation
    from mvc.repo.oplog.undo import Undoing
    from mvc.repo.revisions import Rev
    from mvc.repo.scratch import Scratch
    from mvc.repo.statements.annotations import Annotation
    from mvc.repo.statements.live import Deployed, Live
    from mvc.repo.statements.protection import RecordingNotice
    from mvc.repo.statements.signatures import Vouched
    from mvc.repo.values import check_values, metrics_from, params_from
    from mvc.repo.version_stats import VersionStats
    from mvc.repo.worktree.git_code import GitCode
    from mvc.repo.worktree.identify import Identified
    from mvc.repo.worktree.status import FileChange, Status

__all__ = [
    "KEYS",
    "Alternative",
    "Annotation",
    "Availability",
    "Averaged",
    "Checked",
    "Chosen",
    "CloneOptions",
    "Collection",
    "Commit",
    "CommitOptions",
    "CommitResult",
    "Config",
    "Conflict",
    "Deployed",
    "Diff",
    "Dropped",
    "FileChange",
    "FileDiff",
    "FileEntry",
    "FileOptions",
    "ForgetPreview",
    "ForgottenState",
    "FsckReport",
    "GitCode",
    "Gone",
    "History",
    "Identified",
    "Interrupted",
    "LayoutMetrics",
    "Live",
    "LogEntry",
    "LogOptions",
    "LogicalTensor",
    "Manifest",
    "Merged",
    "Nearest",
    "NodeStatus",
    "Operation",
    "Problem",
    "Proof",
    "Pushed",
    "Receipt",
    "RecordingNotice",
    "Ref",
    "RefUpdate",
    "Relation",
    "Repacked",
    "Repaired",
    "Repository",
    "Restored",
    "Rev",
    "Scratch",
    "Statement",
    "Stats",
    "Status",
    "Storage",
    "Stored",
    "TensorDiff",
    "TensorSpec",
    "Transferred",
    "Tuning",
    "Undoing",
    "Unsent",
    "VersionFile",
    "VersionStats",
    "Vouched",
    "check_values",
    "clear_caches",
    "clone",
    "clone_into",
    "ema_weights",
    "heal",
    "metrics_from",
    "nodes",
    "opened",
    "params_from",
    "rebuild_index",
    "refs_of",
    "restore",
    "set_value",
    "settings",
    "unset_value",
    "user_file",
    "version_with",
    "visit",
]

_IN = {
    "Alternative": "mvc.maintenance.weights",
    "Proof": "mvc.maintenance.weights",
    "Annotation": "mvc.repo.statements.annotations",
    "Availability": "mvc.repo.lookup.availability",
    "Averaged": "mvc.repo.average",
    "Checked": "mvc.io.ssh_keygen",
    "Chosen": "mvc.maintenance.forget",
    "CloneOptions": "mvc.remote.clone",
    "Collection": "mvc.maintenance.gc",
    "Commit": "mvc.model.commit",
    "CommitOptions": "mvc.repo.commit.request",
    "CommitResult": "mvc.repo.commit.result",
    "Config": "mvc.repo.config",
    "Conflict": "mvc.repo.merge.plan",
    "Deployed": "mvc.repo.statements.live",
    "Diff": "mvc.repo.diff.diff",
    "Dropped": "mvc.repo.lookup.availability",
    "FileChange": "mvc.repo.worktree.status",
    "FileDiff": "mvc.repo.content.compare",
    "FileEntry": "mvc.model.manifest",
    "FileOptions": "mvc.repo.commit.request",
    "ForgetPreview": "mvc.maintenance.forget",
    "ForgottenState": "mvc.maintenance.receipts",
    "FsckReport": "mvc.maintenance.report",
    "GitCode": "mvc.repo.worktree.git_code",
    "Gone": "mvc.repo.lookup.availability",
    "History": "mvc.maintenance.overview",
    "Identified": "mvc.repo.worktree.identify",
    "Interrupted": "mvc.repo.killed",
    "KEYS": "mvc.repo.config",
    "LayoutMetrics": "mvc.maintenance.repack.plan",
    "Live": "mvc.repo.statements.live",
    "LogEntry": "mvc.repo.history.log",
    "LogOptions": "mvc.repo.history.log",
    "LogicalTensor": "mvc.model.manifest",
    "Manifest": "mvc.model.manifest",
    "Merged": "mvc.repo.merge.merge",
    "Nearest": "mvc.repo.diff.nearest",
    "NodeStatus": "mvc.api.node_status",
    "Operation": "mvc.repo.oplog.oplog",
    "Problem": "mvc.maintenance.report",
    "Pushed": "mvc.remote.push",
    "Receipt": "mvc.maintenance.receipts",
    "RecordingNotice": "mvc.repo.statements.protection",
    "Ref": "mvc.repo.lookup.refs",
    "RefUpdate": "mvc.remote.transfer",
    "Relation": "mvc.repo.content.relation",
    "Repacked": "mvc.maintenance.repack.repack",
    "Repaired": "mvc.maintenance.report",
    "Repository": "mvc.api.repository",
    "Restored": "mvc.repo.checkout.checkout",
    "Rev": "mvc.repo.revisions",
    "Scratch": "mvc.repo.scratch",
    "Statement": "mvc.model.statement",
    "Stats": "mvc.maintenance.stats",
    "Status": "mvc.repo.worktree.status",
    "Storage": "mvc.api.storage",
    "Stored": "mvc.repo.lookup.availability",
    "TensorDiff": "mvc.repo.content.compare",
    "TensorSpec": "mvc.model.tensor",
    "Transferred": "mvc.remote.transfer",
    "Tuning": "mvc.repo.handle",
    "Undoing": "mvc.repo.oplog.undo",
    "Unsent": "mvc.remote.unsent",
    "VersionFile": "mvc.repo.checkout.reader",
    "VersionStats": "mvc.repo.version_stats",
    "Vouched": "mvc.repo.statements.signatures",
    "check_values": "mvc.repo.values",
    "clear_caches": "mvc.repo.lookup.manifests",
    "clone": "mvc.api.clone",
    "clone_into": "mvc.remote.clone",
    "ema_weights": "mvc.repo.average",
    "heal": "mvc.api.healing",
    "metrics_from": "mvc.repo.values",
    "nodes": "mvc.api.node_status",
    "opened": "mvc.api.opening",
    "params_from": "mvc.repo.values",
    "rebuild_index": "mvc.api.healing",
    "refs_of": "mvc.api.remotes",
    "restore": "mvc.maintenance.backup",
    "set_value": "mvc.repo.config",
    "settings": "mvc.repo.config",
    "unset_value": "mvc.repo.config",
    "user_file": "mvc.repo.config",
    "version_with": "mvc.api.opening",
    "visit": "mvc.api.clone",
}

__getattr__ = face(__name__, _IN)
