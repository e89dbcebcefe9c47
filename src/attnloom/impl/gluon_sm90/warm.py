"""The kernels of a spec before there is a batch: what a first `run` will ask for, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterator

from attnloom.compile.request import Request
from attnloom.impl.gluon_sm90 import requests
from attnloom.impl.gluon_sm90.configs import GluonSm90Config
from attnloom.impl.triton.requests import merge_request
from attnloom.impl.triton.warm import Shape, plan_of, tensors_of
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program


def wanted(
    spec: AttentionSpec, program: Program, target: Target, config: GluonSm90Config, shape: Shape
) -> Iterator[tuple[str, Request]]:
    """(what it is, request) of each kernel: the attention of every tile class, and the merge."""
    plan = plan_of(spec, config, shape)
    tensors = tensors_of(spec, program, plan, shape)
    triple = ("cuda", target.arch, 32)
    for index, one in enumerate(config.classes):
        yield one.words, requests.attention_request(plan, tensors, index, (one, triple))
    yield "merge", merge_request(plan, tensors, triple)
