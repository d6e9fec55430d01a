"""The control store: ownerships, desired states and statistics of pipelines, shared by their deliverers."""
