"""A Delta table on an object store.

Rules
 F1  An object is there completely or not at all, and a read follows every write that was acknowledged before it.
 F2  A commit of delta-rs is a put that fails if the object exists. A server that ignores the condition would let two
     writers commit one version: before this process first writes to a bucket it puts one object twice, and halts unless
     the second put is refused.
 F3  Objects cannot be renamed. A table is dropped by an object in its log, DROPPED, with a name of its own inside; from
     then on the table does not exist. Each process that finds that object removes the others, and that object last. A
     process that stood still meanwhile finds another object there, or none, and removes nothing of a table that was
     made since.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from trunkline.delivery.backends.file_stamp import FileStamp
from trunkline.delivery.backends.object_errors import StoreError, StoreRefusal, store_error, store_reason
from trunkline.delivery.backends.object_store import (
    CONNECT_S,
    REQUEST_S,
    RETRIES,
    RETRY_S,
    StoreKeys,
    access_of,
    keys_of,
    store_options,
)
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.object_urls import FilesAddress, bucket_and_prefix, plain_url, store_url
from trunkline.errors import ConfigError

DROPPED: Final = "_delta_log/_trunkline_dropped"
PROBE: Final = "_trunkline_probe"
WHOLE_BYTES_MAX: Final = 32 << 20  # of a file that is read with one request; larger ones are read in blocks
BLOCK_BYTES: Final = 8 << 20
CLIENTS_MAX: Final = 64  # one for each bucket and keys; fewer: more connections are made, more: more stay open
LISTED_MAX: Final = 1_000  # of objects that are removed with one request


def object_store(address: FilesAddress) -> S3Store:
    """A client of the bucket of an address; its paths are keys in the bucket. Raises ``ConfigError`` without keys."""
    url = store_url(address)
    assert url is not None
    return _client(bucket_and_prefix(url)[0], address.endpoint, keys_of(address))


@lru_cache(CLIENTS_MAX)
def _client(bucket: str, endpoint: str | None, keys: StoreKeys) -> S3Store:
    """Global to the process: a client has connections."""
    config: dict[str, Any] = {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "region": keys.region,
        "conditional_put": "etag",
        "virtual_hosted_style_request": endpoint is None,
    }
    config |= {"session_token": keys.session_token} if keys.session_token else {}
    config |= {"endpoint": endpoint} if endpoint else {}
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type]  # a mapping of its own keys
        client_options={
            "timeout": f"{REQUEST_S}s",
            "connect_timeout": f"{CONNECT_S}s",
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
    )


def store_problem(address: FilesAddress) -> str:
    """Why the files of an address cannot be reached; empty if they can, or are in a directory. Writes nothing."""
    if (url := store_url(address)) is None:
        return ""
    try:
        with translated(address, url):
            next(iter(obstore.list(object_store(address), bucket_and_prefix(url)[1] + "/", chunk_size=1)), None)
    except (StoreError, ConfigError) as error:
        return f"{url} cannot be reached: {error}"
    return ""


@contextmanager
def translated(address: FilesAddress, what: str) -> Iterator[None]:
    """Errors of obstore become ``FileNotFoundError`` and ``StoreError``."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise store_error(error, address) or FileNotFoundError(f"{what} does not exist") from None
    except BaseError as error:
        raise store_error(error, address) or StoreError(f"{what}: {store_reason(error, address)}") from None


