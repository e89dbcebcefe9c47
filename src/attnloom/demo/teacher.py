"""Logits with the answer given (teacher forcing), judged against eager attention in a wider type.

In 16 bits two tokens that nearly tie may fall either way, and one other token makes another text. So the served
tokens are fed back, and every position is judged by itself: attnloom's logits may err as much as eager attention's
in the same type (twice that, and one rounding), and a served token may fall short of the best by no more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnloom.demo.serve import Answer


@dataclass(frozen=True)
class Judgement:
    """What teacher forcing found, over all positions and the whole vocabulary, in logits.

    Attributes:
        positions: tokens of the answers that were judged.
        wider: name of the reference's type.
        error: of attnloom, at most.
        eager_error: of eager attention in the model's own type, at most.
        largest: magnitude of the largest reference logit.
        epsilon: spacing of the model's type at 1.
        regret: by how much the reference prefers its own token to the one served, at most.
        same_choice: share of positions where attnloom and the reference prefer the same token.
        eager_same_choice: the same for eager attention in the model's own type.
    """

    positions: int
    wider: str
    error: float
    eager_error: float
    largest: float
    epsilon: float
    regret: float
    same_choice: float
    eager_same_choice: float

    @property
    def tolerance(self) -> float:
        """The most that attnloom's logits may err."""
        return 2 * self.eager_error + self.epsilon * self.largest

    @property
    def passes(self) -> bool:
        """Whether the logits err within the tolerance, and no served token falls shorter than that explains."""
        # a token that leads by erring logits may trail by the error of either; NaN passes nothing
        return self.error <= self.tolerance and self.regret <= 2 * self.tolerance

    def lines(self) -> list[str]:
        """The findings in sentences."""
        verdict = "within" if self.passes else "EXCEEDED"
        return [
            f"{self.positions} tokens fed back; reference: eager in {self.wider}, logits up to {self.largest:.3g}",
            f"logits err at most by: attnloom {self.error:.3g}, eager attention {self.eager_error:.3g}",
            f"best token as the reference's: attnloom {self.same_choice:.1%}, eager {self.eager_same_choice:.1%}",
            f"a served token trails the reference's best by {self.regret:.3g} at most",
            f"allowed: {self.tolerance:.3g} for logits, {2 * self.tolerance:.3g} for a served token: {verdict}",
        ]


def judge(model: Any, answers: Sequence[Answer]) -> Judgement:
    """Judge `answers` by `model`, which runs AttnLoom now and runs eager attention afterwards.

    The reference needs room for the weights in a type of twice the size.
    """
    import torch

    dtype = model.dtype
    wider = torch.float64 if dtype == torch.float32 else torch.float32
    ours = [_forced(model, answer) for answer in answers]
    model.set_attn_implementation("eager")
    eager = [_forced(model, answer) for answer in answers]
    with _weights_as(model, wider):
        reference = [_forced(model, answer) for answer in answers]
    triples = list(zip(ours, eager, reference, strict=True))
    served = [torch.tensor(answer.tokens, device=model.device) for answer in answers]
    return Judgement(
        positions=sum(len(answer.tokens) for answer in answers),
        wider=str(wider).removeprefix("torch."),
        error=max(float((a - r).abs().max()) for a, _, r in triples),
        eager_error=max(float((e - r).abs().max()) for _, e, r in triples),
        largest=max(float(r.abs().max()) for *_, r in triples),
        epsilon=torch.finfo(dtype).eps,
        regret=max(
            float((r.max(dim=-1).values - r.gather(-1, tokens[:, None])[:, 0]).max())
            for (*_, r), tokens in zip(triples, served, strict=True)
        ),
        same_choice=_share([(a, r) for a, _, r in triples]),
        eager_same_choice=_share([(e, r) for _, e, r in triples]),
    )


def _forced(model: Any, answer: Answer) -> Any:
    """Logits [answer, vocabulary] that each token of the answer was chosen by, fp32 at least."""
    import torch

    prompt, tokens = answer.request.tokens, answer.tokens
    given = torch.tensor([[*prompt, *tokens[:-1]]], device=model.device)
    with torch.inference_mode():
        logits = model(given, use_cache=False, logits_to_keep=len(tokens)).logits[0]
        return logits if logits.dtype == torch.float64 else logits.float()


@contextmanager
def _weights_as(model: Any, dtype: Any) -> Iterator[None]:
    """`model` with its parameters in `dtype`, exactly as they were afterwards; buffers keep their own type."""
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # TF32 would be no wider type
    before = [(parameter, parameter.data.dtype) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.data = parameter.data.to(dtype)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for parameter, own in before:
            parameter.data = parameter.data.to(own)


def _share(pairs: Sequence[tuple[Any, Any]]) -> float:
    agree: int = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in pairs)
    total: int = sum(a.shape[0] for a, _ in pairs)
    return agree / total
