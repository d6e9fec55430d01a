"""Comparisons of a pipeline with its configuration and its source: ``deliver check`` and ``deliver verify``."""
