"""Turns results of commands (structs) into JSON, for ``--json``.

A text such as ``"id bytes=size time@"`` lists the fields of a JSON object in order. ``id``: the key
and the attribute of the struct have the same name. ``bytes=size``: the key ``bytes`` has the value
of the attribute ``size``. ``time@`` or ``time@attribute``: a time, as ISO 8601 (UTC) under the key
``time``, and in nanoseconds under ``time_ns``. The attribute of ``time@`` is ``time_ns``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from mvc.times import format_time

OWN_FIELDS = {
    "Annotation": "number author time@ metrics params note",
    "Collection": "grace_seconds commits forgotten objects phantoms recoded operations packs "
    "before_bytes=before freed_bytes=freed quarantined_bytes=quarantined "
    "quarantine_deleted_bytes=unquarantined",
    "Commit": "id parents root manifest author time@ zone_minutes message metrics params pipeline "
    "code dirty run attached",
    "CommitResult": "commit branch paths raw_bytes stored_bytes deployment",
    "Deployed": "target commit time@ recorded@ sequence author reason returns_to replaces "
    "retracted retracted_ns retracted_by retracted_reason id sent_by",
    "Diff": "a b comparisons from_head metrics params unmeasured relations files",
    "Dropped": "path seconds where time@ proven@",
    "FileChange": "path kind detail not_written same_as",
    "FileDiff": "path kind renamed_from comparisons other_changed types tensors",
    "FileEntry": "path format bytes=size content=content_id root=state.root tensors",
    "FirstDifference": "direction part text name inside call",
    "FsckReport": "sound full problems notes entries versions forgotten absent lost_versions=lost "
    "records objects checked_bytes",
    "Imported": "source time@ commit kept=is_new raw_bytes stored_bytes branch",
    "Live": "target commit since@ until@ recorded@deployment.recorded_ns "
    "sequence=deployment.sequence id=deployment.id replaces=deployment.replaces "
    "author=deployment.author sent_by=deployment.sent_by reason=deployment.reason "
    "message metrics params annotations",
    "LayerCall": "layer type call forward",
    "LayoutMetrics": "bytes reset_points recovery_worst=worst_seconds recovery_mean=mean_seconds "
    "recovery_worst_commit=worst_commit decoded_worst=worst_bytes decoded_mean=mean_bytes "
    "deltas_worst=worst_deltas deltas_mean=mean_deltas",
    "LogicalTensor": "key dtype=spec.dtype shape=spec.shape bytes=spec.nbytes id",
    "NodeStatus": "node target commit since@ reported@ clock_ahead_ms=ahead_ms "
    "clock_off=is_clock_off live live_since@live_ns behind behind_seconds silent_since@",
    "Operation": "number operation=entry.operation time@entry.time_ns author=entry.done_by "
    "sent_by=entry.sender reason=entry.why note=entry.note refs=entry.refs commits "
    "statements=entry.statements states=entry.states undoes=entry.undoes undone_by shortened",
    "Probe": "same training=second.training conditions=second.conditions "
    "environment=second.environment first_difference=difference causes layers=rows",
    "Problem": "kind object where message versions tensors",
    "Quarantined": "file bytes=length reason=why",
    "Repacked": "added=plan.added removed=plan.removed full_added=plan.full_added "
    "full_removed=plan.full_removed deltas_added=plan.deltas_added "
    "deltas_removed=plan.deltas_removed given_up=plan.dropped prices=plan.prices "
    "before=plan.before planned=plan.after now",
    "Restored": "commit written deleted unchanged left_out branch head_moved=moved_head "
    "unreached=orphans",
    "StateMark": "commit state=change path",
    "Receipt": "number time@ author reason rules states",
    "Followed": "target commit time@ file path previous rollback received_bytes=received swapped@",
    "ForgottenState": "commit root gone@ again@ came",
    "RolledBack": "target commit left time@ recorded@ sequence author reason returns_to replaces "
    "retracted retracted_ns retracted_by retracted_reason id",
    "Short": "metric=best.metric keep=best.count have without",
    "TensorDiff": "key kind renamed_from old=old_spec new=new_spec changed_share l2 max_abs cosine "
    "nonfinite",
    "TensorSpec": "dtype shape",
    "Undoing": "number undone=operation refs=entry.refs before head=after deployments",
    "Unsent": "remote target state",
    "Vouched": "target=deployment.target commit=deployment.commit time@deployment.time_ns "
    "recorded@deployment.recorded_ns sequence=deployment.sequence id=deployment.id "
    "retracted=deployment.retracted signature version retraction problems",
}
"""Maps the name of a class to its JSON fields. The JSON of other classes has all attributes."""


def fields(value: Any, names: str = "") -> dict[str, Any]:
    """The JSON fields of ``value``.

    ``names``: lists the fields, as in ``OWN_FIELDS``. By default, the fields of the value's class.
    """
    values: dict[str, Any] = {}
    for key, read, is_moment in _readers(names or _names(value.__class__)):
        values |= stamped(key, read(value)) if is_moment else {key: read(value)}
    return values


@cache
def _names(kind: type) -> str:
    from mvc.api import Statement  # imported late, so that the program starts faster

    if issubclass(kind, Statement):
        return " ".join(("kind=name id subject commit author reason", *kind.body))
    return OWN_FIELDS.get(kind.__name__) or " ".join(getattr(kind, "__struct_fields__", ()))


@cache
def _readers(names: str) -> list[tuple[str, attrgetter[Any], bool]]:
    """The key of each field, its getter, and whether it is a time."""
    readers = []
    for name in names.split():
        key, mark, path = name.partition("@" if "@" in name else "=")
        path = path or (f"{key}_ns" if mark == "@" else key)
        readers.append((key, attrgetter(path), mark == "@"))
    return readers


def stamped(key: str, time_ns: int | None) -> dict[str, str | int | None]:
    """A time as ISO 8601 (UTC) under ``key``, and in nanoseconds under ``key`` + ``_ns``."""
    return {key: None if time_ns is None else format_time(time_ns, 0), f"{key}_ns": time_ns}


def plain(value: Any) -> Any:
    """Converts a value to types of JSON: ids to hexadecimal texts, NaN and infinities to words."""
    if isinstance(value, Struct):
        value = fields(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Path) else value
