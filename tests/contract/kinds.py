"""Every kind of destination of this repository, with the example, for the contract suite."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from trunkline.destination_suite import Kind

NAMES: Final = ("ducklake", "delta", "postgres", "s3", "iceberg")
MODULES: Final = (*(f"contract.{name}_destination" for name in NAMES), "sqlite_site")


def kinds() -> tuple[Kind, ...]:
    """Of every module that has ``KINDS``."""
    return tuple(kind for name in MODULES for kind in import_module(name).KINDS)
