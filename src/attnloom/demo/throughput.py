"""`--requests`: prompts of random tokens, all at once, through `generate_batch`, beside transformers' own attention."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnloom.demo.console import Console
from attnloom.demo.options import Options
from attnloom.demo.prompts import Prompt
from attnloom.demo.serve import Answer, Request, ServingFailed, batching_config
from attnloom.demo.teacher import Judgement, judge
from attnloom.demo.weights import transformers
from attnloom.errors import InvalidArgument

SEED = 1
# answers that are judged with the answer given: the longest and the shortest among them
JUDGED = 4
WARM_UP_TOKENS = 3


@dataclass(frozen=True)
class Load:
    """One timed `generate_batch`.

    Attributes:
        attention: what transformers calls the attention.
        seconds: from the first request's arrival to the last token.
        first_token: seconds to the first token, median over the requests.
        set_up: seconds that `generate_batch` took besides: making and clearing the cache, the thread's start.
        answers: in the order of the requests.
    """

    attention: str
    seconds: float
    first_token: float
    set_up: float
    answers: list[Answer] = field(repr=False)

    @property
    def generated(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def rate(self) -> float:
        """Generated tokens a second."""
        return self.generated / self.seconds


@dataclass
class PlanCount:
    """Counts plans; `on_plan` is for the integration's `enable`."""

    plans: int = 0
    implementation: str = "none"

    def reset(self) -> None:
        """Count from here."""
        self.plans = 0

    def on_plan(self, event: Any) -> None:
        """A plan was made."""
        self.plans += 1
        self.implementation = event.attn.implementation


