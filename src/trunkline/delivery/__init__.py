"""Delivery: the changes of one table, routed to many, each equal to its part of the source, exactly once in effect.

A room imports only rooms below it, and no other of its own row:

    capture, deliverer, verification     processes and commands
    job                                  the Spark job of one flush or seed
    control, destinations, sources       what a pipeline stores, writes and reads
    backends                             DuckDB, PostgreSQL and Delta, as both sources and destinations need them
    config                               the file of a pipeline; addresses
    changes, engine                      rows, columns and windows; the Spark session
"""
