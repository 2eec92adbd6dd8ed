"""Models by the names of public libraries: stand-ins for those libraries, so that no test needs them installed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from ethorch.models import zoos
from ethorch.models.load import UserModel, load_model
from ethorch.support.errors import EthorchError, SpecError


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("timm")
    network = nn.Conv2d(3, 4, 3)
    network.default_cfg = {"input_size": (3, 24, 32)}  # type: ignore[assignment]
    module.is_model = lambda name: name == "tiny_net"  # type: ignore[attr-defined]
    module.list_models = lambda: ["tiny_net", "other"]  # type: ignore[attr-defined]
    module.create_model = lambda name, pretrained: network  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    monkeypatch.setattr(zoos, "torchvision_models", lambda needed=True: ModuleType("torchvision"))
    return module


def test_timm(timm: ModuleType) -> None:
    user = load_model("timm:tiny_net")
    assert user.example_inputs[0].shape == (1, 3, 24, 32) and not user.module.training
    with pytest.raises(SpecError, match=r"timm has no model 'tiny_nut'\. Did you mean 'tiny_net'"):
        load_model("timm:tiny_nut")


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(zoos, "torchvision_models", lambda needed=True: ModuleType("torchvision"))
    (tmp_path / "config.json").write_text('{"architectures": ["TinyModel"]}')
    with pytest.raises(EthorchError, match="pip install transformers"):
        load_model(f"hf:{tmp_path}")


def test_a_folder_of_hugging_face(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {}

    class TinyModel(nn.Module):
        main_input_name = "pixel_values"

        @classmethod
        def from_pretrained(cls, folder: str, **options: bool) -> TinyModel:
            asked.update(options)
            return cls()

        def __init__(self) -> None:
            super().__init__()
            self.config = ModuleType("config")
            self.config.image_size = 20  # type: ignore[attr-defined]

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            return pixel_values * 2

    module = ModuleType("transformers")
    module.TinyModel = TinyModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
    monkeypatch.setattr(zoos, "torchvision_models", lambda needed=True: ModuleType("torchvision"))
    with pytest.raises(EthorchError, match=r"cannot read .*config\.json: No such file"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"architectures": ["TinyModel"]}')
    user = load_model(f"hf:{tmp_path}")
    assert asked == {"local_files_only": True, "use_safetensors": True}, "nothing is downloaded, nothing unpickled"
    assert user.example_inputs[0].shape == (1, 3, 20, 20)
    (tmp_path / "config.json").write_text('{"architectures": ["OtherModel"]}')
    with pytest.raises(EthorchError, match="does not support OtherModel"):
        load_model(f"hf:{tmp_path}")


def test_a_decoder_of_hugging_face_runs(tmp_path: Path) -> None:
    zoos.torchvision_models(needed=False)
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **sizes)).save_pretrained(tmp_path)
    user = load_model(f"hf:{tmp_path}")
    assert isinstance(user, UserModel)
    assert user.module(*user.example_inputs)[0].shape == (1, 32, 40)


def test_a_module_that_is_installed_or_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "nets.py").write_text(
        "import torch\nPAIR = torch.nn.Linear(3, 2), torch.ones(1, 3)\ndef made():\n    return PAIR\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("PAIR", "made"):
        assert load_model(f"package_of_mine.nets:{name}").example_inputs[0].shape == (1, 3)
    with pytest.raises(SpecError, match=r"has no 'other'\. Available names: PAIR, made"):
        load_model("package_of_mine.nets:other")


def test_made_up_inputs_are_the_same_each_time_and_smooth() -> None:
    x = zoos.create_example_input((1, 3, 40, 60))
    assert torch.equal(x, zoos.create_example_input((1, 3, 40, 60))) and x.std() > 0.3
    assert (x[..., 1:] - x[..., :-1]).abs().max() < x.std(), "neighbouring pixels are alike"
    assert zoos.create_example_input((2, 5)).std() > 0.3
    assert zoos.create_example_input((1, 4), torch.int64).tolist() == [[1, 1, 1, 1]]


def test_a_users_file_may_import_torchvision(tmp_path: Path) -> None:
    """Also where its compiled extension does not fit the installed torch."""
    (tmp_path / "net.py").write_text(
        "import torch, torchvision\ndef net():\n    return torchvision.models.squeezenet1_1().eval(), torch.rand(1, 3, 32, 32)\n"
    )
    script = "import sys; from ethorch.models.load import load_model; print(type(load_model(sys.argv[1]).module).__name__)"
    child = subprocess.run([sys.executable, "-c", script, f"{tmp_path}/net.py:net"], capture_output=True, text=True)
    assert child.stdout.strip() == "SqueezeNet", child.stderr


def test_example_models_of_executorch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each name of the Arm script is a model, or refused in a sentence that names the package or download it needs."""
    known = dict(zoos.executorch_models())
    assert {"add", "mv2", "resnet18", "ds_cnn", "yolo26"} <= known.keys()
    for name in (*known, "qadd", "qops", "qlinear"):
        assert zoos.zoo_of(name) == "executorch"
    assert zoos.zoo_of("resnet34") == "torchvision"

    def example(outcome: object) -> ModuleType:
        module = ModuleType("example")
        error = outcome if isinstance(outcome, BaseException) else None

        class Example:
            def get_eager_model(self) -> nn.Module:
                if error is not None:
                    raise error
                return nn.Linear(2, 2)

            def get_example_inputs(self) -> tuple[torch.Tensor]:
                return (torch.ones(1, 2),)

        for _, kind in known.values():
            setattr(module, kind, Example)
        return module

    found: list[ModuleType] = []
    real = importlib.import_module
    examples = {f"executorch.examples.models.{file}" for file, _ in known.values()}
    monkeypatch.setattr(importlib, "import_module", lambda name: found[0] if name in examples else real(name))
    monkeypatch.setattr(zoos, "torchvision_models", lambda needed=True: ModuleType("torchvision"))
    for outcome, said in (
        (None, None),
        (ModuleNotFoundError("No module named 'torchaudio.models'", name="torchaudio.models"), "pip install torchaudio"),
        (ImportError("cannot import name 'x' from 'timm'", name="timm"), "pip install timm"),
        (OSError("no network"), "cannot be downloaded"),
        (ValueError("bad"), "cannot be created: ValueError: bad"),
    ):
        found[:] = [example(outcome)]
        monkeypatch.setattr(zoos, "load", lambda zoo, name: (nn.Linear(2, 2), (f"{zoo}:{name}",)))
        for name in known:
            try:
                _, inputs = zoos.ZOOS["executorch"](name)
            except EthorchError as error:
                assert said is not None and said in str(error) and name in str(error) and str(error).count("\n") == 0
            else:
                assert said is None or inputs == (zoos._ARCHITECTURES[name],)
    assert "[model.random_weights]" in caplog.text
    with pytest.raises(SpecError, match=r"unknown model of executorch\.examples\.models 'mv5'\. Did you mean 'mv"):
        zoos.ZOOS["executorch"]("mv5")


@pytest.mark.parametrize("name", ["qadd", "qadd2", "qops", "qlinear", "linear"])
def test_small_example_models_run(name: str) -> None:
    user = load_model(f"executorch:{name}")
    assert isinstance(user, UserModel)
    user.module(*user.example_inputs)
