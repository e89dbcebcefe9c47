"""Workloads by name, for tests, benchmarks and `attnloom explain`: one home for every batch we quote.

==========================  =============================================================================
name                        batch
==========================  =============================================================================
``zipf_16x1024``, ...       a batch of the paper's synthetic workloads, as stored
``constant_BxM``            B requests of M tokens (stored or not)
``uniform_BxM``             as stored; otherwise ``default_rng(0).integers(M // 2, M + 1, B)``
``lens_NxM_KxL...``         N requests of M tokens, then K of L, ...
``sharegpt_B``              B requests drawn from the ShareGPT lengths; ``azure_B``, ``mooncake_B`` likewise;
                            ``sharegpt_64_seed3`` draws others (seed 0 otherwise)
==========================  =============================================================================

A workload says how many tokens the requests hold; a mode says which step of serving is looked at:
``decode`` (one new token each), ``prefill`` (all tokens new) or ``mixed`` (see `Workload.mixed`).
The sources and licences of the data stand in ``workloads/README.md``.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import numpy as np

from attnloom.errors import InvalidArgument

MODES = ("decode", "prefill", "mixed")
SOURCES = ("sharegpt", "azure", "mooncake")

_PREFILL_CHUNK = 512
_SYNTHETIC = re.compile(r"(constant|uniform)_([1-9]\d*)x([1-9]\d*)")
_LISTED = re.compile(r"lens((?:_[1-9]\d*x[1-9]\d*)+)")
_DRAWN = re.compile(r"(sharegpt|azure|mooncake)_([1-9]\d*)(?:_seed(\d+))?")


@dataclass(frozen=True)
class Lengths:
    """New tokens (qo) and tokens in the cache, the new ones included (kv), per request."""

    qo: tuple[int, ...]
    kv: tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """A named batch.

    kv_lens: tokens per request at a step of decoding, the newest included; prompt_lens: those of them that
    are prompt (all of them where the source does not say).
    """

    name: str
    kv_lens: tuple[int, ...]
    prompt_lens: tuple[int, ...]

    def lengths(self, mode: str) -> Lengths:
        """Lengths of one step: `decode`, `prefill` or `mixed`; another mode raises InvalidArgument."""
        if mode == "decode":
            return Lengths(qo=(1,) * len(self.kv_lens), kv=self.kv_lens)
        if mode == "prefill":
            return Lengths(qo=self.prompt_lens, kv=self.prompt_lens)
        if mode == "mixed":
            return self.mixed()
        raise InvalidArgument(name="mode", given=mode, supported=", ".join(MODES), fix="")

    def mixed(self, every: int = 8) -> Lengths:
        """A step of continuous batching.

        Every `every`-th request runs the last chunk (up to 512 tokens) of its prompt, the others decode.
        """
        qo, kv = [], []
        for i, (total, prompt) in enumerate(zip(self.kv_lens, self.prompt_lens, strict=True)):
            chunk = i % every == 0
            qo.append(min(prompt, _PREFILL_CHUNK) if chunk else 1)
            kv.append(prompt if chunk else total)
        return Lengths(tuple(qo), tuple(kv))


def stored_names() -> tuple[str, ...]:
    """The batches that are stored by name."""
    return tuple(_stored())


def workload(name: str) -> Workload:
    """The workload of that name (see the module's table).

    Raises InvalidArgument for a name that is neither stored nor of a known form, or that asks for more
    requests than its source has.

    >>> workload("zipf_16x1024").kv_lens[:3]
    (4846, 2423, 1615)
    >>> workload("sharegpt_4") == workload("sharegpt_4_seed0")
    False
    >>> workload("sharegpt_4").kv_lens == workload("sharegpt_4_seed0").kv_lens
    True
    """
    if name in _stored():
        lens = tuple(_stored()[name])
        return Workload(name, lens, lens)
    if found := _SYNTHETIC.fullmatch(name):
        lens = _synthetic(found[1], int(found[2]), int(found[3]))
        return Workload(name, lens, lens)
    if found := _LISTED.fullmatch(name):
        parts = (part.split("x") for part in found[1].strip("_").split("_"))
        lens = tuple(int(length) for count, length in parts for _ in range(int(count)))
        return Workload(name, lens, lens)
    if found := _DRAWN.fullmatch(name):
        return _draw(name, found[1], int(found[2]), int(found[3] or 0))
    raise InvalidArgument(
        name="workload",
        given=name,
        supported=f"{', '.join(stored_names())}, constant_BxM, uniform_BxM, lens_NxM_KxL, "
        + ", ".join(f"{source}_B[_seedS]" for source in SOURCES),
        fix="B is the number of requests, M the tokens of one.",
    )


def _synthetic(kind: str, batch: int, mean: int) -> tuple[int, ...]:
    if kind == "constant":
        return (mean,) * batch
    drawn = np.random.default_rng(0).integers(mean // 2, mean + 1, batch)
    return tuple(int(max(length, 1)) for length in drawn)


def _draw(name: str, source: str, batch: int, seed: int) -> Workload:
    rows = _LOADERS[source]()
    if batch > len(rows):
        raise InvalidArgument(
            name="workload",
            given=name,
            supported=f"at most {len(rows)} requests of {source}",
            fix="Ask for fewer.",
        )
    rng = np.random.default_rng(seed)
    picked = rows[rng.choice(len(rows), size=batch, replace=False)]
    prompt = np.maximum(picked[:, 0], 1)
    # A batch in the middle of serving finds each request at a random token of its answer.
    done = rng.integers(1, np.maximum(picked[:, 1], 1) + 1)
    return Workload(name, tuple(map(int, prompt + done)), tuple(map(int, prompt)))


def _text(file: str) -> str:
    folder = resources.files("attnloom.testing") / "workloads"
    return (folder / file).read_text(encoding="utf-8")


@functools.cache
def _stored() -> dict[str, list[int]]:
    batches: dict[str, list[int]] = json.loads(_text("paper_batches.json"))
    return batches


def _csv_rows(file: str) -> np.ndarray:
    rows = csv.DictReader(_text(file).splitlines())
    return np.array([(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in rows], dtype=np.int64)


@functools.cache
def _sharegpt() -> np.ndarray:
    return _csv_rows("sharegpt_lengths.csv")


@functools.cache
def _azure() -> np.ndarray:
    return _csv_rows("azure_conv_lengths.csv")


@functools.cache
def _mooncake() -> np.ndarray:
    rows = [json.loads(line) for line in _text("mooncake_conversation.jsonl").splitlines()]
    return np.array([(row["input_length"], row["output_length"]) for row in rows], dtype=np.int64)


# Prompt and output tokens of each row: int64 [rows, 2].
_LOADERS: dict[str, Callable[[], np.ndarray]] = {
    "sharegpt": _sharegpt,
    "azure": _azure,
    "mooncake": _mooncake,
}
