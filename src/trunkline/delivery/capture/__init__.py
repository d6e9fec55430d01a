"""A table's changes into a log, each source transaction once and in order."""
