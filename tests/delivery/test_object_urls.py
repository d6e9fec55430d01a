"""Addresses on object stores: what a pipeline's file may say, and that no secret comes out of it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from delivery.pipeline_files import HEAD, ONE, load, problems
from trunkline.delivery.backends.object_store import keys_of, without_keys
from trunkline.delivery.config.address_rules import identity, place_of
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.config.digests import digest_of, pipeline_digest
from trunkline.errors import ConfigError

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hidden"}
DELTA = "destinations: [{name: a, type: delta, path: 's3://bucket/tables/a/'%s}]"
FORM = "write s3://BUCKET/PREFIX, with letters, digits and _ . = + @ - / in the prefix"
SERVER = "is not the address of a server; write http://HOST:PORT or https://HOST"
ONE_OF_TWO = "cannot be used together with access_key_env and secret_key_env; keep one of the two"
NO_NAME = "is not the name of an environment variable; write a name such as ORDERS_PASSWORD, not the secret"
AT = "orders.yaml:5: destinations[0]"


def test_urls_stay_as_they_are_without_a_slash_at_the_end(tmp_path: Path) -> None:
    lake = "- {name: b, type: ducklake, catalog: 'sqlite:b.db', table: t, data_path: 's3://bucket/{name}'}"
    pipeline = load(tmp_path, f"{HEAD}destinations:\n- {{name: a, type: delta, path: 's3://bucket/a/'}}\n{lake}", KEYS)
    delta, ducklake = (each.address for each in pipeline.destinations)
    assert delta == DeltaAddress("s3://bucket/a")
    assert isinstance(ducklake, LakeAddress)
    assert ducklake.data_path == "s3://bucket/b"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", f"has no valid name of a bucket; {FORM}"),
        ("s3://Bucket/x", f"has no valid name of a bucket; {FORM}"),
        ("s3://AKIA:hidden@bucket/x", f"has no valid name of a bucket; {FORM}"),
        ("s3://bucket", f"has no prefix: other files of the bucket must stay apart; {FORM}"),
        ("s3://bucket/a?s3_access_key_id=hidden", f"has an invalid prefix; {FORM}"),
        ("s3://bucket/a*", f"has an invalid prefix; {FORM}"),
        ("s3://bucket/a/../b", f"has an invalid prefix; {FORM}"),
        ("s3://bucket/a//b", f"has an invalid prefix; {FORM}"),
        ("S3://bucket/a", "S3: is not supported: of object stores, only s3://BUCKET/PREFIX is"),
        ("az://bucket/a", "az: is not supported: of object stores, only s3://BUCKET/PREFIX is"),
        ("s3a://bucket/a", "s3a: is not supported: of object stores, only s3://BUCKET/PREFIX is"),
    ],
)
def test_u2_a_url_that_a_client_would_understand_otherwise_is_refused(tmp_path: Path, url: str, why: str) -> None:
    found = problems(tmp_path, f"{HEAD}destinations: [{{name: a, type: delta, path: '{url}'}}]", KEYS)
    assert found == [f"{AT}.path: {why}"]


@pytest.mark.parametrize(
    ("keys", "where", "why"),
    [
        (", endpoint: 'h:9000'", "endpoint", SERVER),
        (", endpoint: 'http://k:hidden@h'", "endpoint", SERVER),
        (", access_key_env: A", "secret_key_env", "is missing: a key needs both access_key_env and secret_key_env"),
        (", session_token_env: A", "session_token_env", "needs access_key_env and secret_key_env"),
        (", profile: p, access_key_env: A, secret_key_env: A", "profile", ONE_OF_TWO),
        (", profile: 'a b'", "profile", "is not the name of a profile; write that of a section in ~/.aws/credentials"),
        (", access_key_env: 'hid/den', secret_key_env: A", "access_key_env", NO_NAME),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(tmp_path: Path, keys: str, where: str, why: str) -> None:
    assert problems(tmp_path, HEAD + DELTA % keys, {**KEYS, "A": "x"}) == [f"{AT}.{where}: {why}"]


def test_variables_that_hold_keys_must_be_set(tmp_path: Path) -> None:
    unset = "the environment variable {} is not set or is empty; set it to "
    store = "a key of the object store, or name a `profile`"
    assert problems(tmp_path, HEAD + DELTA % "") == [f"{AT}: {unset.format(name)}{store}" for name in KEYS]
    named = ", access_key_env: MINE, secret_key_env: ALSO"
    assert problems(tmp_path, HEAD + DELTA % named, {"MINE": "x"}) == [
        f"{AT}.secret_key_env: {unset.format('ALSO')}the secret"
    ]
    load(tmp_path, HEAD + DELTA % ", profile: mine")


def test_a3_one_table_is_one_table_at_one_endpoint() -> None:
    here = DeltaAddress("s3://bucket/a")
    assert identity(here) == identity(DeltaAddress("s3://bucket/a/")) == identity(replace(here, profile="p"))
    assert identity(here) != identity(replace(here, endpoint="http://h:1"))
    assert place_of(here) != place_of(replace(here, profile="p"))


def test_d1_keys_of_a_store_change_no_digest_unless_they_are_set(tmp_path: Path) -> None:
    """The values are those of the release before object stores."""
    pipeline = load(tmp_path, HEAD + ONE)
    [destination] = pipeline.destinations
    moved = replace(destination, address=DeltaAddress("/x/acme"))
    plain = replace(pipeline, source=DeltaAddress("/x/source"), destinations=(moved,))
    assert (digest_of(plain, moved), pipeline_digest(plain)) == (DIGEST, PIPELINE_DIGEST)
    other = replace(moved, address=DeltaAddress("/x/acme", profile="p"))
    assert digest_of(plain, other) == DIGEST
    assert pipeline_digest(replace(plain, destinations=(other,))) != PIPELINE_DIGEST
    assert digest_of(plain, replace(moved, address=DeltaAddress("/x/acme", endpoint="http://h"))) != DIGEST


DIGEST = "e95dfd1c2fb148ad"
PIPELINE_DIGEST = "ff7bd964aa31c550"


def test_keys_come_from_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[mine]\naws_access_key_id = AKIA\naws_secret_access_key = hidden%s\naws_session_token = t\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-north-1\n[profile sso]\nsso_session = x\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    address = DeltaAddress("s3://bucket/a", profile="mine")
    keys = keys_of(address)
    assert (keys.access_key, keys.secret_key, keys.session_token, keys.region) == (
        "AKIA", "hidden%s", "t", "eu-north-1",
    )  # fmt: skip
    assert keys_of(replace(address, region="here")).region == "here"
    with pytest.raises(ConfigError, match=r"profile sso has no aws_access_key_id .* only profiles with keys"):
        keys_of(DeltaAddress("s3://bucket/a", profile="sso"))
    file.write_text("no section\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        keys_of(address)


def test_o1_keys_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    address = DeltaAddress("s3://bucket/a")
    assert "hidden" not in f"{keys_of(address)} {keys_of(address)!r} {address}"
    assert without_keys("a hidden thing of AKIA", address) == "a *** thing of ***"
    assert without_keys("a hidden thing", DeltaAddress("/local")) == "a hidden thing"
