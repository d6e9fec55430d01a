"""The known bugs of the field, kept for ever: each is put back on purpose and must be found."""

from __future__ import annotations

from trunkline.check.mutants.clients import CLIENT_MUTANTS
from trunkline.check.mutants.delivery import DELIVERY_MUTANTS
from trunkline.check.mutants.disks import DISK_MUTANTS
from trunkline.check.mutants.servers import SERVER_MUTANTS
from trunkline.check.mutants.storage import STORAGE_MUTANTS

MUTANTS = (*CLIENT_MUTANTS, *SERVER_MUTANTS, *STORAGE_MUTANTS, *DISK_MUTANTS, *DELIVERY_MUTANTS)
