"""`./run demo`: everything at once, with faults, and every row accounted for at the end."""
