// CPU kernels for the cortex_m operators that ExecuTorch's Arm backend writes to a .pte, and their registration.
//
// On a Cortex-M, CMSIS-NN implements these operators. The kernels in this file compute the Python definitions in
// executorch.backends.cortex_m, and tests check that the results are bit-exact. Products are summed in integers. If a definition
// sums floats, results are equal as long as the float sums are exact, i.e. up to 2^24.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "driver.h"
#include "kernel.h"

namespace ethorch {

using executorch::runtime::Error;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

// reading arguments --------------------------------------------------------------------------------------------------------

View View::permuted(std::initializer_list<int> order) const {
  if (order.size() != rank()) {
    throw Refused("expected a tensor with 4 dimensions");
  }
  View view{type, {}, {}, data};
  for (const int dim : order) {
    view.sizes.push_back(sizes[dim]);
    view.strides.push_back(strides[dim]);
  }
  return view;
}

const EValue& Arguments::next() {
  if (at_ >= stack_.size()) {
    throw Refused("expected more arguments");
  }
  return *stack_[at_++];
}

View Arguments::tensor() {
  const EValue& value = next();
  if (!value.isTensor()) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected a tensor");
  }
  const auto& tensor = value.payload.as_tensor;
  View view{tensor.scalar_type(), {}, {}, tensor.mutable_data_ptr()};
  for (ssize_t dim = 0; dim < tensor.dim(); ++dim) {
    view.sizes.push_back(tensor.sizes()[dim]);
    view.strides.push_back(tensor.strides()[dim]);
  }
  if (view.data == nullptr && view.numel() != 0) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected a tensor with memory");
  }
  return view;
}

View Arguments::tensor(ScalarType type) {
  View view = tensor();
  if (view.type != type) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": unexpected dtype");
  }
  return view;
}

bool Arguments::absent() {
  if (at_ < stack_.size() && stack_[at_]->isNone()) {
    ++at_;
    return true;
  }
  return false;
}

int64_t Arguments::integer() {
  const EValue& value = next();
  if (!value.isInt()) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected an integer");
  }
  return value.payload.copyable_union.as_int;
}

double Arguments::real() {
  const EValue& value = next();
  if (!value.isDouble() && !value.isInt()) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected a number");
  }
  return value.isInt() ? static_cast<double>(value.payload.copyable_union.as_int) : value.payload.copyable_union.as_double;
}

bool Arguments::boolean() {
  const EValue& value = next();
  if (!value.isBool()) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected a bool");
  }
  return value.payload.copyable_union.as_bool;
}

bool Arguments::next_is_boolean() const {
  return at_ < stack_.size() && stack_[at_]->isBool();
}

std::vector<int64_t> Arguments::integers() {
  const EValue& value = next();
  if (!value.isIntList()) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected a list of integers");
  }
  const auto list = value.toIntList();
  return {list.begin(), list.end()};
}

std::array<int64_t, 2> Arguments::pair() {
  const auto list = integers();
  if (list.size() != 1 && list.size() != 2) {
    throw Refused("argument " + std::to_string(at_ - 1) + ": expected a list of one or two integers");
  }
  return {list.front(), list.back()};
}

void Arguments::skip() {
  next();
}

void refuse(KernelRuntimeContext& context, const char* why) {
  driver_report((std::string("cortex_m kernel: ") + why).c_str());
  context.fail(Error::InvalidArgument);
}

// arithmetic ---------------------------------------------------------------------------------------------------------------

int32_t requantize(int64_t value, int64_t multiplier, int64_t shift) {
  if (shift > 31 || shift < -62) {
    throw Refused("expected a shift from -62 to 31");
  }
  // Use unsigned arithmetic, because signed overflow is undefined.
  const auto shifted = static_cast<uint64_t>(value) << (shift > 0 ? shift : 0);
  int64_t result = static_cast<int64_t>(shifted * static_cast<uint64_t>(multiplier) + (uint64_t(1) << 30)) >> 31;
  if (shift < 0) {
    const int64_t mask = (int64_t(1) << -shift) - 1;
    const int64_t rest = result & mask;
    result >>= -shift;
    result += rest > (mask >> 1) + (result < 0) ? 1 : 0;
  }
  return static_cast<int32_t>(result);
}

