"""Capture: copies the changes of a database, or of one table, into a log, each transaction once and in order."""
