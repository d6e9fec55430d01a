"""Paths on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def local_path(text: str) -> Path:
    """For what a command makes: a URL would become a local folder called ``s3:``."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is a URL; give a path of this machine")
    return Path(text)
