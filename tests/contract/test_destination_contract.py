"""The contract suite of destinations, over every kind. Its tests are in ``src/trunkline/destination_suite``."""

from __future__ import annotations

from contract.kinds import kinds
from trunkline.destination_suite import contract_tests

globals().update(contract_tests(*kinds()))
