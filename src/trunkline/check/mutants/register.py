"""Mutants of the metadata register, and rules that no search can see broken."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core.messages import Get, Got
from trunkline.core.register import MetadataRegister

_got = MetadataRegister._got


def _always_unchanged(self: MetadataRegister, get: Get) -> Got:
    """A client with any projection gets the answer that it is unchanged."""
    got = _got(self, get)
    return replace(got, projection=None, unchanged=get.known) if get.known else got


REGISTER_MUTANTS = (
    Mutant(
        "unchanged-though-older",
        "a client with an old projection gets the answer that nothing has changed",
        "sequencer-replaced",
        patch((MetadataRegister, "_got", _always_unchanged)),
        "Progress",
        "breadth",
        2_000,
        ("register M5",),
    ),
)

UNSEEN = {
    "reconfigurer R10": "a role that returns to an older projection loses its next swap (register M1) and reads "
    "again: that costs time, and searches over some scenarios found no more; unit tests cover the rule",
    "register M3": "the register reports leases and does not use them: the rule says what others may not rely on. A "
    "role whose safety relies on a lease breaks its own rule (reconfigurer R2, coordinator C5), and has mutants",
    "register M6": "roles only send legal projections, so the rule never applies here; it is for peers that lie, "
    "and tests with such peers cover it. Mutants that make an illegal projection must disable it first",
    "names B1": "names of logs and processes are part of a scenario, and no role invents one",
    "names B2": "names of logs and processes are part of a scenario, and no role invents one",
    "register M4": "a client that is forgotten too early or too late only changes which client may take a broadcast "
    "log unasked (writer W5). Owners are fenced either way and a refusal is an allowed answer, so no monitor can "
    "report it; unit tests and the contract of the stores cover it",
}
