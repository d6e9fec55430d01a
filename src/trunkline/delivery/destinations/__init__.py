"""The kinds of destination tables, each one small class behind ``contract.Destination``."""
