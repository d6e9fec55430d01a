"""What errors of object stores mean, whichever library reports them: DuckDB, delta-rs or obstore.

Their texts run over many lines, with colours and structures of Rust; an operator needs one line.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline.delivery.backends.object_store import without_keys
from trunkline.delivery.backends.sql import first_line
from trunkline.delivery.config.object_urls import FilesAddress, bucket_and_prefix, store_url

COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
CODES: Final = {  # in answers of S3 servers; what only an operator can resolve
    "NoSuchBucket": "the bucket {bucket} does not exist there; create it, or correct the address",
    "InvalidAccessKeyId": "it does not know the access key; correct the variable or the profile",
    "SignatureDoesNotMatch": "it refuses the secret key; correct the variable or the profile",
    "ExpiredToken": "the session token has expired; renew it",
    "InvalidToken": "it refuses the session token; correct the variable",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set `region`",
    "PermanentRedirect": "the bucket is in another region or at another endpoint; set `region` or `endpoint`",
    "AccessDenied": "the keys may not do this in the bucket {bucket}; allow reading, writing, listing and deleting",
}
REFUSED: Final = ("403 Forbidden", "HTTP code 403", "lacked the necessary privileges")
SILENT: Final = (
    *("Could not connect to server", "Could not resolve hostname", "Timeout was reached"),
    *("error sending request", "client error (Connect)", "operation timed out", "dns error"),
)


class StoreError(OSError):
    """An object cannot be read or written now; the message is one line, without keys."""


class StoreRefusal(StoreError):
    """Only an operator can resolve it."""


def store_error(error: BaseException, address: FilesAddress) -> StoreError | None:
    """What an error of a library says about the store; ``None`` if it is about something else."""
    url = store_url(address)
    if url is None:
        return None
    text, where = _plain(error), address.endpoint or "Amazon S3"
    bucket, _ = bucket_and_prefix(url)
    for code, meaning in CODES.items():
        if code in text:
            return StoreRefusal(f"{where} answers {code}: {meaning.format(bucket=bucket)}")
    if any(phrase in text for phrase in REFUSED):
        return StoreRefusal(f"{where} refuses access to {url}: {CODES['AccessDenied'].format(bucket=bucket)}")
    if any(phrase in text for phrase in SILENT):
        return StoreError(f"{where} does not answer; check the endpoint and the network")
    return None


def store_reason(error: BaseException, address: FilesAddress) -> str:
    """One line for a message, also about something else."""
    known = store_error(error, address)
    return str(known) if known is not None else without_keys(COLOURS.sub("", first_line(error)), address)


def _plain(error: BaseException) -> str:
    return COLOURS.sub("", str(error))
