"""`attnloom demo` without weights: random ones from a seed, in 32 and 16 bits, by chat prompts and by load."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import attnloom as al
from attnloom.demo import configs, main, random_weights, teacher, throughput
from attnloom.demo.prompts import Prompt
from attnloom.demo.serve import Answer, Request
from attnloom.errors import InvalidArgument

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A known configuration of two layers."""
    values = {
        **configs.KNOWN["smollm2-135m"].values, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    }  # fmt: skip
    monkeypatch.setitem(configs.KNOWN, "smollm2-135m", configs.KnownConfig("llama", "float32", values))
    return "smollm2-135m"


def run(known: str, out: Path, *more: str) -> int:
    return main(["--random-weights", "--config", known, "--output-dir", str(out), *more])


def wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    true_run = al.BatchAttention.run
    monkeypatch.setattr(al.BatchAttention, "run", lambda *args, **kwargs: -true_run(*args, **kwargs))


@pytest.mark.parametrize("device", DEVICES)
def test_chat_prompts_in_fp32_equal_eager_attention(
    device: str, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, tmp_path, "--device", device, "--max-new-tokens", "3") == 0
    log = capsys.readouterr().out
    assert "Loading smollm2-135m (random weights) in float32" in log
    assert "All 30 tokens of 10 answers equal eager attention's." in log
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["judgement"] is None
    assert [len(request["tokens"]) for request in report["requests"]] == [3] * 10
    assert len({tuple(request["tokens"]) for request in report["requests"]}) > 5, "answers depend on the prompts"
    # the system prompt of 32 words and more is the same in all
    assert re.search(r"pages \d+–\d+ (were )?shared", log)


@pytest.mark.parametrize("device", DEVICES)
def test_chat_prompts_in_bf16_are_judged_with_the_answers_given(
    device: str, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, tmp_path, "--device", device, "--max-new-tokens", "3", "--dtype", "bfloat16") == 0
    judgement = json.loads((tmp_path / "report.json").read_text())["judgement"]
    assert judgement["positions"] == 30
    assert 0 < judgement["error"] <= 2 * judgement["eager_error"] + 2**-7 * judgement["largest"]
    assert "30 tokens fed back; reference: eager in float32" in capsys.readouterr().out


