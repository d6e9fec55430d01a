"""Delivery: the changes of one table, routed to many, each equal to its part of the source, exactly once in effect."""
