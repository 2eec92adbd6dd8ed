"""Features of a method that firmware without ExecuTorch does not support."""

from __future__ import annotations

from collections.abc import Mapping

from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import JumpFalse, Method
from ethorch.support.errors import EthorchError

WAY_OUT = "Run this program in ExecuTorch's runtime, with ethorch's delegate for Cortex-M (docs/guides/firmware.md)."


def check_method(method: Method, payloads: Mapping[int, DelegatePayload]) -> None:
    """Check that firmware can run a method with these delegates.

    Raises:
        EthorchError: the method has control flow, inputs other than tensors, dynamic shapes, or a delegate of another backend.
            Also raised if the tensors of a delegate's call do not match its payload.
    """
    for number, delegate in enumerate(method.delegates):
        if number not in payloads:
            raise EthorchError(
                f"delegate {number} of method {method.name!r} is for {delegate.id}, not for an Ethos-U. Compile the model "
                f"only for an Ethos-U. {WAY_OUT}"
            )
    for chain in method.chains:
        if any(isinstance(step, JumpFalse) for step in chain.instructions):
            raise EthorchError(
                f"method {method.name!r} branches on the CPU (torch.cond or a loop that was not delegated), which firmware without "
                f"ExecuTorch does not support. {WAY_OUT}"
            )
    for side, ends in (("input", method.inputs), ("output", method.outputs)):
        for number, index in enumerate(ends):
            value = method.values[index]
            if value.kind != "tensor" or value.dynamism == 1:
                what = str(value) if value.kind != "tensor" else f"of a dynamic shape, at most {value}"
                way_out = "Export the model without it" if value.kind != "tensor" else "Compile a method for each (shapes=[...])"
                raise EthorchError(
                    f"{side} {number} of method {method.name!r} is {what}; expected a tensor of a fixed shape. {way_out}. {WAY_OUT}"
                )
    for call in method.calls:
        if call.delegate is None:
            continue
        payload = payloads[call.delegate]
        expected = [tensor.nbytes for tensor in (*payload.inputs, *payload.outputs)]
        sizes = [method.values[arg].nbytes for arg in call.args if method.values[arg].kind == "tensor"]
        if expected != sizes:
            raise EthorchError(
                f"delegate {call.delegate} of method {method.name!r} is called with tensors of {sizes} bytes; its payload expects "
                f"{expected}. The file is inconsistent; compile the model with ethorch."
            )
