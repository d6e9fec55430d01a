"""Paths on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def local_path(text: str) -> Path:
    """Reject URLs: one would become a local directory called ``s3:``."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is a URL; use a local path")
    return Path(text)
