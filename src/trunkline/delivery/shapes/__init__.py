"""Shapes: columns, filters, masks and computed columns, applied to the rows of a source."""
