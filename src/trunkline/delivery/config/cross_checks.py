"""Checks that involve several keys of a file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from trunkline.delivery.config.address_rules import (
    filled,
    identity,
    located_store,
    path_identity,
    store_faults,
    store_identity,
    variable_faults,
)
from trunkline.delivery.config.addresses import Address, LakeAddress, LogAddress
from trunkline.delivery.config.tree import ControlConfig, DestinationConfig, DiscoverConfig, RetryConfig, SparkConfig
from trunkline.delivery.config.values import shown
from trunkline.delivery.config.yaml_file import Problems, YamlNode
from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address, parse_address
from trunkline.net.http_names import OwnNames

Placed = tuple[YamlNode, DestinationConfig]
Own = tuple[YamlNode, str, tuple[str, ...]]  # a destination: its node, name and routing values
STORE_FORMS: Final = "sqlite:PATH or postgres:DSN"
SECRET_SETTING: Final = re.compile(r"account\.key|(password|secret|(secret|access)\.?key|token)\Z", re.IGNORECASE)
# Settings that Java is started with: set later they have no effect, or they are visible in its command line.
STARTED_WITH: Final = re.compile(
    r"spark\.((driver|executor)\.(extra|default)JavaOptions|driver\.(memory|memoryOverhead|extra(Class|Library)Path)"
    r"|jars\.(packages|excludes|repositories|ivy|ivySettings)|kerberos\.(keytab|principal)|submit\..*)"
)


def checked_settings(root: YamlNode, found: Mapping[str, Any], folder: Path, problems: Problems) -> dict[str, Any]:
    """The settings that change their form: the control store's path is absolute, ``listen`` an address or ``None``."""
    changed: dict[str, Any] = {}
    control = found.get("control", ControlConfig())
    for why in store_faults(control.store, STORE_FORMS, path_allowed=False):
        problems.add(root.at("control").at("store"), why)
    changed["control"] = replace(control, store=located_store(control.store, folder))
    if (listen := found.get("listen")) is not None:
        changed["listen"] = _listen(root.at("listen"), listen, problems)
    try:
        OwnNames("", found.get("listen_names", ()))
    except ConfigError as error:
        problems.add(root.at("listen_names"), str(error))
    retry = found.get("retry", RetryConfig())
    if retry.first_ms > retry.most_ms:
        problems.add(root.at("retry").at("first_ms"), f"is above most_ms ({retry.most_ms}); make it smaller")
    _check_spark(root.at("spark"), problems)
    return changed


def _listen(node: YamlNode, listen: str, problems: Problems) -> str | None:
    if listen == "none":
        return None
    try:
        return format_address(*parse_address(listen))
    except ConfigError as error:
        problems.add(node, f"{error}, or none")
        return None


def _check_spark(node: YamlNode, problems: Problems) -> None:
    conf, conf_env = node.at("conf").items(), node.at("conf_env").items()
    for name, each in [*conf.items(), *conf_env.items()]:
        if not name.startswith("spark."):
            problems.add(each, "is not a Spark setting: they start with spark.")
    for name, each in conf.items():
        if SECRET_SETTING.search(name):
            problems.add(each, "is a secret; put it into a variable, and the variable's name in spark.conf_env")
        elif name in conf_env:
            problems.add(each, "is also in conf_env; keep one")
    for name, each in conf_env.items():
        if STARTED_WITH.fullmatch(name):
            problems.add(each, "is read when Java starts, and is visible in its command line; move it to spark.conf")


def check_pattern(node: YamlNode, pattern: str | None, problems: Problems) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a pattern that a later Python may read differently
            re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError, Warning) as error:
        problems.add(node, f"is not a valid regular expression: {error}; correct it")


