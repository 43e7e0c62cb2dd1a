"""The version of mvc."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """What the distribution says, whose version is the tag that it was built from."""
    try:
        return metadata.version("mvc-weights")
    except metadata.PackageNotFoundError:  # run from a copy that nobody has installed
        return "0+unknown"