def random_requests(count: int, longest: int, answer: int, vocab_size: int) -> list[Request]:
    """`count` prompts of random tokens, lengths spread evenly from a quarter of `longest` to all of it, shuffled."""
    draw = random.Random(SEED)
    least = max(1, longest // 4)
    lengths = [longest - (longest - least) * i // max(count - 1, 1) for i in range(count)]
    draw.shuffle(lengths)
    return [
        Request(f"r{number}", Prompt("", answer, 0), [draw.randrange(vocab_size) for _ in range(length)])
        for number, length in enumerate(lengths, 1)
    ]


def check_lengths(options: Options, most: int) -> None:
    """Raises InvalidArgument where a prompt and its answer are longer than the model's `most` positions."""
    longest = (options.prompt_tokens or 0) + (options.max_new_tokens or 0)
    if longest > most:
        raise InvalidArgument(
            name="--prompt-tokens and --max-new-tokens", given=longest, supported=f"at most {most} tokens together",
            fix="Pass smaller ones.",
        )  # fmt: skip


def run_load(model: Any, options: Options, console: Console, about: dict[str, Any], path: Path) -> bool:
    """Serve the load twice, say what came out, write it to `path`; False where the logits are not near enough."""
    from attnloom.integrations.transformers import enable

    vocab_size = model.config.get_text_config().vocab_size
    requests = random_requests(
        options.requests or 1, options.prompt_tokens or 1, options.max_new_tokens or 1, vocab_size
    )
    count = PlanCount()
    prompt_tokens = sum(len(request.tokens) for request in requests)
    console.title(
        f"Serving {len(requests)} requests, {prompt_tokens} prompt tokens in all, {options.max_new_tokens} new each; "
        f"at most {options.max_batch_tokens} tokens a step, {options.page_size} tokens a page"
    )
    enable(model, implementation=options.implementation, on_plan=count.on_plan)
    ours = _timed(model, "attnloom", requests, options, ready=count.reset)
    console.line(_describe(ours, prompt_tokens))
    model.set_attn_implementation(peer())
    other = _timed(model, peer(), requests, options)
    console.line(_describe(other, prompt_tokens))
    console.line(
        f"attnloom / {other.attention}: {ours.rate / other.rate:.2f} × the tokens a second; "
        f"{count.plans} plans by attnloom, each for all layers of a step; implementation {count.implementation}"
    )
    first = sum(a.tokens[0] == b.tokens[0] for a, b in zip(ours.answers, other.answers, strict=True))
    whole = sum(a.tokens == b.tokens for a, b in zip(ours.answers, other.answers, strict=True))
    console.line(
        f"of {len(requests)} answers {first} begin with the same token in both, {whole} are the same throughout"
    )

    judgement = _judge(model, ours.answers, options, console) if options.verify else None
    record = {
        **about, **asdict(count), "prompt_tokens": prompt_tokens, "max_new_tokens": options.max_new_tokens,
        "loads": [_record(ours), _record(other)], "same_first_token": first, "same_answer": whole,
        "judgement": None if judgement is None else asdict(judgement),
    }  # fmt: skip
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.line(f"every number of this run: {path}")
    return judgement is None or judgement.passes


def peer() -> str:
    """What transformers calls its own paged attention without a kernel package."""
    release = tuple(int(part) for part in transformers().__version__.split(".")[:2])
    return "sdpa" if release >= (5, 19) else "paged|sdpa"


def _timed(
    model: Any, attention: str, requests: Sequence[Request], options: Options, ready: Callable[[], None] = lambda: None
) -> Load:
    """One `generate_batch`, after a short one that compiles what is compiled at first use."""
    short = [Request(r.name, Prompt("", WARM_UP_TOKENS, 0), r.tokens) for r in requests]
    _generate(model, short, options)
    ready()
    begin = time.perf_counter()
    outputs = _generate(model, requests, options)
    whole = time.perf_counter() - begin
    arrivals = [output.created_time for output in outputs]
    answers = [
        Answer(request, list(output.generated_tokens), [stamp - output.created_time for stamp in output.timestamps])
        for request, output in zip(requests, outputs, strict=True)
    ]
    seconds = max(output.timestamps[-1] for output in outputs) - min(arrivals)
    first = sorted(answer.first_token for answer in answers)[len(answers) // 2]
    return Load(attention, seconds, first, whole - seconds, answers)


def _generate(model: Any, requests: Sequence[Request], options: Options) -> list[Any]:
    limit = requests[0].prompt.max_new_tokens
    lengths = [len(request.tokens) + limit for request in requests]
    results = model.generate_batch(
        [request.tokens for request in requests],
        generation_config=transformers().GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=limit
        ),
        continuous_batching_config=batching_config(lengths, options.page_size, options.max_batch_tokens),
        record_timestamps=True,
    )
    errors = [output.error for output in results.values() if output.error is not None]
    if errors or len(results) < len(requests):
        raise ServingFailed(f"generate_batch answered {len(results) - len(errors)} of {len(requests)}: {errors[:1]}")
    return list(results.values())


def _judge(model: Any, answers: Sequence[Answer], options: Options, console: Console) -> Judgement:
    from attnloom.integrations.transformers import enable

    console.title("Judging the logits with the answers given")
    by_length = sorted(answers, key=lambda answer: len(answer.request.tokens))
    step = max(1, (len(by_length) - 1) // (JUDGED - 1))
    begin = time.perf_counter()
    judgement = judge(enable(model, implementation=options.implementation), by_length[::step][:JUDGED])
    for line in judgement.lines():
        console.line(line)
    console.line(f"in {time.perf_counter() - begin:.1f} s")
    return judgement


def _describe(load: Load, prompt_tokens: int) -> str:
    return (
        f"{load.attention:>10}: {load.generated} tokens in {load.seconds:.2f} s: {load.rate:.1f} tokens/s "
        f"({(load.generated + prompt_tokens) / load.seconds:.0f} with the prompts'), first token after "
        f"{load.first_token:.2f} s (median); set-up {load.set_up:.2f} s"
    )


def _record(load: Load) -> dict[str, Any]:
    return {
        "attention": load.attention, "seconds": load.seconds, "tokens_per_second": load.rate,
        "first_token_s": load.first_token, "set_up_s": load.set_up, "tokens": [a.tokens for a in load.answers],
    }  # fmt: skip
