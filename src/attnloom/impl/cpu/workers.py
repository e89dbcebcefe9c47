"""Threads that share the units of a launch, each computing with one torch thread.

Two threads with a product each beat one product on two threads: units are long, while torch's own threads
meet at a barrier after every operation. A unit's result does not depend on the thread that computes it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Unit = TypeVar("Unit")


class _Pools:
    """One pool per number of workers, made on first use and forgotten in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def of(self, count: int) -> ThreadPoolExecutor:
        with self._lock:
            pool = self._pools.get(count)
            if pool is None:
                pool = self._pools[count] = self._start(count)
            return pool

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pools = {}

    @staticmethod
    def _start(count: int) -> ThreadPoolExecutor:
        """Start every thread now: its torch.set_num_threads(1) also becomes the default of threads that are
        born later, until this thread says its own number again.
        """
        threads = torch.get_num_threads()
        ready = threading.Barrier(count)

        def single() -> None:
            torch.get_num_threads()  # else this thread's first operation takes the number of the process over
            torch.set_num_threads(1)
            ready.wait()

        pool = ThreadPoolExecutor(count, thread_name_prefix="attnloom-cpu")
        wait([pool.submit(single) for _ in range(count)])
        torch.set_num_threads(threads)
        return pool


_pools = _Pools()


def run_units(units: Sequence[Unit], compute: Callable[[Unit], None], workers: int) -> None:
    """Compute every unit: here if workers is 1, else on threads that take the next unit when they are free."""
    if workers == 1 or len(units) <= 1:
        for unit in units:
            compute(unit)
        return
    waiting = deque(units)
    inference = torch.is_inference_mode_enabled()

    def work() -> None:
        with torch.inference_mode(inference), torch.no_grad():  # both are settings of a thread
            while True:
                try:
                    unit = waiting.popleft()
                except IndexError:
                    return
                compute(unit)

    count = min(workers, len(units))
    futures = [_pools.of(workers).submit(work) for _ in range(count)]
    wait(futures)
    for future in futures:
        future.result()
