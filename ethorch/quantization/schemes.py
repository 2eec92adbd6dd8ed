"""Quantizers and configs for the schemes of ``Settings``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ethorch.quantization.config import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.quantization.quantizer import EthosUQuantizer
from ethorch.support.errors import SpecError
from ethorch.targets.settings import CUSTOM, FLOAT, Settings

#: Functions from ``is_qat`` to a config, by scheme.
CONFIGS: dict[str, Callable[[bool], QuantizationConfig]] = {
    "int8": lambda is_qat: get_symmetric_quantization_config(is_qat=is_qat),
    "int8-per-tensor": lambda is_qat: get_symmetric_quantization_config(is_per_channel=False, is_qat=is_qat),
    "a16w8": lambda is_qat: get_symmetric_a16w8_quantization_config(is_qat=is_qat),
    "a8w4": lambda is_qat: get_symmetric_a8w4_quantization_config(is_qat=is_qat),
}


#: Config factories for ``set_io``, by type of program inputs and outputs.
IO_CONFIGS: dict[str, Callable[[], QuantizationConfig]] = {
    "int8": get_symmetric_quantization_config,
    "uint8": get_uint8_io_quantization_config,
    "int16": get_symmetric_a16w8_quantization_config,
}


def config_for(scheme: str, is_qat: bool = False) -> QuantizationConfig | None:
    """Return the config of a scheme, or None for ``float``."""
    return None if scheme == FLOAT else CONFIGS[scheme](is_qat)


def find_submodules(module: nn.Module, name: str) -> list[str]:
    """Return the submodule names of ``module`` among ``name`` and ``module.<name>``, its name in up to two wrappers."""
    names = {submodule for submodule, _ in module.named_modules()}
    return [submodule for depth in range(3) if (submodule := f"{'module.' * depth}{name}") in names]


def quantizer_for(settings: Settings, module: nn.Module, is_qat: bool = False) -> EthosUQuantizer:
    """Return a quantizer for the schemes in the settings.

    Args:
        module: The float model. A key of ``settings.modules`` that is not a submodule is the FX name of an operator.

    Raises:
        SpecError: The scheme is ``custom``, because a settings file cannot contain a QuantizationConfig.
    """
    if settings.scheme == CUSTOM:
        raise SpecError(
            f"expected scheme to be a QuantizationConfig or one of {', '.join(CONFIGS)}, got {CUSTOM}. "
            "A settings file cannot store a QuantizationConfig. Pass the config as scheme."
        )
    config: QuantizationConfig = settings.config or CONFIGS[settings.scheme](is_qat)
    quantizer = EthosUQuantizer(settings.spec).set_global(config)
    for name, scheme in settings.modules.items():
        submodules = find_submodules(module, name)
        for submodule in submodules:
            quantizer.set_module_name(submodule, config_for(scheme, is_qat))
        if not submodules:
            quantizer.set_node_name(name, config_for(scheme, is_qat))
    if settings.io in IO_CONFIGS:
        quantizer.set_io(IO_CONFIGS[settings.io]())
    return quantizer
