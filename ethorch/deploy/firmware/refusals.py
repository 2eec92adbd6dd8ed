"""What a method may not have: firmware without ExecuTorch cannot do it."""

from __future__ import annotations

from collections.abc import Mapping

from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import JumpFalse, Method
from ethorch.support.errors import EthorchError

WAY_OUT = "Run this program in ExecuTorch's runtime, with ethorch's delegate for Cortex-M (docs/guides/firmware.md)."


def check_method(method: Method, payloads: Mapping[int, DelegatePayload]) -> None:
    """Check that firmware can run a method.

    Args:
        payloads: of its delegates for an Ethos-U, by number.

    Raises:
        EthorchError: it has control flow, inputs that are no tensors, shapes that change, a delegate of another backend, or a
            delegate that is called with other tensors than its payload takes.
    """
    for number, delegate in enumerate(method.delegates):
        if number not in payloads:
            raise EthorchError(
                f"delegate {number} of method {method.name!r} is for {delegate.id}, not for an Ethos-U. Compile the model "
                f"for an Ethos-U alone. {WAY_OUT}"
            )
    for chain in method.chains:
        if any(isinstance(step, JumpFalse) for step in chain.instructions):
            raise EthorchError(
                f"method {method.name!r} branches on the CPU (torch.cond or a loop that no delegate took), which firmware without "
                f"ExecuTorch does not do. {WAY_OUT}"
            )
    for side, ends in (("input", method.inputs), ("output", method.outputs)):
        for number, index in enumerate(ends):
            value = method.values[index]
            if value.kind != "tensor" or value.dynamism == 1:
                what = str(value) if value.kind != "tensor" else f"of a shape that changes, at most {value}"
                way_out = "Export the model without it" if value.kind != "tensor" else "Compile a method for each (shapes=[...])"
                raise EthorchError(
                    f"{side} {number} of method {method.name!r} is {what}; firmware takes and gives tensors of fixed shapes. "
                    f"{way_out}. {WAY_OUT}"
                )
    for call in method.calls:
        if call.delegate is None:
            continue
        payload = payloads[call.delegate]
        expected = [tensor.nbytes for tensor in (*payload.inputs, *payload.outputs)]
        found = [method.values[arg].nbytes for arg in call.args if method.values[arg].kind == "tensor"]
        if expected != found:
            raise EthorchError(
                f"delegate {call.delegate} of method {method.name!r} is called with tensors of {found} bytes; its payload takes "
                f"{expected}. Whoever made the file lost a tensor: compile the model with ethorch."
            )
