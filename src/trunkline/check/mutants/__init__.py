"""The mutants: known bugs, each of which the checker must find."""

from __future__ import annotations

from trunkline.check.mutants.appenders import APPENDING_MUTANTS
from trunkline.check.mutants.capture import CAPTURE_MUTANTS
from trunkline.check.mutants.capture_tables import CAPTURE_TABLE_MUTANTS
from trunkline.check.mutants.clients import CLIENT_MUTANTS
from trunkline.check.mutants.delivery import DELIVERY_MUTANTS
from trunkline.check.mutants.disks import DISK_MUTANTS
from trunkline.check.mutants.endings import ENDING_MUTANTS
from trunkline.check.mutants.places import PLACE_MUTANTS
from trunkline.check.mutants.planners import PLANNING_MUTANTS
from trunkline.check.mutants.projections import PROJECTION_MUTANTS
from trunkline.check.mutants.readers import READING_MUTANTS
from trunkline.check.mutants.register import REGISTER_MUTANTS
from trunkline.check.mutants.servers import SERVER_MUTANTS
from trunkline.check.mutants.storage import STORAGE_MUTANTS
from trunkline.check.mutants.upkeep import UPKEEP_MUTANTS

MUTANTS = (
    *CLIENT_MUTANTS,
    *APPENDING_MUTANTS,
    *READING_MUTANTS,
    *ENDING_MUTANTS,
    *SERVER_MUTANTS,
    *UPKEEP_MUTANTS,
    *STORAGE_MUTANTS,
    *REGISTER_MUTANTS,
    *DISK_MUTANTS,
    *PROJECTION_MUTANTS,
    *DELIVERY_MUTANTS,
    *PLANNING_MUTANTS,
    *PLACE_MUTANTS,
    *CAPTURE_MUTANTS,
    *CAPTURE_TABLE_MUTANTS,
)
