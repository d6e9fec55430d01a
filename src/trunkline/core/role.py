"""The shape that every role has, so that any host can run any role."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from trunkline.core.effects import Address, Effects, Message


class Role(Protocol):
    """A pure state machine.

    Its fields hold only ``None``, ``bool``, ``int``, ``str``, enums, tuples, frozen structs, and lists, dicts and
    sets of those (or plain objects that obey the same rule), so that the checker can compare and copy them.
    """

    @property
    def phase(self) -> str:
        """The state's name for coverage and diagrams: one word out of a small, fixed set."""
        ...

    def on_start(self) -> Effects:
        """The process has started (or restarted, with what its disk held)."""
        ...

    def on_message(self, source: Address, message: Message) -> Effects: ...

    def on_timer(self, key: str) -> Effects: ...

    def on_choice(self, key: str, option: object) -> Effects: ...


@runtime_checkable
class Patient(Role, Protocol):
    """A role whose timers wait for answers of other processes. A host that sees such a process at work lets a timer
    wait on; nothing but time depends on it.
    """

    def awaits(self, key: str) -> tuple[str, ...]:
        """Whose answers the timer waits for now."""
        ...

    def on_silence(self, key: str, silent: tuple[str, ...]) -> Effects:
        """The timer fired, and these of them are not at work. ``on_timer`` is the same with all of them."""
        ...
