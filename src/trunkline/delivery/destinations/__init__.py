"""The kinds of destination tables, each a class that implements ``contract.Destination``."""
