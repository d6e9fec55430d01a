"""How a known bug is put back: one method or one rule is replaced while a search runs, and put right afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from trunkline.core import register


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """``owner.name`` is ``other`` for a while."""
    original = owner.__dict__[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, original)


def patch(*changes: tuple[Any, str, Any]) -> Callable[[], AbstractContextManager[None]]:
    """A patch of one or more places, as a mutant wants it."""

    @contextmanager
    def patched() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, other in changes:
                stack.enter_context(replaced(owner, name, other))
            yield

    return patched


def _takes_all(_before: object, _after: object) -> str:
    return ""


# The register refuses a map that breaks a rule (M5). A bug that makes such maps is looked for behind a register that
# takes them: it has to be found by what it does, and not by being refused.
TRUSTING_REGISTER = (register, "transition_fault", _takes_all)
