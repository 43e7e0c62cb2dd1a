"""The version of mvc."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """The version of the installed distribution."""
    try:
        return metadata.version("mvc-weights")
    except metadata.PackageNotFoundError:  # run from an uninstalled copy
        return "0+unknown"
