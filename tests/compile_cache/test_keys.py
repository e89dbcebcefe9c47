"""Cases 49 and 51: what is a kernel's identity, and what is not."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny_kernels as tiny
import torch
from processes import HERE, python

import attnloom as al
from attnloom.bench.kernels import kernels_of
from attnloom.compile.emitted import module_of
from attnloom.compile.request import canonical
from attnloom.errors import NoFingerprint
from attnloom.impl.base import LaunchTensors
from attnloom.impl.triton import TritonImplementation, arguments, requests
from attnloom.impl.triton.launch import facts_of
from attnloom.spec import AttentionSpec
from attnloom.target import Target

KEYS = "print(tiny.request().key, tiny.request(tiny.double).key)"
SOURCE = (HERE / "tiny_kernels.py").read_text()


def loaded(folder: Path, source: str):
    """The tiny kernels from another file with this source."""
    folder.mkdir()
    (folder / "tiny_kernels.py").write_text(source)
    spec = importlib.util.spec_from_file_location("tiny_kernels", folder / "tiny_kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.case(49)
def test_the_same_text_elsewhere_is_the_same_kernel(tmp_path):
    assert loaded(tmp_path / "copy", SOURCE).request().key == tiny.request().key


@pytest.mark.case(49)
@pytest.mark.parametrize(
    ("old", "new"), [("return x + 1", "return x + 2"), ("tl.store(out + at, plus(", "tl.store(out + at, -plus(")]
)
def test_another_body_is_another_kernel(tmp_path, old, new):
    """The kernel's own body, and that of a function that it calls."""
    assert old in SOURCE
    changed = loaded(tmp_path / "changed", SOURCE.replace(old, new))
    assert changed.request().key != tiny.request().key
    assert changed.request(changed.double).key == tiny.request(tiny.double).key


@pytest.mark.case(49)
def test_a_variant_of_the_same_name_with_another_body():
    one = al.Variant(logits_transform=lambda logits: logits * 2, name="mine")
    other = al.Variant(logits_transform=lambda logits: logits * 3, name="mine")
    again = al.Variant(logits_transform=lambda logits: logits * 2, name="yours")
    keys = [canonical(module_of(v.program).logits_transform) for v in (one, other, again)]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


@pytest.mark.case(49, 51)
def test_paths_times_and_build_variables_do_not_count(tmp_path):
    """Another process, sources touched, another PATH and CUDA_HOME, torch's list of architectures."""
    here = f"{tiny.request().key} {tiny.request(tiny.double).key}\n"
    (tmp_path / "bin").mkdir()
    os.utime(HERE / "tiny_kernels.py")
    changes = {"PATH": tmp_path / "bin", "CUDA_HOME": tmp_path, "TORCH_CUDA_ARCH_LIST": "5.2", "CC": None}
    assert python(KEYS, tmp_path, **changes)[0] == here


@pytest.mark.case(51)
def test_the_architecture_counts():
    keys = {tiny.request(target=("cuda", arch, 32)).key for arch in (80, 86, 90)}
    assert len(keys) == 3


def test_options_types_facts_and_constants_count():
    aligned = [torch.empty(32, device="cpu")[i : i + 16] for i in (0, 4)]
    assert aligned[0].data_ptr() % 16 == 0
    others = [
        tiny.request(num_warps=2),
        tiny.request(width=64),
        tiny.request(tensors=(torch.empty(16, device="meta"), torch.empty(16, dtype=torch.int32, device="meta"))),
        tiny.request(tensors=(aligned[0], torch.empty(33)[1:17])),
        tiny.request(maxnreg=64),
    ]
    assert len({request.key for request in (tiny.request(), *others)}) == 1 + len(others)
    assert tiny.request(tensors=tuple(aligned)).key == tiny.request().key


@pytest.mark.case(49)
def test_a_compiler_that_is_set_counts_by_its_content(tmp_path, monkeypatch):
    before, keys = tiny.request().key, []
    for name, text in (("a", "one"), ("b", "two"), ("c", "one")):
        (tmp_path / name).write_text(text)
        monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / name))
        keys.append(tiny.request().key)
    assert keys[0] == keys[2]
    assert len({before, *keys}) == 3


@dataclass
class Thawed:
    x: int = 1


@pytest.mark.parametrize(
    "value", [object(), [1], {1}, torch.ones(1), Thawed(), 1j, np.float32(1), (1, object())], ids=str
)
def test_what_has_no_fingerprint_raises(value):
    with pytest.raises(NoFingerprint, match="cannot be fingerprinted"):
        _ = tiny.request(width=value).key


def test_constants_of_other_types_are_other_constants():
    values = [1, True, 1.0, "1", (1,), None, -0.0, 0.0, ((1,),)]
    assert len({canonical(value) for value in values}) == len(values)


def spec_of(**changes) -> AttentionSpec:
    given = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": torch.bfloat16, "page_size": 16}
    return AttentionSpec.create(**{**given, **changes})


