"""Feed tokens to a model with mutable buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ethorch.formats.pte_types import Value
from ethorch.language.model import LanguageModel
from ethorch.language.sampling import Choice
from ethorch.program.program import Program, record_of
from ethorch.support.errors import EthorchError
from ethorch.support.wording import count_noun

_PUT = "aten::index_put_"


class Speaker:
    """A runner that feeds tokens to a model and returns next-token logits.

    Args:
        decode: Function ``(int[1, 1] token, int[1] position) -> logits``.
        reset: Function that empties the caches.
        context: Capacity of the caches in tokens.
        prefill: Function ``(*source, int[1, N] tokens, int[N] positions, int[1] last) -> logits``, or None.
        prompt: Number N of tokens per ``prefill`` call.
        source: Input of the encoder, or None.
        vocabulary: Exclusive upper bound of token ids, or None to accept all ids.
        shorter: Prefill methods for fewer than N tokens, by number of tokens.
    """

    def __init__(
        self,
        decode: Callable[..., Any],
        reset: Callable[[], object],
        context: int,
        prefill: Callable[..., Any] | None = None,
        prompt: int = 0,
        source: Tensor | None = None,
        indices: torch.dtype = torch.int32,
        vocabulary: int | None = None,
        shorter: Mapping[int, Callable[..., Any]] | None = None,
    ):
        self.prefills = {**(shorter or {}), **({prompt: prefill} if prefill and prompt else {})}
        self.indices, self.vocabulary = indices, vocabulary
        self._decode, self._reset = decode, reset
        self.context, self.prompt, self.source = context, prompt if prefill else 0, source
        self.position = 0
        self.calls: dict[str, int] = {"prefill": 0, "decode": 0}  #: number of calls of each method
        self._reset()

    @classmethod
    def of_model(cls, model: LanguageModel, source: Tensor | None = None) -> Speaker:
        """Create a speaker for the float model."""
        return cls.of_methods(model.modules, model.reset, model, source)

    @classmethod
    def of_methods(
        cls,
        methods: Mapping[str, Callable[..., Any]],
        reset: Callable[[], object],
        model: LanguageModel,
        source: Tensor | None = None,
    ) -> Speaker:
        """Create a speaker for quantized modules, or for the methods of a program."""
        if model.source is not None and source is None:
            source = model.source
        prefill = methods.get("prefill")
        shorter = {size: methods[name] for name, size in model.prefills.items() if name != "prefill" and name in methods}
        return cls(methods["decode"], reset, model.context, prefill, model.prompt, source, model.indices, model.vocabulary, shorter)

    @classmethod
    def of_quantized(cls, program: Program, model: LanguageModel, source: Tensor | None = None) -> Speaker:
        """Create a speaker for a program's fake-quantized model, which runs in PyTorch.

        Raises:
            EthorchError: The program was loaded from a file.
        """
        modules = {name: module for name in program.methods if (module := record_of(program[name]).quantized) is not None}
        if not modules:
            raise EthorchError(
                "expected a program returned by ethorch.compile, got a .pte, which does not contain the quantized model."
            )
        initial = {f"decoder.{name}": value for name, value in model.caches.items()}

        def reset() -> None:
            for module in modules.values():
                for name, buffer in module.named_buffers(remove_duplicate=False):
                    if name in initial:
                        buffer.copy_(initial[name])

        return cls.of_methods(modules, reset, model, source)

    @classmethod
    def of_program(cls, program: Program, context: int | None = None, source: Tensor | None = None) -> Speaker:
        """Create a speaker for a program with the methods ``decode`` and ``prefill``, or a single decode method.

        Args:
            context: Capacity of the caches in tokens. Default: the number of rows of the buffers to which tokens are written or, if
                that is unknown, the largest size that all mutable buffers have in common.
            source: Input of the encoder.

        Raises:
            EthorchError: A method has unexpected inputs, or the context is unknown or exceeds the size of a buffer.
        """
        names = program.methods
        decode = program["decode"] if "decode" in names else program[names[0]]
        prefill = program["prefill"] if "prefill" in names else None
        shapes = [tensor.shape for tensor in decode.inputs]
        if shapes != [(1, 1), (1,)]:
            raise EthorchError(
                f"expected a decode method with inputs of shapes (1, 1) and (1,), got method {record_of(decode).method!r} with the "
                f"shapes {', '.join(str(shape) for shape in shapes)}. Use ethorch.language.language_model."
            )
        if prefill is not None and len(prefill.inputs) != 3 + (source is not None):
            raise EthorchError(
                f"prefill: expected the inputs {'source, ' if source is not None else ''}tokens, positions and the index of the "
                f"last token, got {count_noun(len(prefill.inputs), 'input')}. Use ethorch.language.language_model."
            )
        if context is None:
            context = _find_written_rows(decode)
        if context is None:
            extents = [set(value.shape) for value in states(decode).values()]
            if not extents or max(set.intersection(*extents)) < 2:
                raise EthorchError(
                    "the context length cannot be determined from the shapes of the program's buffers. Pass it as context."
                )
            context = max(set.intersection(*extents))
        for name, value in states(decode).items():
            if len(value.shape) > 1 and max(value.shape) < context:
                raise EthorchError(
                    f"context: expected at most {max(value.shape)}, the largest dimension of buffer {name}, got {context}."
                )
        prompt = 0 if prefill is None else prefill.inputs[-2].shape[0]
        indices = getattr(torch, decode.inputs[0].dtype)
        vocabulary = decode.outputs[0].shape[-1]
        shorter_methods = [
            program[name] for name in names if name.startswith("prefill_") and len(program[name].inputs) == 3 + (source is not None)
        ]
        shorter = {shorter_method.inputs[-2].shape[0]: shorter_method for shorter_method in shorter_methods}
        return cls(decode, program.reset, context, prefill, prompt, source, indices, vocabulary, shorter)

    def reset(self) -> None:
        """Empty the caches and restart at position 0."""
        self._reset()
        self.position = 0

    def read(self, ids: Sequence[int]) -> Tensor:
        """Read the next tokens, and return the logits float[V] after the last token.

        Prefill methods read several tokens at once, unless a call would exceed the context.

        Raises:
            EthorchError: ``ids`` is empty, is longer than the remaining context, or contains an id outside the vocabulary.
        """
        if self.vocabulary is not None and not all(0 <= number < self.vocabulary for number in ids):
            wrong = next(number for number in ids if not 0 <= number < self.vocabulary)
            raise EthorchError(f"expected token ids from 0 to {self.vocabulary - 1}, got {wrong}. Use the tokenizer of the model.")
        if not ids or self.position + len(ids) > self.context:
            raise EthorchError(
                f"expected at least one token, and at most {self.context - self.position} (the free positions of the context), got "
                f"{len(ids)}."
            )
        logits: Any = None
        rest = list(ids)
        with torch.no_grad():
            while rest:
                first_of_source = self.source is not None and self.position == 0
                size = self._choose_prefill(len(rest))
                if size and (len(rest) > 1 or first_of_source):
                    part, rest = rest[:size], rest[size:]
                    tokens = self._as_tensor([part + [0] * (size - len(part))])
                    positions = self._as_tensor(range(self.position, self.position + size))
                    source = () if self.source is None else (self.source,)
                    logits = self.prefills[size](*source, tokens, positions, self._as_tensor([len(part) - 1]))
                    self.calls["prefill"] += 1
                else:
                    part, rest = rest[:1], rest[1:]
                    logits = self._decode(self._as_tensor([part]), self._as_tensor([self.position]))
                    self.calls["decode"] += 1
                self.position += len(part)
        return _last_row(logits)

    def _choose_prefill(self, count: int) -> int:
        sizes = sorted(size for size in self.prefills if size <= min(self.prompt, self.context - self.position))
        return next((size for size in sizes if size >= count), sizes[-1] if sizes else 0)

    def _as_tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.indices)

    def generate(self, ids: Sequence[int], count: int, choice: Choice | None = None, stop: Sequence[int] = ()) -> Iterator[int]:
        """Generate at most ``count`` tokens after ``ids``. Stop after a token in ``stop``, or at the end of the context."""
        choice = choice or Choice()
        generator = choice.generator()
        logits = self.read(ids)
        for left in reversed(range(count)):
            token = choice.next(logits, generator)
            yield token
            if token in stop or not left or self.position >= self.context:
                return
            logits = self.read([token])


def _find_written_rows(decode: Program) -> int | None:
    values, extents = record_of(decode).description.values, set()
    for call in record_of(decode).description.calls:
        if call.operator == _PUT:
            dims = [k for k, number in enumerate(values[call.args[1]].items) if number >= 0]
            extents.add(values[call.args[0]].shape[dims[0]])
    return extents.pop() if len(extents) == 1 else None


def _last_row(logits: Any) -> Tensor:
    if isinstance(logits, (tuple, list)):
        logits = logits[0]
    assert isinstance(logits, Tensor)
    return logits.reshape(-1, logits.shape[-1])[-1].float()


def states(program: Program) -> dict[str, Value]:
    """Return the mutable buffers of a program by name."""
    return {
        value.extra.name: value
        for value in record_of(program).description.values
        if value.kind == "tensor" and value.extra is not None and value.extra.name and value.place is not None
    }
