"""How roles refuse requests: a reason for programs, a text for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trunkline.core.events import AppendRefused, RequestRefused
from trunkline.core.messages import Reason
from trunkline.core.projection import Owner, Policy, Projection, Settings

NO_SUCH_LOG: Final = RequestRefused("no such log", Reason.NO_SUCH_LOG)
DELETED: Final = RequestRefused("the log was deleted", Reason.NO_SUCH_LOG)


def append_refused(refusal: RequestRefused) -> AppendRefused:
    return AppendRefused(refusal.why, refusal.cause)


def closed(view: Projection) -> AppendRefused:
    if view.deleted:
        return append_refused(DELETED)
    return AppendRefused("the log is sealed; reopen it to append", Reason.SEALED)


def owned(owner: Owner) -> AppendRefused:
    return AppendRefused(f"owned by {owner.process}", Reason.OWNED, owner=owner.process)


def lost_condition(following: int = 0) -> AppendRefused:
    """``following``: the position it would have received; 0: its position was granted, then lost to another entry."""
    why = f"the next position is {following}" if following else "the position was lost to another entry"
    return AppendRefused(why, Reason.CONDITION, next=following)


def no_space(nodes: Iterable[str]) -> AppendRefused:
    return AppendRefused(f"no space on {', '.join(nodes)}; add nodes or trim", Reason.NO_SPACE)


def other_settings(has: Settings, wanted: Settings) -> str:
    """Why a log is not created again, with each setting that differs."""
    pairs = [(name, _plain(getattr(has, name)), _plain(getattr(wanted, name))) for name in Settings.__struct_fields__]
    differing = ", ".join(f"{name} is {here} (requested: {asked})" for name, here, asked in pairs if here != asked)
    return f"the log exists with other settings: {differing}"


def _plain(value: Policy | int) -> str | int:
    return value.value if isinstance(value, Policy) else value
