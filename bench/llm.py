"""Compare decoding of one token in ethorch and in the Arm backend: cycles, delegates, CPU operators and perplexity.

``python -m bench.llm --model FOLDER [--texts FILE] [--target ethos-u85-256] [--context 128] [--impl ethorch|arm]``

FOLDER contains a transformers model with its tokenizer, e.g. as written by ``examples/story.py``. FILE contains text to predict.

- ethorch compiles the whole decode step with quantized caches, in int8 and in a16w8.
- The Arm backend compiles the linear layers in a16w8, as ExecuTorch's export of llama does. Other operators remain in float on the
  CPU. The Arm backend runs in a separate process. Its perplexity is that of the quantized graph in PyTorch.

NPU cycles are Vela's estimates. CPU cycles are estimates of ``figures.cpu_rates`` for a Cortex-M55.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.implementation import Recorder, load_api
from ethorch.language import LanguageModel, Speaker, from_folder, load_tokenizer, perplexity
from ethorch.program.program import record_of

SYSTEM, MODE = "Ethos_U85_SYS_DRAM_High", "Dedicated_Sram_512KB"
_KNOWN = 8  # tokens of each text that are given
_HEADER = (
    "| | perplexity | NPU cycles a token | CPU cycles a token | delegates | kernels on the CPU | .pte bytes |",
    "|---|---|---|---|---|---|---|",
)


def texts_of(folder: Path, file: Path | None, context: int) -> list[list[int]]:
    """Return token ids of a few paragraphs: the first half for calibration, the second half for prediction."""
    tokenizer = load_tokenizer(folder)
    text = (file or Path(torch.__file__).with_name("functional.py")).read_text(encoding="utf-8")
    parts = [ids[:context] for part in text.split("\n\n") if len(ids := tokenizer.encode(part)) > 4 * _KNOWN]
    return parts[:16]


def measure_ethorch(model: LanguageModel, texts: list[list[int]], target: str, scheme: str) -> dict[str, Any]:
    """Measure ethorch."""
    import ethorch

    half = len(texts) // 2
    program = ethorch.compile(
        model.modules, model.example_inputs, target, calibration=model.sessions(texts[:half]), scheme=scheme, progress=False,
        settings=ethorch.Settings(system_config=SYSTEM, memory_mode=MODE),
    )  # fmt: skip
    return {
        "name": f"ethorch, {scheme}",
        "perplexity": perplexity(Speaker.of_program(program, model.context), texts[half:], _KNOWN),
        **_costs(record_of(program["decode"]).layers, len(record_of(program["decode"]).payloads)),
        "bytes": len(program.pte),
    }


def _costs(layers: Any, delegates: int) -> dict[str, Any]:
    cpu = [layer for layer in layers if layer.where == "CPU"]
    return {
        "npu": sum(layer.cycles or 0 for layer in layers if layer.where == "NPU"),
        "cpu": sum(layer.cycles or 0 for layer in cpu),
        "delegates": delegates,
        "kernels": len(cpu),
    }


def measure_incumbent(model: LanguageModel, texts: list[list[int]], target: str) -> dict[str, Any]:
    """Measure the Arm backend, with linear layers in a16w8 and other operators in float."""
    from executorch.backends.arm.quantizer import get_symmetric_a16w8_quantization_config
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    recorder = Recorder()
    recorder.watch_vela()
    api = load_api("arm")
    recorder.watch_preprocess(api.EthosUBackend)
    half = len(texts) // 2
    spec = api.EthosUCompileSpec(target, system_config=SYSTEM, memory_mode=MODE)
    quantizer = api.EthosUQuantizer(spec).set_module_type(torch.nn.Linear, get_symmetric_a16w8_quantization_config())
    module, example = model.modules["decode"], model.example_inputs["decode"]
    prepared = prepare_pt2e(torch.export.export(module, example).module(check_guards=False), quantizer)
    states = {name: buffer.clone() for name, buffer in prepared.named_buffers()}

    def reset(graph: torch.nn.Module) -> None:
        with torch.no_grad():
            for name, buffer in graph.named_buffers():
                if ("keys_" in name or "values_" in name) and name in states:
                    buffer.copy_(states[name])

    with torch.no_grad():
        for ids in texts[:half]:
            reset(prepared)
            for place, token in enumerate(ids):
                prepared(*model.rows([token], place))
        reset(prepared)
        converted = convert_pt2e(prepared)
    measured = perplexity(Speaker(copy.deepcopy(converted), lambda: reset(converted), model.context), texts[half:], _KNOWN)
    reset(converted)
    edge = to_edge_transform_and_lower(
        torch.export.export(converted, example), partitioner=[api.EthosUPartitioner(spec, [_linears()])],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )  # fmt: skip
    pte = edge.to_executorch().buffer
    return {
        "name": "Arm backend, linears in a16w8",
        "perplexity": measured,
        "npu": sum(run.report["total_cycles"] for run in recorder.delegates),
        "pte": pte,
        "bytes": len(pte),
    }


def _linears() -> Any:
    """Return the nodes that the Arm backend is allowed to delegate: linear layers with their quantize nodes and views.

    Without this restriction, the Arm backend fails because its TOSA specification does not support MUL in float32.
    """
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Linears(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            return any(word in str(node.target) for word in ("linear", "addmm", "quantize", "view_copy", "permute_copy"))

    return Linears()


def _row(costs: dict[str, Any]) -> str:
    numbers = (f"{costs['perplexity']:.3f}", *(f"{costs[key]:,}" for key in ("npu", "cpu", "delegates", "kernels", "bytes")))
    return f"| {costs['name']} | " + " | ".join(numbers) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--target", default="ethos-u85-256")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--impl", choices=("ethorch", "arm"))
    parser.add_argument("--out", type=Path, help="output file of the Arm backend")
    options = parser.parse_args()
    model = from_folder(options.model, context=options.context, prompt=0)
    if options.impl == "arm":
        model = replace(model, indices=torch.int64)
    texts = texts_of(options.model, options.texts, options.context)
    if options.impl == "arm":
        found = measure_incumbent(model, texts, options.target)
        options.out.write_bytes(found.pop("pte"))
        print(json.dumps(found))
        return
    half = len(texts) // 2
    print("\n".join(_HEADER))
    print(f"| float | {perplexity(Speaker.of_model(model), texts[half:], _KNOWN):.3f} | | | | | |", flush=True)
    for scheme in ("int8", "a16w8"):
        print(_row(measure_ethorch(model, texts, options.target, scheme)), flush=True)
    if options.impl is None:
        import ethorch

        file = Path("arm_llm.pte") if options.out is None else options.out
        command = [sys.executable, "-W", "ignore", "-m", "bench.llm", *sys.argv[1:], "--impl", "arm", "--out", str(file)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        program = ethorch.load(file)
        costs = _costs(record_of(program).layers, len(record_of(program).payloads))
        found = json.loads(said.splitlines()[-1])
        print(_row({**costs, **found}))


if __name__ == "__main__":
    main()
