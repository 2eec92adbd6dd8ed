// Common code of the cortex_m kernels: read the arguments of a call, and iterate over strided tensors.

#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>

namespace ethorch {

using executorch::aten::ScalarType;
using executorch::runtime::EValue;

// Raised for a call with unsupported arguments. `kernel` reports the message and fails the call.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A strided tensor: sizes and strides of the logical dimensions, in elements.
struct View {
  ScalarType type;
  std::vector<int64_t> sizes, strides;
  void* data;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t size : sizes) {
      product *= size;
    }
    return product;
  }
  size_t rank() const {
    return sizes.size();
  }
  // Returns a view of the same memory with permuted dimensions.
  View permuted(std::initializer_list<int> order) const;
};

// The arguments of one call, read from left to right in the order of the operator's schema.
class Arguments {
 public:
  explicit Arguments(executorch::runtime::Span<EValue*> stack) : stack_(stack) {}

  View tensor();
  View tensor(ScalarType type); // throws Refused if the dtype is not `type`
  bool absent(); // reads the next argument and returns true if it is None
  int64_t integer();
  double real();
  bool boolean();
  bool next_is_boolean() const;
  std::vector<int64_t> integers();
  std::array<int64_t, 2> pair(); // returns [a, a] for the list [a]
  void skip();

 private:
  const EValue& next();
  executorch::runtime::Span<EValue*> stack_;
  size_t at_ = 0;
};

// Calls action(offsets) for each position in `shape`, with the element offset in each view. The views are broadcast to `shape`.
template <size_t N, typename Action>
void each(const std::vector<int64_t>& shape, const std::array<const View*, N>& views, Action action) {
  std::array<std::vector<int64_t>, N> steps;
  for (size_t v = 0; v < N; ++v) {
    const View& view = *views[v];
    if (view.rank() > shape.size()) {
      throw Refused("expected a tensor with at most as many dimensions as the output");
    }
    steps[v].assign(shape.size(), 0);
    for (size_t dim = 0; dim < view.rank(); ++dim) {
      const size_t to = dim + shape.size() - view.rank();
      if (view.sizes[dim] != shape[to] && view.sizes[dim] != 1) {
        throw Refused("expected a tensor that can be broadcast to the shape of the output");
      }
      steps[v][to] = view.sizes[dim] == 1 ? 0 : view.strides[dim];
    }
  }
  for (const int64_t size : shape) {
    if (size == 0) {
      return;
    }
  }
  std::vector<int64_t> index(shape.size(), 0);
  std::array<int64_t, N> at = {};
  while (true) {
    action(at);
    size_t dim = shape.size();
    while (true) {
      if (dim-- == 0) {
        return;
      }
      for (size_t v = 0; v < N; ++v) {
        at[v] += steps[v][dim];
      }
      if (++index[dim] < shape[dim]) {
        break;
      }
      for (size_t v = 0; v < N; ++v) {
        at[v] -= steps[v][dim] * shape[dim];
      }
      index[dim] = 0;
    }
  }
}

// Returns round(value * multiplier * 2^shift / 2^31) with the rounding of CMSIS-NN's arm_nn_requantize.
int32_t requantize(int64_t value, int64_t multiplier, int64_t shift);

// Clamps a value and converts it to int8.
inline int8_t clamped(int64_t value, int64_t low, int64_t high) {
  value = value < low ? low : value;
  return static_cast<int8_t>(value > high ? high : value);
}

// Reports why a kernel failed. ethorch.runtime raises a HostError with this message.
void refuse(executorch::runtime::KernelRuntimeContext& context, const char* why);

// An ExecuTorch kernel that calls a function `Body`, which reads the arguments and throws Refused.
template <void (*Body)(Arguments&)>
void kernel(executorch::runtime::KernelRuntimeContext& context, executorch::runtime::Span<EValue*> stack) {
  try {
    Arguments arguments(stack);
    Body(arguments);
  } catch (const std::exception& error) {
    refuse(context, error.what());
  }
}

// Image kernels, defined in cortex_m_images.cpp. If Nhwc, the logical shape of tensors is [N, H, W, C] instead of [N, C, H, W].
template <bool Nhwc>
void quantized_conv2d(Arguments& in);
template <bool Nhwc>
void quantized_depthwise_conv2d(Arguments& in);
template <bool Nhwc>
void quantized_transpose_conv2d(Arguments& in);
template <bool Nhwc>
void quantized_avg_pool2d(Arguments& in);
template <bool Nhwc>
void quantized_max_pool2d(Arguments& in);

} // namespace ethorch
