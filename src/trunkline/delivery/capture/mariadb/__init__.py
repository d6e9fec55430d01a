"""Capture of a MariaDB database: its binlog, its catalog and chunks of its tables."""
