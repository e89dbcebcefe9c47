"""Threads that share the units of a launch on the CPU."""

import torch

from attnloom.impl.cpu.sums import _exp2
from attnloom.impl.cpu.workers import run_units


def test_each_worker_computes_with_one_torch_thread():
    """A worker that starts threads of its own for each operation takes twice as long on two cores."""
    threads, seen = torch.get_num_threads(), []

    def compute(unit):
        torch.ones(1 << 17).exp_()  # long enough for torch to divide: a thread's first one settles its number
        seen.append(torch.get_num_threads())

    try:
        torch.set_num_threads(5)
        run_units(range(12), compute, 5)
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(threads)
    assert seen == [1] * 12


def test_exp2_gives_the_same_bits_wherever_an_element_stands():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(40_000, generator=generator) * 8
    threads, results = torch.get_num_threads(), []
    try:
        for count, size in ((1, 40_000), (3, 40_000), (1, 39_999), (1, 70), (3, 33)):
            torch.set_num_threads(count)
            scratch = torch.zeros(40_064)
            part = scratch[:size].copy_(values[:size])
            _exp2(part)
            results.append(part)
    finally:
        torch.set_num_threads(threads)
    assert torch.allclose(results[0].double(), torch.exp2(values.double()), rtol=1e-6)
    for other in results[1:]:
        assert torch.equal(other, results[0][: other.numel()])
