"""`Variant`: what attention computes, said in plain Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from attnloom.errors import NotYetSupported
from attnloom.variant import program as _program
from attnloom.variant.params import Param
from attnloom.variant.program import Program

Functor = Callable[..., Any]


class Variant:
    """An attention variant: functors that are traced once, here, and their declared operands.

    A functor is a Python function of scalars that says by its parameters' names what it wants; its code is
    elementwise: operators, torch functions, and declared tensors indexed with integers.

    Args:
        logits_transform: new logit (fp32, already scaled) from ``logits, q_pos, kv_pos, q_idx, qo_head, kv_head,
            batch, qo_len, kv_len`` and the parameters.
        logits_mask: whether the key is visible, from the same names without ``logits``.
        output_transform: new output element (fp32) from ``x, pos, head, batch, lse`` and the parameters;
            applied once, after the last merge.
        sink: one raw natural-log logit per query head from ``qo_head, kv_head, batch`` and the parameters.
        query_transform, key_transform, value_transform: not yet supported.
        params: operands by name: a tensor or a number (declares type and dimensions, and is the default), or
            `al.param(...)`.
        use_softmax: False makes `logits_transform` return the weight itself; masked weights are 0, parts add.
        name: shown in messages and tables; no part of the identity.

    Variants are immutable. ``a & b`` runs transforms left to right and intersects masks; masks alone also take
    ``|`` and ``~``.

    Raises:
        VariantError: a functor outside the language.
        ParamError: a declaration that is none.
        NotYetSupported: a functor on vectors.
    """

    __slots__ = ("__weakref__", "_name", "_program")
    _name: str | None
    _program: Program

    def __init__(
        self,
        *,
        logits_transform: Functor | None = None,
        logits_mask: Functor | None = None,
        output_transform: Functor | None = None,
        sink: Functor | None = None,
        query_transform: Functor | None = None,
        key_transform: Functor | None = None,
        value_transform: Functor | None = None,
        params: Mapping[str, object] | None = None,
        use_softmax: bool = True,
        name: str | None = None,
    ) -> None:
        vectors = {
            "query_transform": query_transform,
            "key_transform": key_transform,
            "value_transform": value_transform,
        }
        for slot, functor in vectors.items():
            if functor is not None:
                raise NotYetSupported(feature=f"Variant({slot}=...)", fix="Transform the tensor before the call.")
        functors = {"logits": logits_transform, "mask": logits_mask, "output": output_transform, "sink": sink}
        self._set(_program.from_functors(functors, params or {}, bool(use_softmax)), name)

    def _set(self, program: Program, name: str | None) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_name", name)

    @classmethod
    def _of(cls, program: Program, name: str | None) -> Variant:
        made = cls.__new__(cls)
        made._set(program, name)
        return made

    @property
    def program(self) -> Program:
        """The traced form."""
        return self._program

    @property
    def params(self) -> Mapping[str, Param]:
        """Declared operands by name."""
        return self._program.params

    @property
    def name(self) -> str:
        """The given name, or the expressions."""
        return self._name if self._name is not None else repr(self)

    def rename(self, **names: str) -> Variant:
        """The same variant with parameters under other names: ``variant.rename(slopes="other_slopes")``.

        Raises:
            ParamError: a parameter that is not declared, or a name already taken.
        """
        return Variant._of(_program.rename(self._program, names), self._name)

    def __and__(self, other: object) -> Variant:
        if not isinstance(other, Variant):
            return NotImplemented
        return Variant._of(_program.both(self._program, other._program), self._joined("&", other))

    def __or__(self, other: object) -> Variant:
        if not isinstance(other, Variant):
            return NotImplemented
        return Variant._of(_program.either(self._program, other._program), self._joined("|", other))

    def __invert__(self) -> Variant:
        return Variant._of(_program.complement(self._program), None if self._name is None else f"~{self._name}")

    def _joined(self, sign: str, other: Variant) -> str | None:
        if self._name is None or other._name is None:
            return None
        return f"({self._name} {sign} {other._name})"

    def __repr__(self) -> str:
        parts = [] if self._name is None else [repr(self._name)]
        parts += [f"{slot}: {expr}" for slot, expr in self._program.expressions().items() if expr is not None]
        if not self._program.use_softmax:
            parts.append("no softmax")
        return f"Variant({', '.join(parts) or 'full attention'})"

    def __copy__(self) -> Variant:
        return self

    def __deepcopy__(self, memo: object) -> Variant:
        return self

    def __reduce__(self) -> NoReturn:
        raise NotYetSupported(
            feature="pickling a Variant", fix="Build it again, from the same functions, where it is needed."
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Variant is immutable; build a new one instead of setting {name}")
