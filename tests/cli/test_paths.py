"""Paths on the command line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from trunkline.cli.main import main

CAPTURED = ("--table", "orders", "--once")


@pytest.mark.parametrize(
    "arguments",
    [
        ("capture", "orders", "--ducklake", "s3://bucket/x.db", *CAPTURED),
        ("capture", "orders", "--ducklake", "sqlite:s3://bucket/x.db", *CAPTURED),
        ("up", "--dir", "s3://bucket/cluster"),
        ("serve", "node", "--id", "a", "--dir", "file:///x", "--coordinators", "127.0.0.1:1"),
        ("node", "add", "--dir", "s3://bucket/cluster"),
        ("check", "--out", "s3://bucket/out"),
    ],
)
def test_a_url_is_rejected_and_no_directory_is_created(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):  # of the parser
        assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "URL" in error or "s3: is not supported" in error or "s3: is none" in error
    assert list(tmp_path.iterdir()) == []
