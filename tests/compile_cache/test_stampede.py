"""Case 47: many processes and threads that want the same kernels at once, and what a killed one leaves behind."""

from __future__ import annotations

import signal
import threading

import pytest
import tiny_kernels as tiny
from processes import compiled, python, start

from attnloom.compile import cache, store

PROCESSES, ROUNDS, THREADS = 8, 3, 16

STAMPEDE = """
import hashlib, os, pathlib, time
from attnloom.compile.cache import kernel_of
root = pathlib.Path(os.environ["ATTNLOOM_CACHE_DIR"])
me, processes, rounds = int(os.environ["ME"]), {processes}, {rounds}
for i in range(rounds):
    (root / f"ready-{{i}}-{{me}}").touch()
    while len(list(root.glob(f"ready-{{i}}-*"))) < processes:
        time.sleep(0.001)
    os.environ["ATTNLOOM_CACHE_DIR"] = str(root / f"round-{{i}}")
    for function in (tiny.add_one, tiny.double):
        print(i, function.__name__, hashlib.sha256(kernel_of(tiny.request(function)).binary).hexdigest())
"""

HOLDER = """
import time
from attnloom.compile import cache, toolchain
def forever(*args):
    print("holding", flush=True)
    time.sleep(600)
toolchain.compile_kernel = forever
cache.kernel_of(tiny.request())
"""

COMPILE = """
from attnloom.compile.cache import kernel_of
print(kernel_of(tiny.request()).compiled)
"""


@pytest.mark.case(47)
def test_processes_compile_each_kernel_once(tmp_path):
    code = STAMPEDE.format(processes=PROCESSES, rounds=ROUNDS)
    running = [start(code, tmp_path, ME=i) for i in range(PROCESSES)]
    results = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, results
    assert len({out for out, _ in results}) == 1  # the same machine code everywhere
    assert len(results[0][0].splitlines()) == 2 * ROUNDS
    for i in range(ROUNDS):
        assert sorted(compiled(tmp_path / f"round-{i}")) == ["add_one", "double"]


@pytest.mark.case(47)
def test_threads_compile_each_kernel_once(private_cache):
    for _ in range(ROUNDS):
        cache.forget()
        barrier, found, wrong = threading.Barrier(THREADS), [], []

        def work(barrier=barrier, found=found, wrong=wrong):
            try:
                barrier.wait(30)
                found.append([cache.kernel_of(tiny.request(f)) for f in (tiny.add_one, tiny.double)])
            except Exception as error:  # noqa: BLE001 - shown by the test's own thread
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert len(found) == THREADS
        assert all(kernels == found[0] for kernels in found)
    assert sorted(compiled(private_cache)) == ["add_one", "double"]  # later rounds read the disk


@pytest.mark.case(47)
def test_others_take_over_from_a_killed_process(tmp_path):
    holder = start(HOLDER, tmp_path)
    assert holder.stdout.readline() == "holding\n"
    waiting = start(COMPILE, tmp_path)
    try:
        holder.send_signal(signal.SIGKILL)
        out, err = waiting.communicate(timeout=60)
    finally:
        for process in (holder, waiting):
            process.kill()
            process.wait(10)
            for pipe in (process.stdout, process.stderr):
                pipe.close()
    assert out == "True\n", err
    assert compiled(tmp_path) == ["add_one"]


def test_what_a_killed_writer_left_is_swept(private_cache):
    request = tiny.request()
    path = store.path_of(request.name, request.key)
    path.parent.mkdir(parents=True)
    left = path.with_name(f".{path.name}.1.2.tmp")
    left.write_bytes(b"half a file")
    assert cache.kernel_of(request).compiled
    assert not left.exists()


def test_a_file_system_without_locks_still_compiles(private_cache, monkeypatch):
    def refused(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(store.fcntl, "flock", refused)
    assert cache.kernel_of(tiny.request()).compiled
    cache.forget()
    assert not cache.kernel_of(tiny.request()).compiled


def test_a_holder_that_hangs_is_not_waited_for_for_ever(private_cache, monkeypatch):
    monkeypatch.setattr(store, "LONGEST_WAIT", 0.1)
    request = tiny.request()
    with store.locked(store.path_of(request.name, request.key)):
        assert cache.kernel_of(request).compiled


@pytest.mark.case(49)
def test_a_second_process_hits(tmp_path):
    assert [python(COMPILE, tmp_path)[0] for _ in range(2)] == ["True\n", "False\n"]
