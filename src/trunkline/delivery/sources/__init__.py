"""The kinds of sources of changes."""
