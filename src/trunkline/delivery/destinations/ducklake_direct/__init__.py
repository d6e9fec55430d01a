"""DuckLake written by its public specification: Parquet files, and the rows of its catalog, without the extension.

Begin with ``transaction.py``: its rules say what is written, in which order, and what is left to the extension.
"""
