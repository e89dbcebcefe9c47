"""What reaches the driver from a kernel with TMA descriptors: Triton's own driver code, on a stand-in for libcuda."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from processes import python

from attnloom.compile import launchers

FAKE = r"""
#include <stdint.h>
#include <string.h>
typedef struct { unsigned g[3], b[3], shared; void *stream, *attrs; unsigned n; } Config;
unsigned grid[3], block, shared_bytes; int count, launches, encoded;
static char store[256][8];
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
    (void)f; (void)extra;
    memcpy(grid, c->g, sizeof grid); block = c->b[0]; shared_bytes = c->shared;
    for (int i = 0; i < count; i++) memcpy(store[i], params[i], 8);
    launches++;
    return 0;
}
uint64_t value(int i) { uint64_t v; memcpy(&v, store[i], 8); return v; }
/* the map's first eight bytes become its number; what it was made of is kept */
uint64_t maps[64][24];
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int l2, int fill) {
    (void)interleave; (void)l2; (void)fill;
    uint64_t *kept = maps[encoded];
    kept[0] = type; kept[1] = rank; kept[2] = (uint64_t)address; kept[3] = swizzle;
    for (unsigned i = 0; i < rank; i++) {
        kept[4 + i] = dims[i];
        kept[9 + i] = i + 1 < rank ? strides[i] : 0;
        kept[14 + i] = box[i] * steps[i];
    }
    uint64_t number = 1000 + encoded++;
    memcpy(map, &number, 8);
    return 0;
}
uint64_t of_map(int map, int i) { return maps[map][i]; }
int cuCtxGetCurrent(void **p) { *p = (void *)1; return 0; }
int cuGetErrorString(int c, const char **s) { (void)c; *s = "none"; return 0; }
"""

CHILD = r"""
import ctypes, json, os, time, types
cuda = ctypes.CDLL(os.environ["FAKE"] + "/libcuda.so.1", ctypes.RTLD_GLOBAL)
cuda.value.restype = cuda.of_map.restype = ctypes.c_uint64
import numpy as np, torch
torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream = lambda: 0, lambda device: 77
torch.cuda.device = __import__("contextlib").nullcontext
from triton.backends.nvidia import driver as nvidia
from triton.runtime.driver import driver
utils = nvidia.CudaUtils()
utils.get_device_properties = lambda device: {"max_shared_mem": 232448}
utils.load_binary = lambda name, binary, shared, device: (1, 4242, 32, 0, 1024)
driver.set_active(types.SimpleNamespace(launcher_cls=nvidia.CudaLauncher, utils=utils))
import attnloom as al
from attnloom.impl.base import LaunchTensors
from attnloom.impl.gluon_sm90 import GluonSm90Implementation, launch
from attnloom.impl.triton import launch as merging
from attnloom.spec import AttentionSpec
from attnloom.target import Target
merging.target_of = launch.target_of = lambda device: ("cuda", 90, 32)
FORM = dict(num_qo_heads=8, num_kv_heads=2, head_dim=192, head_dim_vo=128, dtype=torch.bfloat16, page_size=16)
variant = al.variants.causal() & al.variants.alibi(torch.ones(8))
spec = AttentionSpec.create(**FORM)
config = GluonSm90Implementation().default_config(spec, variant.program, Target.of_arch("sm90"))
attn = al.BatchAttention(**FORM, variant=variant, device="cpu")
attn._config = config
attn.plan(np.array([0, 1, 41]), al.PagedKV(np.array([0, 40, 80]), np.arange(80), np.array([3, 3]), 16), num_ctas=4)
plan = attn.current_plan
q, out = torch.zeros(48, 8, 192).bfloat16(), torch.zeros(41, 8, 128).bfloat16()
k, v = torch.zeros(80, 16, 2, 192).bfloat16(), torch.zeros(90, 2, 16, 128).bfloat16().transpose(1, 2)
space = torch.zeros(attn.workspace_size(num_ctas=4), dtype=torch.uint8)
t = LaunchTensors(spec=spec, program=variant.program, q=q, k=k, v=v, out=out, workspace=space,
                  params={"slopes": torch.ones(8)})
number = lambda name: ctypes.c_int.in_dll(cuda, name)
result = {"pointers": [x.data_ptr() for x in (q, k, v, out, space)], "classes": [c.num_items for c in plan.classes]}
run = launch.Launches(plan, t, config)
run._device = 0
for name, index, params in (("decode", 0, 9 * 3 + 22), ("prefill", len(config.classes) - 1, 7 * 2 + 9 * 3 + 22)):
    assert plan.classes[index].num_items
    number("count").value = params
    before = number("encoded").value
    for _ in range(3):
        again = launch.Launches(plan, t, config)
        again._device = 0
        again.attend(index)
    result[name] = [cuda.value(i) for i in range(params)]
    result[name + " maps"] = [[cuda.of_map(m, i) for i in range(19)] for m in range(before, number("encoded").value)]
    result[name + " grid"] = list((ctypes.c_uint * 3).in_dll(cuda, "grid"))
    result[name + " ctas"] = plan.classes[index].tile.num_ctas
