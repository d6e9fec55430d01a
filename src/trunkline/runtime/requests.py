"""Checks a request before a role of a node sees it.

Roles trust their messages: no number overflows, no required list is empty, no answer grows without bound. An invalid
request is refused with the reason, and nothing else happens. The role compares names with those of existing streams;
only requests that may create a stream or a tombstone have their names checked here.
"""

from __future__ import annotations

import re

import crc32c
from msgspec.structs import replace

from trunkline.core.effects import Message
from trunkline.core.entries import Frame, FrameKind, junk
from trunkline.core.messages import (
    Append,
    Descriptor,
    Digest,
    Drop,
    Fetch,
    FillRun,
    Finalize,
    FindTail,
    Inventory,
    Next,
    Open,
    Peek,
    Read,
    Release,
    Seal,
    StreamTarget,
    Subscribe,
    Trim,
    Write,
)
from trunkline.core.names import is_bounded, may_be_log, shown
from trunkline.core.projection import Segment
from trunkline.net.packets import BadRequest
from trunkline.runtime.process import Attachments
from trunkline.storage import frame_fits

STORAGE_REQUESTS = (
    Append, Digest, Drop, Fetch, FillRun, Finalize, FindTail, Inventory, Open, Read, Release, Seal, Subscribe, Trim,
    Write,
)  # fmt: skip
SEQUENCER_REQUESTS = (Next, Peek)

READ_FRAMES_MAX = 1024  # frames in one answer
SPAN_MAX = 8192  # positions of one Digest, Fetch or FillRun: with the longest writer ids, an answer still fits a head
POSITION_MAX = 1 << 62  # positions are below it, so that their sums never overflow
COUNT_MAX = 1 << 32
MEMBERS_MAX = 256  # of one group

_STREAM_ID = re.compile(r"[0-9]{1,20}\.[0-9]{1,20}\.[0-9]{1,20}", re.ASCII)


def checked_request(role: str, message: Message, attachments: Attachments) -> Message:
    """The request, bounded. Raises ``BadRequest``."""
    if role == "storage" and isinstance(message, STORAGE_REQUESTS):
        if isinstance(message, Write | Append):
            _check_frame(message.frame, attachments)
            if isinstance(message, Append):
                _check_position(message, message.lac)
            return message
    elif not (role == "sequencer" and isinstance(message, SEQUENCER_REQUESTS)):
        raise BadRequest(f"role {role!r} does not accept {type(message).__name__}")
    if attachments:
        raise BadRequest(f"{type(message).__name__} has no attachments")
    if isinstance(message, Read | Subscribe):
        _check_position(message, message.glsn)
        _require(message.limit >= 1, message, f"limit {message.limit}")
        return replace(message, limit=READ_FRAMES_MAX) if message.limit > READ_FRAMES_MAX else message
    _check_fields(message)
    return message


def _check_fields(message: Message) -> None:
    match message:
        case Next(log, segment, writer, _, count, expect, beaten):
            _check_segment(message, log, segment)
            _check_position(message, 0 if expect is None else expect)
            _check_name(message, writer)
            _require(1 <= count < COUNT_MAX, message, f"count {count}")
            _require(0 <= beaten < COUNT_MAX, message, f"beaten {beaten}")
        case Peek(log, segment, glsn):
            _check_segment(message, log, segment)
            _check_position(message, glsn)
        case Open(descriptor) | Seal(descriptor):
            _check_descriptor(message, descriptor)
        case Finalize(descriptor, end):
            _check_descriptor(message, descriptor)
            _check_position(message, end)
        case Drop(target):
            _check_target(message, target)
        case Release(_, _, position) | Trim(_, position):
            _check_position(message, position)
        case FillRun(_, first, end):
            _check_position(message, first)
            _check_position(message, end)
            _require(1 <= end - first <= SPAN_MAX, message, f"{end - first} positions at once")
        case Digest(_, first, end) | Fetch(_, first, end):
            _check_position(message, first)
            _check_position(message, end)
            _require(end - first <= SPAN_MAX, message, f"{end - first} positions at once")


def _check_descriptor(message: Message, descriptor: Descriptor) -> None:
    _check_target(message, descriptor.target)
    _check_position(message, descriptor.base)
    _require(1 <= descriptor.stripe_unit < COUNT_MAX, message, f"stripe unit {descriptor.stripe_unit}")
    _require(1 <= len(descriptor.members) <= MEMBERS_MAX, message, f"{len(descriptor.members)} members")
    if descriptor.owner.process:
        _check_name(message, descriptor.owner.process)
    for member in descriptor.members:
        _check_name(message, member.node)
        _require(_STREAM_ID.fullmatch(member.stream) is not None, message, f"stream {member.stream[:40]!r}")


def _check_target(message: Message, target: StreamTarget) -> None:
    _check_log(message, target.log)
    _check_position(message, target.segment)
    _check_position(message, target.epoch)
    _require(_STREAM_ID.fullmatch(target.stream) is not None, message, f"stream {target.stream[:40]!r}")


def _check_segment(message: Message, log: str, segment: Segment) -> None:
    _check_log(message, log)
    _check_position(message, segment.index)
    _check_position(message, segment.base)
    _require(1 <= segment.stripe_unit < COUNT_MAX, message, f"stripe unit {segment.stripe_unit}")
    _require(bool(segment.groups) and all(segment.groups), message, "a group without members")


def _check_position(message: Message, position: int) -> None:
    _require(0 <= position < POSITION_MAX, message, f"position {position}")


def _check_log(message: Message, log: str) -> None:
    _require(may_be_log(log), message, f"the invalid log name {shown(log)}")


def _check_name(message: Message, name: str) -> None:
    _require(is_bounded(name), message, f"the invalid name {shown(name)}")


def _require(holds: bool, message: Message, found: str) -> None:
    if not holds:
        raise BadRequest(f"{type(message).__name__} with {found} is out of bounds; upgrade the older peer")


def _check_frame(frame: Frame, attachments: Attachments) -> None:
    if not frame_fits(frame, sum(map(len, attachments))):
        raise BadRequest(f"a batch is out of bounds: {frame}")
    if frame.kind is FrameKind.JUNK:
        if frame != junk(frame.first) or any(map(len, attachments)):
            raise BadRequest(f"a fill is malformed: {frame}")
        return
    if len(attachments) != 1 or not len(attachments[0]):
        raise BadRequest(f"the bytes of {frame.brief()} are missing")
    if crc32c.crc32c(attachments[0]) != frame.checksum:
        raise BadRequest(f"the bytes of {frame.brief()} do not match their checksum")
