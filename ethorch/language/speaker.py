"""Tokens through a model that keeps state: a float model, a compiled program or a file, by the same calls."""

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
from ethorch.support.wording import counted

_PUT = "aten::index_put_"


class Speaker:
    """Reads tokens one behind the other and says what may come next.

    Args:
        decode: ``(int[1, 1] token, int[1] position) -> logits``.
        reset: empties the caches.
        context: tokens that they hold.
        prefill: ``(*source, int[1, N] tokens, int[N] positions, int[1] last) -> logits``, or None.
        prompt: N.
        source: what an encoder-decoder reads.
        indices: dtype of tokens and positions.
        vocabulary: how many tokens there are; None: any number is taken for one.
        shorter: Number of tokens below N -> the method that reads as many.
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
        self.calls: dict[str, int] = {"prefill": 0, "decode": 0}  #: how often each method was called
        self._reset()

    @classmethod
    def of_model(cls, model: LanguageModel, source: Tensor | None = None) -> Speaker:
        """The float model."""
        return cls.of_methods(model.modules, model.reset, model, source)

    @classmethod
    def of_methods(
        cls,
        methods: Mapping[str, Callable[..., Any]],
        reset: Callable[[], object],
        model: LanguageModel,
        source: Tensor | None = None,
    ) -> Speaker:
        """Other callables of the same model: its quantized modules, or the methods of a program."""
        if model.source is not None and source is None:
            source = model.source
        prefill = methods.get("prefill")
        shorter = {size: methods[name] for name, size in model.prefills.items() if name != "prefill" and name in methods}
        return cls(methods["decode"], reset, model.context, prefill, model.prompt, source, model.indices, model.vocabulary, shorter)

    @classmethod
    def of_quantized(cls, program: Program, model: LanguageModel, source: Tensor | None = None) -> Speaker:
        """The fake-quantized model that a program was compiled of: what the NPU computes, by PyTorch in float.

        Raises:
            EthorchError: the program is one of a file.
        """
        modules = {name: module for name in program.methods if (module := record_of(program[name]).quantized) is not None}
        if not modules:
            raise EthorchError("a .pte does not hold the quantized model: give the program that ethorch.compile returned.")
        held = {f"decoder.{name}": value for name, value in model.caches.items()}

        def reset() -> None:
            """Empty the caches."""
            for module in modules.values():
                for name, buffer in module.named_buffers(remove_duplicate=False):
                    if name in held:
                        buffer.copy_(held[name])

        return cls.of_methods(modules, reset, model, source)

    @classmethod
    def of_program(cls, program: Program, context: int | None = None, source: Tensor | None = None) -> Speaker:
        """A compiled program, or a file: its method ``decode``, or the only one, and ``prefill`` if it has one.

        Args:
            program: of ``ethorch.compile`` or ``ethorch.load``.
            context: tokens that its caches hold; None: as many rows as the buffers have that tokens are written to, or the largest
                extent that all of its state buffers have.
            source: what an encoder-decoder reads.

        Raises:
            EthorchError: its methods take something else, or nothing says what the context is.
        """
        names = program.methods
        decode = program["decode"] if "decode" in names else program[names[0]]
        prefill = program["prefill"] if "prefill" in names else None
        shapes = [info.shape for info in decode.inputs]
        if shapes != [(1, 1), (1,)] or (prefill is not None and len(prefill.inputs) != 3 + (source is not None)):
            raise EthorchError(
                f"{record_of(decode).method} takes {', '.join(str(shape) for shape in shapes)}; decode of a language model takes a "
                "token [1, 1] and a position [1], and prefill tokens, "
                "positions and the number of the last one: see ethorch.language.language_model."
            )
        if context is None:
            context = _rows_written(decode)
        if context is None:
            extents = [set(value.shape) for value in states(decode).values()]
            if not extents or max(set.intersection(*extents)) < 2:
                raise EthorchError("the program has no caches that say how many tokens it reads: give the context.")
            context = max(set.intersection(*extents))
        for name, value in states(decode).items():
            if len(value.shape) > 1 and max(value.shape) < context:
                raise EthorchError(
                    f"the context is {context}; buffer {name} is {list(value.shape)} and holds at most {max(value.shape)}."
                )
        prompt = 0 if prefill is None else prefill.inputs[-2].shape[0]
        indices = getattr(torch, decode.inputs[0].dtype)
        vocabulary = decode.outputs[0].shape[-1]
        others = [
            program[name] for name in names if name.startswith("prefill_") and len(program[name].inputs) == 3 + (source is not None)
        ]
        shorter = {other.inputs[-2].shape[0]: other for other in others}
        return cls(decode, program.reset, context, prefill, prompt, source, indices, vocabulary, shorter)

    def reset(self) -> None:
        """Start anew."""
        self._reset()
        self.position = 0

    def read(self, ids: Sequence[int]) -> Tensor:
        """float[V]: the logits behind the last of these tokens, which follow those read before.

        Prompts go through ``prefill`` as long as it fits the context: of its last call only the first rows may be tokens.

        Raises:
            EthorchError: there are none, or more than the context has left; or one is none of the vocabulary.
        """
        if self.vocabulary is not None and not all(0 <= number < self.vocabulary for number in ids):
            wrong = next(number for number in ids if not 0 <= number < self.vocabulary)
            raise EthorchError(
                f"token {wrong} is none of the {self.vocabulary} that the model knows: take the tokenizer that it was trained with."
            )
        if not ids or self.position + len(ids) > self.context:
            raise EthorchError(
                f"{counted(len(ids), 'token')} behind {self.position}: a context of {self.context} takes 1 to "
                f"{self.context - self.position} more."
            )
        logits: Any = None
        rest = list(ids)
        with torch.no_grad():
            while rest:
                first_of_source = self.source is not None and self.position == 0
                size = self._prompt_for(len(rest))
                if size and (len(rest) > 1 or first_of_source):
                    part, rest = rest[:size], rest[size:]
                    tokens = self._numbers([part + [0] * (size - len(part))])
                    positions = self._numbers(range(self.position, self.position + size))
                    source = () if self.source is None else (self.source,)
                    logits = self.prefills[size](*source, tokens, positions, self._numbers([len(part) - 1]))
                    self.calls["prefill"] += 1
                else:
                    part, rest = rest[:1], rest[1:]
                    logits = self._decode(self._numbers([part]), self._numbers([self.position]))
                    self.calls["decode"] += 1
                self.position += len(part)
        return _row(logits)

    def _prompt_for(self, count: int) -> int:
        """The least number of tokens of a prefill that ``count`` fit into, else the greatest; 0 if the context has no room."""
        sizes = sorted(size for size in self.prefills if size <= min(self.prompt, self.context - self.position))
        return next((size for size in sizes if size >= count), sizes[-1] if sizes else 0)

    def _numbers(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.indices)

    def generate(self, ids: Sequence[int], count: int, choice: Choice | None = None, stop: Sequence[int] = ()) -> Iterator[int]:
        """Tokens that follow ``ids``, one by one: at most ``count``, until one of ``stop`` or until the context is full."""
        choice = choice or Choice()
        generator = choice.generator()
        logits = self.read(ids)
        for left in reversed(range(count)):
            token = choice.next(logits, generator)
            yield token
            if token in stop or not left or self.position >= self.context:
                return
            logits = self.read([token])


def _rows_written(decode: Program) -> int | None:
    """The extent along which a token's row is put into a buffer; None where none is, or into buffers of several sizes."""
    values, found = record_of(decode).description.values, set()
    for call in record_of(decode).description.calls:
        if call.operator == _PUT:
            dims = [k for k, number in enumerate(values[call.args[1]].items) if number >= 0]
            found.add(values[call.args[0]].shape[dims[0]])
    return found.pop() if len(found) == 1 else None


def _row(logits: Any) -> Tensor:
    """One row of logits, as float[V]."""
    if isinstance(logits, (tuple, list)):
        logits = logits[0]
    assert isinstance(logits, Tensor)
    return logits.reshape(-1, logits.shape[-1])[-1].float()


def states(program: Program) -> dict[str, Value]:
    """Name of a buffer that the program keeps from call to call -> its tensor."""
    return {
        value.extra.name: value
        for value in record_of(program).description.values
        if value.kind == "tensor" and value.extra is not None and value.extra.name and value.place is not None
    }
