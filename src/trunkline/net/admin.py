"""Requests of operators and their tools, which the process itself answers, not a role.

To add one: define request and answer here, and add both to ``AdminMessage``. Add fields at the end and with a default,
so that older peers still understand the message.
"""

from __future__ import annotations

from trunkline.core.effects import Message
from trunkline.core.messages import NodeState


class StatusRequest(Message, frozen=True):
    """The status of a coordinator or node. ``logs``: list the logs of a coordinator."""

    logs: bool = True


class StatusAnswer(Message, frozen=True):
    json: bytes  # a ClusterStatus or NodeStatus of ``core.status``


class ClusterRequest(Message, frozen=True):
    """The cluster's id. Cheap, however many logs it has."""


class ClusterAnswer(Message, frozen=True):
    cluster: str


class ListLogs(Message, frozen=True):
    """The names of all logs."""


class LogsListed(Message, frozen=True):
    names: tuple[str, ...]


class SetNodeState(Message, frozen=True):
    """An operator drains a node, uses it again, or removes it permanently."""

    node: str
    state: NodeState


class ForgetNode(Message, frozen=True):
    """An operator deletes a removed node from the registry. ``NodeStateSet`` answers."""

    node: str


class NodeStateSet(Message, frozen=True):
    """``why``: the reason if it was not done."""

    node: str
    done: bool
    why: str = ""


class EventsRequest(Message, frozen=True):
    """Recent events. ``after``: the last event that the caller has, of that ``book``."""

    book: str = ""
    after: int = 0


class EventsAnswer(Message, frozen=True):
    json: bytes  # a ClusterEvents of ``core.status``


class RequestRefused(Message, frozen=True):
    """The answer to a request that the receiver does not accept: out of bounds, or of another version."""

    why: str


class Leaving(Message, frozen=True):
    """A node or a writing client shuts down cleanly, and its lease ends. There is no answer."""

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
