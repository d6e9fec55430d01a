"""Loads a pipeline from its file, and reports all problems at once. It opens nothing but the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import ENVIRONMENT, secret
from trunkline.delivery.config.address_rules import (
    KINDS,
    PLACEHOLDERS,
    SOURCE_KINDS,
    TABLE_PLACEHOLDERS,
    VARIABLES,
    field_faults,
    filled,
    filled_text,
    filled_with_table,
    identity,
    located,
    placeholders,
    table_fields,
)
from trunkline.delivery.config.addresses import Address, IcebergAddress
from trunkline.delivery.config.cross_checks import (
    Own,
    Placed,
    check_destinations,
    check_own,
    check_pattern,
    checked_settings,
    environment_names,
)
from trunkline.delivery.config.destination_entries import EVERY_ROW, check_seeds, read_seed, read_values
from trunkline.delivery.config.kinds import address_class, destination_kinds
from trunkline.delivery.config.object_urls import STORE_KEYS, FilesAddress, access_faults, login_faults, store_url
from trunkline.delivery.config.readable_part import invalid_file
from trunkline.delivery.config.set_checks import check_sets
from trunkline.delivery.config.table_entries import check_columns_of, read_mask, read_tables
from trunkline.delivery.config.tree import DestinationConfig, DiscoverConfig, Pipeline
from trunkline.delivery.config.values import Key, keys_of, one_of, read_mapping, shown
from trunkline.delivery.config.yaml_file import Problems, YamlNode, read_document
from trunkline.errors import ConfigError

READ_APART: Final = ("source", "tables", "mask", "defaults", "destinations", "discover")
INHERITED: Final = ("mode", "duplicates", "seed")  # from the pipeline to its destinations
OWN: Final = ("name", "values")  # of each destination, never shared
FORMS: Final = ("values", "seed")  # of a destination: keys whose values have several forms
SAMPLE: Final = "sample"  # a template is checked with it
SAMPLE_TABLE: Final = "sample.sample"


def load_pipeline(path: str | Path, environment: Mapping[str, str] | None = ENVIRONMENT) -> Pipeline:
    """The pipeline of a file, with absolute paths. With ``None`` for the environment, secrets may be missing.

    Raises ``ConfigError`` with one line for each problem.
    """
    file = Path(path)
    problems = Problems(file)
    root = read_document(file, problems)
    return _Loading(root, file.absolute().parent, environment, problems).pipeline()


class _ReadTable(Struct, frozen=True):
    """A table of the file; without an address if it is invalid."""

    options: dict[str, Any] = {}
    raw: Address | None = None  # with its placeholders
    address: Address | None = None


class _Filling(Struct, frozen=True):
    """The values of a destination's placeholders; without a name: those of a sample."""

    name: str | None
    values: tuple[str, ...]
    allowed: Collection[str]
    unvalued: str = ""  # why {value} is not allowed

    def fill(self, text: str) -> str:
        name = self.name or SAMPLE
        return filled_text(text, name, self.values[0] if self.values else name)

    def allowed_in(self, kind: type[Address], field: str) -> list[str]:
        return [each for each in self.allowed if each not in TABLE_PLACEHOLDERS or field in table_fields(kind)]

    def refusal(self, placeholder: str, kind: type[Address], field: str) -> str:
        why = self.unvalued if placeholder in PLACEHOLDERS else ""
        words = one_of([f"{{{each}}}" for each in self.allowed_in(kind, field)])
        return f"{{{placeholder}}} cannot be filled in{why}; use {words}"


