"""Files of pipelines for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.delivery.config import Pipeline, load_pipeline
from trunkline.errors import ConfigError

HEAD = """\
pipeline: orders
source: {type: delta, path: source}
routing: {column: tenant}
key: [id]
"""
ONE = "destinations: [{name: acme, type: delta, path: acme}]\n"
SET = """\
pipeline: shop
source: {type: log, log: shop}
routing: {column: tenant}
"""
TO_POSTGRES = "destinations: [{name: acme, type: postgres, dsn: dbname=acme}]\n"
ALL = SET + "tables: [public.*]\n"
NOTHING: dict[str, str] = {}


def load(folder: Path, text: str, environment: dict[str, str] | None = NOTHING) -> Pipeline:
    file = folder / "orders.yaml"
    file.write_text(text, encoding="utf-8")
    return load_pipeline(file, environment)


def problems(folder: Path, text: str, environment: dict[str, str] | None = NOTHING) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, environment)
    return str(caught.value).replace(f"{folder}/", "").splitlines()
