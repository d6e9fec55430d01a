"""The messages between processes. A message that is not listed here cannot be received."""

from __future__ import annotations

from trunkline.core.messages import (
    Append,
    Digest,
    Digested,
    Drop,
    Dropped,
    Fetch,
    Fetched,
    FillRun,
    Finalize,
    Finalized,
    FindTail,
    Get,
    Got,
    Granted,
    Inventoried,
    Inventory,
    Next,
    NotGranted,
    Open,
    Opened,
    Peek,
    Peeked,
    Read,
    ReadFrames,
    Register,
    Registered,
    Rejected,
    Release,
    RunFilled,
    Seal,
    Sealed,
    Stored,
    Subscribe,
    Swap,
    SwapLost,
    Swapped,
    TailFound,
    Trim,
    TrimDone,
    Unwritten,
    Write,
    Written,
)
from trunkline.net.admin import AdminMessage

StorageRequest = (
    Open
    | Write
    | Append
    | FillRun
    | Release
    | Read
    | Subscribe
    | FindTail
    | Seal
    | Finalize
    | Drop
    | Trim
    | Digest
    | Fetch
    | Inventory
)
StorageAnswer = (
    Opened
    | Stored
    | Written
    | RunFilled
    | ReadFrames
    | Unwritten
    | TailFound
    | Sealed
    | Finalized
    | Dropped
    | TrimDone
    | Digested
    | Fetched
    | Inventoried
    | Rejected
)
SequencerMessage = Next | Granted | Peek | Peeked | NotGranted
MetadataMessage = Get | Got | Swap | Swapped | SwapLost | Register | Registered

WireMessage = StorageRequest | StorageAnswer | SequencerMessage | MetadataMessage | AdminMessage
