"""The course of the demo: load, serve, show, compare."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnloom.demo.console import Console
from attnloom.demo.options import Options, add_arguments
from attnloom.errors import AttnLoomError, InvalidArgument

EQUAL, DIFFERENT, MISTAKE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """`attnloom demo` by itself: parse `argv` (None: the process's arguments) and run."""
    parser = argparse.ArgumentParser(prog="attnloom demo")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(args: argparse.Namespace, console: Console | None = None) -> int:
    """Run the demo with parsed arguments; returns the exit status that `--help` describes.

    A user's mistake (a bad path, a missing package or model, an impossible option) is one line, without traceback.
    """
    from attnloom.demo.serve import ServingFailed

    console = console or Console()
    try:
        return _demo(Options.from_arguments(args), console)
    except (AttnLoomError, ServingFailed) as error:
        console.clear()
        print(f"attnloom demo: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE if isinstance(error, AttnLoomError) else DIFFERENT


def _demo(options: Options, console: Console) -> int:
    from attnloom.demo import prompts, random_weights, throughput, weights
    from attnloom.demo.picture import PlanPicture

    # everything that can be wrong is looked at before the model is loaded
    questions = prompts.read_prompts(options.prompts, options.max_new_tokens)
    source: Any
    load: Any
    if options.random_weights:
        source, load = random_weights.find(options.model, options.config), random_weights.load
    else:
        source, load = weights.find(options.model), weights.load
    weights.transformers()
    _check_device(options.device)
    _check_implementation(options.implementation, options.device)
    picture = PlanPicture(_output_dir(options.output_dir))

    console.line(f"Loading {source.name} in {options.dtype} on {options.device} …")
    loaded = load(source, device=options.device, dtype=options.dtype, bars=console.live)
    console.line(f"{_describe(loaded.model)}; loaded in {loaded.seconds:.1f} s")
    about = {"model": source.name, "dtype": options.dtype, "device": options.device}
    if options.requests is None:
        return _chat(loaded, questions, options, console, picture=picture, about=about)
    throughput.check_lengths(options, loaded.model.config.get_text_config().max_position_embeddings)
    near = throughput.run_load(loaded.model, options, console, about, options.output_dir / "report.json")
    return EQUAL if near else DIFFERENT


def _chat(
    loaded: Any,
    questions: Sequence[Any],
    options: Options,
    console: Console,
    *,
    picture: Any,
    about: dict[str, Any],
) -> int:
    from attnloom.demo import prompts, report, serve

    model, tokenizer = loaded.model, loaded.tokenizer
    system = prompts.SYSTEM if options.system is None else options.system
    requests = serve.tokenize(tokenizer, questions, system, model.config.get_text_config().max_position_embeddings)
    model.generation_config = generation = serve.greedy(tokenizer, model)

    answers, recorder, seconds = _serve(model, requests, options, picture, console)
    console.title("Answers")
    report.show_answers(console, answers, tokenizer, generation.eos_token_id)
    console.title("What the steps show")
    console.line(report.speed(answers, seconds))
    for line in report.happenings(recorder.steps):
        console.line(line)
    console.line(
        f"{picture.plans} plans for {len(recorder.steps)} steps of {model.config.num_hidden_layers} layers each"
    )
    if picture.step is None:
        console.line("no step prefilled and decoded together, so there is no picture of one")
    else:
        names = " ".join(row.request for row in picture.step.rows)
        console.line(f"plan of step {picture.step.number}: {picture.path}, as a table {picture.table_path}")
        console.line(f"(requests 0 to {len(picture.step.rows) - 1} of that plan are {names})")

    comparisons = _compare(model, answers, generation, tokenizer, console) if options.verify else []
    judgement = _judge(model, answers, options, console) if options.verify and options.dtype != "float32" else None
    path = options.output_dir / "report.json"
    report.write_json(
        path,
        about={**about, "seconds": seconds, "judgement": None if judgement is None else asdict(judgement)},
        answers=answers, steps=recorder.steps, comparisons=comparisons, tokenizer=tokenizer,
    )  # fmt: skip
    console.line(f"every number of this run: {path}")
    if judgement is None:
        different = [c.answer.request.name for c in comparisons if c.differs_at is not None]
    else:
        different = [] if judgement.passes else [answer.request.name for answer in answers]
    wrong = _wrong(answers, tokenizer, options)
    return _verdict(different, wrong, comparisons, console)


def _serve(model: Any, requests: Sequence[Any], options: Options, picture: Any, console: Console) -> Any:
    """Answers, the recorder with all steps, and the seconds that serving took."""
    from attnloom.demo.log import StepLog
    from attnloom.demo.serve import Waves, make_manager, serve
    from attnloom.demo.steps import StepRecorder
    from attnloom.integrations.transformers import enable

    enable(model, implementation=options.implementation, on_plan=picture.on_plan)
    _warm_up(model, requests[0].tokens, console)
    manager = make_manager(model, requests, options, model.generation_config)
    waves = Waves(manager, requests)
    log = StepLog(console, [request.name for request in requests], waves.arrivals)
    recorder = StepRecorder(on_step=log.add, after_forward=waves.after)
    picture.recorder = recorder
    limits = f"at most {options.max_batch_tokens} tokens a step, {options.page_size} tokens a page"
    console.title(f"Serving {len(requests)} requests, {limits}")
    log.header()
    answers, seconds = serve(manager, waves, recorder, requests)
    log.close()
    manager.destroy()
    return answers, recorder, seconds


def _warm_up(model: Any, tokens: list[int], console: Console) -> None:
    """One prefill and one decode, so that what is compiled at first use does not count as time to first token."""
    import torch

    begin = time.perf_counter()
    prompt = torch.tensor([tokens], device=model.device)
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=2)
    console.line(
        f"AttnLoom is on and warm after {time.perf_counter() - begin:.1f} s (compiled once, then kept on disk)"
    )


def _compare(model: Any, answers: Sequence[Any], generation: Any, tokenizer: Any, console: Console) -> list[Any]:
    from attnloom.demo.report import show_comparison
    from attnloom.demo.verify import compare

    console.title("Comparing with eager attention, one prompt at a time")
    model.set_attn_implementation("eager")
    begin = time.perf_counter()
    comparisons = []
    for answer in answers:
        console.status(f"{answer.request.name}: eager attention generates {len(answer.tokens)} tokens …")
        comparisons.append(compare(model, answer, generation))
        show_comparison(console, comparisons[-1], tokenizer)
    tokens = sum(len(c.expected) for c in comparisons)
    console.line(f"eager attention, one prompt at a time: {tokens} tokens in {time.perf_counter() - begin:.1f} s")
    return comparisons


def _judge(model: Any, answers: Sequence[Any], options: Options, console: Console) -> Any:
    """In 16 bits a near tie of two tokens may fall either way: the logits decide."""
    from attnloom.demo.teacher import judge
    from attnloom.integrations.transformers import enable

    console.title("Judging the logits with the answers given")
    judgement = judge(enable(model, implementation=options.implementation), answers)
    for line in judgement.lines():
        console.line(line)
    return judgement


def _wrong(answers: Sequence[Any], tokenizer: Any, options: Options) -> list[Any]:
    """Requests whose answers lack what the packaged model must know; another model may answer as it likes."""
    from attnloom.demo.report import text_of

    if options.model is not None or options.random_weights:
        return []
    asked = [answer for answer in answers if answer.request.prompt.expect]
    return [a.request for a in asked if a.request.prompt.expect not in text_of(a, tokenizer)]


def _verdict(different: Sequence[str], wrong: Sequence[Any], comparisons: Sequence[Any], console: Console) -> int:
    console.line()
    for request in wrong:
        console.line(f"attnloom demo: {request.name} does not say {request.prompt.expect}")
    if different:
        console.line(f"attnloom demo: {' '.join(different)} differ from eager attention")
    if different or wrong:
        return DIFFERENT
    if not comparisons:
        console.line("Not compared with eager attention (--no-verify).")
        return EQUAL
    tokens = sum(len(c.expected) for c in comparisons)
    apart = sum(c.differs_at is not None for c in comparisons)
    if apart:
        text = f"{apart} of {len(comparisons)} answers part from eager attention's where the two tokens nearly tie."
    else:
        text = f"All {tokens} tokens of {len(comparisons)} answers equal eager attention's."
    console.line(console.style(text, "green"))
    return EQUAL


def _describe(model: Any) -> str:
    config = model.config.get_text_config()
    count = sum(p.numel() for p in model.parameters())
    return (
        f"{type(model).__name__}: {count / 1e6:.0f} M parameters, {config.num_hidden_layers} layers, "
        f"{config.num_attention_heads} query heads over {config.num_key_value_heads} key/value heads"
    )


def _check_device(name: str) -> None:
    import torch

    try:
        # the smallest use of it: the name may be fine and the device not there
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgument(
            name="--device",
            given=name,
            supported=f"a torch device of this machine ({reason})",
            fix="Pass --device cpu.",
        ) from error


def _check_implementation(name: str | None, device: str) -> None:
    import attnloom as al

    known = {found.name: found for found in al.implementations(device)}
    if name is None or (name in known and known[name].available):
        return
    reasons = f"; {name}: {', '.join(known[name].reasons)}" if name in known else ""
    usable = ", ".join(found.name for found in known.values() if found.available)
    raise InvalidArgument(
        name="--implementation", given=name, supported=f"one that can run on {device}: {usable}{reasons}",
        fix="`attnloom info` lists them all.",
    )  # fmt: skip


def _output_dir(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / "report.json"
        probe.write_text("", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            name="--output-dir", given=str(path), supported=f"a folder that can be written ({error.strerror})",
            fix="Pass another --output-dir.",
        ) from error  # fmt: skip
    return path
