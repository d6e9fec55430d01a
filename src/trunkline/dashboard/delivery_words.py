"""What happened to pipelines, in words, and the words for a destination's state. All of it is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trunkline.core.status import Level
from trunkline.dashboard.views import Changed, Destination, Pipeline, Said, Store
from trunkline.dashboard.words import limited

ERROR_CHARACTERS_MAX = 300  # of an error in the feed; the table has all of it


def state_words(state: str, desired_state: str, *, owned: bool) -> str:
    """The state that the deliverer reported, and the desired state while it differs."""
    told = state or "new"
    told = told if owned or told == "new" else f"was {told}"
    followed = {"active": "", "draining": "drained"}.get(desired_state, desired_state)
    return told if desired_state == "active" or told == followed else f"{told}, to be {followed}"


def changes(before: Mapping[str, Destination], now: Mapping[str, Destination]) -> Changed:
    rows = tuple(each for key, each in now.items() if before.get(key) != each)
    return Changed(rows, tuple(key for key in before if key not in now))


def destination_news(before: Mapping[str, Destination], now: Mapping[str, Destination]) -> list[Said]:
    news = [said for key, each in now.items() for said in _news(before.get(key), each)]
    news += [Said("warn", f"destination {each.name} is gone") for key, each in before.items() if key not in now]
    return limited(news)


def _news(before: Destination | None, now: Destination) -> Iterator[Said]:
    if before is None:
        yield Said("info", f"destination {now.name} of {now.pipeline} appeared")
        return
    if before.desired_state != now.desired_state:
        words = {"active": "resumed", "paused": "paused", "draining": "is being drained", "retired": "retired"}
        level: Level = "good" if now.desired_state == "active" else "warn"
        yield Said(level, f"destination {now.name} {words.get(now.desired_state, now.desired_state)}")
    if now.halted and not before.halted:
        yield Said("bad", f"{now.name}: halted{_because(now)}")
    elif before.halted and not now.halted:
        yield Said("good", f"{now.name}: no longer halted")
    elif now.error and now.error != before.error:
        yield Said("warn", f"{now.name}{_because(now)}")


def _because(destination: Destination) -> str:
    error = destination.error.removeprefix(f"{destination.name}: ")
    if len(error) > ERROR_CHARACTERS_MAX:
        error = error[:ERROR_CHARACTERS_MAX] + "…"
    return f": {error}" if error else ""


def store_news(before: Sequence[Store], now: Sequence[Store]) -> list[Said]:
    """Stores come in the order in which they were given."""
    news: list[Said] = []
    for old, new in zip(before, now, strict=True):
        if new.error and not old.error:
            news.append(Said("bad", f"control store {new.address} cannot be read: {new.error}"))
        elif old.error and not new.error:
            news.append(Said("good", f"control store {new.address} can be read again"))
        known = {each.name: each for each in old.pipelines}
        for pipeline in new.pipelines:
            news += _deliverer_news(known.get(pipeline.name), pipeline)
    return news


def _deliverer_news(before: Pipeline | None, now: Pipeline) -> Iterator[Said]:
    if before is None:
        yield Said("info", f"pipeline {now.name} appeared")
        return
    old = {each.name for each in before.deliverers if each.live}
    live = {each.name for each in now.deliverers if each.live}
    for name in sorted(live - old):
        yield Said("good", f"{name} delivers {now.name}")
    for name in sorted(old - live):
        yield Said("warn", f"{name} no longer delivers {now.name}")


def worst_lags_ms(destinations: Mapping[str, Destination]) -> dict[str, int]:
    """By ``store/pipeline``, over the destinations that are meant to be delivered."""
    worst: dict[str, int] = {}
    for each in destinations.values():
        if each.lag_ms is not None and each.desired_state == "active":
            key = f"{each.store}/{each.pipeline}"
            worst[key] = max(worst.get(key, 0), each.lag_ms)
    return worst
