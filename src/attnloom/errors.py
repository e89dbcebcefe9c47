"""What a user can get wrong, one class per kind of failure.

Every class derives from `AttnLoomError` and from the built-in exception that fits, carries its message
`template`, and is raised with the template's fields as keywords, so that each message names what came,
what is supported and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class AttnLoomError(Exception):
    """Base of every error that attnloom raises for a user's mistake."""

    template: ClassVar[str] = "{reason}"

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(self.template.format(**fields))


class BufferTooSmall(AttnLoomError, ValueError):
    """A caller's workspace has fewer bytes than the plan needs."""

    template = (
        "workspace has {given} bytes, this object needs {needed}. "
        "Allocate attn.workspace_size() bytes (1-D uint8), or pass workspace=None and the engine owns one."
    )


class CaptureRefused(AttnLoomError, RuntimeError):
    """Something that a CUDA graph under capture cannot hold, or would hold for ever."""

    template = "{what} while a CUDA graph is being captured: {reason}. {fix}"


class CompilerMissing(AttnLoomError, RuntimeError):
    """A kernel's launcher is not in the cache, and there is no C compiler (or no Python.h) to build it."""

    template = (
        "Triton must build a small launcher for a new kernel, and cannot: it looked for a C compiler ({looked}) and "
        "for {header}. Install gcc and Python's headers, set CC, or bring a cache directory ({cache}) that was "
        "filled by running the same attention on a machine that has them; implementation='reference' needs none."
    )


class DeviceMismatch(AttnLoomError, ValueError):
    """A tensor lies on another device than the object that gets it."""

    template = (
        "{name} is on {given}, expected {expected}. Move it with .to('{expected}') or build the object for {given}."
    )


class DtypeMismatch(AttnLoomError, TypeError):
    """A tensor's dtype is not one that the call takes."""

    template = "{name} has dtype {given}, expected {expected}. {fix}"


class GradientRequired(AttnLoomError, RuntimeError):
    """An input requires a gradient; attnloom is forward only."""

    template = (
        "{name} requires a gradient, and attnloom computes forward only. Detach it or call under torch.no_grad()."
    )


class InvalidArgument(AttnLoomError, ValueError):
    """An option's value is outside what is supported."""

    template = "{name} = {given!r} is not supported: expected {supported}. {fix}"


class InvalidMetadata(AttnLoomError, ValueError):
    """Lengths, index pointers or page tables contradict each other."""

    template = "{name}: {given}; expected {expected}. {fix}"


class KernelCompileError(AttnLoomError, RuntimeError):
    """A kernel, or a functor in it, did not compile, or its machine code does not fit the device."""

    template = "{what} does not compile ({place}): {reason}"


class MaximumExceeded(AttnLoomError, ValueError):
    """A plan is larger than the maxima that its object was built with."""

    template = "{name}: {declared} was declared, and this plan has {given}. {fix}"


class MissingDependency(AttnLoomError, ImportError):
    """An optional package that the call needs is not installed."""

    template = "{feature} needs the package {package} ({reason}). Install it with: pip install {package}"


class ModelUnavailable(AttnLoomError, ValueError):
    """A language model that the demo cannot load."""

    template = "cannot load a model from {path}: {reason}. {fix}"


class NoFingerprint(AttnLoomError, TypeError):
    """Something that decides a kernel's code has no text to know it by, so that the cache could confuse kernels."""

    template = (
        "{name} cannot be fingerprinted, so that a compiled kernel with it cannot be told from another. "
        "Use numbers, strings, None, tuples, frozen dataclasses of them or triton.jit functions."
    )


class NotYetSupported(AttnLoomError, NotImplementedError):
    """Something the design has a place for and this version does not do."""

    template = "{feature} is not supported yet in this version. {fix}"


class ParamError(AttnLoomError, ValueError):
    """An operand of a variant is undeclared, missing or of the wrong type."""

    template = "variant parameter {name!r}: {given}. {expected} {fix}"


class PlanFormChanged(AttnLoomError, ValueError):
    """Under declared maxima, a plan differs from the first one in what captured CUDA graphs hold fast."""

    template = (
        "{name}: {given}, but the first plan of this object with declared maxima had {expected}. "
        "A captured graph would not follow the change; build another object for it."
    )


class PlanMismatch(AttnLoomError, ValueError):
    """`run` got tensors that disagree with the plan or the constructor."""

    template = "{name}: got {given}, but the {source} says {expected}. {fix}"


class PlanRequired(AttnLoomError, RuntimeError):
    """`run` came before `plan`, or after a `plan` that failed."""

    template = "run() has no valid plan: {reason}. Call plan(qo_indptr, kv) first."


class ShapeMismatch(AttnLoomError, ValueError):
    """A tensor's shape does not fit."""

    template = "{name} has shape {given}, expected {expected}. {fix}"


class StateError(AttnLoomError, ValueError):
    """States that cannot be merged or finished."""

    template = "{reason}. {fix}"


class StrideUnsupported(AttnLoomError, ValueError):
    """A tensor's strides or alignment cannot be addressed."""

    template = "{name} has strides {given}, expected {expected}. {fix}"


class UnsupportedSpec(AttnLoomError, ValueError):
    """No implementation can compute this; the message lists every reason."""

    template = "no implementation can run this.\n  given: {given}\n{reasons}\n{fix}"


class VariantError(AttnLoomError, ValueError):
    """A functor or a composition of variants that the language does not allow."""

    template = "{where}: {reason}. {fix}"
