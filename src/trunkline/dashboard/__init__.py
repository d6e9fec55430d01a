"""One page to watch a cluster and its pipelines: a small server, and the page's files."""
