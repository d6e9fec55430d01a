"""Capture of several tables of a DuckLake into one log."""
