"""The names that HTTP servers answer to: rules E1 to E3."""

from __future__ import annotations

import pytest

from trunkline.errors import ConfigError
from trunkline.net.http_names import OwnNames, is_own_origin


@pytest.mark.parametrize(
    ("header", "reached"),
    [
        ("localhost", "127.0.0.1"),
        ("LocalHost:8480", "127.0.0.1"),
        ("127.0.0.1:8480", "127.0.0.1"),
        ("127.0.0.9", "127.0.0.1"),
        ("[::1]:8480", "::1"),
        ("10.0.0.7:8480", "10.0.0.7"),
        ("10.0.0.7", "::ffff:10.0.0.7"),
        ("[fd00::7]", "fd00:0::7"),
        ("logs.example:443", "10.0.0.7"),
        (None, "10.0.0.7"),
    ],
)
def test_e1_a_server_answers_under_its_addresses_and_listed_names(header: str | None, reached: str) -> None:
    assert OwnNames("0.0.0.0", ["Logs.Example"]).has(header, reached)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "evil.example:8480",
        "127.0.0.1.evil.example",
        "localhost.",
        "::1",
        "10.0.0.8",
        "0.0.0.0",
        "x:y",
    ],
)
def test_e1_a_server_answers_under_no_other_name(header: str) -> None:
    assert not OwnNames("0.0.0.0", ["logs.example"]).has(header, "10.0.0.7")


def test_e1_a_server_answers_to_the_name_it_listens_on() -> None:
    assert OwnNames("node1.internal").has("node1.internal:9100", "10.0.0.7")


@pytest.mark.parametrize("name", ["", "logs.example:443", "https://logs.example", "*"])
def test_a_name_that_could_never_match_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name; write it without a port"):
        OwnNames("0.0.0.0", [name])


def test_e3_an_origin_is_own_if_it_equals_the_host() -> None:
    assert is_own_origin("http://127.0.0.1:8480", "127.0.0.1:8480")
    assert not is_own_origin("http://127.0.0.1:9000", "127.0.0.1:8480")
    assert not is_own_origin("null", "127.0.0.1:8480")
    assert not is_own_origin("http://127.0.0.1:8480", None)
