"""Known bugs of the metadata register, and which of its rules no search can see broken."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core.messages import Get, Got
from trunkline.core.register import MetadataRegister

_got = MetadataRegister._got


def _unchanged_whatever_is_known(self: MetadataRegister, get: Get) -> Got:
    """Whoever knows a projection is told that it is unchanged, be it an old one."""
    got = _got(self, get)
    return replace(got, projection=None, unchanged=get.known) if get.known else got


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
)

UNSEEN = {
    "reconfigurer R10": "who goes back to an older projection loses its next swap (register M1) and reads again: that "
    "costs time, and searches over some scenarios found no more; unit tests show the rule",
    "register M3": "the register tells leases and does not use them: the rule says what others may not rely on. Who "
    "lets safety rest on a lease breaks a rule of its own (reconfigurer R2, coordinator C5), and their mutants show it",
    "register M6": "what a role sends always follows what is stored, so the rule never speaks here; it is for peers "
    "that lie, and tests with such peers show it. Mutants that make an unlawful map must take it away first",
    "names B1": "names of logs and processes are given to a scenario, and nobody in it makes one up",
    "names B2": "names of logs and processes are given to a scenario, and nobody in it makes one up",
    "register M4": "a client that is forgotten too early or too late only changes who may take a broadcast log unasked "
    "(writer W5). Owners are fenced either way and a refusal is an allowed answer, so no monitor can object; unit "
    "tests and the contract of the stores show it",
}
