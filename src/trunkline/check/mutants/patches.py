"""How a mutant replaces one method or one rule while a search runs, and restores it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from trunkline.core import projection, register
from trunkline.core.effects import Effects, Persist, Record


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """``owner.name`` is ``other`` within the context."""
    original = owner.__dict__[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, original)


def patch(*changes: tuple[Any, str, Any]) -> Callable[[], AbstractContextManager[None]]:
    """A patch of one or more attributes, for ``Mutant.patch``."""

    @contextmanager
    def patched() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, other in changes:
                stack.enter_context(replaced(owner, name, other))
            yield

    return patched


def without_records(effects: Effects, kind: type[Record] = Record) -> Effects:
    """The effects without records of this kind."""
    return [each for each in effects if not (isinstance(each, Persist) and isinstance(each.record, kind))]


def persisted_last(effects: Effects) -> Effects:
    """The effects, with all records after the answers."""
    return [*without_records(effects), *(each for each in effects if isinstance(each, Persist))]


def _accept_transition(_before: object, _after: object) -> str:
    return ""


def _accept_change(holds: bool, otherwise: str) -> None:
    pass


# The register refuses a projection that breaks a rule (M5). Mutants that make such projections run with a register that
# accepts them: a monitor must find them by their effect, not by a refusal.
TRUSTING_REGISTER = (register, "transition_fault", _accept_transition)
ANY_CHANGE = (projection, "_require", _accept_change)  # every change of a projection is legal
