"""Measure one network of the zoo in this process: quantize for each scheme, compile for each target, run and compare.

There are three comparisons. Fake-quantized PyTorch and the .pte are compared with float (SQNR in dB over test inputs). The output
bits of every delegate are compared with those of the TOSA reference model, for the actual inputs of the delegate.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.implementation import flat, memory_for
from bench.models.case import Inputs, ModelCase
from ethorch import EthosUCompileSpec, EthosUQuantizer, runtime
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config as a16w8
from ethorch.arm.quantizer import get_symmetric_quantization_config as int8
from ethorch.backend.build import build_pte
from ethorch.formats.payload import SCRATCH_REGION, DelegatePayload, IoTensor
from ethorch.lower.fx.export import export_module
from ethorch.quantization.prepare import prepare
from ethorch.support.errors import EthorchError
from ethorch.support.metrics import sqnr_db
from ethorch.tosa import reference_model
from ethorch.vela.lowered import Lowered

Record = dict[str, Any]
SCHEMES: dict[str, Callable[..., Any]] = {"int8": int8, "a16w8": a16w8}
#: Inputs that the accuracy is measured on. Over 3 the dB of fake quantization and of the .pte part by 1 or 2 with no cause: their
#: difference has a standard deviation of 0.6 to 1.4 dB there, which falls with the root of the number (docs/zoo.md).
FRESH = 24
_QUANTIZED = {"dequantize_per_tensor", "dequantize_per_channel", "quantize_per_tensor", "quantize_per_channel"}


class Watched:
    """A delegate simulator that stores the inputs and outputs of the last run."""

    def __init__(self, payload: DelegatePayload):
        self.payload, self.machine = payload, runtime.npu_machine(payload)
        self.got: list[bytes] = []
        self.gave: list[bytes] = []

    def region(self, index: int) -> Any:
        return self.machine.region(index)

    def run(self) -> None:
        self.got = [self._bytes(tensor) for tensor in self.payload.inputs]
        self.machine.run()
        self.gave = [self._bytes(tensor) for tensor in self.payload.outputs]

    def _bytes(self, tensor: IoTensor) -> bytes:
        if not self.payload.scratch_bytes:
            return b""
        scratch = self.machine.region(SCRATCH_REGION)
        return bytes(scratch[tensor.offset : tensor.offset + tensor.nbytes])


def differing(delegate: Lowered, watched: Watched, reference: Callable[..., list[Any]] = reference_model.run) -> int:
    """Return the number of bytes in the delegate's last outputs that differ from the TOSA reference model."""
    arrays = [
        np.frombuffer(data, f"int{8 * tensor.element_size}").reshape(value.shape)
        for data, tensor, value in zip(watched.got, watched.payload.inputs, delegate.inputs, strict=True)
    ]
    arrays = [a.astype(bool) if value.dtype == "BOOL" else a for a, value in zip(arrays, delegate.inputs, strict=True)]
    wanted = [np.ascontiguousarray(array).tobytes() for array in reference(delegate.tosa, arrays)]
    count = 0
    for want, got in zip(wanted, watched.gave, strict=True):
        if len(want) != len(got):
            return max(len(want), len(got))
        count += int((np.frombuffer(want, np.uint8) != np.frombuffer(got, np.uint8)).sum())
    return count


def run(case: ModelCase, targets: list[str], schemes: list[str], calibration: int = 4, inputs: int = FRESH) -> Iterator[Record]:
    """Yield a record for each scheme and target, with an error if the run failed.

    Args:
        inputs: Number of inputs for accuracy.
    """
    torch.set_num_threads(1)
    model = case.build()
    example, fresh = case.example_inputs(), case.calibration(inputs, seed=99)
    with torch.no_grad():
        wanted = [flat(copy.deepcopy(model)(*sample)) for sample in fresh]
    for scheme in schemes:
        for target in targets:
            record: Record = {"network": case.name, "target": target, "scheme": scheme, "status": "ok"}
            start, step = time.process_time(), "quantize"
            try:
                system_config, memory_mode = memory_for(target)
                spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
                quantizer = EthosUQuantizer(spec).set_global(SCHEMES[scheme](is_per_channel=True))
                quantized = _quantize(copy.deepcopy(model), example, case.calibration(calibration), quantizer)
                with torch.no_grad():
                    faked = [flat(quantized(*sample)) for sample in fresh]
                record["fake_db"] = _db(wanted, faked)
                step = "compile"
                build = build_pte(quantized, example, spec)
                record["compile_seconds"] = time.process_time() - start
                record["delegates"] = len(build.delegates)
                record["npu_operators"] = build.partition.npu_operators
                record["cpu"] = sorted(f"{r.origin.target} ({r.reason.id})" for r in build.partition.refusals)
                record["npu_cycles"] = sum(delegate.performance.npu_cycles for delegate in build.delegates)
                step = "run"
                machines: dict[DelegatePayload, Watched] = {}

                def watch(payload: DelegatePayload, machines: dict[DelegatePayload, Watched] = machines) -> Watched:
                    return machines.setdefault(payload, Watched(payload))

                program = runtime.load(build.pte, machine=watch)
                found = [_result(program(*sample)) for sample in fresh]
                record["pte_db"] = _db(wanted, found)
                record["pte_to_fake_db"] = _db(faked, found)
                step = "reference"
                record["differing"] = sum(differing(delegate, machines[delegate.payload]) for delegate in build.delegates)
                if record["differing"]:
                    record["status"] = "differs"
            except EthorchError as error:
                record |= {"status": f"refused: {step}", "error": str(error)[:1500]}
            except Exception as error:
                record |= {"status": f"failed: {step}", "error": f"{type(error).__name__}: {str(error)[:1500]}"}
            record["seconds"] = time.process_time() - start
            yield record


def _quantize(model: Any, inputs: Inputs, calibration: list[Inputs], quantizer: EthosUQuantizer) -> Any:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    prepared = prepare(export_module(model, inputs).module(check_guards=False), quantizer)
    with torch.no_grad():
        for sample in calibration:
            prepared(*sample)
    return convert_pt2e(prepared)


def _result(outputs: list[Any]) -> Tensor:
    return flat([torch.as_tensor(np.asarray(output)).to(torch.float32) for output in outputs])


def _db(reference: list[Tensor], outputs: list[Tensor]) -> float:
    return float(sqnr_db(torch.stack(reference).to(torch.float64), torch.stack(outputs).to(torch.float64)))