result["merges"] = plan.merges.entries.shape[0]
run.merge()
descriptors = run._attention(config.classes[-1], len(config.classes) - 1)[1]
descriptors.arguments(run._call, t, 0)
start = time.perf_counter()
for _ in range(20000):
    descriptors.arguments(run._call, t, 0)
result["microseconds"] = (time.perf_counter() - start) / 20000 * 1e6
start = time.perf_counter()
for _ in range(2000):
    one = launch.Launches(plan, t, config)
    one._device = 0
    one.attend(0)
result["launch"] = (time.perf_counter() - start) / 2000 * 1e6
print(json.dumps(result))
"""


def stubs() -> str:
    """Functions that Triton's driver code names and this test does not reach."""
    from triton.backends.nvidia import driver

    sources = [Path(driver.dirname, name).read_text() for name in ("driver.c", "driver.py")]
    named = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", "".join(sources)))
    there = set(re.findall(r"int (cu\w+)\(", FAKE))
    return "".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(named - there))


@pytest.mark.skipif(
    launchers.c_compiler() is None or not launchers.python_header().exists(), reason="builds with gcc and Python.h"
)
def test_maps_are_encoded_once_and_arrive_in_their_place(tmp_path):
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "cuda.c").write_text(FAKE + stubs())
    command = [launchers.c_compiler(), "-shared", "-fPIC", "-o", fake / "libcuda.so.1", fake / "cuda.c"]
    subprocess.run(command, check=True, timeout=60)
    changes = {"TRITON_LIBCUDA_PATH": fake, "LD_LIBRARY_PATH": fake, "FAKE": fake, "NUMBA_DISABLE_JIT": 1}
    got = json.loads(python(CHILD, tmp_path / "cache", **changes)[0].splitlines()[-1])
    q, k, v, out, space = got["pointers"]
    # type bf16, rank, address, swizzle of 128 bytes; dims, byte strides and box from the innermost on
    of_q = [9, 3, q, 3, *(192, 8, 48, 0, 0), *(384, 3072, 0, 0, 0), *(64, 4, 16, 0, 0)]
    of_k = [9, 4, k, 3, *(192, 2, 16, 80, 0), *(384, 768, 12288, 0, 0), *(64, 1, 16, 1, 0)]
    of_v = [9, 4, v, 3, *(128, 2, 16, 90, 0), *(4096, 256, 8192, 0, 0), *(64, 1, 16, 1, 0)]
    assert got["decode maps"] == [of_k, of_k, of_v]  # three launches, each piece encoded once
    assert got["prefill maps"] == [of_q, of_q, of_k, of_k, of_v]
    q_part, k_part = (48, 8, 192, 1536, 192, 1), (80, 16, 2, 192, 6144, 384, 192, 1)
    v_part = (90, 16, 2, 128, 4096, 128, 2048, 1)
    check_parts(got["decode"], [k_part, k_part, v_part], 1000)
    check_parts(got["prefill"], [q_part, q_part, k_part, k_part, v_part], 1003)
    for name, first in (("decode", 27), ("prefill", 41)):
        rest = got[name][first:]
        assert [rest[i] for i in (0, 3, 7, 11)] == [q, k, v, out]
        assert [low(x) for x in rest[4:7]] == [6144, 384, 192]
        assert [low(x) for x in rest[8:11]] == [4096, 128, 2048]
        assert got[f"{name} grid"] == [got[f"{name} ctas"], 1, 1]
    assert got["decode"][27 + 16] == space  # partial states of the first class
    print(f"descriptors looked up in {got['microseconds']:.2f} us, a launch in {got['launch']:.1f} us of host time")


def low(value: int) -> int:
    """The int32 that an argument of eight bytes begins with."""
    return value & 0xFFFFFFFF


def check_parts(arguments: list[int], parts: list[tuple[int, ...]], first_map: int) -> None:
    """Each descriptor is its map, then the shape in int32, then the strides in int64 elements."""
    at = 0
    for number, part in enumerate(parts):
        assert arguments[at] == first_map + number
        rank = len(part) // 2
        assert [low(x) for x in arguments[at + 1 : at + 1 + rank]] == list(part[:rank])
        assert arguments[at + 1 + rank : at + 1 + 2 * rank] == list(part[rank:])
        at += 1 + 2 * rank
