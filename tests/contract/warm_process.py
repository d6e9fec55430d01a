"""Imported by the process that the children of the contract suite are forked from: they inherit what takes long to load."""

from __future__ import annotations

import pytest  # noqa: F401

from contract import destination_place, ducklake_destination

destination_place.kinds()
ducklake_destination.instance()
