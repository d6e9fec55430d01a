"""Sentences about pipelines, and the words for the state of a destination. All of it is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trunkline.core.status import Level
from trunkline.dashboard.views import ChangedDestinations, FeedLine, ShownDestination, ShownPipeline, ShownStore
from trunkline.dashboard.words import limited

ERROR_CHARACTERS_MAX = 300  # of an error in the feed; the table has all of it


def state_words(state: str, desired_state: str, *, owned: bool) -> str:
    """The state that the deliverer reported, and the desired state while it differs."""
    reported = state or "new"
    reported = reported if owned or reported == "new" else f"was {reported}"
    followed = {"active": "", "draining": "drained"}.get(desired_state, desired_state)
    if desired_state == "active" or reported == followed:
        return reported
    return f"{reported}, to be {followed}"


def changes(before: Mapping[str, ShownDestination], now: Mapping[str, ShownDestination]) -> ChangedDestinations:
    rows = tuple(each for key, each in now.items() if before.get(key) != each)
    return ChangedDestinations(rows, tuple(key for key in before if key not in now))


def destination_news(before: Mapping[str, ShownDestination], now: Mapping[str, ShownDestination]) -> list[FeedLine]:
    news = [line for key, each in now.items() for line in _news(before.get(key), each)]
    news += [FeedLine("warn", f"destination {each.name} was removed") for key, each in before.items() if key not in now]
    return limited(news)


def _news(before: ShownDestination | None, now: ShownDestination) -> Iterator[FeedLine]:
    if before is None:
        yield FeedLine("info", f"destination {now.name} of {now.pipeline} was added")
        return
    if before.desired_state != now.desired_state:
        words = {"active": "resumed", "paused": "paused", "draining": "is being drained", "retired": "retired"}
        level: Level = "good" if now.desired_state == "active" else "warn"
        yield FeedLine(level, f"destination {now.name} {words.get(now.desired_state, now.desired_state)}")
    if now.halted and not before.halted:
        yield FeedLine("bad", f"{now.name}: halted{_because(now)}")
    elif before.halted and not now.halted:
        yield FeedLine("good", f"{now.name}: no longer halted")
    elif now.error and now.error != before.error:
        yield FeedLine("warn", f"{now.name}{_because(now)}")


def _because(destination: ShownDestination) -> str:
    error = destination.error.removeprefix(f"{destination.name}: ")
    if len(error) > ERROR_CHARACTERS_MAX:
        error = error[:ERROR_CHARACTERS_MAX] + "…"
    return f": {error}" if error else ""


def store_news(before: Sequence[ShownStore], now: Sequence[ShownStore]) -> list[FeedLine]:
    """Both in the same order."""
    news: list[FeedLine] = []
    for old, new in zip(before, now, strict=True):
        if new.error and not old.error:
            news.append(FeedLine("bad", f"control store {new.address} cannot be read: {new.error}"))
        elif old.error and not new.error:
            news.append(FeedLine("good", f"control store {new.address} can be read again"))
        known = {each.name: each for each in old.pipelines}
        for pipeline in new.pipelines:
            news += _deliverer_news(known.get(pipeline.name), pipeline)
    return news


def _deliverer_news(before: ShownPipeline | None, now: ShownPipeline) -> Iterator[FeedLine]:
    if before is None:
        yield FeedLine("info", f"pipeline {now.name} was added")
        return
    old = {each.name for each in before.deliverers if each.live}
    live = {each.name for each in now.deliverers if each.live}
    for name in sorted(live - old):
        yield FeedLine("good", f"deliverer {name} runs {now.name}")
    for name in sorted(old - live):
        yield FeedLine("warn", f"deliverer {name} no longer runs {now.name}")


def worst_lags_ms(destinations: Mapping[str, ShownDestination]) -> dict[str, int]:
    """By ``store/pipeline``, over the active destinations."""
    worst: dict[str, int] = {}
    for each in destinations.values():
        if each.lag_ms is not None and each.desired_state == "active":
            key = f"{each.store}/{each.pipeline}"
            worst[key] = max(worst.get(key, 0), each.lag_ms)
    return worst
