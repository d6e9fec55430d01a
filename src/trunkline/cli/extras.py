"""The packages that only some commands need, and the message if they are not installed."""

from __future__ import annotations

from typing import Final

EXTRA: Final = (  # installed by `pip install trunkline[delivery]`
    "deltalake",
    "duckdb",
    "duckdb_extension_ducklake",
    "duckdb_extension_postgres_scanner",
    "duckdb_extension_sqlite_scanner",
    "numpy",
    "pandas",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyspark",
    "yaml",
)


def missing_extra(error: ModuleNotFoundError, command: str) -> str | None:
    """What to install; None if the missing module is not one of these, which is a bug."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA:
        return None
    return (
        f"`{command}` needs the package {package}, which is not installed; install it with: "
        "pip install 'trunkline[delivery]'"
    )


def changes_text(payload: bytes) -> str | None:
    """Captured changes as text; None if it is something else, or if Arrow is not installed. Loads Arrow when called."""
    try:
        from trunkline.delivery.changes import text
    except ImportError:
        return None
    return text.changes_text(payload)
