"""Problems that a check of a pipeline finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from trunkline.errors import ConfigError, Unreachable


class PipelineProblem(Struct, frozen=True):
    """A problem, and what to do about it."""

    where: str  # a key of the file, or a destination
    what: str  # and what to do
    spot: str = ""  # the file and its line, if it has one

    def __str__(self) -> str:
        return ": ".join(part for part in (self.spot, self.where, self.what) if part)


def raised_problems(where: str, check: Callable[[], object]) -> Iterator[PipelineProblem]:
    try:
        check()
    except (ConfigError, Unreachable) as error:
        yield PipelineProblem(where, str(error).removeprefix(f"{where}: "))


def capped(problems: Sequence[PipelineProblem], most: int, what: str) -> list[PipelineProblem]:
    """At most so many, and a count of the others."""
    if len(problems) <= most:
        return list(problems)
    return [*problems[:most], PipelineProblem("", f"and {len(problems) - most} more problems of {what}")]
