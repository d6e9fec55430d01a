"""Known bugs of the metadata register, and of who asks it."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patching import patch
from trunkline.core.effects import Effects
from trunkline.core.messages import Get, Got
from trunkline.core.reconfigurer import Reconfigurer
from trunkline.core.register import MetadataRegister

_got = MetadataRegister._got


def _unchanged_whatever_is_known(self: MetadataRegister, get: Get) -> Got:
    """Whoever knows a projection is told that it is unchanged, be it an old one."""
    got = _got(self, get)
    return replace(got, projection=None, unchanged=get.known) if get.known else got


def _unchanged_is_nothing(self: Reconfigurer, got: Got) -> Effects:
    """That an epoch is unchanged which is not the known one is taken for a log that does not exist."""
    known = self.view if got.unchanged and got.unchanged == self._known() else got.projection
    if not got.unchanged and (known.epoch if known is not None else 0) < self._known():
        return []
    self.view, self.nodes = known, got.nodes
    return self._on_projection()


REGISTER_MUTANTS = (
    Mutant(
        "unchanged-though-older",
        "who knows an old projection is told that nothing has changed",
        "sequencer-replaced",
        patch((MetadataRegister, "_got", _unchanged_whatever_is_known)),
        "Progress",
        "breadth",
        2_000,
        ("register M5",),
    ),
    Mutant(
        "unchanged-is-no-log",
        "that the known projection is unchanged is taken for a log that does not exist",
        "finish-segment",
        patch((Reconfigurer, "_on_got", _unchanged_is_nothing)),
        "Progress",
        "breadth",
        5_000,
        ("reconfigurer R10",),
    ),
)

UNSEEN = {
    "register M3": "leases are told, not used, by the register: it says what others may not rely on. Whoever lets safety "
    "rest on a lease breaks a rule of its own (reconfigurer R2, coordinator C5), and their mutants show that",
    "register M4": "a client that is forgotten too early or too late only changes who may take a broadcast log unasked "
    "(writer W5). Owners are fenced either way and a refusal is an allowed answer, so no monitor can object; unit tests "
    "and the contract of the stores show it",
}
