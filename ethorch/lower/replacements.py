"""Remedies for operators without a lowering.

The first regular expression that matches an operator's name (without its namespace, overload or ``_copy``) selects the remedy.
"""

from __future__ import annotations

import re

_TRAINING = "Export the model in eval mode and without the loss function; the operator is used only in training."
_CONSTANT = (
    "Make the result a buffer of the module, or compute it from constants only, so that it becomes a constant of the delegate."
)
_RANDOM = "Pass the random numbers as a model input, or do not draw random numbers in eval mode."
_SHAPE = "Export the model with fixed shapes."
_PARTS = "Use one real tensor for the real part and one for the imaginary part; sums and products of real tensors run on the NPU."
_VALUES = "Keep all elements and set the unselected elements to 0 with torch.where, so that the shape does not depend on values."
_PICK = "Use torch.where, or use index_put or index_copy with constant indices; these operators run on the NPU."

REPLACEMENTS: tuple[tuple[str, str], ...] = (
    (r".*backward.*|_?native_dropout|.*fused_moving_avg.*|.*_for_inference", _TRAINING),
    (r"_?fft_.*|stft|istft", "Use a matmul with constant matrices of cosines and sines."),
    (r"view_as_(real|complex)|_?conj(_physical)?|complex|polar|angle|real|imag|resolve_(conj|neg)|_neg_view", _PARTS),
    (r"sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|quantile|nanquantile",
     "Sort at most 16 elements without reading the indices, or use amax, amin or argmax. torch.topk runs on the CPU."),
    (r"histc|histogram|_histogramdd.*|bincount",
     "Compare x with constant bin edges, (x[..., None] >= edges).sum(0), and subtract adjacent sums."),
    (r"_?grouped_mm.*|_scaled_grouped_mm.*",
     "Sort the rows by expert, as transformers does for mixtures of experts. Sort int[rows], count the rows per expert with histc"
     " or bincount, and index the result by the inverse of the permutation."),
    (r"cummax|cummin", "Read only the values, because the NPU does not compute the indices."),
    (r"atan2", "Use torch.atan(y / x), and torch.where for the quadrants; these operators run on the NPU."),
    (r"(_?cdist|_?pdist|_euclidean_dist).*|dist", "Use (x - y).pow(2).sum(-1).sqrt(), which runs on the NPU."),
    (r"grid_sampler.*", 
     "Use F.grid_sample for images in mode bilinear or nearest. It runs on ethos-u85, and on every NPU if the grid is constant."),
    (r"upsample_.*|_upsample_.*", "Use F.interpolate for quantized images, which runs on the NPU in any mode."),
    (r"isinf|isnan|isfinite|nan_to_num|isposinf|isneginf", "Remove the operator, because quantized values are always finite."),
    (r"masked_scatter|scatter.*|index_add.*|index_reduce.*|index_fill|put|_unsafe_index_put|put_",
     f"{_PICK} For a sum over constant indices, use a matmul with a matrix of ones and zeros."),
    (r"masked_select|nonzero.*|unique.*|_unique.*|argwhere|repeat_interleave", _VALUES),
    (r"rand.*|.*normal.*|binomial|cauchy|geometric|_standard_gamma|rrelu_with_noise.*|bernoulli.*|multinomial|uniform.*"
     r"|exponential|poisson|dropout|alpha_dropout|feature_.*dropout", _RANDOM),
    (r"(new_)?(full|ones|zeros|empty)(_like|_strided|_permuted)?|arange.*|scalar_tensor|fill|eye|linspace|logspace|lift_fresh|.*_window"
     r"|tril_indices|triu_indices|resize", _CONSTANT),
    (r"var_mean|std_mean", "Use torch.var and torch.mean, which run on the NPU."),
    (r"diagonal.*|diag.*|trace|linalg_diagonal",
     "Use (x * eye).sum(-1), where eye is a buffer that contains torch.eye(n); products and sums run on the NPU."),
    (r"_local_scalar_dense|item|equal|is_nonzero",
     "Use a tensor instead of a Python number, or make the number constant before the model is exported."),
    (r"sym_.*|_assert.*|as_strided.*", _SHAPE),
    (r"copy_?|set_|.*_$", "Use the operator that returns a new tensor, and do not read the old tensor afterwards."),
    (r"_?embedding_bag.*", "Use embedding, followed by a sum or mean over the bag."),
    (r"col2im|im2col",
     "Use a convolution or transposed convolution with constant weights of ones and zeros, which runs on the NPU."),
    (r"linalg_.*|_linalg_.*|cholesky.*|inverse|lu.*|triangular_solve|qr|svd|.*_ex|det|logdet|slogdet|lstsq|ormqr|geqrf",
     "If the result depends only on weights, compute it before the export. Write the inverse of a small matrix as a formula."),
    (r"adaptive_max_pool.*|_?adaptive_avg_pool3d|max_pool3d.*|avg_pool3d.*|max_unpool.*|fractional_max_pool.*",
     "Pool the last two dimensions with F.max_pool2d or F.avg_pool2d, and the third dimension with amax or mean of slices."),
    (r"(lstm|gru|rnn).*|_thnn.*|quantized_.*",
     "Quantize nn.LSTM, nn.GRU and nn.RNN with EthosUQuantizer, so that they run on the NPU."),
    (r"bessel.*|special_.*|igamma.*|lgamma|digamma|polygamma|mvlgamma|zeta|.*erfc.*|i0.*|sinc|ndtri",
     "Write the function as a chain of exp, log, erf and arithmetic on one quantized tensor; a lookup table computes the chain."),
    (r"ctc_loss.*|.*_loss.*|.*nll.*|cross_entropy.*", _TRAINING),
    (r"gcd|lcm|ldexp|frexp|nextafter|copysign|heaviside|xlogy|logaddexp2|float_power|fmod|remainder",
     "Use products, quotients, torch.where and comparisons, which run on the NPU."),
    (r"addr|addmm|bmm|mm|addbmm|addmv|mv|dot|vdot|ger|outer|inner|kron|cross|linalg_cross|tensordot|chain_matmul|trilinear|_trilinear|bilinear",
     "Use torch.matmul, sums and element-wise products, which run on the NPU."),
    (r"bucketize|searchsorted", "Use a sum of comparisons, (x[..., None] > limits).sum(-1), which runs on the NPU."),
    (r"signbit", "Use the comparison x < 0, which runs on the NPU."),
    (r"segment_reduce", "Use a matmul with a constant matrix of ones and zeros, which sums segments on the NPU."),
    (r"view", "Cast to integers of another width. The NPU runs casts, but does not reinterpret bits."),
    (r"bitwise_(left|right)_shift|__[lr]shift__", "Use int32 tensors or smaller integers, whose shifts run on the NPU."),
    (r"quantize_per_.*|dequantize.*", "Use float tensors; EthosUQuantizer inserts the conversions."),
    (r"lift", "Remove the operator, which returns its input unchanged."),
    (r"renorm|norm.*|_weight_norm.*|native_norm",
     "Use x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps), which runs on the NPU."),
    (r"take.*|index.*|gather|select_.*|.*_scatter", f"{_PICK} torch.gather runs on ethos-u85."),
    (r".*conv.*", "Use F.conv1d to F.conv3d, F.conv_transpose1d or F.conv_transpose2d, which run on the NPU."),
)  # fmt: skip

#: Remedy for custom operators.
CUSTOM = "Express the operator with PyTorch operators, or link a CPU kernel for the operator into the firmware."
#: Remedy for quantize and dequantize operators inside the graph.
BETWEEN = "No change is required. ethorch removes the conversion if the adjacent CPU operator is moved to the NPU."
#: Remedy if no row matches.
OTHERS = "Express the operator with operators listed by `ethorch ops`."


def instead_of(name: str) -> str:
    """Return the remedy for the operator ``name``, e.g. ``aten.sort.default``."""
    namespace, _, rest = name.partition(".")
    if namespace == "quantized_decomposed":
        return BETWEEN
    if namespace not in ("aten", "prims"):
        return CUSTOM
    base = rest.split(".")[0].removesuffix("_copy")
    return next((text for pattern, text in REPLACEMENTS if re.fullmatch(pattern, base)), OTHERS)
