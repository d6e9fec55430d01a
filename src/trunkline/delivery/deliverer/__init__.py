"""A deliverer: the process that hosts a pipeline's planner, runs its jobs on Spark and keeps its leases."""
