"""Transcripts for a storage node: one member's stream of a chain log and of a broadcast log, and what to ask of it.

A transcript is played twice: straight through, and with a restart from the persisted records before every request.
The answers must be the same (N2).
"""

from __future__ import annotations

import pytest

from core.driver import DiskedNode
from trunkline.check.scenarios.cluster import BROADCAST2, CHAIN2, broadcast_log, chain_log
from trunkline.core.effects import Message
from trunkline.core.messages import Reason, Rejected, descriptor_of
from trunkline.core.projection import Owner

CHAIN = chain_log(CHAIN2, "a b", sequencer="a")
D = descriptor_of(CHAIN, CHAIN.last, CHAIN.last.members()[0])
T = D.target
S = T.stream

OWNED = broadcast_log(BROADCAST2, "a b", owner="w")
BD = descriptor_of(OWNED, OWNED.last, OWNED.last.members()[0])
BT = BD.target
ME = Owner("w", 1)

Transcript = list[tuple[Message, Message]]

RESTARTS = pytest.mark.parametrize("restarts", [False, True], ids=["straight", "restarted"])


def play(transcript: Transcript, *, restarts: bool, node: DiskedNode | None = None) -> DiskedNode:
    node = node if node is not None else DiskedNode()
    for step, (request, answer) in enumerate(transcript):
        if restarts:
            node.restart()
        assert node.ask(request) == [answer], f"step {step}: {request}"
    return node


def rejected(glsn: int, reason: Reason, point: int = 0) -> Rejected:
    return Rejected(S, glsn, reason, point)
