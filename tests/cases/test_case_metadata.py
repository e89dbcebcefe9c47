"""Cases 25 and 26: index tensors of every dtype, stride and device; metadata that contradicts itself."""

import numpy as np
import oracle
import pytest
import torch
from harness import Positions, compare, each_dtype, expect, run

import attnloom as al
from attnloom.testing.inputs import Batch, Heads, Placement, random_sequences
from attnloom.testing.tolerance import State, assert_state_close

QO, KV = [1, 5, 0, 30], [33, 5, 17, 64]

# Each storage with the names of its index tensors.
NAMES = {
    "ragged": ("qo_indptr", "kv_indptr"),
    "csr": ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"),
    "table": ("qo_indptr", "block_table", "seq_lens"),
}
TARGETS = [(storage, name) for storage, names in NAMES.items() for name in names]


def arrays_of(batch: Batch) -> dict[str, torch.Tensor]:
    names = NAMES[batch.placement.storage]
    return {name: batch.qo_indptr if name == "qo_indptr" else getattr(batch.kv, name) for name in names}


def format_of(storage: str, arrays: dict) -> object:
    if storage == "ragged":
        return al.RaggedKV(arrays["kv_indptr"])
    if storage == "table":
        return al.PagedKV.from_block_table(arrays["block_table"], arrays["seq_lens"], 16)
    return al.PagedKV(arrays["kv_indptr"], arrays["kv_indices"], arrays["kv_last_page_len"], page_size=16)


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values at twice the stride, garbage between."""
    spread = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), 2**31 - 1)
    spread[..., ::2] = x
    return spread[..., ::2]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.T.contiguous().T if x.ndim == 2 else strided(x)


ACCEPTED = {
    "int64": lambda x: x.to(torch.int64),
    "int32": lambda x: x.to(torch.int32),
    "int64_strided": lambda x: strided(x.to(torch.int64)),
    "int32_strided": strided,
    "int32_transposed": transposed,
    "numpy": lambda x: x.cpu().numpy(),
    "list": lambda x: x.tolist(),
}
REFUSED = {
    "float32": lambda x: x.float(),
    "int16": lambda x: x.clamp(max=1000).to(torch.int16),
    "uint8": lambda x: x.clamp(0, 200).to(torch.uint8),
    "uint32": lambda x: x.cpu().numpy().astype(np.uint32),
    "torch_uint32": lambda x: torch.from_numpy(x.cpu().numpy().astype(np.uint32)),
    "one_dimension_more": lambda x: x[None],
    "one_dimension_less": lambda x: x.flatten()[0] if x.ndim == 1 else x.flatten(),
    "bool": lambda x: x > 0,
}


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.gpu)])
def index_device(request, runner):
    if request.param == "device" and runner.device == "cpu":
        pytest.skip("no CUDA device")
    return "cpu" if request.param == "host" else runner.device


@pytest.mark.case(25)
@pytest.mark.parametrize("form", ACCEPTED)
@pytest.mark.parametrize(("storage", "name"), TARGETS)
def test_index_tensors_are_converted(runner, index_device, storage, name, form):
    batch = runner.place(
        random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32))), Placement(storage, index_device=index_device)
    )
    arrays = arrays_of(batch)
    arrays[name] = ACCEPTED[form](arrays[name])
    attn = runner.for_batch(batch, variant=al.variants.causal())
    attn.plan(arrays["qo_indptr"], format_of(storage, arrays), num_ctas=7)
    compare(batch, *run(attn, batch), expect(batch, oracle.causal()))


@pytest.mark.case(25)
@pytest.mark.parametrize("form", REFUSED)
@pytest.mark.parametrize(("storage", "name"), TARGETS)
def test_other_index_tensors_are_refused_by_name(*, runner, index_device, launches, storage, name, form):
    batch = runner.place(
        random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32))), Placement(storage, index_device=index_device)
    )
    arrays = arrays_of(batch)
    wrong = arrays[name] = REFUSED[form](arrays[name])
    attn = runner.for_batch(batch)
    with pytest.raises(al.errors.AttnLoomError, match=name) as refused:
        attn.plan(arrays["qo_indptr"], format_of(storage, arrays), num_ctas=7)
    assert isinstance(refused.value, (ValueError, TypeError))
    message = str(refused.value)
    assert "expected" in message
    assert str(wrong.dtype).removeprefix("torch.") in message or f"{wrong.ndim}-D" in message
    assert not launches


def changed(x: torch.Tensor, at: int, value: int) -> torch.Tensor:
    x = x.clone()
    x[at] = value
    return x


# what is wrong -> (storage, tensor, the change, what the message says)
BROKEN = {
    "qo_indptr starts at 1": ("csr", "qo_indptr", lambda x: changed(x, 0, 1), "starts at 1.*first element of 0"),
    "qo_indptr decreases": ("csr", "qo_indptr", lambda x: changed(x, 1, 7), "decreases from 7 to 6"),
    "qo_indptr is empty": ("csr", "qo_indptr", lambda x: x[:0], "no elements"),
    "kv_indptr starts at -1": ("csr", "kv_indptr", lambda x: changed(x, 0, -1), "starts at -1"),
    "kv_indptr decreases": ("csr", "kv_indptr", lambda x: changed(x, 1, 5), "decreases from 5 to 4"),
    "kv_indptr is short": ("csr", "kv_indptr", lambda x: x[:-1], "4.*expected 5"),
    "kv_indptr is long": ("csr", "kv_indptr", lambda x: torch.cat([x, x[-1:]]), "6.*expected 5"),
    "kv_indices are short": ("csr", "kv_indices", lambda x: x[:9], "9 elements.*10"),
    "kv_last_page_len is short": ("csr", "kv_last_page_len", lambda x: x[:-1], "3.*expected 4"),
    "kv_last_page_len of 0": ("csr", "kv_last_page_len", lambda x: changed(x, 2, 0), "0 for request 2"),
    "kv_last_page_len of 17": ("csr", "kv_last_page_len", lambda x: changed(x, 2, 17), "17 for request 2"),
    "seq_lens are short": ("table", "seq_lens", lambda x: x[:-1], "3.*expected 4"),
    "seq_lens are negative": ("table", "seq_lens", lambda x: changed(x, 1, -2), "-2 for request 1"),
    "block_table is short": ("table", "block_table", lambda x: x[:-1], "3 rows.*4"),
    "ragged kv_indptr starts at 2": ("ragged", "kv_indptr", lambda x: changed(x, 0, 2), "starts at 2"),
    "ragged kv_indptr decreases": ("ragged", "kv_indptr", lambda x: changed(x, 2, 1), "decreases from 33 to 1"),
    "ragged kv_indptr is short": ("ragged", "kv_indptr", lambda x: x[:-1], "4.*expected 5"),
}


@pytest.mark.case(26)
@pytest.mark.parametrize("what", BROKEN)
def test_inconsistent_metadata_is_refused_before_anything_happens(runner, launches, dirty_workspaces, what):
    storage, name, change, message = BROKEN[what]
    batch = runner.place(random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32))), Placement(storage))
    arrays = arrays_of(batch)
    arrays[name] = change(arrays[name])
    attn = runner.for_batch(batch)
    dirty_workspaces.clear()
    with pytest.raises(ValueError, match=message) as refused:
        attn.plan(arrays["qo_indptr"], format_of(storage, arrays))
    assert isinstance(refused.value, al.errors.InvalidMetadata)
    assert name in str(refused.value)
    assert not launches
    assert not dirty_workspaces, "a workspace was allocated for a plan that cannot be"
    with pytest.raises(al.errors.PlanRequired):
        attn.run(batch.q, *batch.caches)


@pytest.mark.case(26)
@pytest.mark.parametrize("storage", ["csr", "table"])
@pytest.mark.parametrize("wrong", ["beyond", "negative"])
def test_page_ids_outside_the_pool(runner, launches, storage, wrong):
    batch = runner.place(random_sequences([1], [40], runner.fit(Heads.of(4, 2, 32))), Placement(storage))
    arrays = arrays_of(batch)
    num_pages = batch.pool.k_nhd.shape[0]
    table = arrays["kv_indices" if storage == "csr" else "block_table"]
    table.view(-1)[1] = num_pages if wrong == "beyond" else -1
    attn = runner.for_batch(batch)

    def plan_and_run():
        attn.plan(arrays["qo_indptr"], format_of(storage, arrays), validate=True)
        attn.run(batch.q, *batch.caches)

    with pytest.raises(ValueError, match=f"page.*{num_pages if wrong == 'beyond' else '-1'}") as refused:
        plan_and_run()
    assert isinstance(refused.value, al.errors.InvalidMetadata)
    assert not launches


@pytest.mark.case(26)
@pytest.mark.gpu
@pytest.mark.parametrize("storage", ["csr", "table"])
@pytest.mark.parametrize("wrong", [-1, 10**6, 2**31 - 1])
def test_page_ids_on_the_device_lead_into_the_pool(runner, storage, wrong):
    """Not validated, they are clamped: the other request is right, and nothing outside the pool is read."""
    if runner.device == "cpu":
        pytest.skip("no CUDA device")
    sequences = random_sequences([1, 3], [40, 70], runner.fit(Heads.of(4, 2, 32)))
    batch = runner.place(sequences, Placement(storage, poison="zero", index_device=runner.device))
    expected = expect(batch, oracle.causal())
    arrays = arrays_of(batch)
    (arrays["kv_indices"] if storage == "csr" else arrays["block_table"][0])[1] = wrong
    attn = runner.for_batch(batch, variant=al.variants.causal())
    attn.plan(arrays["qo_indptr"], format_of(storage, arrays), validate=False)
    out, lse = run(attn, batch)
    assert out[: batch.total_q].isfinite().all()
    rows = batch.rows(1)
    assert_state_close(State(out[rows].cpu(), lse[rows].cpu()), expected.exact[1], expected.model[1])


@pytest.mark.case(26)
@pytest.mark.parametrize("storage", ["csr", "table"])
@pytest.mark.parametrize("wrong", [2**32, 2**40 + 1, -(2**32)])
def test_int64_page_ids_beyond_int32_do_not_wrap(runner, launches, storage, wrong):
    """Taken modulo 2**32 they would be pages of the pool."""
    batch = runner.place(random_sequences([1], [40], runner.fit(Heads.of(4, 2, 32))), Placement(storage))
    arrays = arrays_of(batch)
    name = "kv_indices" if storage == "csr" else "block_table"
    arrays[name] = arrays[name].long()
    arrays[name].view(-1)[1] = wrong
    attn = runner.for_batch(batch)

    def plan_and_run():
        attn.plan(arrays["qo_indptr"], format_of(storage, arrays), validate=True)
        attn.run(batch.q, *batch.caches)

    with pytest.raises(al.errors.InvalidMetadata, match="page"):
        plan_and_run()
    assert not launches


@pytest.mark.case(25)
@pytest.mark.parametrize(
    "wrong", [[[0, 1], [2]], torch.tensor([0, 1]).to("meta"), torch.tensor([0, 1]).to_sparse()], ids=str
)
def test_index_arrays_without_numbers_are_refused(runner, wrong):
    attn = runner.attention(runner.fit(Heads.of(4, 2, 32)), page_size=None)
    for name, kv in (("kv_indptr", al.RaggedKV(wrong)), ("kv_indices", al.PagedKV([0, 1], wrong, [1], 4))):
        with pytest.raises(al.errors.InvalidMetadata, match=name):
            attn.plan([0, 1], kv)
    with pytest.raises(al.errors.InvalidMetadata, match="qo_indptr"):
        attn.plan(wrong, al.RaggedKV([0, 1]))
    with pytest.raises(al.errors.InvalidMetadata, match="block_table"):
        attn.plan([0, 1], al.PagedKV.from_block_table(wrong, [1], 4))


@pytest.mark.case(26)
def test_the_environment_can_ask_for_validation(runner, monkeypatch):
    batch = runner.place(random_sequences([1], [40], runner.fit(Heads.of(4, 2, 32))), Placement())
    batch.kv.kv_indices[1] = -1
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    monkeypatch.setenv("ATTNLOOM_CHECK", "1")
    with pytest.raises(al.errors.InvalidMetadata, match="page id -1"):
        attn.plan(batch.qo_indptr, batch.kv)
    attn.plan(batch.qo_indptr, batch.kv, validate=False)
    monkeypatch.setenv("ATTNLOOM_CHECK", "perhaps")
    with pytest.raises(al.errors.InvalidArgument, match=r"ATTNLOOM_CHECK.*'perhaps'.*0 or 1"):
        attn.plan(batch.qo_indptr, batch.kv)


@pytest.mark.case(26)
def test_a_ragged_cache_shorter_than_its_lengths(runner, launches):
    batch = runner.place(random_sequences([1, 1], [30, 40], runner.fit(Heads.of(4, 2, 32))), Placement("ragged"))
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    with pytest.raises(al.errors.AttnLoomError, match=r"69 rows.*70"):
        attn.run(batch.q, *(c[:69] for c in batch.caches))
    assert not launches


@pytest.mark.case(25)
@each_dtype
@pytest.mark.parametrize("form", ["int64", "int32_strided", "list"])
def test_positions_are_converted_too(runner, form, dtype):
    batch = runner.place(random_sequences([3, 1], [9, 40], runner.fit(Heads.of(4, 2, 32, dtype))), Placement())
    q_pos, kv_pos = torch.tensor([4, 3, 8, 30], dtype=torch.int32), torch.arange(49, dtype=torch.int32) % 40
    attn = runner.for_batch(batch, variant=al.variants.causal())
    attn.plan(batch.qo_indptr, batch.kv, q_pos=ACCEPTED[form](q_pos), kv_pos=ACCEPTED[form](kv_pos))
    compare(batch, *run(attn, batch), expect(batch, oracle.causal(), positions=Positions(q_pos, kv_pos)))
    for name, value in (("q_pos", q_pos.float()), ("kv_pos", kv_pos[:-1]), ("q_pos", q_pos[None])):
        with pytest.raises(al.errors.AttnLoomError, match=name):
            attn.plan(batch.qo_indptr, batch.kv, **{name: value})
