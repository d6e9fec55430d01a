"""How a known bug is put back: one method or one rule is replaced while a search runs, and put right afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


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