namespace {

float rounded(float value) {
  return std::nearbyint(value); // rounds halves to even in the default rounding mode
}

template <typename T>
void store(void* data, int64_t at, float value) {
  static_cast<T*>(data)[at] = std::isnan(value) ? T(0) : static_cast<T>(static_cast<int64_t>(value));
}

// q = clamp(round(x * (1 / scale)) + zero_point), in float32
void quantize_per_tensor(Arguments& in) {
  const View x = in.tensor(ScalarType::Float);
  const float inverse = static_cast<float>(1.0 / in.real());
  const auto zero_point = static_cast<float>(in.integer());
  const auto low = static_cast<float>(in.integer()), high = static_cast<float>(in.integer());
  in.skip(); // the dtype, which is equal to the output's dtype
  const View out = in.tensor();
  void (*put)(void*, int64_t, float) = nullptr;
  switch (out.type) {
    case ScalarType::Char:
      put = store<int8_t>;
      break;
    case ScalarType::Byte:
      put = store<uint8_t>;
      break;
    case ScalarType::Short:
      put = store<int16_t>;
      break;
    case ScalarType::UInt16:
      put = store<uint16_t>;
      break;
    case ScalarType::Int:
      put = store<int32_t>;
      break;
    default:
      throw Refused("quantize_per_tensor: expected an output of integers with at most 32 bits");
  }
  each<2>(out.sizes, {&x, &out}, [&](const auto& at) {
    float value = rounded(x.as<float>()[at[0]] * inverse) + zero_point;
    value = value < low ? low : value > high ? high : value;
    put(out.data, at[1], value);
  });
}

template <typename T>
float load(const void* data, int64_t at) {
  return static_cast<float>(static_cast<const T*>(data)[at]);
}

// x = (q - zero_point) * scale, in float32
void dequantize_per_tensor(Arguments& in) {
  const View q = in.tensor();
  const auto scale = static_cast<float>(in.real());
  const auto zero_point = static_cast<float>(in.integer());
  in.skip(), in.skip(), in.skip();
  const View out = in.tensor(ScalarType::Float);
  float (*get)(const void*, int64_t) = nullptr;
  switch (q.type) {
    case ScalarType::Char:
      get = load<int8_t>;
      break;
    case ScalarType::Byte:
      get = load<uint8_t>;
      break;
    case ScalarType::Short:
      get = load<int16_t>;
      break;
    case ScalarType::UInt16:
      get = load<uint16_t>;
      break;
    case ScalarType::Int:
      get = load<int32_t>;
      break;
    default:
      throw Refused("dequantize_per_tensor: expected an input of integers with at most 32 bits");
  }
  each<2>(out.sizes, {&q, &out}, [&](const auto& at) { out.as<float>()[at[1]] = (get(q.data, at[0]) - zero_point) * scale; });
}

struct Rescale {
  int64_t zero_point, multiplier, shift;
};

Rescale rescale(Arguments& in) {
  const int64_t zero_point = in.integer(), multiplier = in.integer();
  return {zero_point, multiplier, in.integer()};
}

// Rescales both operands to a common scale with 20 additional bits, adds them, and rescales the sum to the output's scale.
void quantized_add(Arguments& in) {
  const View x = in.tensor(ScalarType::Char);
  const Rescale of_x = rescale(in);
  const View y = in.tensor(ScalarType::Char);
  const Rescale of_y = rescale(in), of_out = rescale(in);
  const int64_t low = in.integer(), high = in.integer();
  const View out = in.tensor(ScalarType::Char);
  each<3>(out.sizes, {&x, &y, &out}, [&](const auto& at) {
    const auto a = static_cast<int32_t>((x.as<int8_t>()[at[0]] - of_x.zero_point) * (1 << 20));
    const auto b = static_cast<int32_t>((y.as<int8_t>()[at[1]] - of_y.zero_point) * (1 << 20));
    const int64_t sum = int64_t(requantize(a, of_x.multiplier, of_x.shift)) + requantize(b, of_y.multiplier, of_y.shift);
    const int64_t result = requantize(static_cast<int32_t>(sum), of_out.multiplier, of_out.shift);
    out.as<int8_t>()[at[2]] = clamped(result + of_out.zero_point, low, high);
  });
}

void quantized_mul(Arguments& in) {
  const View x = in.tensor(ScalarType::Char);
  const int64_t zero_x = in.integer();
  const View y = in.tensor(ScalarType::Char);
  const int64_t zero_y = in.integer();
  const Rescale of_out = rescale(in);
  const View out = in.tensor(ScalarType::Char);
  each<3>(out.sizes, {&x, &y, &out}, [&](const auto& at) {
    const int64_t product = (x.as<int8_t>()[at[0]] - zero_x) * (y.as<int8_t>()[at[1]] - zero_y);
    out.as<int8_t>()[at[2]] = clamped(requantize(product, of_out.multiplier, of_out.shift) + of_out.zero_point, -128, 127);
  });
}

template <typename T>
void divide(const View& x, int64_t zero_x, const View& y, int64_t zero_y, int64_t zero_out, float scale, const View& out) {
  const float low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  each<3>(out.sizes, {&x, &y, &out}, [&](const auto& at) {
    const auto a = static_cast<float>(x.as<T>()[at[0]] - zero_x), b = static_cast<float>(y.as<T>()[at[1]] - zero_y);
    const float quotient = b != 0 ? a / b : 0.0F;
    const float result = rounded(quotient * scale) + static_cast<float>(zero_out);
    out.as<T>()[at[2]] = static_cast<T>(result < low ? low : result > high ? high : result);
  });
}

// int8 or int16; x / 0 is 0.
void quantized_div(Arguments& in) {
  const View x = in.tensor();
  const int64_t zero_x = in.integer();
  const View y = in.tensor(x.type);
  const int64_t zero_y = in.integer(), zero_out = in.integer();
  const auto scale = static_cast<float>(in.real());
  const View out = in.tensor(x.type);
  if (x.type == ScalarType::Char) {
    divide<int8_t>(x, zero_x, y, zero_y, zero_out, scale, out);
  } else if (x.type == ScalarType::Short) {
    divide<int16_t>(x, zero_x, y, zero_y, zero_out, scale, out);
  } else {
    throw Refused("quantized_div: expected int8 or int16");
  }
}

// Looks up values in a table with 256 entries. The first entry is for the value -128.
void quantized_activation(Arguments& in) {
  const View x = in.tensor(ScalarType::Char), table = in.tensor(ScalarType::Char), out = in.tensor(ScalarType::Char);
  if (table.numel() != 256) {
    throw Refused("quantized_activation: expected a table with 256 entries");
  }
  each<2>(out.sizes, {&x, &out}, [&](const auto& at) {
    out.as<int8_t>()[at[1]] = table.as<int8_t>()[x.as<int8_t>()[at[0]] + 128];
  });
}

template <typename T, bool Least>
void extreme_of(const View& x, const View& y, const View& out) {
  each<3>(out.sizes, {&x, &y, &out}, [&](const auto& at) {
    const T a = x.as<T>()[at[0]], b = y.as<T>()[at[1]];
    out.as<T>()[at[2]] = a != a || b != b ? a + b : Least ? (b < a ? b : a) : (b > a ? b : a); // NaN stays NaN
  });
}

// The elementwise minimum or maximum of two tensors with the same dtype.
template <bool Least>
void extreme(Arguments& in) {
  const View x = in.tensor();
  View y = in.tensor(x.type);
  const View out = in.tensor(x.type);
  if (y.numel() == 1) { // a tensor with one element and any number of dimensions
    y.sizes.clear(), y.strides.clear();
  }
  switch (x.type) {
    case ScalarType::Char:
      return extreme_of<int8_t, Least>(x, y, out);
    case ScalarType::Byte:
      return extreme_of<uint8_t, Least>(x, y, out);
    case ScalarType::Short:
      return extreme_of<int16_t, Least>(x, y, out);
    case ScalarType::Int:
      return extreme_of<int32_t, Least>(x, y, out);
    case ScalarType::Long:
      return extreme_of<int64_t, Least>(x, y, out);
    case ScalarType::Float:
      return extreme_of<float, Least>(x, y, out);
    default:
      throw Refused("minimum and maximum: expected integers or float32");
  }
}

// products -----------------------------------------------------------------------------------------------------------------

// If there is a kernel sum, which includes bias and input offset, the input is multiplied directly. Otherwise, offsets are added
// first.
void quantized_linear(Arguments& in) {
  const View x = in.tensor(ScalarType::Char), weights = in.tensor(ScalarType::Char);
  const bool has_bias = !in.absent();
  const View bias = has_bias ? in.tensor(ScalarType::Int) : View{};
  const bool has_sum = !in.absent();
  const View sum = has_sum ? in.tensor(ScalarType::Int) : View{};
  const int64_t x_offset = in.integer(), weight_offset = in.integer(), out_offset = in.integer();
  const auto multipliers = in.integers(), shifts = in.integers();
  const int64_t high = in.integer(), low = in.integer(); // the maximum is before the minimum in this schema
  const View out = in.tensor(ScalarType::Char);
  if (x.rank() == 0 || out.rank() != x.rank() || weights.rank() != 2 || weights.sizes[1] != x.sizes.back() ||
      out.sizes.back() != weights.sizes[0] || multipliers.empty() || shifts.empty() ||
      (has_bias && bias.numel() != weights.sizes[0]) || (has_sum && sum.numel() != weights.sizes[0])) {
    throw Refused("quantized_linear: the shapes of the tensors do not match");
  }
  View rows = x, results = out; // the last dimension is iterated separately
  const int64_t x_step = x.strides.back(), out_step = out.strides.back(), features = x.sizes.back();
  rows.sizes.back() = results.sizes.back() = 1;
  each<2>(results.sizes, {&rows, &results}, [&](const auto& at) {
    for (int64_t o = 0; o < weights.sizes[0]; ++o) {
      const int8_t* row = weights.as<int8_t>() + o * weights.strides[0];
      int64_t product = 0, inputs = 0;
      for (int64_t i = 0; i < features; ++i) {
        const int64_t value = x.as<int8_t>()[at[0] + i * x_step];
        inputs += value;
        product += has_sum ? value * row[i * weights.strides[1]] : (value + x_offset) * (row[i * weights.strides[1]] + weight_offset);
      }
      int64_t result = static_cast<int32_t>(product);
      if (has_sum) {
        result += inputs * weight_offset + sum.as<int32_t>()[o];
      } else if (has_bias) {
        result = static_cast<int32_t>(result + bias.as<int32_t>()[o]);
      }
      out.as<int8_t>()[at[1] + o * out_step] = clamped(requantize(result, multipliers[0], shifts[0]) + out_offset, low, high);
    }
  });
}

// Multiplies int8[B, M, K] by the transpose of int8[B, N, K]. The offsets that are added are negated zero points.
void quantized_batch_matmul(Arguments& in) {
  const View x = in.tensor(ScalarType::Char);
  const int64_t x_offset = in.integer();
  const View y = in.tensor(ScalarType::Char);
  const int64_t y_offset = in.integer();
  const Rescale of_out = rescale(in);
  in.skip(); // scratch
  const View out = in.tensor(ScalarType::Char);
  if (x.rank() != 3 || y.rank() != 3 || out.rank() != 3 || x.sizes[0] != y.sizes[0] || x.sizes[2] != y.sizes[2] ||
      out.sizes != std::vector<int64_t>{x.sizes[0], x.sizes[1], y.sizes[1]}) {
    throw Refused("quantized_batch_matmul: the shapes of the tensors do not match");
  }
  for (int64_t b = 0; b < out.sizes[0]; ++b) {
    for (int64_t m = 0; m < out.sizes[1]; ++m) {
      for (int64_t n = 0; n < out.sizes[2]; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < x.sizes[2]; ++k) {
          sum += (x.as<int8_t>()[b * x.strides[0] + m * x.strides[1] + k * x.strides[2]] + x_offset) *
              (y.as<int8_t>()[b * y.strides[0] + n * y.strides[1] + k * y.strides[2]] + y_offset);
        }
        const int64_t result = requantize(static_cast<int32_t>(sum), of_out.multiplier, of_out.shift);
        out.as<int8_t>()[b * out.strides[0] + m * out.strides[1] + n * out.strides[2]] =
            clamped(result + of_out.zero_point, -128, 127);
      }
    }
  }
}

