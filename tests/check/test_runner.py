"""Worker processes: results in order, whichever worker is faster, and no worker is left behind."""

from __future__ import annotations

import os
import signal
import time

import pytest

from trunkline.check.runner import ReportProgress, Task, WorkerFailed, run_tasks

PATIENCE_SECONDS = 60.0


def squared(number: int) -> Task[int]:
    return lambda tell: number * number


def endless(_tell: ReportProgress) -> int:
    time.sleep(PATIENCE_SECONDS)
    return -1


def failing(_tell: ReportProgress) -> int:
    raise ValueError("the task is at fault")


def vanishing(_tell: ReportProgress) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return -1


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert run_tasks([squared(number) for number in range(7)], jobs=3) == [0, 1, 4, 9, 16, 25, 36]


def test_progress_is_reported_with_the_index_of_the_task() -> None:
    def task(tell: ReportProgress) -> int:
        tell("half")
        return 1

    reports: list[tuple[int, str]] = []
    run_tasks([task, task], jobs=1, on_progress=lambda index, text: reports.append((index, text)))
    assert reports == [(0, "half"), (1, "half")]


def test_tasks_after_one_that_is_enough_are_stopped_and_those_before_it_finish() -> None:
    begun = time.monotonic()
    finished: list[int] = []

    def slow(_tell: ReportProgress) -> int:
        time.sleep(0.3)
        return 3

    results = run_tasks(
        [slow, squared(10), endless, endless],
        jobs=3,
        on_result=lambda index, _: finished.append(index),
        enough=lambda result: result == 100,
    )
    assert results == [3, 100, None, None]
    assert sorted(finished) == [0, 1]
    assert time.monotonic() - begun < PATIENCE_SECONDS / 2


def test_the_earliest_task_that_is_enough_wins() -> None:
    def slow(_tell: ReportProgress) -> int:
        time.sleep(0.3)
        return 100

    assert run_tasks([slow, squared(10)], jobs=2, enough=lambda result: result == 100) == [100, None]


def test_a_task_that_raises_is_reported_with_its_traceback() -> None:
    with pytest.raises(WorkerFailed, match="the task is at fault"):
        run_tasks([endless, failing], jobs=2)


def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(WorkerFailed, match="without a result"):
        run_tasks([vanishing], jobs=1)