def configs_of(spec, variant):
    return TritonImplementation().default_config(spec, variant.program, Target.of_arch("sm90")).classes


def launches(spec, variant):
    """100 batches of other lengths, with caches and rows of other sizes."""
    rng = np.random.default_rng(0)
    attn = al.BatchAttention(
        num_qo_heads=8, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, page_size=16, variant=variant, device="cpu"
    )
    for _ in range(100):
        qo = rng.integers(1, 40, rng.integers(1, 6))
        pages = rng.integers(3, 30, qo.size)
        indptr = np.concatenate([[0], np.cumsum(pages)])
        attn.plan(np.concatenate([[0], np.cumsum(qo)]), al.PagedKV(indptr, np.arange(indptr[-1]), pages * 0 + 5, 16))
        yield (
            attn.current_plan,
            LaunchTensors(
                spec=spec,
                program=variant.program,
                q=torch.empty(int(qo.sum()), 8, 64, dtype=spec.dtype, device="meta"),
                k=torch.empty(int(indptr[-1]), 16, 2, 64, dtype=spec.dtype, device="meta"),
                v=torch.empty(int(indptr[-1]), 16, 2, 64, dtype=spec.dtype, device="meta"),
                out=torch.empty(int(qo.sum()), 8, 64, dtype=spec.dtype, device="meta"),
                workspace=torch.empty(attn.workspace_size(), dtype=torch.uint8, device="meta"),
                params={"slopes": torch.empty(8, device="meta")},
            ),
        )


@pytest.mark.case(49)
def test_100_batches_need_what_attnloom_compile_compiled():
    """Other lengths never ask for another kernel, and the kernels are those that the command makes ahead."""
    spec, variant = spec_of(), al.variants.causal() & al.variants.alibi()
    target = Target.of_arch("sm90")
    ahead = {request.key for _, request in kernels_of(spec, variant, target, implementation="triton")}
    configs, facts, keys = configs_of(spec, variant), set(), set()
    for plan, tensors in launches(spec, variant):
        ours = arguments.addresses_of_plan(plan, spec.head_dim_vo)
        facts.add(facts_of(plan, tensors, arguments.of_call(tensors, ours.unused, arguments.ADDRESSES)))
        if len(keys) < len(ahead) or plan.batch == 1:
            keys |= {request.key for request in requests.requests(plan, tensors, configs, ("cuda", 90, 32))}
    assert len(facts) == 1
    assert keys == ahead


@pytest.mark.case(49, 61)
def test_a_new_scale_of_an_fp8_cache_needs_no_new_kernel():
    """Numbers have one kernel, tensors another, of one element or one a head; `attnloom compile` makes both."""
    spec, variant = spec_of(kv_dtype=torch.float8_e4m3fn), al.variants.causal()
    plan, tensors = next(launches(spec_of(), variant))
    shapes = {name: torch.empty(9, 16, 2, 64, dtype=spec.kv_dtype, device="meta") for name in ("k", "v")}
    config, kinds = configs_of(spec, variant)[0], []
    one, each = torch.empty((), device="meta"), torch.empty(2, device="meta")
    for scales in ([1.0, 0.5, 16.0, 0.0], [one, each, torch.empty(2, 2, device="meta")[:, 0]]):
        keys, facts = set(), set()
        for scale in scales:
            given = vars(tensors) | shapes | {"spec": spec, "k_scale": scale, "v_scale": scale, "params": {}}
            t = LaunchTensors(**given)
            keys.add(requests.attention_request(plan, t, 0, (config, ("cuda", 90, 32))).key)
            ours = arguments.addresses_of_plan(plan, spec.head_dim_vo)
            facts.add(facts_of(plan, t, arguments.of_call(t, ours.unused, arguments.ADDRESSES)))
        assert len(keys) == len(facts) == 1
        kinds.append((keys.pop(), facts.pop()))
    assert kinds[0][0] != kinds[1][0]
    assert kinds[0][1] != kinds[1][1]
    target = Target.of_arch("sm90")
    ahead = {request.key for _, request in kernels_of(spec, variant, target, implementation="triton")}
    assert {key for key, _ in kinds} <= ahead


@pytest.mark.case(49)
def test_a_new_value_of_an_operand_needs_no_new_kernel():
    spec = spec_of()
    variant = al.Variant(logits_transform=lambda logits, gain, n: logits * gain + n, params={"gain": 1.0, "n": 1})
    plan, tensors = next(launches(spec, al.variants.causal()))
    keys = set()
    for params in ({"gain": 0.5, "n": 1}, {"gain": 16.0, "n": 16}, {"gain": -1.0, "n": 2**30}, {"gain": 0.0, "n": 0}):
        t = LaunchTensors(**{**vars(tensors), "program": variant.program, "params": params})
        keys |= {r.key for r in requests.requests(plan, t, configs_of(spec, variant)[:1], ("cuda", 90, 32))}
    assert len(keys) == 2  # attention and merge
