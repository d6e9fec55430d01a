"""The version of the installed package."""

from __future__ import annotations


def version() -> str:
    from importlib import metadata  # takes longer to load than most commands need

    try:
        return metadata.version("trunkline")
    except metadata.PackageNotFoundError:
        return "unknown: run from a source tree that is not installed"
