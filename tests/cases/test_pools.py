"""The pool factory: contents where the table says, poison everywhere else; and no pool made elsewhere in tests."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest
import torch

from attnloom.testing.inputs import Heads, Placement, place, random_sequences
from attnloom.testing.poison import guarded

HEADS = Heads.of(4, 2, 16, torch.float16)
ARRANGEMENTS = ("separate", "packed", "interleaved", "layers", "padded", "mixed")
KINDS = [
    Placement(storage, page_size, layout, arrangement)
    for storage, page_size, layout, arrangement in product(
        ("ragged", "csr", "table"), (1, 5), ("NHD", "HND"), ARRANGEMENTS
    )
    if not (storage == "ragged" and (arrangement == "packed" or page_size == 1))
]


@pytest.mark.parametrize("placement", KINDS, ids=lambda p: f"{p.storage}-{p.page_size}-{p.kv_layout}-{p.arrangement}")
def test_contents_lie_where_the_table_says_and_poison_everywhere_else(placement):
    sequences = random_sequences([1, 3, 0, 2], [7, 0, 1, 10], HEADS)
    batch = place(sequences, placement)
    for i in range(4):
        k, v = batch.keys(i)
        assert torch.equal(k, sequences.k[i])
        assert torch.equal(v, sequences.v[i])
        assert torch.equal(batch.q[batch.rows(i)], sequences.q[i])
    owned = sum(sequences.kv_len) * HEADS.num_kv * 16
    assert sum(int(p.isfinite().sum()) for p in batch.pool.parents) == 2 * owned
    assert all(c.stride(-1) == 1 for c in batch.caches)
    for cache, nhd in zip(batch.caches, (batch.pool.k_nhd, batch.pool.v_nhd), strict=False):
        view = cache[:, 0] if placement.arrangement == "packed" else cache
        view = view if placement.kv_layout == "NHD" else view.transpose(-3, -2)
        assert torch.equal(view.nan_to_num(), nhd.nan_to_num().view(view.shape))


def test_pages_are_permuted_and_shared_on_request():
    sequences = random_sequences([1, 1], [64, 64], HEADS, shared_prefix=32)
    first, second = (place(sequences, Placement(page_size=8, seed=seed)) for seed in (0, 1))
    assert first.pages != second.pages
    assert first.pages[0] != tuple(sorted(first.pages[0]))
    shared = place(sequences, Placement(page_size=8, shared_pages=4))
    assert shared.pages[0][:4] == shared.pages[1][:4]
    assert not set(shared.pages[0][4:]) & set(shared.pages[1][4:])
    assert torch.equal(shared.keys(1)[0], sequences.k[1])


def test_a_guarded_tensor_notices_a_stray_write():
    out = guarded((3, 4), torch.float16)
    assert out.tensor.isnan().all()
    out.tensor.zero_()
    assert out.intact()
    out.parent[-1] = 0
    assert not out.intact()


FACTORIES = {"empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "empty_strided"}
POOL_NAME = re.compile(r"(^|_)(pool|caches?|pages_mem)(_|$)")
EXEMPT = {
    "flash_attn_compat/test_flash_kvcache.py": "flash-attn's caches, whose unowned slots these tests fill themselves",
    "impl/test_append_on_a_gpu.py": "appends write caches, which no attention reads there",
    "impl/test_reference.py": "a few numbers by hand",
    "triton_interpreter/test_append.py": "appends write caches, which no attention reads there",
    "test_case_fp8_append.py": "appends write caches; what attention reads there was appended",
    "test_case_overflow.py": "cases 21 and 22: untouched virtual memory, which the factory would fill",
    "transformers_compat/test_inputs.py": "a cache of the right shape for index arithmetic; no attention reads it",
}


def pools_made_in(tree: ast.AST) -> list[int]:
    """Lines that make a tensor and call it a pool or cache, or hand a fresh one to run as a cache."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            if any(POOL_NAME.search(name) for name in names) and makes_tensor(node.value):
                found.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run":
            handed = [*node.args[1:3], *(k.value for k in node.keywords if k.arg and k.arg.endswith("cache"))]
            if any(makes_tensor(a) for a in handed):
                found.append(node.lineno)
    return found


def makes_tensor(value: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in FACTORIES
        and isinstance(n.func.value, ast.Name)
        and n.func.value.id == "torch"
        for n in ast.walk(value)
    )


def test_every_pool_of_the_tests_comes_from_the_factory():
    tests = Path(__file__).parents[1]
    exempt = tuple(EXEMPT)
    files = [f for f in sorted(tests.rglob("*.py")) if not f.as_posix().endswith(exempt)]
    assert len(files) > 5
    made = [f"{f.relative_to(tests)}:{line}" for f in files for line in pools_made_in(ast.parse(f.read_text()))]
    assert not made, f"make these with attnloom.testing.inputs.place: {made}"


@pytest.mark.parametrize(
    "text", ["k_cache = torch.zeros(4, 2)", "pool, x = torch.randn(3).half(), 1", "a.run(q, torch.zeros(1), v)"]
)
def test_the_search_for_pools_finds_them(text):
    assert pools_made_in(ast.parse(text)) == [1]
