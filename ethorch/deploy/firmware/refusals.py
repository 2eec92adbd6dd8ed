from __future__ import annotations

from collections.abc import Mapping

from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import JumpFalse, Method
from ethorch.support.errors import EthorchError

#: Remedy, as the end of a sentence.
REMEDY = "run the program in ExecuTorch's runtime with ethorch's EthosUBackend for Cortex-M (docs/guides/firmware.md)."


def check_method(method: Method, payloads: Mapping[int, DelegatePayload]) -> None:
    """Check that firmware without ExecuTorch can run a method.

    Raises:
        EthorchError: The method has control flow, dynamic shapes, or non-tensor inputs or outputs. A delegate is for another
            backend, or a delegate call does not match its payload.
    """
    for number, delegate in enumerate(method.delegates):
        if number not in payloads:
            raise EthorchError(
                f"delegate {number} of method {method.name!r}: expected a delegate for Ethos-U, got {delegate.id}. Compile the "
                f"model only for Ethos-U, or {REMEDY}"
            )
    for chain in method.chains:
        if any(isinstance(step, JumpFalse) for step in chain.instructions):
            raise EthorchError(
                f"method {method.name!r} branches on the CPU (torch.cond or a loop that was not delegated), which is not supported "
                f"without ExecuTorch. To use the method, {REMEDY}"
            )
    for side, ends in (("input", method.inputs), ("output", method.outputs)):
        for number, index in enumerate(ends):
            value = method.values[index]
            if value.kind != "tensor" or value.dynamism == 1:
                is_tensor = value.kind == "tensor"
                what = f"a dynamic shape of at most {value}" if is_tensor else str(value)
                remedy = (
                    "Compile one method for each shape (shapes=[...])" if is_tensor else f"Export the model without this {side}"
                )
                raise EthorchError(
                    f"{side} {number} of method {method.name!r}: expected a tensor of static shape, got {what}. {remedy}, "
                    f"or {REMEDY}"
                )
    for call in method.calls:
        if call.delegate is None:
            continue
        payload = payloads[call.delegate]
        expected = [tensor.nbytes for tensor in (*payload.inputs, *payload.outputs)]
        sizes = [method.values[arg].nbytes for arg in call.args if method.values[arg].kind == "tensor"]
        if expected != sizes:
            raise EthorchError(
                f"delegate {call.delegate} of method {method.name!r}: the payload requires tensors of {expected} bytes, got "
                f"{sizes}. The file is inconsistent; compile the model again with ethorch."
            )
