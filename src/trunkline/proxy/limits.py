"""What the proxy takes at most. The OpenAPI document states the limits of requests from here."""

from __future__ import annotations

from typing import Final

GLSN_MAX: Final = 2**53 - 1  # every reader of JSON has these numbers exactly
BODY_BYTES_MAX: Final = 8 * 1024 * 1024  # of a request; too big: REQUESTS_MAX of them fill the memory
BATCH_ENTRIES_MAX: Final = 1_000
HEADERS_MAX: Final = 32  # of an entry
HEADER_NAME_CHARACTERS_MAX: Final = 128
KEY_CHARACTERS_MAX: Final = 128

PAGE_ENTRIES: Final = 100  # where the request names no limit
PAGE_ENTRIES_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024  # of payloads: then a page ends, with one entry at least
WAIT_MS_MAX: Final = 30_000
IDLE_MS_MAX: Final = 3_600_000

CONNECTIONS_MAX: Final = 1_024  # open, at work or not; too big: idle ones take the process's files
REQUESTS_MAX: Final = 256  # under way; too big: memory; too small: applications are told to come again
STREAMS_MAX: Final = 64  # subscriptions; each reads up to 8 MiB ahead
LOGS_MAX: Final = 1_000  # kept open
KEYED_WAITING_MAX: Final = 64  # appends with a key that wait for their turn, for each log

KEY_WINDOW: Final = 10_000  # positions; too big: a new proxy reads long before its first append with a key
KEY_TRIES_MAX: Final = 16  # conditional appends; more writers at once: more of them fail
KEY_READS_MAX: Final = 64  # windows read in one go, before the log is said to be too busy

BODY_S_MAX: Final = 30.0  # to send a request's body
STALLED_S_MAX: Final = 60.0  # a subscriber that takes nothing for so long is let go
KEEP_ALIVE_S: Final = 15.0  # between comments on a quiet stream; too big: gateways between close it
IDLE_CONNECTION_S: Final = 75.0
WRITE_BYTES: Final = 64 * 1024  # of events that are written together
READY_S_MAX: Final = 2.0
STOP_S_MAX: Final = 10.0  # what is under way is given to end
RETRY_AFTER_S: Final = 1
