"""How a command finds its cluster: flags, then the environment, then the file; and secrets from the environment."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from trunkline.config import ENVIRONMENT, ConnectionConfig, changed_environment, load, secret
from trunkline.errors import ConfigError


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_any_setting_the_defaults_apply(tmp_path: Path) -> None:
    assert load({}, {}, home=tmp_path) == ConnectionConfig(("127.0.0.1:7400",), "", 30.0, "", "", "")


def test_a_flag_overrides_the_environment_and_the_environment_the_file(tmp_path: Path) -> None:
    Path("trunkline.toml").write_text('connect = ["f1", "f2:7"]\ntimeout = 1\ntls_ca = "ca.pem"\n')
    environment = {"TRUNKLINE_CONNECT": "e1,e2", "TRUNKLINE_TIMEOUT": "2"}
    assert load({}, {}).connect == ("f1:7400", "f2:7")
    assert load({}, environment).connect == ("e1:7400", "e2:7400")
    found = load({"connect": "a:1", "timeout": None}, environment)
    assert (found.connect, found.timeout_s, found.tls_ca) == (("a:1",), 2.0, "ca.pem")


def test_a_named_file_comes_before_that_of_the_directory_and_that_of_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config" / "trunkline").mkdir(parents=True)
    (home / ".config" / "trunkline" / "config.toml").write_text('connect = "home"')
    assert load({}, {}, home=home).connect == ("home:7400",)
    Path("trunkline.toml").write_text('connect = "here"')
    assert load({}, {}, home=home).connect == ("here:7400",)
    Path("other.toml").write_text('connect = "other"')
    assert load({"config": "other.toml"}, {}, home=home).connect == ("other:7400",)
    assert load({}, {"TRUNKLINE_CONFIG": "other.toml"}, home=home).connect == ("other:7400",)


def test_a_token_comes_from_the_environment_or_a_file_and_precedence_decides() -> None:
    Path("secret").write_text("from-file\n")
    Path("trunkline.toml").write_text('token = "from-config"')
    assert load({}, {}).token == "from-config"
    assert load({}, {"TRUNKLINE_TOKEN": "from-environment"}).token == "from-environment"
    assert load({"token_file": "secret"}, {"TRUNKLINE_TOKEN": "from-environment"}).token == "from-file"
    Path("trunkline.toml").write_text('token_file = "secret"')
    assert load({}, {}).token == "from-file"
    assert load({}, {"TRUNKLINE_TOKEN": "from-environment"}).token == "from-environment"


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "c.toml").write_text('token_file = "secret"\ntls_ca = "ca.pem"')
    (tmp_path / "there" / "secret").write_text("s")
    found = load({"config": "there/c.toml"}, {})
    assert (found.token, found.tls_ca) == ("s", "there/ca.pem")


def test_a_timeout_of_zero_means_no_limit() -> None:
    assert load({"timeout": "0"}, {}).timeout_s is None
    assert load({"timeout": "1.5"}, {}).timeout_s == 1.5


@pytest.mark.parametrize(
    ("flags", "environment", "file", "words"),
    [
        ({}, {}, "conect = 'x'\nport = 1", "trunkline.toml: unknown key conect, port; the keys are connect, token"),
        ({}, {}, "connect = ", "trunkline.toml is not valid TOML"),
        ({}, {}, "connect = 5", "connect in trunkline.toml must be a string, not 5"),
        ({}, {}, "connect = [5]", "connect in trunkline.toml must contain addresses"),
        ({}, {}, "token = 'a'\ntoken_file = 'b'", "has both token and token_file; keep one"),
        ({}, {}, "timeout = true\ntls_ca = 3", "tls_ca in trunkline.toml must be a string"),
        ({"connect": " , "}, {}, "", "--connect contains no address"),
        ({"connect": "a:b"}, {}, "", "--connect: 'b' in 'a:b' is not a valid port"),
        ({}, {"TRUNKLINE_CONNECT": "a:99999"}, "", "the environment variable TRUNKLINE_CONNECT: '99999'"),
        (
            {},
            {"TRUNKLINE_TIMEOUT": "soon"},
            "",
            "TRUNKLINE_TIMEOUT must be a number of seconds",
        ),
        ({"timeout": "-1"}, {}, "", "--timeout must be a number of seconds"),
        ({"timeout": "nan"}, {}, "", "--timeout must be a number of seconds"),
        ({"config": "absent.toml"}, {}, "", "cannot read absent.toml: No such file or directory"),
        ({"token_file": "absent"}, {}, "", "--token-file: cannot read absent"),
        ({"token_file": "trunkline.toml"}, {}, "", "trunkline.toml must contain a token of 1 to 4096 bytes"),
    ],
)
def test_an_error_names_the_origin_of_the_value(
    flags: dict[str, str | None], environment: dict[str, str], file: str, words: str
) -> None:
    Path("trunkline.toml").write_text(file)
    with pytest.raises(ConfigError) as raised:
        load(flags, environment)
    assert words in str(raised.value)


def test_a_certificate_without_an_authority_is_rejected() -> None:
    with pytest.raises(ConfigError, match="set tls-ca, too"):
        ConnectionConfig(tls_cert="c.pem", tls_key="k.pem").tls()
    assert ConnectionConfig().tls() is None


def test_a_secret_that_is_missing_or_empty_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "the environment variable ORDERS is not set or is empty; set it to the password for host=db"
    monkeypatch.delenv("ORDERS", raising=False)
    for _ in ("missing", "empty"):
        with pytest.raises(ConfigError) as raised:
            secret("ORDERS", "the password for host=db")
        assert str(raised.value) == words
        monkeypatch.setenv("ORDERS", "")
    monkeypatch.setenv("ORDERS", "s3cret")
    assert secret("ORDERS", "the password for host=db") == "s3cret"


def test_a_changed_environment_is_restored_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("ADDED", raising=False)
    with contextlib.suppress(ZeroDivisionError), changed_environment({"KEPT": "during", "ADDED": "during"}):
        assert (ENVIRONMENT["KEPT"], ENVIRONMENT["ADDED"]) == ("during", "during")
        raise ZeroDivisionError
    assert ENVIRONMENT["KEPT"] == "before"
    assert "ADDED" not in ENVIRONMENT
