"""What a model can say instead of an operator that ethorch does not lower: the way out of ``operator.unknown``.

A row is a regular expression over the operator's name without namespace, overload and ``_copy``; the first that fits counts.
"""

from __future__ import annotations

import re

_TRAINING = "It belongs to training: export the model in eval mode, without its loss."
_CONSTANT = "Make it a buffer of the module, or compute it from constants alone: then it is a constant of the delegate."
_RANDOM = "Take the random numbers as an input of the model, or leave them out in eval mode."
_SHAPE = "Export the model with fixed shapes."
_PARTS = "Keep real and imaginary parts as two real tensors; their sums and products run on the NPU."
_VALUES = "The shape of its result depends on values: keep all elements, and put 0 in place of the others with torch.where."
_PICK = "torch.where, or index_put and index_copy with constant indices, run on the NPU."

REPLACEMENTS: tuple[tuple[str, str], ...] = (
    (r".*backward.*|_?native_dropout|.*fused_moving_avg.*|.*_for_inference", _TRAINING),
    (r"_?fft_.*|stft|istft", "A matmul with constant matrices of cosines and sines computes the same on the NPU."),
    (r"view_as_(real|complex)|_?conj(_physical)?|complex|polar|angle|real|imag|resolve_(conj|neg)|_neg_view", _PARTS),
    (r"sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|quantile|nanquantile",
     "Values along at most 16 elements are sorted on the NPU, as amax, amin and argmax run there; torch.topk has a CPU kernel."),
    (r"histc|histogram|_histogramdd.*|bincount",
     "Sums of comparisons with the constant edges of the bins, (x[..., None] >= edges).sum(0), run on the NPU; the counts are their"
     " differences."),
    (r"_?grouped_mm.*|_scaled_grouped_mm.*",
     "Rows that are sorted by expert, multiplied and put back into order run on the NPU, as transformers exports its mixtures of"
     " experts: sort int[rows], count with histc or bincount, and index the result by the inverse of the permutation."),
    (r"cummax|cummin", "Their values run on the NPU, not the indices."),
    (r"atan2", "torch.atan(y / x) with torch.where for the quadrants runs on the NPU."),
    (r"(_?cdist|_?pdist|_euclidean_dist).*", "(x - y).pow(2).sum(-1).sqrt() runs on the NPU."),
    (r"grid_sampler.*", "F.grid_sample of pictures, bilinear or nearest, runs on ethos-u85; by a constant grid on every NPU."),
    (r"upsample_.*|_upsample_.*", "F.interpolate of quantized images, in any mode, runs on the NPU."),
    (r"isinf|isnan|isfinite|nan_to_num|isposinf|isneginf", "Quantized numbers are always finite: leave it out."),
    (r"masked_scatter|scatter.*|index_add.*|index_reduce.*|index_fill|put|_unsafe_index_put|put_",
     f"{_PICK} A sum over constant places is a matmul with a matrix of ones and zeros."),
    (r"masked_select|nonzero.*|unique.*|_unique.*|argwhere|repeat_interleave", _VALUES),
    (r"rand.*|.*normal.*|binomial|cauchy|geometric|_standard_gamma|rrelu_with_noise.*|bernoulli.*|multinomial|uniform.*"
     r"|exponential|poisson|dropout|alpha_dropout|feature_.*dropout", _RANDOM),
    (r"(new_)?(full|ones|zeros|empty)(_like|_strided|_permuted)?|arange.*|scalar_tensor|fill|eye|linspace|logspace|lift_fresh|.*_window"
     r"|tril_indices|triu_indices|resize", _CONSTANT),
    (r"var_mean|std_mean", "torch.var and torch.mean, called one after the other, run on the NPU."),
    (r"diagonal.*|diag.*|trace|linalg_diagonal", "(x * torch.eye(n)).sum(-1), with the matrix as a buffer, runs on the NPU."),
    (r"_local_scalar_dense|item|equal|is_nonzero", "Keep the number a tensor, or make it a constant before the model is exported."),
    (r"sym_.*|_assert.*|as_strided.*", _SHAPE),
    (r"copy_?|set_|.*_$", "Use the operator that returns a new tensor, and let nobody read the old one."),
    (r"_?embedding_bag.*", "embedding followed by sum or mean over the bag is the same."),
    (r"col2im|im2col", "A convolution, or a transposed one, with constant weights of ones and zeros runs on the NPU."),
    (r"linalg_.*|_linalg_.*|cholesky.*|inverse|lu.*|triangular_solve|qr|svd|.*_ex|det|logdet|slogdet|lstsq|ormqr|geqrf",
     "What depends on weights alone is computed before the model is exported; a small inverse can be written out by its formula."),
    (r"adaptive_max_pool.*|_?adaptive_avg_pool3d|max_pool3d.*|avg_pool3d.*|max_unpool.*|fractional_max_pool.*",
     "Pool the last two dimensions with F.max_pool2d or F.avg_pool2d, and the third by amax or mean of slices."),
    (r"(lstm|gru|rnn).*|_thnn.*|quantized_.*", "nn.LSTM, nn.GRU and nn.RNN run on the NPU when EthosUQuantizer quantizes them."),
    (r"bessel.*|special_.*|igamma.*|lgamma|digamma|polygamma|mvlgamma|zeta|.*erfc.*|i0.*|sinc|ndtri",
     "Of one quantized tensor it is a table: quantize it as a chain of exp, log, erf and arithmetic, which run on the NPU."),
    (r"ctc_loss.*|.*_loss.*|.*nll.*|cross_entropy.*", _TRAINING),
    (r"gcd|lcm|ldexp|frexp|nextafter|copysign|heaviside|xlogy|logaddexp2|float_power|fmod|remainder",
     "Write it as products, quotients, torch.where and comparisons, which run on the NPU."),
    (r"addr|addmm|bmm|mm|addbmm|addmv|mv|dot|vdot|ger|outer|inner|kron|cross|linalg_cross|tensordot|chain_matmul|trilinear|_trilinear|bilinear",
     "torch.matmul, sums and element-wise products run on the NPU."),
    (r"bucketize|searchsorted", "A sum of comparisons, (x[..., None] > limits).sum(-1), runs on the NPU."),
    (r"signbit", "A comparison with zero, x < 0, runs on the NPU."),
    (r"segment_reduce", "A matmul with a constant matrix of ones and zeros sums segments on the NPU."),
    (r"view", "Keep the bits in one dtype: integers of another width are a cast, which runs on the NPU."),
    (r"bitwise_(left|right)_shift|__[lr]shift__", "Make the number a tensor: shifts of tensors run on the NPU."),
    (r"quantize_per_.*|dequantize.*", "Leave tensors float: EthosUQuantizer draws the conversions."),
    (r"lift", "Leave it out: it returns its input."),
    (r"renorm|dist|norm.*|_weight_norm.*|native_norm", "x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps) runs on the NPU."),
    (r"take.*|index.*|gather|select_.*|.*_scatter", f"{_PICK} So does torch.gather on ethos-u85."),
    (r".*conv.*", "F.conv1d to F.conv3d, and transposed ones of one and two dimensions, run on the NPU."),
)  # fmt: skip

#: Of operators that are not PyTorch's own.
CUSTOM = "Write it with PyTorch's own operators in the model, or link a CPU kernel of it into the firmware."
#: Of quantize and dequantize where they are no end of a delegate.
BETWEEN = "It goes when the operator on the CPU that it stands beside runs on the NPU."
#: Where no row fits.
OTHERS = "Write it with operators that `ethorch ops` lists."


def instead_of(name: str) -> str:
    """What to write instead of the operator ``name``, as ``aten.sort.default``."""
    namespace, _, rest = name.partition(".")
    if namespace == "quantized_decomposed":
        return BETWEEN
    if namespace not in ("aten", "prims"):
        return CUSTOM
    base = rest.split(".")[0].removesuffix("_copy")
    return next((text for pattern, text in REPLACEMENTS if re.fullmatch(pattern, base)), OTHERS)