class _Loading:
    """Builds a pipeline from one file. An invalid part becomes ``None``, and its problems are recorded."""

    def __init__(self, root: YamlNode, folder: Path, environment: Mapping[str, str] | None, problems: Problems) -> None:
        self._root = root
        self._folder = folder
        self._environment = environment
        self._problems = problems
        unread = ("address", "seed_from")
        self._options = {name: key for name, key in keys_of(DestinationConfig).items() if name not in unread}
        self._kinds = dict(KINDS)  # and those of other packages that the file uses
        self._unusable: dict[str, str] = {}  # and why
        self._use_kinds()
        self._address_keys = {kind: keys_of(struct) for kind, struct in self._kinds.items()}
        self._defaults: dict[str, YamlNode] = {}
        self._inherited: dict[str, Any] = {}
        self._routed = root.at("routing").value is not None
        self._is_set = "tables" in root.items()
        self._own: list[Own] = []
        self._variables: list[tuple[YamlNode, str]] = []  # and the nodes that name them

    def _use_kinds(self) -> None:
        """Load the kinds that the file names, and no others: a package that is broken concerns its users only."""
        listed = self._root.at("destinations").value
        owners = [self._root.at("defaults"), self._root.at("discover").at("template")]
        owners += listed if isinstance(listed, list) else []
        used = {value for each in owners if isinstance(value := each.at("type").value, str)}
        for kind in sorted(used & set(destination_kinds()) - self._kinds.keys()):
            try:
                self._kinds[kind] = address_class(kind)
            except ConfigError as error:
                self._unusable[kind] = str(error)

    def pipeline(self) -> Pipeline:
        keys = keys_of(Pipeline)
        plain = {name: key for name, key in keys.items() if name not in READ_APART}
        found = read_mapping(self._root, plain, self._problems, elsewhere=READ_APART)
        found["mask"] = read_mask(self._root.at("mask"), self._problems)
        found["tables"] = read_tables(self._root.at("tables"), self._problems) if self._is_set else ()
        found |= checked_settings(self._root, found, self._folder, self._problems)
        check_columns_of(self._root, found, self._problems)
        self._variables += environment_names(self._root, found, self._problems)
        self._inherited = {name: found.get(name, keys[name].default) for name in INHERITED}
        self._defaults = self._read_defaults()
        source = self._source()
        placed = self._destinations()
        discover = self._discover()
        check_destinations(self._root, source, placed, discover, self._problems)
        check_sets(self._root, found, source, placed, discover, self._problems)
        check_own(self._own, self._problems)
        self._check_variables()
        if self._problems.count == 0:
            assert source is not None
            pipeline = Pipeline(
                **found, source=source, destinations=tuple(each for _, each in placed), discover=discover
            )
            nodes = {each.name: node for node, each in placed}
            check_seeds(pipeline, nodes, self._root.at("discover").at("template"), self._problems)
        if self._problems.count:
            raise invalid_file(self._root, found, source, [each for _, each in placed], self._problems)
        return pipeline

    def _read_defaults(self) -> dict[str, YamlNode]:
        """Also checked on their own: a default may apply to no destination."""
        node = self._root.at("defaults")
        if node.value is None:
            return {}
        shared = {name: key for name, key in self._options.items() if name not in OWN}
        for kind in destination_kinds():
            shared |= self._address_keys.get(kind, {})
        self._read_options(node, _optional(shared), tuple(node.items()) if self._unusable else ())
        return node.items()

    def _source(self) -> Address | None:
        node = self._root.at("source")
        return self._table(node, node.items(), {}, SOURCE_KINDS, None).address

    def _destinations(self) -> list[Placed]:
        node = self._root.at("destinations")
        if not isinstance(node.value, list):
            if node.value is not None:
                self._problems.add(node, f"must be a list of destinations, it is {shown(node.value)}")
            return []
        made = ((each, self._destination(each)) for each in node.value)
        return [(each, destination) for each, destination in made if destination is not None]

    def _destination(self, node: YamlNode) -> DestinationConfig | None:
        options = _optional(self._options, but=("name",))
        values = node.at("values").value
        allowed, unvalued = [*PLACEHOLDERS], ""
        if not self._routed:
            unvalued = " without `routing`"
        elif values == EVERY_ROW:
            unvalued = " for a destination of every value"
        elif isinstance(values, list) and len(values) != 1:
            unvalued = " for a destination with several values"
        if unvalued:
            allowed.remove("value")
        given = self._defaults | node.items()
        table = self._table(node, given, options, destination_kinds(), self._filling(allowed, unvalued))
        if "name" not in table.options or ("values" in node.items() and "values" not in table.options):
            return None
        own = {"values": (table.options["name"],) if self._routed else None, **table.options}
        self._own.append((node, own["name"], own["values"] or ()))
        return DestinationConfig(**(self._inherited | own), address=table.address) if table.address else None

    def _filling(self, allowed: Collection[str], unvalued: str = "") -> _Filling:
        return _Filling(None, (), (*allowed, *(TABLE_PLACEHOLDERS if self._is_set else ())), unvalued)

    def _discover(self) -> DiscoverConfig | None:
        node = self._root.at("discover")
        if node.value is None:
            return None
        before = self._problems.count
        keys = {name: key for name, key in keys_of(DiscoverConfig).items() if name != "template"}
        found = read_mapping(node, keys, self._problems, elsewhere=("template",))
        check_pattern(node.at("pattern"), found.get("pattern"), self._problems)
        template = self._template(node.at("template"))
        return DiscoverConfig(template=template, **found) if template and self._problems.count == before else None

    def _template(self, node: YamlNode) -> DestinationConfig | None:
        """The placeholders stay in it."""
        if node.value is None:
            node = YamlNode(node.path, node.line, {})
        options = {name: key for name, key in self._options.items() if name not in OWN}
        given, filling = self._defaults | node.items(), self._filling(PLACEHOLDERS)
        table = self._table(node, given, _optional(options), destination_kinds(), filling)
        if table.raw is None or table.address is None:
            return None
        raw = located(table.raw, self._folder)
        if identity(filled(raw, "a", "a")) == identity(filled(raw, "b", "b")):
            why = "gives every value the same table; use {value} in its catalog, path, dsn or table"
            self._problems.add(node, why)
            return None
        own = {"name": SAMPLE, "values": ()}
        return DestinationConfig(**(self._inherited | table.options | own), address=raw)

    def _table(
        self,
        node: YamlNode,
        given: dict[str, YamlNode],
        options: Mapping[str, Key],
        kinds: Collection[str],
        filling: _Filling | None,
    ) -> _ReadTable:
        """``given``: its own keys and the defaults; ``filling``: without its values; ``None``: the source, whose
        address has no placeholders. A template is checked with a sample."""
        before = self._problems.count
        kind = self._kind(node, given.get("type"), kinds)
        if kind is None:
            anything = {name: None for keys in self._address_keys.values() for name in keys}
            if self._unusable:
                anything |= dict.fromkeys(node.items())
            return _ReadTable({} if node.value is None else self._read_options(node, options, tuple(anything)))
        keys = {**options, **self._address_keys[kind]}
        if self._is_set and "table" in keys:
            keys["table"] = replace(keys["table"], required=False)
        own = node
        if isinstance(node.value, dict):  # defaults of other kinds do not apply
            used = {name: each for name, each in given.items() if name in node.value or name in keys}
            own = YamlNode(node.path, node.line, used)
        found = self._read_options(own, keys)
        texts = {name: found.pop(name) for name in self._address_keys[kind] if name in found}
        if self._is_set and kind != "log" and "table" in self._address_keys[kind]:
            texts.setdefault("table", "" if filling is None else "{table}")
        if filling is not None:
            filling = replace(filling, name=found.get("name"), values=found.get("values") or ())
        ready = self._filled(kind, texts, own, given, filling)
        if self._problems.count > before:
            return _ReadTable(found)
        made = self._kinds[kind]
        if not self._reachable(made(**ready), own):
            return _ReadTable(found)
        return _ReadTable(found, made(**texts), located(made(**ready), self._folder))

    def _reachable(self, address: Address, node: YamlNode) -> bool:
        """Whether the keys for an object store fit together; the variables that they name are checked later."""
        if not isinstance(address, FilesAddress):
            return True
        wrong = list(access_faults(address))
        wrong += login_faults(address) if isinstance(address, IcebergAddress) else ()
        for field, why in wrong:
            self._problems.add(node.at(field), why)
        if store_url(address) is not None and address.access_key_env is None and address.profile is None:
            self._variables += [(node, variable) for variable in STORE_KEYS]
        return not wrong

    def _read_options(self, node: YamlNode, keys: Mapping[str, Key], elsewhere: tuple[str, ...] = ()) -> dict[str, Any]:
        plain = {name: key for name, key in keys.items() if name not in FORMS}
        apart = tuple(name for name in FORMS if name in keys)
        found = read_mapping(node, plain, self._problems, elsewhere=("type", *apart, *elsewhere))
        if "values" in apart and "values" in node.items():
            found |= read_values(node.at("values"), keys["values"], self._routed, self._problems)
        if "seed" in apart and "seed" in node.items():
            found |= read_seed(node.at("seed"), keys["seed"], self._problems)
        return found

    def _kind(self, node: YamlNode, given: YamlNode | None, kinds: Collection[str]) -> str | None:
        if given is None and (node.value is None or isinstance(node.value, dict)):
            self._problems.add(node.at("type"), f"missing; it must be {one_of(kinds)}")
        elif given is not None:
            if not isinstance(given.value, str) or given.value not in kinds:
                self._problems.add(given, f"must be {one_of(kinds)}, it is {shown(given.value)}")
            elif (why := self._unusable.get(given.value)) is not None:
                self._problems.add(given, why)
            else:
                return given.value
        return None

    def _filled(
        self,
        kind: str,
        texts: dict[str, Any],
        node: YamlNode,
        given: dict[str, YamlNode],
        filling: _Filling | None,
    ) -> dict[str, Any]:
        """The fields of an address with placeholders filled in, each checked. Those for tables of a set stay."""
        ready = dict(texts)
        for field, text in texts.items():
            if not isinstance(text, str) or (filling is None and field not in given):
                continue
            at = given.get(field, node)
            inside = placeholders(text) if filling is not None else set()
            allowed = filling.allowed_in(self._kinds[kind], field) if filling is not None else ()
            unknown = inside - set(allowed)
            for each in sorted(unknown):
                assert filling is not None
                self._problems.add(at, filling.refusal(each, self._kinds[kind], field))
            if not unknown:
                ready[field] = filling.fill(text) if filling is not None and inside else text
                sample = filled_with_table(ready[field], SAMPLE_TABLE) if inside else ready[field]
                self._check_field(kind, field, sample, at, filling.name if filling is not None and inside else "")
        return ready

    def _check_field(self, kind: str, field: str, text: str, node: YamlNode, name: str | None) -> None:
        """``name``: of the destination that filled placeholders in; empty: there were none; ``None``: a sample."""
        wrong = list(field_faults(self._kinds[kind], field, text))
        for why in wrong:
            self._problems.add(node, why if name == "" else f"{why} (for {name or SAMPLE})")
        if field.endswith(VARIABLES) and not wrong and name is not None:
            self._variables.append((node, text))

    def _check_variables(self) -> None:
        if self._environment is None:
            return
        for node, variable in self._variables:
            try:
                what = "a key of the object store, or name a `profile`" if variable in STORE_KEYS else "the secret"
                secret(variable, what, self._environment)
            except ConfigError as error:
                self._problems.add(node, str(error))


def _optional(keys: Mapping[str, Key], but: Collection[str] = ()) -> dict[str, Key]:
    return {name: key if name in but else replace(key, required=False) for name, key in keys.items()}
