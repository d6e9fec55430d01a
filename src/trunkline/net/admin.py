"""Requests of operators and of their tools, answered by the process itself and not by a role.

To add one: write request and answer here, and name both in ``AdminMessage``. A field is added at the end and with a
default, so that older peers still understand the message.
"""

from __future__ import annotations

from trunkline.core.effects import Message
from trunkline.core.messages import NodeState


class StatusRequest(Message, frozen=True):
    """How are you? ``logs``: of a coordinator, with all its logs; a node has none."""

    logs: bool = True


class StatusAnswer(Message, frozen=True):
    json: bytes


class ClusterRequest(Message, frozen=True):
    """Which cluster is this? Cheap, however much there is in it."""


class ClusterAnswer(Message, frozen=True):
    cluster: str


class ListLogs(Message, frozen=True):
    """Which logs are there?"""


class LogsListed(Message, frozen=True):
    names: tuple[str, ...]


class SetNodeState(Message, frozen=True):
    """An operator drains a node, takes it back, or declares it gone for ever."""

    node: str
    state: NodeState


class ForgetNode(Message, frozen=True):
    """An operator takes a node that is gone out of the registry. ``NodeStateSet`` answers."""

    node: str


class NodeStateSet(Message, frozen=True):
    """``why`` says, where it was not done, what stood against it."""

    node: str
    done: bool
    why: str = ""


class EventsRequest(Message, frozen=True):
    """What happened? ``after``: what the asker knows already, of that ``book``; nothing of another one."""

    book: str = ""
    after: int = 0


class EventsAnswer(Message, frozen=True):
    json: bytes


class RequestRefused(Message, frozen=True):
    """The answer to a request that means nothing to whoever got it: out of bounds, or of another version."""

    why: str


class Leaving(Message, frozen=True):
    """A node or a writing client ends in order, and its lease with it. There is no answer: who said it is gone."""

    node: str
    start: int


AdminMessage = (
    StatusRequest
    | StatusAnswer
    | ListLogs
    | LogsListed
    | SetNodeState
    | NodeStateSet
    | Leaving
    | ClusterRequest
    | ClusterAnswer
    | RequestRefused
    | ForgetNode
    | EventsRequest
    | EventsAnswer
)
