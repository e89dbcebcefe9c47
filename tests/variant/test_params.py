"""Declarations of operands, and the check of values given for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnloom.errors import ParamError
from attnloom.variant import Variant, library, param
from attnloom.variant.params import Param, check_shape, check_value


def declared(value, name="p"):
    return Variant(params={name: value}).params[name]


@pytest.mark.parametrize(
    ("value", "dtype", "ndim"),
    [
        (True, torch.bool, 0),
        (3, torch.int32, 0),
        (2**40, torch.int64, 0),
        (0.5, torch.float32, 0),
        (np.float64(0.5), torch.float32, 0),
        (torch.tensor(2.0), torch.float32, 0),
        (torch.zeros(3, dtype=torch.bfloat16), torch.bfloat16, 1),
        (torch.zeros(3, 4, dtype=torch.uint8), torch.uint8, 2),
        (np.zeros((2, 2, 2), dtype=np.int64), torch.int64, 3),
    ],
)
def test_values_declare_their_type(value, dtype, ndim):
    one = declared(value)
    assert (one.name, one.dtype, one.ndim, one.from_lengths) == ("p", dtype, ndim, None)
    assert one.default is not None


def test_declarations_without_a_value():
    one = declared(param(torch.int32, 2))
    assert (one.dtype, one.ndim, one.default) == (torch.int32, 2, None)
    computed = declared(param(torch.int64, 1, from_lengths=lambda qo_len, kv_len: qo_len + kv_len))
    assert computed.from_lengths(np.array([1]), np.array([2])).tolist() == [3]
    assert param().describe() == "1-D torch.float32 tensor"
    assert param(torch.int32, 0, 7).default == 7


@pytest.mark.parametrize("name", ["logits", "kv_pos", "x", "lse", "head"])
def test_reserved_names(name):
    with pytest.raises(ParamError, match=f"{name}.*the engine supplies"):
        declared(1, name)


@pytest.mark.parametrize("name", ["two words", "1st", "lambda", ""])
def test_names_that_no_function_can_ask_for(name):
    with pytest.raises(ParamError, match="not a name"):
        declared(1, name)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], r"torch\.tensor"),
        (None, "NoneType"),
        ("text", "str"),
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.zeros(2).to(torch.float8_e4m3fn), "float8"),
    ],
)
def test_values_that_declare_nothing(value, message):
    with pytest.raises(ParamError, match=message):
        declared(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: param(torch.complex64),
        lambda: param(ndim=-1),
        lambda: param(torch.float32, 1, torch.zeros(2, 2)),
        lambda: param(torch.int32, 0, 0.5),
        lambda: param(torch.int64, 1, torch.zeros(2, dtype=torch.int64), from_lengths=lambda q, k: q),
    ],
)
def test_declarations_that_contradict_themselves(make):
    with pytest.raises(ParamError, match=r"al\.param"):
        make()


@pytest.mark.parametrize(
    ("one", "value", "dtype"),
    [
        (param(torch.float32, 1), torch.ones(2, dtype=torch.bfloat16), torch.float32),
        (param(torch.int64, 1), torch.ones(2, dtype=torch.int32), torch.int64),
        (param(torch.int32, 1), np.ones(2, dtype=np.int16), torch.int32),
        (param(torch.float32, 0), torch.tensor(2.0), torch.float32),
    ],
)
def test_values_are_widened(one, value, dtype):
    checked = check_value(one, value)
    assert checked.dtype == dtype
    assert checked.tolist() == value.tolist()


def test_a_value_of_the_declared_type_is_taken_as_it_is():
    value = torch.ones(2)
    assert check_value(param(torch.float32, 1), value) is value
    assert check_value(param(torch.float32, 0), 3) == 3.0
    assert check_value(param(torch.bool, 0), True) is True
    assert check_value(param(torch.int32, 0), np.int64(4)) == 4


@pytest.mark.parametrize(
    ("one", "value"),
    [
        (param(torch.float32, 1), torch.ones(2, 2)),
        (param(torch.float32, 1), 1.0),
        (param(torch.float32, 0), True),
        (param(torch.float32, 0), "1"),
        (param(torch.float32, 1), torch.ones(2, dtype=torch.float64)),
        (param(torch.float32, 1), torch.ones(2, dtype=torch.int32)),
        (param(torch.int32, 1), torch.ones(2, dtype=torch.int64)),
        (param(torch.int32, 1), torch.ones(2)),
        (param(torch.int32, 1), torch.ones(2, dtype=torch.bool)),
        (param(torch.bool, 1), torch.ones(2, dtype=torch.uint8)),
        (param(torch.uint8, 1), torch.ones(2, dtype=torch.bool)),
        (param(torch.int32, 0), 2**31),
        (param(torch.int32, 0), 1.0),
        (param(torch.bool, 0), 1),
    ],
)
def test_values_that_do_not_fit(one, value):
    with pytest.raises(ParamError, match="Declared: "):
        check_value(one, value)


QO, KV = np.array([3, 7, 1, 37]), np.array([5, 9, 1, 54])
ELEMENTS = 15 + 63 + 1 + 37 * 54
PACKED = 2 + 8 + 1 + 250


@pytest.mark.case("57")
@pytest.mark.parametrize(
    ("variant", "name", "right", "dtype"),
    [
        (library.custom_mask(), "mask", ELEMENTS, torch.bool),
        (library.packed_mask(), "bits", PACKED, torch.uint8),
        (library.tree_mask(), "tree", 9 + 49 + 1 + 37 * 37, torch.bool),
        (library.packed_tree_mask(), "tree_bits", 2 + 7 + 1 + 172, torch.uint8),
        (library.document_mask(), "q_ids", 48, torch.int32),
        (library.document_mask(), "kv_ids", 69, torch.int32),
    ],
)
def test_shapes_that_the_lengths_ask_for(variant, name, right, dtype):
    one = variant.params[name]
    check_shape(one, torch.zeros(right, dtype=dtype), QO, KV)
    for wrong in (right - 1, right + 1, 0):
        with pytest.raises(ParamError, match=rf"shape \({wrong},\).*ask for \({right},\)"):
            check_shape(one, torch.zeros(wrong, dtype=dtype), QO, KV)
    with pytest.raises(ParamError, match="Declared: 1-D"):
        check_value(one, torch.zeros(3, 5, dtype=dtype))


def test_open_extents_and_scalars_have_no_shape_to_check():
    one = param(torch.float32, 2, shape=lambda qo_len, kv_len: (-1, qo_len.sum()))
    check_shape(one, torch.zeros(5, 48), QO, KV)
    with pytest.raises(ParamError, match="ask for"):
        check_shape(one, torch.zeros(5, 47), QO, KV)
    check_shape(param(torch.float32, 0), 3.0, QO, KV)


def test_a_param_is_frozen():
    with pytest.raises(AttributeError):
        Param("p", torch.float32, 1).name = "q"
