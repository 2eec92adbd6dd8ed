"""Convolutions, pools, normalizations and recurrent layers."""

from __future__ import annotations

from tests.helpers.random_networks.draw import Draw, Unfit
from tests.helpers.random_networks.registry import fits, operator


@operator(6)
def convolution(d: Draw) -> None:
    """Apply a convolution of one to three dimensions, grouped, depthwise, strided, dilated, or transposed."""
    dims = d.weighted(((3, 1), (6, 2), (1, 3)))
    x = d.of_rank(dims + 2)
    channels = x.shape[1]
    kernel = [min(d.one((1, 1, 2, 3, 3, 3, 5)), 3 if dims == 3 else 7) for _ in range(dims)]
    if d.chance(0.6):
        kernel = [kernel[0]] * dims
    outputs = d.size()
    groups = 1
    if d.chance(0.25):
        groups = d.one([n for n in (2, 3, 4, channels) if channels % n == 0] or [1])
        outputs = groups * d.one((1, 1, 2))
    fits(d, *x.shape, *kernel, outputs // groups or 1)
    stride, dilation = d.one((1, 1, 1, 2, 3)), d.one((1, 1, 1, 1, 2, 3))
    padding = d.one((0, 0, 1, 1, 2))
    text = f"{channels}, {outputs}, {tuple(kernel) if len(set(kernel)) > 1 else kernel[0]}"
    if stride > 1:
        text += f", stride={stride}"
    if padding:
        text += f", padding={padding}"
    if dilation > 1:
        text += f", dilation={dilation}"
    if groups > 1:
        text += f", groups={groups}"
    if d.chance(0.2):
        text += ", bias=False"
    transposed = "Transpose" if d.chance(0.15) else ""
    made = d.emit(f"{d.layer(f'nn.Conv{transposed}{dims}d({text})')}({x})")
    if d.chance(0.25):
        d.emit(f"torch.relu({made})")


@operator(2.5)
def pool(d: Draw) -> None:
    dims = d.weighted(((2, 1), (6, 2), (1, 3)))
    x = d.of_rank(dims + 2)
    kernel = d.one((1, 2, 2, 3, 3, 5))
    stride = d.one((1, 2, 2, 3))
    inside = ", count_include_pad=False" * d.chance(0.5)
    d.emit(
        d.one(
            (
                f"F.max_pool{dims}d({x}, {kernel}, {stride}, {d.one((0, 0, kernel // 2))})",
                f"F.avg_pool{dims}d({x}, {kernel}, {stride}, {d.one((0, 0, kernel // 2))}{inside})",
                f"F.adaptive_avg_pool{dims}d({x}, {d.one((1, 1, 2, 3))})",
                f"F.adaptive_max_pool{dims}d({x}, {d.one((1, 2))})",
            )
        )
    )


@operator(3)
def norm(d: Draw) -> None:
    way = d.between(0, 4)
    if way == 0:
        x = d.of_rank(2, 3, 4, 5)
        batch = d.layer(f"nn.BatchNorm{max(x.rank - 2, 1)}d({x.shape[1]})")
        d.emit(f"{batch}({x})")
    elif way == 1:
        x = d.of_rank(3, 4)
        groups = d.one([n for n in (1, 2, 3, 4) if x.shape[1] % n == 0])
        d.emit(f"{d.layer(f'nn.GroupNorm({groups}, {x.shape[1]})')}({x})")
    elif way == 2:
        x = d.of_rank(3, 4)
        d.emit(f"{d.layer(f'nn.InstanceNorm{x.rank - 2}d({x.shape[1]}, affine=True)')}({x})")
    else:
        x = d.value()
        axes = list(x.shape[-d.between(1, min(2, x.rank)) :])
        kind = d.one(("LayerNorm", "LayerNorm", "RMSNorm"))
        d.emit(f"{d.layer(f'nn.{kind}({axes})')}({x})")


@operator(1.5)
def recurrent(d: Draw) -> None:
    x = d.of_rank(3)
    first = d.chance(0.6)
    steps = x.shape[1] if first else x.shape[0]
    if steps > 10 or d.large:
        raise Unfit("too many steps")
    hidden = min(d.size(), 24)
    options = ", batch_first=True" * first + ", bidirectional=True" * d.chance(0.25) + ", num_layers=2" * d.chance(0.15)
    kind = d.one(("LSTM", "GRU", "RNN"))
    layer = d.layer(f"nn.{kind}({x.shape[2]}, {hidden}{options})")
    d.emit(f"{layer}({x}){d.one(('[0]', '[0]', '[0]', '[1][0]')) if kind == 'LSTM' else d.one(('[0]', '[0]', '[1]'))}")