def test_wrong_attention_in_bf16_is_judged_wrong(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong_attention(monkeypatch)
    assert run(tiny, tmp_path, "--max-new-tokens", "2", "--dtype", "bfloat16") == 1
    log = capsys.readouterr().out
    assert "EXCEEDED" in log
    assert "attnloom demo: r1 r2 r3 r4 r5 r6 r7 r8 r9 r10 differ from eager attention" in log


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_load_is_timed_beside_transformers_own_attention(
    dtype: str, device: str, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--requests", "5", "--prompt-tokens", "40", "--max-new-tokens", "4", "--dtype", dtype]
    assert run(tiny, tmp_path, "--device", device, *options) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    ours, other = report["loads"]
    assert (ours["attention"], other["attention"]) == ("attnloom", throughput.peer())
    assert report["prompt_tokens"] == 40 + 33 + 25 + 18 + 10
    for load in (ours, other):
        assert [len(tokens) for tokens in load["tokens"]] == [4] * 5
        assert load["tokens_per_second"] == pytest.approx(20 / load["seconds"])
    assert report["plans"] == 4, "one prefill of all prompts and three decodes"
    assert report["implementation"] in {one.name for one in al.implementations(device) if one.available}
    assert report["judgement"]["positions"] == 4 * 4
    if dtype == "float32":
        assert ours["tokens"] == other["tokens"]
    log = capsys.readouterr().out
    assert re.search(r"attnloom: 20 tokens in [\d.]+ s: [\d.]+ tokens/s", log)
    assert f"implementation {report['implementation']}" in log


def test_a_load_served_wrong_exits_1(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_attention(monkeypatch)
    options = ["--requests", "2", "--prompt-tokens", "20", "--max-new-tokens", "2"]
    assert run(tiny, tmp_path, *options) == 1


def test_tokens_that_the_logits_do_not_explain_are_judged_wrong(tiny: str) -> None:
    """Right logits, but another token was served: as if the paged cache had been read wrongly."""
    from attnloom.integrations.transformers import enable

    source = random_weights.find(None, tiny)
    model = random_weights.load(source, device="cpu", dtype="bfloat16", bars=False).model
    prompt = torch.arange(20)[None]
    with torch.inference_mode():
        best = int(model(prompt).logits[0, -1].argmax())
    for token, passes in ((best, True), ((best + 1) % 512, False)):
        answer = Answer(Request("r1", Prompt("", 1, 0), prompt[0].tolist()), [token], [0.1])
        before = model.lm_head.weight.clone()
        judgement = teacher.judge(enable(model), [answer])
        assert judgement.error <= judgement.tolerance
        assert judgement.passes is passes
        assert torch.equal(model.lm_head.weight, before)
        assert model.dtype == torch.bfloat16
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_weights_come_from_the_seed_and_words_are_tokens(tiny: str) -> None:
    source = random_weights.find(None, tiny)
    first, second = (random_weights.load(source, device="cpu", dtype="float32", bars=False) for _ in range(2))
    assert torch.equal(first.model.lm_head.weight, second.model.lm_head.weight)
    assert float(first.model.lm_head.weight.std()) == pytest.approx(64**-0.5, rel=0.05)
    tokens = first.tokenizer("a b a", add_special_tokens=False)["input_ids"]
    assert tokens[0] == tokens[2] != tokens[1]
    assert first.tokenizer.decode([7, 8], skip_special_tokens=True) == "#7 #8"


def test_prompts_of_a_load_are_the_same_every_time_and_of_many_lengths() -> None:
    requests = throughput.random_requests(32, 512, 64, 1000)
    assert requests == throughput.random_requests(32, 512, 64, 1000)
    lengths = [len(request.tokens) for request in requests]
    assert (min(lengths), max(lengths)) == (128, 512)
    assert len(set(lengths)) == 32
    assert lengths != sorted(lengths)
    assert [len(r.tokens) for r in throughput.random_requests(1, 3, 1, 10)] == [3]


MISTAKES = {
    "configuration alone": (["--config", "llama-3.1-8b"], "add --random-weights"),
    "configuration and model": (["--config", "llama-3.1-8b", "--random-weights", "--model", "x"], "either --config or"),
    "prompts and load": (["--requests", "2", "--system", "x"], "--system = 'x'"),
    "length without load": (["--prompt-tokens", "9"], "Add --requests N"),
    "no request": (["--requests", "0"], "--requests = 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exits_2(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, expected = MISTAKES[mistake]
    assert main([*arguments, "--output-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


def test_a_load_too_long_is_refused(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny, tmp_path, "--requests", "1", "--prompt-tokens", "1020", "--max-new-tokens", "5") == 2
    assert "at most 1024 tokens together" in capsys.readouterr().err


def test_the_types_that_configurations_ask_for() -> None:
    import argparse

    from attnloom.demo import add_arguments
    from attnloom.demo.options import Options

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for arguments, dtype, batch_tokens in (
        ([], "float32", 128),
        (["--random-weights", "--config", "llama-3.1-8b", "--requests", "3"], "bfloat16", 2048),
        (["--random-weights", "--config", "llama-3.1-8b", "--dtype", "float16"], "float16", 128),
    ):
        options = Options.from_arguments(parser.parse_args(arguments))
        assert (options.dtype, options.max_batch_tokens) == (dtype, batch_tokens)
    with pytest.raises(InvalidArgument):
        Options.from_arguments(parser.parse_args(["--prompt-tokens", "3"]))


def test_the_packaged_configuration_is_known_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    source = random_weights.find(None, None)
    assert source.name == "smollm2-135m (random weights)"


def test_known_configurations_are_those_of_the_models() -> None:
    """Parameters of each, counted by hand: embeddings, then per layer attention, MLP and norms."""
    smol = 49152 * 576 + 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576) + 576
    llama = 2 * 128256 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 4096
    assert (smol, llama) == (134_515_008, 8_030_261_248)
    for known, count in (("smollm2-135m", smol), ("llama-3.1-8b", llama)):
        source = random_weights.find(None, known)
        model = random_weights.load(source, device="meta", dtype="bfloat16", bars=False).model
        assert sum(parameter.numel() for parameter in model.parameters()) == count