// Computes in floats, like the definition. CMSIS-NN computes in integers, so that results can differ by 1.
void softmax(Arguments& in) {
  const View x = in.tensor(ScalarType::Char);
  int64_t dim = in.integer();
  const int64_t zero_x = in.integer(), zero_out = in.integer(), multiplier = in.integer(), shift = in.integer();
  in.skip(); // diff_min, which only CMSIS-NN uses
  const View out = in.tensor(ScalarType::Char);
  dim += dim < 0 ? static_cast<int64_t>(x.rank()) : 0;
  if (dim < 0 || dim >= static_cast<int64_t>(x.rank()) || out.sizes != x.sizes) {
    throw Refused("softmax: expected a dimension of the tensor, and an output with the shape of the input");
  }
  const auto scale = static_cast<float>(std::ldexp(static_cast<double>(multiplier) / 2147483648.0, static_cast<int>(shift)) / (1 << 26));
  if (!(scale > 0) || zero_out != -128) {
    throw Refused("softmax: expected a positive scale, and -128 as the output's zero point");
  }
  View rows = x, results = out;
  rows.sizes[dim] = results.sizes[dim] = 1;
  const int64_t size = x.sizes[dim], x_step = x.strides[dim], out_step = out.strides[dim];
  std::vector<double> powers(size);
  each<2>(results.sizes, {&rows, &results}, [&](const auto& at) {
    float greatest = -std::numeric_limits<float>::infinity();
    const auto real = [&](int64_t i) { return static_cast<float>(x.as<int8_t>()[at[0] + i * x_step] - zero_x) * scale; };
    for (int64_t i = 0; i < size; ++i) {
      greatest = std::max(greatest, real(i));
    }
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += powers[i] = std::exp(static_cast<double>(real(i) - greatest));
    }
    for (int64_t i = 0; i < size; ++i) {
      const float probability = static_cast<float>(powers[i] / sum);
      out.as<int8_t>()[at[1] + i * out_step] = clamped(static_cast<int64_t>(rounded(probability * 256)) + zero_out, -128, 127);
    }
  });
}

