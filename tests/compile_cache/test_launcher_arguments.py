"""What reaches the driver: Triton's own launcher, built here, on a stand-in for libcuda that records a launch."""

from __future__ import annotations

import json
import subprocess

import pytest
from processes import python

from attnloom.compile import launchers

LIBCUDA = r"""
#include <stdint.h>
#include <string.h>
typedef struct { unsigned g[3], b[3], shared; void *stream, *attrs; unsigned n; } Config;
unsigned grid[3], block, shared_bytes; void *stream, *function; void *values[256]; int launches;
static char store[256][8];
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
    (void)extra;
    memcpy(grid, c->g, sizeof grid); block = c->b[0]; shared_bytes = c->shared; stream = c->stream; function = f;
    extern int count;
    for (int i = 0; i < count; i++) memcpy(store[i], params[i], 8);
    launches++;
    return 0;
}
int count;
uint64_t value(int i) { uint64_t v; memcpy(&v, store[i], 8); return v; }
int cuCtxGetCurrent(void **p) { *p = (void *)1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDevicePrimaryCtxRetain(void **p, int d) { (void)d; *p = (void *)1; return 0; }
int cuCtxSetCurrent(void *p) { (void)p; return 0; }
int cuGetErrorString(int c, const char **s) { (void)c; *s = "none"; return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { (void)f; (void)a; (void)v; return 0; }
int cuPointerGetAttribute(void *d, int a, uint64_t p) { (void)d; (void)a; (void)p; return 1; }
"""

CHILD = r"""
import ctypes, json, os, time, types
cuda = ctypes.CDLL(os.environ["FAKE"] + "/libcuda.so.1", ctypes.RTLD_GLOBAL)
cuda.value.restype = ctypes.c_uint64
import numpy as np, torch
torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream = lambda: 0, lambda device: 77
from triton.backends.nvidia import driver as nvidia
from triton.runtime.driver import driver
nvidia.PyCUtensorMap = type("PyCUtensorMap", (), {})
utils = types.SimpleNamespace(
    get_device_properties=lambda device: {"max_shared_mem": 232448},
    load_binary=lambda name, binary, shared, device: (1, 4242, 32, 0, 1024),
)
driver.set_active(types.SimpleNamespace(launcher_cls=nvidia.CudaLauncher, utils=utils))
import attnloom as al
from attnloom.impl.base import LaunchTensors
from attnloom.impl.triton import TritonImplementation, launch
from attnloom.spec import AttentionSpec
from attnloom.target import Target
launch.target_of = lambda device: ("cuda", 90, 32)
spec = AttentionSpec.create(num_qo_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float16, page_size=16)
variant = al.variants.causal() & al.variants.alibi(torch.ones(4))
config = TritonImplementation().default_config(spec, variant.program, Target.of_arch("sm90"))
attn = al.BatchAttention(num_qo_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float16, page_size=16,
                         variant=variant, device="cpu", planner="algorithm1")
attn._config = config
attn.plan(np.array([0, 1, 2]), al.PagedKV(np.array([0, 40, 80]), np.arange(80), np.array([3, 3]), 16), num_ctas=8)
plan = attn.current_plan
q, out, lse = torch.zeros(2, 4, 16).half(), torch.zeros(2, 4, 16).half(), torch.zeros(2, 4)
k, v = torch.zeros(80, 16, 2, 16).half(), torch.zeros(90, 16, 2, 16).half()
slopes, space = torch.ones(4), torch.zeros(attn.workspace_size(num_ctas=8), dtype=torch.uint8)
t = LaunchTensors(spec=spec, program=variant.program, q=q, k=k, v=v, out=out, lse=lse, workspace=space,
                  params={"slopes": slopes})
count = ctypes.c_int.in_dll(cuda, "count")
run = launch.Compiled(plan, t, config.classes)
run._device = 0
pages = plan.levels[0].pages.data_ptr()
result = {"pointers": [x.data_ptr() for x in (q, k, v, out, lse, space, slopes)], "pages": pages}
for name, params, given in (("attend", 34, (0,)), ("merge", 26, ())):
    count.value = params
    getattr(run, name)(*given)
    result[name] = [cuda.value(i) for i in range(params)]
    result[name + "_grid"] = list((ctypes.c_uint * 3).in_dll(cuda, "grid"))
result["stream"] = ctypes.c_void_p.in_dll(cuda, "stream").value
result["function"] = ctypes.c_void_p.in_dll(cuda, "function").value
result["merges"], result["ctas"] = plan.merges.entries.shape[0], plan.classes[0].tile.num_ctas
result["ctas_of_classes"] = [work.tile.num_ctas for work in plan.classes]
result["heads"] = plan.classes[0].heads_per_item
start = time.perf_counter()
for _ in range(2000):
    one = launch.Compiled(plan, t, config.classes)
    one._device = 0
    one.attend(0)
    one.merge()
result["microseconds"] = (time.perf_counter() - start) / 2000 * 1e6
print(json.dumps(result))
"""


@pytest.mark.skipif(
    launchers.c_compiler() is None or not launchers.python_header().exists(), reason="builds with gcc and Python.h"
)
def test_every_argument_arrives_in_its_place(tmp_path):
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "cuda.c").write_text(LIBCUDA)
    command = [launchers.c_compiler(), "-shared", "-fPIC", "-o", fake / "libcuda.so.1", fake / "cuda.c"]
    subprocess.run(command, check=True, timeout=60)
    changes = {"TRITON_LIBCUDA_PATH": fake, "LD_LIBRARY_PATH": fake, "FAKE": fake, "NUMBA_DISABLE_JIT": 1}
    got = json.loads(python(CHILD, tmp_path / "cache", **changes)[0].splitlines()[-1])
    q, k, v, out, lse, space, slopes = got["pointers"]
    ints = [value & 0xFFFFFFFF for value in got["attend"]]
    assert [got["attend"][i] for i in (0, 3, 7, 11, 14, 16)] == [q, k, v, out, lse, space]
    assert ints[1:3] == [64, 16]
    assert ints[4:7] == ints[8:11] == [512, 32, 16]
    assert ints[12:14] == [64, 16]
    assert ints[15] == 4
    assert got["pages"] in got["attend"][18:29]
    assert slopes in got["attend"][27:33]
    assert got["attend_grid"] == [got["ctas"], 1, 1]
    assert [got["merge"][i] for i in (0, 3, 5)] == [out, lse, space]
    # two slots a CTA, each of 16 or 128 rows: 16 numbers of out a row, behind all of them one of lse
    first, second = got["ctas_of_classes"]
    rows = 2 * first * 16, 2 * second * 128
    assert [*got["merge"][6:8], *got["merge"][9:11]] == [0, rows[0] * 16, rows[0] * 17, rows[0] * 17 + rows[1] * 16]
    assert [got["merge"][i] & 0xFFFFFFFF for i in (8, 11)] == [16, 128]
    assert got["merge_grid"] == [got["merges"], got["heads"], 8]  # 16 rows, 2 at a time
    assert (got["stream"], got["function"]) == (77, 4242)
    print(f"host time of attention + merge without a driver: {got['microseconds']:.1f} us")
