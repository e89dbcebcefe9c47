"""From transformers' masks and slots to plan inputs, by hand."""

import pytest
import torch
from transformers import masking_utils

from attnloom import errors
from attnloom.integrations.transformers import masks, paged


def bools(*rows):
    return torch.tensor([[c == "1" for c in row] for row in rows])


def mask(attention_mask=None, **sizes):
    return masks.attention_mask(
        batch_size=2, mask_function=masking_utils.causal_mask_function, attention_mask=attention_mask, **sizes
    )


def test_no_padding_needs_no_mask():
    assert mask(q_length=4, kv_length=4) is None
    assert mask(bools("1111", "1111"), q_length=1, kv_length=4, q_offset=3) is None


def test_left_padding_is_a_number_a_request():
    noted = masks.padding_of(mask(bools("0011", "1111"), q_length=4, kv_length=4))
    assert noted.kind == "left"
    assert noted.operand.tolist() == [2, 0]
    assert noted.operand.dtype == torch.int32


def test_a_row_of_padding_alone():
    assert masks.padding_of(mask(bools("0000", "0001"), q_length=4, kv_length=4)).operand.tolist() == [4, 3]


@pytest.mark.parametrize("row", ["1100", "0101", "1011"])
def test_other_padding_is_a_mask(row):
    noted = masks.padding_of(mask(bools(row, "1111"), q_length=4, kv_length=4))
    assert noted.kind == "mask"
    assert torch.equal(noted.operand, bools(row, "1111"))


def test_a_window_sees_the_end_of_the_mask():
    """8 tokens seen, a window of 4: the cache keeps 3 and gets 2 more, positions 5..9 of the request."""
    kept = mask(bools("0000001111", "0011111111"), q_length=2, kv_length=5, q_offset=8, kv_offset=5)
    assert masks.padding_of(kept).operand.tolist() == [1, 0]


def test_a_static_caches_empty_slots_are_cut_off():
    assert mask(q_length=2, kv_length=16, q_offset=torch.tensor(3)).shape == (2, 5)
    kept = mask(bools("0111", "1111"), q_length=1, kv_length=16, q_offset=3)
    assert torch.equal(kept, bools("0111", "1111"))
    assert masks.padding_of(mask(q_length=2, kv_length=16)).kind is None


def test_a_mask_shorter_than_the_keys_hides_the_rest():
    """As transformers' own eager mask reads it."""
    assert torch.equal(mask(bools("11", "01"), q_length=4, kv_length=4), bools("1100", "0100"))


def test_notes_survive_for_the_layers_and_are_read_again_without():
    kept = mask(bools("0011", "1111"), q_length=4, kv_length=4)
    assert masks.padding_of(kept) is masks.padding_of(kept)
    assert masks.padding_of(kept.clone()).operand.tolist() == [2, 0]


@pytest.mark.parametrize(
    "function",
    [
        masking_utils.chunked_causal_mask_function(4, torch.zeros(1)),
        masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function),
        masking_utils.and_masks(masking_utils.causal_mask_function, lambda b, h, q, kv: kv > 3),
        masking_utils.sliding_window_bidirectional_mask_function(4),
        masking_utils.sliding_window_overlay(4),
    ],
)
def test_masks_that_the_layers_keywords_do_not_say(function):
    refused = masks.attention_mask(1, 4, 4, mask_function=function)
    with pytest.raises(errors.NotYetSupported, match="transformers mask"):
        masks.padding_of(refused)


@pytest.mark.parametrize(
    "function", [masking_utils.bidirectional_mask_function, masking_utils.sliding_window_causal_mask_function(4)]
)
def test_masks_that_they_say(function):
    assert masks.attention_mask(1, 4, 4, mask_function=function) is None


def test_an_encoders_keys_are_all_there():
    """Cross-attention: 2 queries on 6 keys."""
    found = masks.attention_mask(
        1, 2, 6, mask_function=masking_utils.bidirectional_mask_function, attention_mask=bools("111100")
    )
    assert masks.padding_of(found).kind == "mask"


def read(cu_q, cu_k, slots, page_size, num_pages=8):
    pool = torch.zeros(num_pages, page_size, 1, 2)
    return paged.CacheRead("g", torch.tensor(cu_q), torch.tensor(cu_k), (pool, pool), torch.tensor(slots))


def test_pages_come_back_from_slots():
    """Pages of 4: 6 keys on pages 5 and 2, 3 keys on page 7, 9 keys that share pages 5 and 2, then page 1."""
    first = [20, 21, 22, 23, 8, 9]
    third = [20, 21, 22, 23, 8, 9, 10, 11, 4]
    inputs = paged.paged_inputs(read([0, 1, 4, 5], [0, 6, 9, 18], [*first, 28, 29, 30, *third], 4))
    assert inputs.qo_indptr.tolist() == [0, 1, 4, 5]
    assert inputs.kv.kv_indptr.tolist() == [0, 2, 3, 6]
    assert inputs.kv.kv_indices.tolist() == [5, 2, 7, 5, 2, 1]
    assert inputs.kv.kv_last_page_len.tolist() == [2, 3, 1]
    assert inputs.kv.page_size == 4


def test_full_pages_empty_requests_and_padded_slots():
    """8 keys fill two pages; a request of padding has none; slots past the last key are not looked at."""
    inputs = paged.paged_inputs(read([0, 8, 8], [0, 8, 8], [*range(4, 12), 99, 99], 4))
    assert inputs.kv.kv_indptr.tolist() == [0, 2, 2]
    assert inputs.kv.kv_indices.tolist() == [1, 2]
    assert inputs.kv.kv_last_page_len.tolist() == [4, 0]


def test_pages_of_one_token():
    inputs = paged.paged_inputs(read([0, 1], [0, 3], [7, 2, 5], 1))
    assert inputs.kv.kv_indices.tolist() == [7, 2, 5]
    assert inputs.kv.kv_last_page_len.tolist() == [1]


def test_a_layer_without_pages():
    cu = torch.tensor([0, 1])
    with pytest.raises(errors.InvalidMetadata, match="without pages"):
        paged.paged_inputs(paged.CacheRead("g", cu, cu))
    ragged = paged.ragged_inputs(paged.CacheRead("g", cu, torch.tensor([0, 5])))
    assert ragged.kv.kv_indptr.tolist() == [0, 5]
