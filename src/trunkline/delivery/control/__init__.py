"""The control store: who delivers what, the desired states, and what was last seen of each destination."""
