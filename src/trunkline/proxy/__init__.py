"""The log over HTTP, for applications without the library."""