def environment_names(root: YamlNode, found: Mapping[str, Any], problems: Problems) -> Iterator[tuple[YamlNode, str]]:
    """The environment variables that the settings name; invalid names are problems."""
    control = found.get("control", ControlConfig())
    named = [(root.at("control").at("password_env"), control.password_env)] if control.password_env else []
    owners = [root, *_items(root.at("tables"))]
    masks = [each.at("mask_secret_env") for each in owners]
    named += [(each, each.value) for each in masks if isinstance(each.value, str)]
    conf = root.at("spark").at("conf_env")
    named += [(conf.at(setting), variable) for setting, variable in found.get("spark", SparkConfig()).conf_env.items()]
    for node, variable in named:
        wrong = list(variable_faults(variable))
        for why in wrong:
            problems.add(node, why)
        if not wrong:
            yield node, variable


def _items(node: YamlNode) -> list[YamlNode]:
    return node.value if isinstance(node.value, list) else []


def check_destinations(
    root: YamlNode,
    source: Address | None,
    placed: Sequence[Placed],
    discover: DiscoverConfig | None,
    problems: Problems,
) -> None:
    """At least one, each with its own table, and a key for those that need one."""
    if not root.at("destinations").value and root.at("discover").value is None:
        problems.add(root.at("destinations"), "missing; list at least one, or give `discover` a template")
    templates = [discover.template] if discover is not None else []
    keyed = [each.mode for each in [*(each for _, each in placed), *templates] if each.mode != "append"]
    if keyed and not root.at("key").value and "tables" not in root.items():
        problems.add(root.at("key"), f"missing; mode {keyed[0]} needs the columns that identify a row, such as [id]")
    if isinstance(source, LogAddress) and source.malformed == "skip" and source.dead_letters is None:
        why = "skip needs dead_letters: the name of a log that keeps what is skipped"
        problems.add(root.at("source").at("malformed"), why)
    if isinstance(source, LogAddress) and source.table is not None and source.format == "debezium":
        why = "is for logs that `trunkline capture` writes; remove it, or `format`"
        problems.add(root.at("source").at("table"), why)
    _check_tables(source, placed, problems)
    node = root.at("discover").at("template")
    tried = [(node, replace(each, address=filled(each.address, name, name))) for each in templates for name in "ab"]
    _check_data_paths(source, [*placed, *tried], problems)


def check_own(listed: Sequence[Own], problems: Problems) -> None:
    """Names and values are unique; also checked for destinations with other problems."""
    names: dict[str, str] = {}
    values: dict[str, str] = {}
    for node, name, routed in listed:
        holder = names.setdefault(name, node.path)
        if holder != node.path:
            problems.add(node.at("name"), f"{name} is also the name of {holder}; choose another")
        for value in routed:
            if value in values:
                problems.add(node.at("values"), f"{shown(value)} already belongs to {values[value]}; keep one")
            values.setdefault(value, node.path)


def _check_tables(source: Address | None, placed: Sequence[Placed], problems: Problems) -> None:
    tables = {} if source is None else {identity(source): "source"}
    for node, destination in placed:
        holder = tables.setdefault(identity(destination.address), node.path)
        if holder == "source":
            problems.add(node, f"destination {destination.name} is the source's own table; name another")
        elif holder != node.path:
            problems.add(node, f"destination {destination.name} has the same table as {holder}; give each its own")


def _check_data_paths(source: Address | None, placed: Sequence[Placed], problems: Problems) -> None:
    """No two lakes share a directory: a clean-up of one would remove the other's files."""
    lakes: dict[str, tuple[tuple[str, ...], str]] = {}
    first = [] if source is None else [(YamlNode("source", 0, None), source)]
    for node, address in [*first, *((node, each.address) for node, each in placed)]:
        if isinstance(address, LakeAddress) and address.data_path is not None:
            catalog = store_identity(address.catalog)
            other, holder = lakes.setdefault(path_identity(address.data_path), (catalog, node.path))
            if other != catalog:
                problems.add(node, f"its data_path is also that of another lake ({holder}); give each lake its own")
