"""run_many: the results of one run after the other, with any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.npu import Machine, Place, run_many
from ethorch.support.errors import MachineFault
from tests.npu.test_plan import compiled

IMAGES = 40


def places(specs) -> list[Place]:
    return [Place(spec.region, spec.address, spec.size) for spec in specs]


def images(model) -> list[tuple[Place, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [(place, rng.integers(-128, 128, (IMAGES, place.nbytes), np.int8)) for place in places(model.inputs)]


def one_by_one(program, model, inputs) -> list[np.ndarray]:
    machine = Machine(program, model.scratch.size, compiled=False)
    found = []
    for image in range(IMAGES):
        for place, data in inputs:
            machine.region(place.region)[place.offset : place.offset + place.nbytes] = data[image].view(np.uint8)
        machine.run()
        found.append([machine.region(p.region)[p.offset : p.offset + p.nbytes].copy() for p in places(model.outputs)])
    return [np.stack(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("threads", [1, 3, None])
@pytest.mark.parametrize("way", ["plan", "NumPy"])
@pytest.mark.parametrize("name", ["residual_block", "tables_two"])
def test_as_one_run_after_the_other(name, way, threads):
    program, model, _ = compiled(name, "u55-128")
    inputs = images(model)
    found = run_many(
        program,
        inputs,
        places(model.outputs),
        threads=threads,
        machine=lambda: Machine(program, model.scratch.size, compiled=way == "plan"),
    )
    for got, want in zip(found, one_by_one(program, model, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
        assert len(np.unique(got, axis=0)) > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_that_does_not_get_through(threads):
    """A shift by too much in image 17; what is said is what a machine says of it."""
    program, model, arrays = compiled("asr", "u85-256")
    data = [np.repeat(np.ascontiguousarray(a).reshape(1, -1), IMAGES, axis=0) for a in arrays]
    data[1][17, :] = 100
    with pytest.raises(MachineFault, match=r"^input 17: .*shift amounts") as fault:
        run_many(
            program, list(zip(places(model.inputs), data, strict=True)), places(model.outputs), model.scratch.size, threads=threads
        )
    assert fault.value.image == 17 and fault.value.operation.name == "NPU_OP_ELEMENTWISE"


def test_data_that_only_numpy_judges_goes_on():
    """Compiled code stops at an index out of range; NumPy says which, for any thread."""
    program, model, arrays = compiled("gather_batch", "u85-256")
    data = [np.repeat(np.ascontiguousarray(a).reshape(1, -1), IMAGES, axis=0) for a in arrays]
    indices = next(k for k, a in enumerate(arrays) if a.dtype == np.int32)
    data[indices][-1, 0] = 1 << 20
    with pytest.raises(MachineFault, match=r"input 39: .*DMA indices"):
        run_many(program, list(zip(places(model.inputs), data, strict=True)), places(model.outputs), model.scratch.size, threads=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place, data: [(place, data[:, :-1])], "bytes per image"),
        (lambda place, data: [(Place(place.region, 1 << 30, place.nbytes), data)], "exceed region 1, which has"),
        (lambda place, data: [(place, data), (place, data[:3])], r"got image counts \[3, 40\]"),
        (lambda place, data: [], "one or more inputs"),
    ],
)
def test_inputs_that_do_not_fit(change, message):
    program, model, _ = compiled("residual_block", "u55-128")
    with pytest.raises(MachineFault, match=message):
        run_many(program, change(*images(model)[0]), places(model.outputs), model.scratch.size)


def test_a_budget_that_is_too_small():
    program, model, _ = compiled("residual_block", "u55-128")
    with pytest.raises(MachineFault, match="work units"):
        run_many(
            program, images(model), places(model.outputs), threads=2, machine=lambda: Machine(program, model.scratch.size, budget=1)
        )


def test_no_images():
    program, model, _ = compiled("residual_block", "u55-128")
    inputs = [(place, data[:0]) for place, data in images(model)]
    (found,) = run_many(program, inputs, places(model.outputs), model.scratch.size)
    assert found.shape == (0, model.outputs[0].size)