class ObjectFolder:
    """A prefix of a bucket."""

    def __init__(self, address: DeltaAddress) -> None:
        self._address = address
        self._url = plain_url(address.path)
        self._prefix = bucket_and_prefix(self._url)[1]

    @property
    def name(self) -> str:
        return self._url.rpartition("/")[2]

    def __str__(self) -> str:
        return self._url

    def options(self) -> dict[str, str]:
        return store_options(self._address)

    def explained(self, error: Exception) -> Exception:
        if isinstance(error, StoreError):
            return error
        return store_error(error, self._address) or StoreError(store_reason(error, self._address))

    def beside(self) -> Iterator[str]:
        parent, _, _ = self._prefix.rpartition("/")
        root = self._url.removesuffix(self._prefix)
        with self._translated(""):
            found = obstore.list_with_delimiter(self._store, parent or None)["common_prefixes"]
        return (root + prefix for prefix in found)

    def names(self, folder: str) -> list[str]:
        with self._translated(folder):
            found = obstore.list_with_delimiter(self._store, self._key(folder))["objects"]
        return [each["path"].rpartition("/")[2] for each in found]

    def stamp(self, path: str) -> FileStamp | None:
        try:
            with self._translated(path):
                found = obstore.head(self._store, self._key(path))
        except FileNotFoundError:
            return None
        return found["e_tag"] or "", found["size"], found["last_modified"].timestamp()

    def read(self, path: str) -> bytes:
        with self._translated(path):
            return bytes(obstore.get(self._store, self._key(path)).bytes())

    def parquet(self, path: str, **options: object) -> pq.ParquetFile:
        with self._translated(path):
            found = obstore.get(self._store, self._key(path))
            if found.meta["size"] <= WHOLE_BYTES_MAX:
                return pq.ParquetFile(pa.BufferReader(pa.py_buffer(found.bytes())), **options)
            return pq.ParquetFile(_BlockFile(self, path, found.meta["size"]), **options)

    def write(self, path: str, rows: pa.Table, **options: object) -> int:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **options)
        content = sink.getvalue()
        with self._translated(path):
            obstore.put(self._store, self._key(path), memoryview(content).cast("B"))
        return int(content.size)

    def remove(self, path: str) -> None:
        with self._translated(path):
            obstore.delete(self._store, self._key(path))

    def prepare(self) -> None:
        """F2."""
        place = (bucket_and_prefix(self._url)[0], *access_of(self._address))
        if place in _checked():
            return
        if not self.conditions_hold():
            raise StoreRefusal(
                f"the server of {self._url} puts objects that exist, whatever If-None-Match says: two deliverers could "
                "commit one version of a Delta table; use a server with conditional puts, or DuckLake"
            )
        _checked().add(place)

    def drop(self) -> Iterator[None]:
        """F3."""
        mark = uuid.uuid4().bytes
        with self._translated(DROPPED):
            obstore.put(self._store, self._key(DROPPED), mark)
        yield
        self._remove_all(mark)

    def finish_drop(self, log: Collection[str]) -> bool:
        if DROPPED.rpartition("/")[2] not in log:
            return False
        with suppress(FileNotFoundError):  # another process was faster
            self._remove_all(self.read(DROPPED))
        return True

    def conditions_hold(self) -> bool:
        """Whether the server refuses to put an object that exists, if a request says so."""
        path = f"{PROBE}_{uuid.uuid4()}"
        with self._translated(path):
            obstore.put(self._store, self._key(path), b"", mode="create")
            try:
                obstore.put(self._store, self._key(path), b"", mode="create")
            except AlreadyExistsError:
                return True
            finally:
                obstore.delete(self._store, self._key(path))
        return False

    def _remove_all(self, mark: bytes) -> None:
        with self._translated(""):
            for found in obstore.list(self._store, self._prefix + "/", chunk_size=LISTED_MAX):
                keys = [each["path"] for each in found if each["path"] != self._key(DROPPED)]
                if self.read(DROPPED) != mark:
                    return
                if keys:
                    obstore.delete(self._store, keys)
            obstore.delete(self._store, self._key(DROPPED))

    @property
    def _store(self) -> S3Store:
        return object_store(self._address)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}"

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        with translated(self._address, f"{self._url}/{path}"):
            yield

    def block(self, path: str, start: int, length: int) -> bytes:
        """A part of an object."""
        with self._translated(path):
            return bytes(obstore.get_range(self._store, self._key(path), start=start, length=length))


@cache
def _checked() -> set[tuple[str, ...]]:
    """Global to the process: buckets whose server keeps conditions, with the access to them (F2)."""
    return set()


class _BlockFile:
    """A file of pyarrow over ranges of an object, which reads ahead by ``BLOCK_BYTES``."""

    def __init__(self, folder: ObjectFolder, path: str, size: int) -> None:
        self._folder, self._path, self._size = folder, path, size
        self._at = 0
        self._start, self._block = 0, b""
        self.closed = False

    def read(self, length: int = -1) -> bytes:
        wanted = self._size - self._at if length < 0 else min(length, self._size - self._at)
        inside = self._at - self._start
        if inside < 0 or inside + wanted > len(self._block):
            self._start, inside = self._at, 0
            self._block = (
                self._folder.block(self._path, self._at, min(max(wanted, BLOCK_BYTES), self._size - self._at))
                if wanted
                else b""
            )
        self._at += wanted
        return self._block[inside : inside + wanted]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        self.closed, self._block = True, b""
