"""The limits of the proxy. The OpenAPI document states those of requests."""

from __future__ import annotations

from typing import Final

GLSN_MAX: Final = 2**53 - 1  # every JSON parser reads these numbers exactly
BODY_BYTES_MAX: Final = 8 * 1024 * 1024  # of a request; too big: REQUESTS_MAX of them fill the memory
BATCH_ENTRIES_MAX: Final = 1_000
HEADERS_MAX: Final = 32  # of an entry
HEADER_NAME_CHARACTERS_MAX: Final = 128
KEY_CHARACTERS_MAX: Final = 128

PAGE_ENTRIES: Final = 100  # by default
PAGE_ENTRIES_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024  # of payloads: then a page ends, with at least one entry
WAIT_MS_MAX: Final = 30_000
IDLE_MS_MAX: Final = 3_600_000

CONNECTIONS_MAX: Final = 1_024  # busy or idle; too big: idle ones use up the file descriptors
REQUESTS_MAX: Final = 256  # in progress; too big: memory; too small: applications have to retry
STREAMS_MAX: Final = 64  # subscriptions; each reads up to 8 MiB ahead
LOGS_MAX: Final = 1_000  # kept open
KEYED_WAITING_MAX: Final = 64  # appends with a key that wait for their turn, per log

KEY_WINDOW: Final = 10_000  # positions; too big: a new proxy reads long before its first append with a key
KEY_TRIES_MAX: Final = 16  # conditional appends; more writers at once: more of them fail
KEY_READS_MAX: Final = 64  # windows read in one search, before the log counts as too busy

BODY_S_MAX: Final = 30.0  # to send a request's body
STALLED_S_MAX: Final = 60.0  # a subscriber that reads nothing for so long is disconnected
KEEP_ALIVE_S: Final = 15.0  # between comments on a quiet stream; too big: gateways close it
IDLE_CONNECTION_S: Final = 75.0
WRITE_BYTES: Final = 64 * 1024  # of events in one write
READY_S_MAX: Final = 2.0
STOP_S_MAX: Final = 10.0  # for requests in progress to end
RETRY_AFTER_S: Final = 1
