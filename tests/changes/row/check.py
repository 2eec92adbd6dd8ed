"""Check that the summary of a program and the Markdown of its report have a row with the slowest layer."""

import torch
from torch import nn

import ethorch
from ethorch.report.markdown import markdown

samples = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
program = ethorch.compile(nn.Conv2d(3, 8, 3).eval(), samples[0], "ethos-u55-128", calibration=samples, progress=False)
for text in (str(program), markdown(program.to_json())):
    assert "Slowest layer" in text, text
    assert "% " in text.partition("Slowest layer")[2].splitlines()[0], text
