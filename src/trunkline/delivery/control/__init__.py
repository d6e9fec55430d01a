"""The control store: who delivers what, what operators wish, and what was last seen of each destination."""
