"""`./run demo`: the whole system on one machine, with faults, and every row verified at the end."""
