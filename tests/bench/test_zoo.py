"""The zoo's run of one network, on a small one of our own: figures and exactness of every delegate."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from bench.models.case import ModelCase
from bench.zoo import page
from bench.zoo.__main__ import cases, missing, read, table
from bench.zoo.run import run


class WithTopk(nn.Module):
    """Two delegates: a topk stays on the CPU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.topk(torch.relu(self.first(x)).mean((2, 3)), 8)[0]
        out: Tensor = self.last(y)
        return out


def _picture(rng: np.random.Generator) -> tuple[Tensor, ...]:
    return (torch.from_numpy(rng.normal(size=(1, 3, 8, 8)).astype(np.float32)),)


def test_every_delegate_is_compared() -> None:
    case = ModelCase("with_topk", WithTopk, _picture, "here")
    (record,) = run(case, ["ethos-u55-128"], ["int8"])
    assert record["status"] == "ok", record
    assert (record["delegates"], record["differing"]) == (2, 0)
    assert record["fake_db"] > 15
    assert any("topk" in operator for operator in record["cpu"])
    text = table(
        [record, {"network": "other", "target": "ethos-u55-128", "scheme": "int8", "status": "failed: run", "error": "why"}]
    )
    assert "2 networks, 2 runs: 1 ok, 1 failed: run; 0 in one delegate." in text
    assert "| with_topk | 2 | topk |" in text
    assert "- other, ethos-u55-128, int8: failed: run. why" in text


def test_a_file_of_records_is_gone_on_with() -> None:
    done = [{"network": "one", "target": "u55", "scheme": "int8", "status": "ok"}]
    assert missing(done, "one", ["u55", "u85"], ["int8", "a16w8"]) == [(["u85"], ["int8"]), (["u55", "u85"], ["a16w8"])]
    assert missing(done, "two", ["u55"], ["int8", "a16w8"]) == [(["u55"], ["int8", "a16w8"])]
    assert not missing(done, "one", ["u55"], ["int8"])


def test_of_two_records_of_one_run_the_later_counts() -> None:
    run_ = {"network": "one", "target": "u55", "scheme": "int8"}
    text = table([{**run_, "status": "failed: run", "error": "why"}, {**run_, "status": "ok", "delegates": 1}])
    assert "1 networks, 1 runs: 1 ok; 1 in one delegate." in text and "why" not in text


def test_the_names_are_unique() -> None:
    names = cases()
    assert len(names) >= 60
    assert {name.split("/")[0] for name in names} == {"timm", "hf", "torchvision", "drawn"}


def test_the_page_shows_the_recorded_runs() -> None:
    records = read(page.RESULTS)
    assert page.PAGE.read_text(encoding="utf-8") == page.page(records)
    assert {record["status"] for record in records} == {"ok", "failed", "refused"}
    assert sum(record["network"].startswith("drawn/") for record in records) == 100
