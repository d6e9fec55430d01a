"""Imported by the process that children of the contract suite are forked from: they inherit what loads slowly."""

from __future__ import annotations

import pytest  # noqa: F401

from contract import ducklake_destination, history_processes  # noqa: F401
from contract.kinds import kinds

kinds()
ducklake_destination.instance()