// moves --------------------------------------------------------------------------------------------------------------------

// Copies element by element, for any dtype.
void copy(const View& from, const View& to) {
  const size_t bytes = executorch::runtime::elementSize(from.type);
  each<2>(to.sizes, {&from, &to}, [&](const auto& at) {
    std::memcpy(to.as<char>() + at[1] * bytes, from.as<char>() + at[0] * bytes, bytes);
  });
}

void transpose(Arguments& in) {
  const View x = in.tensor();
  const auto order = in.integers();
  const View out = in.tensor(x.type);
  View moved{x.type, {}, {}, x.data};
  for (const int64_t dim : order) {
    if (dim < 0 || dim >= static_cast<int64_t>(x.rank())) {
      throw Refused("transpose: expected dimensions of the tensor");
    }
    moved.sizes.push_back(x.sizes[dim]);
    moved.strides.push_back(x.strides[dim]);
  }
  if (moved.sizes != out.sizes) {
    throw Refused("transpose: expected an output with the permuted shape of the input");
  }
  copy(moved, out);
}

// Returns true if the memory layout is [N, H, W, C]. If both layouts are possible, the pass that creates the operator assumes
// [N, H, W, C].
bool channels_last(const View& x) {
  if (x.rank() != 4) {
    return false;
  }
  return x.sizes[1] == 1 || (x.sizes[2] == 1 && x.sizes[3] == 1) || (x.strides[1] < x.strides[2] && x.strides[1] < x.strides[3]);
}

