"""All scenarios by name."""

from __future__ import annotations

from collections.abc import Callable

from trunkline.check.scenario import Scenario
from trunkline.check.scenarios.broadcast import BROADCAST_SCENARIOS
from trunkline.check.scenarios.capture import CAPTURE_SCENARIOS
from trunkline.check.scenarios.chain import CHAIN_SCENARIOS
from trunkline.check.scenarios.clients import CLIENT_SCENARIOS
from trunkline.check.scenarios.delivery import DELIVERY_SCENARIOS
from trunkline.check.scenarios.delivery_places import PLACE_SCENARIOS
from trunkline.check.scenarios.delivery_sources import SOURCE_SCENARIOS
from trunkline.check.scenarios.disks import DISKS_SCENARIOS
from trunkline.check.scenarios.duties import DUTIES_SCENARIOS
from trunkline.check.scenarios.endings import ENDING_SCENARIOS
from trunkline.check.scenarios.freshness import FRESHNESS_SCENARIOS
from trunkline.check.scenarios.holes import HOLE_SCENARIOS
from trunkline.check.scenarios.several import SEVERAL_SCENARIOS
from trunkline.check.scenarios.space import SPACE_SCENARIOS
from trunkline.check.scenarios.trim import TRIMMING_SCENARIOS
from trunkline.check.scenarios.unreachable import UNREACHABLE_SCENARIOS
from trunkline.check.scenarios.upkeep import UPKEEP_SCENARIOS

_ALL = (
    *CLIENT_SCENARIOS,
    *CHAIN_SCENARIOS,
    *BROADCAST_SCENARIOS,
    *DUTIES_SCENARIOS,
    *TRIMMING_SCENARIOS,
    *FRESHNESS_SCENARIOS,
    *HOLE_SCENARIOS,
    *UNREACHABLE_SCENARIOS,
    *UPKEEP_SCENARIOS,
    *DISKS_SCENARIOS,
    *ENDING_SCENARIOS,
    *SEVERAL_SCENARIOS,
    *SPACE_SCENARIOS,
    *DELIVERY_SCENARIOS,
    *SOURCE_SCENARIOS,
    *PLACE_SCENARIOS,
    *CAPTURE_SCENARIOS,
)

SCENARIOS: dict[str, Callable[[], Scenario]] = {build().name: build for build in _ALL}
