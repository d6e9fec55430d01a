"""The parts of `./run bench delivery`: what is measured, with which sizes, and in which order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from delivery_baseline import Baseline
from delivery_idle import Idle, measure_idle
from delivery_places import NAMES, Places, catalog_of, server_for
from delivery_rig import Engine, Figures, Rig, descendants, engine, middle
from delivery_source import KEY, ROUTING, SourceLake, tenant
from delivery_tables import PLACES, ManyTables, TablesPart
from log_processes import Failed, memory_mib

from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.tree import Pipeline, RoutingConfig
from trunkline.delivery.job.work import TaskPipeline
from trunkline.delivery.sources.table_set import OneTable

BYTES_OF_A_BLOCK = 32  # of a row's payload
FIRST_ROWS_LEAST = 20_000
TABLE_ROWS = 500  # of each of many tables, at first


@dataclass(frozen=True)
class Plan:
    sizes: tuple[tuple[int, int], ...] = ((10, 20_000), (10, 200_000), (100, 20_000), (100, 200_000))
    warm_up: int = 3  # windows that are not counted: the first jobs of a session are slow
    windows: int = 5
    tables: int = 200  # of one place
    tables_operations: int = 20_000  # of a window, over all of them
    tables_windows: int = 10
    routing_values: int = 10_000
    routing_touched: int = 100
    routing_operations: int = 20_000
    touched_many: int = 10_000
    touched_few: int = 100
    touched_operations_each: int = 20
    touched_windows: int = 2
    heap_mib: int = 512
    window_to_heap: float = 1.5  # how much larger the big window is, as its files on disk
    slots: tuple[int, ...] = (1, 2, 4, 8)
    sweep_sizes: tuple[tuple[int, int], ...] = ((10, 200_000), (100, 20_000))
    idle_destinations: int = 100
    idle_s: float = 60.0


QUICK = Plan(
    sizes=((4, 2_000), (10, 2_000)),
    warm_up=1,
    windows=2,
    tables=10,
    tables_operations=1_000,
    tables_windows=2,
    routing_values=500,
    routing_touched=5,
    routing_operations=1_000,
    touched_many=50,
    touched_few=5,
    touched_windows=1,
    heap_mib=480,  # the minimum of Spark
    window_to_heap=0.4,
    slots=(1, 2),
    sweep_sizes=((4, 2_000),),
    idle_destinations=4,
    idle_s=5.0,
)


@dataclass(frozen=True)
class Rate:
    """N destinations, M operations per window in total."""

    kind: str
    destinations: int
    operations: int
    ours: Figures
    baseline: Figures | None
    slots: int


@dataclass(frozen=True)
class Comparison:
    """The same work at a small and at a large size."""

    kind: str
    few: int
    many: int
    few_figures: Figures
    many_figures: Figures


@dataclass(frozen=True)
class BigWindow:
    kind: str
    rows: int
    size_mib: float  # of its files
    heap_mib: int
    seconds: float
    path: str
    peaks_mib: dict[str, float]  # of Java and of the largest Python worker


@dataclass
class Results:
    machine: dict[str, object]
    rates: list[Rate] = field(default_factory=list)
    tables: list[ManyTables] = field(default_factory=list)
    routing: list[Comparison] = field(default_factory=list)
    touched: list[Comparison] = field(default_factory=list)
    big_window: BigWindow | None = None
    sweep: list[Rate] = field(default_factory=list)
    idle: Idle | None = None
    hot_statements: list[tuple[str, int, float]] = field(default_factory=list)
    hot_functions: list[tuple[str, int, float]] = field(default_factory=list)


class Bench:
    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None], results: Results) -> None:
        self._plan = plan
        self._directory = directory
        self._say = say
        self.results = results

    # ------------------------------------------------------------------------------------------------------------ rates

    def rates(self, kinds: Sequence[str], *, slots: int, baseline: bool, profile: bool) -> None:
        with engine(self._directory, slots=slots, profile=profile) as spark:
            for kind in kinds:
                for destinations, operations in self._plan.sizes:
                    rate = self._rate(spark, kind, destinations, operations, slots, baseline=baseline)
                    self.results.rates.append(rate)
            spent, calls = spark.spans.statements, spark.spans.statement_calls
            self.results.hot_statements = [(name, calls[name], us / 1e6) for name, us in spent.most_common(12)]
            self.results.hot_functions = spark.spans.hot_functions(20)

    def sweep(self, kind: str) -> None:
        for slots in self._plan.slots:
            with engine(self._directory, slots=slots) as spark:
                for destinations, operations in self._plan.sweep_sizes:
                    rate = self._rate(spark, kind, destinations, operations, slots, baseline=False)
                    self.results.sweep.append(rate)

    def _rate(
        self, spark: Engine, kind: str, destinations: int, operations: int, slots: int, *, baseline: bool
    ) -> Rate:
        windows, others = [], []
        with self._pipeline(spark, kind, destinations, baseline=baseline) as (source, rig, other):
            first = source.fill(max(operations, FIRST_ROWS_LEAST))
            rig.seed(first)
            if other is not None:
                other.seed(first)
            for number in range(self._plan.warm_up + self._plan.windows):
                made = source.make_window(operations)
                figures, _ = rig.deliver(made)
                windows.append(figures)
                if other is not None:
                    others.append(Figures(operations, *other.deliver(made)))
                if number < self._plan.warm_up:
                    windows.clear()
                    others.clear()
        ours, theirs = middle(windows), middle(others) if others else None
        beside = f", baseline {theirs.rate:,.0f}" if theirs is not None else ""
        self._say(
            f"{NAMES[kind]}: {destinations} x {operations:,} on {slots} slots: {ours.rate:,.0f} rows/s{beside}, "
            f"{ours.cpu_seconds_per_million:.1f} CPU-s per million"
        )
        return Rate(kind, destinations, operations, ours, theirs, slots)

    def tables(self, kinds: Sequence[str], *, slots: int) -> None:
        """Many tables of one place: of one destination, and of as many destinations."""
        plan, places = self._plan, [kind for kind in kinds if kind in PLACES]
        with self._emptied() as directory:
            part = TablesPart(directory, self._say, tables=plan.tables, operations=plan.tables_operations)
            self.results.tables += part.measure(
                places, slots=slots, rows_each=TABLE_ROWS, warm_up=plan.warm_up, windows=plan.tables_windows
            )

    # --------------------------------------------------------------------------------------------------- many of a kind

    def routing(self, kind: str, *, slots: int) -> None:
        """Many routing values are configured, few of them have changes: the tables of the others do not exist."""
        plan, found = self._plan, []
        with engine(self._directory, slots=slots) as spark:
            for configured in (plan.routing_touched, plan.routing_values):
                with self._pipeline(spark, kind, plan.routing_touched, configured=configured) as (source, rig, _):
                    touched = [tenant(number) for number in range(plan.routing_touched)]
                    rig.seed(source.fill(max(plan.routing_operations, FIRST_ROWS_LEAST)), touched)
                    found.append(self._windows(source, rig, plan.routing_operations, plan.warm_up, plan.windows))
        compared = Comparison(kind, plan.routing_touched, plan.routing_values, *found)
        self.results.routing.append(compared)
        self._say(f"{NAMES[kind]}: {compared}")

    def touched(self, kind: str, *, slots: int) -> None:
        """The same number of changes per destination, for a hundred times as many destinations."""
        plan, found = self._plan, []
        with engine(self._directory, slots=slots) as spark:
            for count in (plan.touched_few, plan.touched_many):
                with self._pipeline(spark, kind, count) as (source, rig, _):
                    operations = count * plan.touched_operations_each
                    self._say(f"{NAMES[kind]}: seeding {count:,} destinations")
                    rig.seed(source.fill(operations))
                    few = count == plan.touched_few
                    warm_up, windows = (plan.warm_up, plan.windows) if few else (1, plan.touched_windows)
                    found.append(self._windows(source, rig, operations, warm_up, windows))
        compared = Comparison(kind, plan.touched_few, plan.touched_many, *found)
        self.results.touched.append(compared)
        self._say(f"{NAMES[kind]}: {compared}")

    def _windows(self, source: SourceLake, rig: Rig, operations: int, warm_up: int, windows: int) -> Figures:
        found = [rig.deliver(source.make_window(operations))[0] for _ in range(warm_up + windows)]
        return middle(found[warm_up:])

    # ------------------------------------------------------------------------------------------------------- one large

    def big_window(self, kind: str, *, slots: int) -> None:
        """A window larger than Java's heap, nine rows in ten of which belong to one destination."""
        plan, blocks = self._plan, 8
        rows = round(plan.heap_mib * plan.window_to_heap * 2**20 / (BYTES_OF_A_BLOCK * blocks))
        with (
            engine(self._directory, slots=slots, heap_mib=plan.heap_mib) as spark,
            self._pipeline(spark, kind, 10, skewed=True, payload=blocks) as (source, rig, _),
        ):
            rig.seed(source.fill(rows // 3))  # enough rows for the window's updates and deletes
            self._say(f"making a window of {rows:,} rows")
            made = source.make_window(rows)
            size_mib = source.source.survey(made.window).backlog.size_bytes / 2**20
            figures, report = rig.deliver(made)
            java, *workers = sorted((memory_mib(each)[1] for each in descendants(_java(spark))), reverse=True)
            peaks = {"java": java, "python worker": max(workers)} if workers else {"java": java}
        self.results.big_window = BigWindow(
            kind, rows, size_mib, plan.heap_mib, figures.seconds, report.path or "", peaks
        )
        self._say(f"{NAMES[kind]}: {self.results.big_window}")

    # ------------------------------------------------------------------------------------------------------------ idle

    def idle(self, kind: str) -> None:
        with self._emptied() as directory, server_for(kind) as server:
            with closing(SourceLake(directory / "source", self._plan.idle_destinations)) as source:
                source.fill(FIRST_ROWS_LEAST)
            targets = Places(kind, directory / "destinations", server).targets(self._plan.idle_destinations)
            self._say(f"idle for {self._plan.idle_s:.0f} s")
            self.results.idle = measure_idle(directory, source.address, targets, self._plan.idle_s)
            self._say(str(self.results.idle))

    # ---------------------------------------------------------------------------------------------------------- inside

    @contextmanager
    def _pipeline(
        self,
        spark: Engine,
        kind: str,
        tenants: int,
        *,
        configured: int | None = None,
        baseline: bool = False,
        skewed: bool = False,
        payload: int = 0,
    ) -> Iterator[tuple[SourceLake, Rig, Baseline | None]]:
        """A temporary source with destinations; the baseline has its own destinations."""
        with ExitStack() as stack:
            directory = stack.enter_context(self._emptied())
            server = stack.enter_context(server_for(kind))
            source = SourceLake(directory / "source", tenants, catalog=catalog_of(kind), skewed=skewed, payload=payload)
            stack.enter_context(closing(source))
            other = None
            if baseline and kind.startswith("ducklake"):
                places = Places(kind, directory / "baseline")
                addresses = [(target.name, target.address) for target in places.targets(tenants)]
                lakes = [(name, address) for name, address in addresses if isinstance(address, LakeAddress)]
                other = stack.enter_context(Baseline(source.address, lakes))
            targets = Places(kind, directory / "destinations", server).targets(configured or tenants)
            rules = Pipeline(name="bench", source=source.address, key=KEY, routing=RoutingConfig(column=ROUTING))
            work = TaskPipeline("bench", OneTable(source.source), targets, rules)
            rig = Rig(spark, work, without=[other.pid] if other is not None else [])
            stack.enter_context(closing(rig))
            yield source, rig, other

    @contextmanager
    def _emptied(self) -> Iterator[Path]:
        """A temporary directory for one part: the disk has the data of one part at a time."""
        directory = tempfile.mkdtemp(prefix="part-", dir=self._directory)
        try:
            yield Path(directory)
        finally:
            shutil.rmtree(directory)


def _java(spark: Engine) -> int:
    gateway = spark.spark.sparkContext._gateway
    if gateway is None:
        raise Failed("Spark has no Java any more")
    return int(gateway.proc.pid)
