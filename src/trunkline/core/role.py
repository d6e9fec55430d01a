"""The interface of a role: any host can run any role."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from trunkline.core.effects import Address, Effects, Message


class Role(Protocol):
    """A pure state machine.

    Its fields hold only ``None``, ``bool``, ``int``, ``str``, enums, tuples, frozen structs, and lists, dicts and sets
    of those (or plain objects that follow the same rule), so that the checker can compare and copy them.
    """

    @property
    def phase(self) -> str:
        """The name of the state for coverage and diagrams, from a small, fixed set."""
        ...

    def on_start(self) -> Effects:
        """The process has started, or restarted with the state on its disk."""
        ...

    def on_message(self, source: Address, message: Message) -> Effects: ...

    def on_timer(self, key: str) -> Effects: ...

    def on_choice(self, key: str, option: object) -> Effects: ...


@runtime_checkable
class Patient(Role, Protocol):
    """A role whose timers wait for answers of other processes. A host that sees such a process make progress extends
    the timer; nothing but time depends on it.
    """

    def awaits(self, key: str) -> tuple[str, ...]:
        """The processes whose answers the timer waits for."""
        ...

    def on_silence(self, key: str, silent: tuple[str, ...]) -> Effects:
        """The timer fired, and these processes make no progress. ``on_timer`` means all of them."""
        ...
