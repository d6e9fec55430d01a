"""Writes members inside a task: those of one place in one transaction, one place after the other.

A member whose rows could not be settled is left out before. A place has a result for each of its members: one
that fails does not keep the others from being written. If a place fails as a whole, one of its members may be the
cause: each is tried alone. After an error that no place expects, such as rows that break off, the outcome is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from trunkline.core.delivery_messages import Result
from trunkline.delivery.destinations.contract import MemberResult, MemberWrite
from trunkline.delivery.destinations.factory import cached_place, forget_place
from trunkline.delivery.job.drafts import MemberDraft
from trunkline.delivery.job.results import failed, succeeded
from trunkline.delivery.job.work import SeedWork, TaskPipeline, Work
from trunkline.errors import DestinationHalted, OutcomeUnknown, TrunklineError, Unreachable

logger = logging.getLogger(__name__)
MEMBERS_MAX: Final = 200  # of a transaction; more: a failure undoes more, fewer: more commits


def apply_drafts(pipeline: TaskPipeline, work: Work, drafts: Iterable[MemberDraft]) -> list[Result]:
    """A result for each draft."""
    results: list[Result] = []
    places: dict[int, list[MemberDraft]] = {}
    for draft in drafts:
        if isinstance(work, SeedWork) and draft.error is None and draft.goes_back(work.through):
            draft.error = _behind(draft, work.through)
        if draft.error is not None:
            results.append(failed(draft.target.name, draft.error))
        else:
            places.setdefault(pipeline.places[draft.target.name], []).append(draft)
    for members in places.values():
        for first in range(0, len(members), MEMBERS_MAX):
            results += _applied(pipeline, work, members[first : first + MEMBERS_MAX])
    return results


def _behind(draft: MemberDraft, through: int) -> TrunklineError:
    at = draft.member.expected
    if mirror := draft.target.seed_from:
        return Unreachable(
            f"{mirror}, which it copies, is at version {through}, and its history at {at}; waiting for it"
        )
    return DestinationHalted(
        f"it has the history of its rows up to version {at}, and the source is at {through}: the source went back; "
        "reseed it with --discard-history, or give it other tables"
    )


def _applied(pipeline: TaskPipeline, work: Work, drafts: Sequence[MemberDraft]) -> list[Result]:
    writes = [draft.write(pipeline, work) for draft in drafts]
    found = _written(drafts[0], writes)
    return [_result(draft, found[write.step.member]) for draft, write in zip(drafts, writes, strict=True)]


def _written(first: MemberDraft, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
    """Errors may leave a place in any state: it is opened again."""
    address = first.target.address
    try:
        found = cached_place(address).apply(writes)
    except Exception as error:
        forget_place(address)
        if len(writes) > 1 and not isinstance(error, Unreachable | OutcomeUnknown):
            return {name: each for write in writes for name, each in _written(first, [write]).items()}
        return {write.step.member: _failure(write, error) for write in writes}
    if any(isinstance(each, Unreachable | OutcomeUnknown) for each in found.values()):
        forget_place(address)
    return found


def _failure(write: MemberWrite, error: Exception) -> TrunklineError:
    if isinstance(error, TrunklineError):
        return error
    logger.error("%s: its place failed", write.step.member, exc_info=error)
    return OutcomeUnknown(f"its place failed ({type(error).__name__}: {error}); its position is read again")


def _result(draft: MemberDraft, found: MemberResult) -> Result:
    if isinstance(found, TrunklineError):
        return failed(draft.target.name, found)
    result = succeeded(draft.target.name, found, draft.member.token)
    return replace(result, duplicates=max(result.duplicates, draft.duplicates))
