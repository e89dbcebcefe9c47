"""Serving: requests in waves through transformers' continuous batching."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnloom.demo.options import Options
from attnloom.demo.prompts import WAVE_STEPS, Prompt
from attnloom.demo.steps import StepRecorder
from attnloom.demo.weights import transformers
from attnloom.errors import InvalidArgument


class ServingFailed(RuntimeError):
    """Continuous batching stopped, or gave a request up."""


@dataclass(frozen=True)
class Request:
    """A prompt as the model sees it.

    Attributes:
        name: r1, r2, ... in the order of arrival.
        tokens: the chat template applied to the system prompt and the prompt.
    """

    name: str
    prompt: Prompt
    tokens: list[int]


@dataclass(frozen=True)
class Answer:
    """The tokens of one answer, and when they came, in seconds after the request arrived."""

    request: Request
    tokens: list[int]
    times: list[float]

    @property
    def first_token(self) -> float:
        """Seconds from arrival to the first token."""
        return self.times[0]

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first; None for an answer of one token."""
        return None if len(self.times) < 2 else (len(self.times) - 1) / (self.times[-1] - self.times[0])


def tokenize(tokenizer: Any, prompts: Sequence[Prompt], system: str | None, longest: int) -> list[Request]:
    """The requests of `prompts`, all with the same system prompt.

    Args:
        longest: tokens that the model can hold for one request, answer included.

    Raises:
        InvalidArgument: a request would not fit, or the model's chat template refuses a system prompt.
    """
    requests = []
    before = [{"role": "system", "content": system}] if system else []
    for number, prompt in enumerate(prompts, 1):
        chat = [*before, {"role": "user", "content": prompt.text}]
        try:
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except Exception as error:
            # jinja's errors, raised by the template itself
            raise InvalidArgument(
                name="--system", given=system, supported="what the model's chat template takes",
                fix=f"It says: {error}. Pass --system ''.",
            ) from error  # fmt: skip
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(tokens) + prompt.max_new_tokens > longest:
            raise InvalidArgument(
                name=f"prompt {number}", given=f"{len(tokens)} tokens and {prompt.max_new_tokens} for the answer",
                supported=f"at most {longest} tokens in all", fix="Shorten it, or pass a smaller --max-new-tokens.",
            )  # fmt: skip
        requests.append(Request(f"r{number}", prompt, tokens))
    return requests


def greedy(tokenizer: Any, model: Any) -> Any:
    """The one generation config that serving and comparison share: greedy, ended by the model's end token."""
    end = model.generation_config.eos_token_id
    end = tokenizer.eos_token_id if end is None else end
    # -1 is no token: a model without an end token runs to its limit
    ends = [-1] if end is None else end if isinstance(end, list) else [end]
    return transformers().GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=max(ends[0], 0))


class Waves:
    """Adds each wave of requests to the manager when its step has passed, or when nothing is left to do.

    Attributes:
        submitted: requests added so far.
        arrivals: for each wave added, the number of steps done before and the names of its requests.
    """

    def __init__(self, manager: Any, requests: Sequence[Request]) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        waves = sorted({request.prompt.wave for request in requests})
        self._waiting = [(WAVE_STEPS[w], [r for r in requests if r.prompt.wave == w]) for w in waves]
        self.submitted = 0
        self.arrivals: list[tuple[int, tuple[str, ...]]] = []

    def after(self, steps: int) -> None:
        """Submit the waves that are due after `steps` steps."""
        with self._lock:
            while self._waiting and self._waiting[0][0] <= steps:
                self._submit(steps)

    def next(self, steps: int) -> None:
        """Submit the next wave now, after `steps` steps."""
        with self._lock:
            if self._waiting:
                self._submit(steps)

    def _submit(self, steps: int) -> None:
        requests = self._waiting.pop(0)[1]
        self.arrivals.append((steps, tuple(request.name for request in requests)))
        for request in requests:
            self._manager.add_request(
                request.tokens,
                request_id=request.name,
                max_new_tokens=request.prompt.max_new_tokens,
                record_timestamps=True,
            )
            self.submitted += 1


def make_manager(model: Any, requests: Sequence[Request], options: Options, generation: Any) -> Any:
    """A `ContinuousBatchingManager` whose pool holds every request at once twice over, prefix sharing on."""
    lengths = [len(r.tokens) + r.prompt.max_new_tokens for r in requests]
    config = batching_config(lengths, options.page_size, options.max_batch_tokens)
    return model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)


def batching_config(lengths: Sequence[int], page_size: int, max_batch_tokens: int) -> Any:
    """The `ContinuousBatchingConfig` for requests of `lengths` tokens, answers included: everything in plain sight.

    No graph, no batch prepared while another runs, and no other attention than the one asked for.
    """
    config_class = transformers().ContinuousBatchingConfig
    fields = {field.name for field in dataclasses.fields(config_class)}
    options = {
        # renamed in 5.19
        "page_size" if "page_size" in fields else "block_size": page_size,
        "num_blocks": 2 * sum(-(-length // page_size) for length in lengths) + 2,
        "max_batch_tokens": max_batch_tokens,
        "max_requests_per_batch": len(lengths),
        "max_blocks_per_request": 0,
        "allow_block_sharing": True,
        "use_cuda_graph": False,
        "use_async_batching": False,
    }
    if "auto_switch_to_flash" in fields:
        options["auto_switch_to_flash"] = False
    return config_class(**options)


def serve(
    manager: Any, waves: Waves, recorder: StepRecorder, requests: Sequence[Request]
) -> tuple[list[Answer], float]:
    """Answers in the order of `requests`, and the wall seconds from the first arrival to the last token.

    Raises:
        ServingFailed: a request failed, or the thread that generates died; transformers has logged why.
    """
    answers: dict[str, Answer] = {}
    by_name = {request.name: request for request in requests}
    done = False
    begin = time.perf_counter()
    with recorder.attached(manager.model, manager):
        waves.after(0)
        manager.start()
        try:
            while len(answers) < len(requests):
                output = manager.get_result(timeout=0.2)
                if output is not None:
                    answers[output.request_id] = _answer(by_name[output.request_id], output)
                elif not manager.is_running():
                    raise ServingFailed("continuous batching stopped before every request was answered")
                elif waves.submitted == len(answers):
                    waves.next(len(recorder.steps))
            done = True
        finally:
            seconds = time.perf_counter() - begin
            manager.stop(block=True, hard_stop=not done)
    return [answers[request.name] for request in requests], seconds


def _answer(request: Request, output: Any) -> Answer:
    if output.error is not None:
        raise ServingFailed(f"request {request.name} failed: {output.error}")
    times = [stamp - output.created_time for stamp in output.timestamps]
    return Answer(request, list(output.generated_tokens), times)
