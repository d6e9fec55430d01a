"""Metrics, health, readiness and log lines of every process. A process declares its own table and values."""
