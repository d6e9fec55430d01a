"""Trunkline: one totally ordered, replicated log of changes, and its delivery to many tables."""
