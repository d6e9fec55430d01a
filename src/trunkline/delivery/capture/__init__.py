"""Capture: copies the changes of a table into a log, each transaction of the source once and in order."""
