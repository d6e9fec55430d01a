"""The configuration of a pipeline: one YAML file, read into one frozen tree."""

from trunkline.delivery.config.discovery import Discovered, discovered
from trunkline.delivery.config.loader import load_pipeline
from trunkline.delivery.config.reference import example, reference
from trunkline.delivery.config.tree import (
    ColumnsConfig,
    ControlConfig,
    DestinationConfig,
    DiscoverConfig,
    FlushConfig,
    Pipeline,
    ReadingConfig,
    RetryConfig,
    RoutingConfig,
    SeedMode,
    SparkConfig,
    TableConfig,
)

__all__ = [
    "ColumnsConfig",
    "ControlConfig",
    "DestinationConfig",
    "DiscoverConfig",
    "Discovered",
    "FlushConfig",
    "Pipeline",
    "ReadingConfig",
    "RetryConfig",
    "RoutingConfig",
    "SeedMode",
    "SparkConfig",
    "TableConfig",
    "discovered",
    "example",
    "load_pipeline",
    "reference",
]
