"""Jobs without Spark: everything runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Here:
    """A Spark context that runs everything in this process."""

    defaultParallelism = 2  # noqa: N815

    @property
    def sparkContext(self) -> Here:  # noqa: N802
        return self

    def broadcast(self, value: Any) -> Any:
        return type("Sent", (), {"value": value, "destroy": lambda *_, **__: None})()

    def parallelize(self, items: Sequence[Any], _: int) -> Any:
        class Dealt:
            def map(self, run: Callable[[Any], Any]) -> Dealt:
                self.found = [run(item) for item in items]
                return self

            def collect(self) -> list[Any]:
                return self.found

        return Dealt()
