"""Opens the replication slot of a capture: makes it if asked to, takes it from a dead reader, and starts its stream.

Rules
 O1  A slot that is present is never replaced, because another capture may have made it. It counts as lost if the server
     removed WAL that it needs, or if its publication was removed: the server then refuses to decode what it keeps.
 O2  Any reader of the slot is ended: the log has decided who captures. Without the right to do so, the capture waits
     until the server notices that a reader is dead.
 O3  A publication is made before its slot; it may be empty.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import psycopg

from trunkline.core.capture_messages import Origin, SlotState
from trunkline.delivery.capture.postgres.known_tables import running_transactions
from trunkline.delivery.capture.postgres.replication import ReplicationConnection, lsn_number
from trunkline.delivery.capture.postgres.session import ServerSession
from trunkline.delivery.capture.postgres.setup import Made
from trunkline.delivery.capture.source import SourceOpened
from trunkline.errors import ConfigError, Unreachable

logger = logging.getLogger(__name__)

SLOT: Final = (
    "SELECT slot_type = 'logical' AND plugin = 'pgoutput' AND database = current_database(), wal_status::text, "
    "active_pid, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
)
PUBLICATION: Final = (
    "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s"
)
TERMINATE: Final = "SELECT pg_terminate_backend(%s)"
LOOK_AGAIN_S: Final = 0.1
RELEASE_S: Final = 60.0  # for a dead reader; the server's default for `wal_sender_timeout`


def opened_slot(
    session: ServerSession,
    stream: ReplicationConnection,
    slot: str,
    position: int,
    *,
    make: Made | None,
    failover: bool = True,
    release_s: float = RELEASE_S,
) -> SourceOpened:
    """``position``: where the log stands. The stream is started if the slot is present, or was made.

    ``make`` records what is made, so that it can be removed again; None: nothing is made.
    """
    identity = stream.identify()
    ends = stream.ends(identity)
    state = slot_state(session, slot)
    if state is not SlotState.PRESENT and make is not None:
        if state is SlotState.LOST:
            logger.warning("the slot %s is lost, and is replaced", slot)
            stream.drop_slot(slot)
        with session.reporting() as connection:
            make.publication(connection, slot)
        make.slot(slot, stream.backend)
        stream.create_slot(slot, failover=failover)
        state = SlotState.PRESENT
    if state is SlotState.PRESENT:
        _end_reader(session, stream, slot, release_s)
        stream.start(slot, position, [slot])
    confirmed = 0
    if state is SlotState.PRESENT:
        [(_, _, reader, text)] = session.ask(SLOT, slot)
        if reader != stream.backend:
            raise Unreachable("two connections of the capture reach different servers; it connects again")
        confirmed = lsn_number(text or "0/0")
    with session.reporting() as connection:
        running = running_transactions(connection)
    return SourceOpened(Origin(identity.system, identity.timeline), ends, state, confirmed, running)


def slot_state(session: ServerSession, slot: str) -> SlotState:
    """O1. Raises ``ConfigError`` if the slot or the publication cannot serve a capture."""
    found, publication = session.ask(SLOT, slot), session.ask(PUBLICATION, slot)
    if publication == [(False,)]:
        raise ConfigError(
            f"the publication {slot} leaves out kinds of changes; run: ALTER PUBLICATION {slot} SET (publish = "
            "'insert, update, delete, truncate'), drop the slot, and capture all rows again"
        )
    if not found:
        return SlotState.ABSENT
    [(ours, wal_status, _, _)] = found
    if not ours:
        raise ConfigError(f"the slot {slot} belongs to another database or plug-in; choose another name")
    return SlotState.LOST if wal_status == "lost" or not publication else SlotState.PRESENT


def _end_reader(session: ServerSession, stream: ReplicationConnection, slot: str, release_s: float) -> None:
    """O2."""
    deadline = time.monotonic() + release_s
    reported: int | None = None
    while True:
        if not (found := session.ask(SLOT, slot)):
            raise Unreachable(f"another program dropped the slot {slot}, or was ended while it made it; it is retried")
        if (reader := found[0][2]) is None:
            return
        if reader != reported:
            logger.warning("process %d of the server reads the slot %s for another capture, and is ended", reader, slot)
            reported = reader
            try:
                session.connection.execute(TERMINATE, (reader,))
            except psycopg.errors.InsufficientPrivilege:
                logger.warning("the role may not end it; the capture waits up to %g s", release_s)
        if time.monotonic() > deadline or stream.woken():
            raise Unreachable(
                f"the slot {slot} is still in use by process {reader} of the server; stop the capture that reads it, "
                f"or run: SELECT pg_terminate_backend({reader})"
            )
        time.sleep(LOOK_AGAIN_S)