// Pads a tensor. The padding has four entries, in the memory order of the dimensions.
void pad(Arguments& in) {
  const View x = in.tensor(ScalarType::Char);
  auto before = in.integers(), after = in.integers();
  const auto value = static_cast<int8_t>(in.integer());
  const View out = in.tensor(ScalarType::Char);
  if (x.rank() > 4 || out.rank() != x.rank() || before.size() != 4 || after.size() != 4) {
    throw Refused("pad: expected a tensor with at most four dimensions, and four numbers");
  }
  if (channels_last(x)) {
    before = {before[0], before[3], before[1], before[2]};
    after = {after[0], after[3], after[1], after[2]};
  }
  View inner = out;
  int64_t start = 0;
  for (size_t dim = 0; dim < x.rank(); ++dim) {
    const int64_t first = before[dim + 4 - x.rank()], last = after[dim + 4 - x.rank()];
    if (first < 0 || last < 0 || x.sizes[dim] + first + last != out.sizes[dim]) {
      throw Refused("pad: expected an output with the padded shape of the input");
    }
    inner.sizes[dim] = x.sizes[dim];
    start += first * out.strides[dim];
  }
  inner.data = out.as<int8_t>() + start;
  each<1>(out.sizes, {&out}, [&](const auto& at) { out.as<int8_t>()[at[0]] = value; });
  copy(x, inner);
}

