"""Check that no command writes a value to a register that holds it, and that the commands compute the same."""

import torch
from torch import nn

import ethorch
from ethorch.npu import Program

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)).eval()
samples = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
program = ethorch.compile(network, samples[0], "ethos-u85-256", calibration=samples, progress=False)
payload = program.delegates[0].payload
held, repeated = {}, []
for command in Program(payload.commands, payload.weights).commands:
    if not command.is_operation and held.get(command.row.name) == command.values:
        repeated.append(command.row.name)
    held[command.row.name] = command.values
assert not repeated, f"writes that change nothing: {repeated}"
verification = program.to_json()["verification"]
assert verification["equal"] == verification["delegates"] == 1, "the commands compute something else"
