"""The process that forks Spark's Python workers: PySpark's own, except that a worker ends silently.

Spark closes the connection of a worker that was idle for a minute, and of every worker as it stops. PySpark's worker
then sends an error over the closed connection, fails, and prints a stack trace. This one checks the connection first.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

serve_one_task = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve the next task, if there is one."""
    if not sock.recv(1, socket.MSG_PEEK):
        os._exit(0)
    return serve_one_task(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