const Kernel KERNELS[] = {
    Kernel("cortex_m::quantize_per_tensor.out", kernel<quantize_per_tensor>),
    Kernel("cortex_m::dequantize_per_tensor.out", kernel<dequantize_per_tensor>),
    Kernel("cortex_m::quantized_add.out", kernel<quantized_add>),
    Kernel("cortex_m::quantized_mul.out", kernel<quantized_mul>),
    Kernel("cortex_m::quantized_div.out", kernel<quantized_div>),
    Kernel("cortex_m::quantized_activation.out", kernel<quantized_activation>),
    Kernel("cortex_m::minimum.out", kernel<extreme<true>>),
    Kernel("cortex_m::maximum.out", kernel<extreme<false>>),
    Kernel("cortex_m::quantized_linear.out", kernel<quantized_linear>),
    Kernel("cortex_m::quantized_batch_matmul.out", kernel<quantized_batch_matmul>),
    Kernel("cortex_m::softmax.out", kernel<softmax>),
    Kernel("cortex_m::transpose.out", kernel<transpose>),
    Kernel("cortex_m::pad.out", kernel<pad>),
    Kernel("cortex_m::quantized_conv2d.out", kernel<quantized_conv2d<false>>),
    Kernel("cortex_m::quantized_conv2d_nhwc.out", kernel<quantized_conv2d<true>>),
    Kernel("cortex_m::quantized_depthwise_conv2d.out", kernel<quantized_depthwise_conv2d<false>>),
    Kernel("cortex_m::quantized_depthwise_conv2d_nhwc.out", kernel<quantized_depthwise_conv2d<true>>),
    Kernel("cortex_m::quantized_transpose_conv2d.out", kernel<quantized_transpose_conv2d<false>>),
    Kernel("cortex_m::quantized_transpose_conv2d_nhwc.out", kernel<quantized_transpose_conv2d<true>>),
    Kernel("cortex_m::quantized_avg_pool2d.out", kernel<quantized_avg_pool2d<false>>),
    Kernel("cortex_m::quantized_avg_pool2d_nhwc.out", kernel<quantized_avg_pool2d<true>>),
    Kernel("cortex_m::quantized_max_pool2d.out", kernel<quantized_max_pool2d<false>>),
    Kernel("cortex_m::quantized_max_pool2d_nhwc.out", kernel<quantized_max_pool2d<true>>),
};

} // namespace
} // namespace ethorch

extern "C" {

// Registers with one copy of ExecuTorch's core all kernels whose names are not yet registered, and returns their number.
__attribute__((visibility("default"))) uint32_t ethorch_register_kernels(void* registered, void* register_kernels) {
  using executorch::runtime::Kernel;
  using executorch::runtime::Span;
  const auto known = reinterpret_cast<Span<const Kernel> (*)()>(registered)();
  uint32_t added = 0;
  for (const Kernel& kernel : ethorch::KERNELS) {
    bool there = false;
    for (const Kernel& other : known) {
      there = there || std::strcmp(other.name_, kernel.name_) == 0;
    }
    if (!there) {
      using Register = executorch::runtime::Error (*)(const Span<const Kernel>);
      added += reinterpret_cast<Register>(register_kernels)({&kernel, 1}) == executorch::runtime::Error::Ok;
    }
  }
  return added;
}
}
