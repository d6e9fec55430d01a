"""Worker processes: independent tasks, a few at a time, each in its own process.

A process per task frees all memory when the task ends and makes its peak memory measurable. Workers are forked, so a
task may be any closure; its result and its reports return pickled.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Result = TypeVar("Result")
ReportProgress = Callable[[str], None]
Task = Callable[[ReportProgress], Result]

TERMINATE_SECONDS = 5.0  # a worker that has not ended by then is killed


class WorkerFailed(RuntimeError):
    """A worker raised an exception or died (out of memory, for example); the text has the cause."""


@dataclass
class _Worker:
    index: int
    process: BaseProcess
    results: Connection


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    tasks: Sequence[Task[Result]],
    *,
    jobs: int,
    on_progress: Callable[[int, str], None] | None = None,
    on_result: Callable[[int, Result], None] | None = None,
    enough: Callable[[Result], bool] | None = None,
) -> list[Result | None]:
    """Run all tasks, at most ``jobs`` at a time; return their results in the order of the tasks.

    When ``enough`` holds for a task's result, all tasks after it are stopped or never started (their result is None),
    and those before it still finish: the results do not depend on which worker is faster. No worker outlives the call.
    """
    results: list[Result | None] = [None] * len(tasks)
    running: dict[Connection, _Worker] = {}
    following, limit = 0, len(tasks)
    try:
        while running or following < limit:
            while following < limit and len(running) < max(1, jobs):
                worker = _start(following, tasks[following])
                running[worker.results] = worker
                following += 1
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                worker = running[ready]
                progress, result = _receive(worker)
                if progress is not None:
                    if on_progress is not None:
                        on_progress(worker.index, progress)
                    continue
                del running[ready]
                _end(worker)
                if worker.index >= limit:
                    continue
                results[worker.index] = result
                if on_result is not None:
                    on_result(worker.index, result)
                if enough is not None and enough(result):
                    limit = worker.index + 1
            for worker in [each for each in running.values() if each.index >= limit]:
                del running[worker.results]
                _end(worker)
    finally:
        for worker in running.values():
            _end(worker)
    return [result if index < limit else None for index, result in enumerate(results)]


def _start(index: int, task: Task[Result]) -> _Worker:
    context = multiprocessing.get_context("fork")
    results, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, sender), daemon=True)
    process.start()
    sender.close()
    return _Worker(index, process, results)


def _work(task: Task[Result], sender: Connection) -> None:
    """Runs in the worker. It ignores interrupts: the parent handles them and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = task(lambda text: sender.send(("progress", text)))
    except BaseException:
        sender.send(("failed", traceback.format_exc()))
    else:
        sender.send(("done", result))
    sender.close()


def _receive(worker: _Worker) -> tuple[str | None, Any]:
    """Either a progress text or the result."""
    try:
        kind, value = worker.results.recv()
    except EOFError:
        worker.process.join()
        raise WorkerFailed(f"a worker ended without a result (exit code {worker.process.exitcode})") from None
    if kind == "failed":
        raise WorkerFailed(str(value))
    return (value, None) if kind == "progress" else (None, value)


def _end(worker: _Worker) -> None:
    worker.results.close()
    worker.process.terminate()
    worker.process.join(TERMINATE_SECONDS)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()
