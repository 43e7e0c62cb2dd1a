"""Parts of the JSON objects that commands print. ``Output.json`` writes ids as hexadecimal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.repo.deployments import Deployed
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.content.relation import Relation

__all__ = ["deployed_json", "fields", "relation_json", "stamped"]


def fields(value: object, *names: str) -> dict[str, Any]:
    """The attributes of ``value`` whose names are also the JSON keys."""
    return {name: getattr(value, name) for name in names}


def stamped(key: str, time_ns: int | None) -> dict[str, str | int | None]:
    """A moment as ISO 8601 (UTC) under ``key``, and in nanoseconds under ``key`` + ``_ns``."""
    return {key: None if time_ns is None else format_time(time_ns, 0), f"{key}_ns": time_ns}


def relation_json(relation: Relation) -> dict[str, Any]:
    """What one model is to the one it was made from."""
    return fields(relation, "path", "kind", "base_path", "tensors", "shared", "equal")


def deployed_json(deployed: Deployed) -> dict[str, Any]:
    """One deployment."""
    return {
        **fields(deployed, "target", "commit"),
        **stamped("time", deployed.time_ns),
        **stamped("recorded", deployed.recorded_ns),
        **fields(deployed, "sequence", "retracted", "retracted_ns"),
    }
