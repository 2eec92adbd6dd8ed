// Corrects the quantization of numbers that exceed the range of int64. ExecuTorch's kernel converts x / scale to int64 before
// clamping. On Arm, the conversion saturates, as in PyTorch. On x86-64, the conversion returns INT64_MIN, so that +inf is quantized
// to the lowest integer value.

#include "kernel.h"

#include <cmath>
#include <cstring>

namespace ethorch {
namespace {

using executorch::runtime::Error;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::OpFunction;
using executorch::runtime::Span;

enum class Form { PER_TENSOR, OF_TENSORS, PER_CHANNEL };

struct Patched {
  const char* name;
  OpFunction function;
  OpFunction original;
};
extern Patched PATCHED[3];

// Corrects each element that the kernel converts incorrectly. Values too large for int64 become `high`, values too small become
// `low`, and NaN becomes 0.
template <typename T>
void saturate(const View& x, const View& scale, const View& out, int64_t low, int64_t high) {
  const float limit = 4611686018427387904.0F; // 2^62
  each<3>(out.sizes, {&x, &scale, &out}, [&](const auto& at) {
    const float scaled = x.as<float>()[at[0]] * (1.0F / static_cast<float>(scale.as<double>()[at[1]]));
    if (!(scaled > -limit && scaled < limit)) {
      out.as<T>()[at[2]] = std::isnan(scaled) ? T(0) : static_cast<T>(scaled > 0 ? high : low);
    }
  });
}

void saturate(Form form, Span<EValue*> stack) {
  Arguments in(stack);
  const View x = in.tensor();
  double number = 0;
  View scale = {ScalarType::Double, {}, {}, &number};
  if (form == Form::PER_TENSOR) {
    number = in.real();
  } else {
    scale = in.tensor();
  }
  in.skip(); // the zero point
  if (form == Form::PER_CHANNEL) {
    const int64_t axis = in.integer();
    std::vector<int64_t> sizes(x.rank(), 1), strides(x.rank(), 0);
    const auto at = static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(x.rank()) : axis);
    sizes.at(at) = x.sizes.at(at), strides.at(at) = 1;
    scale.sizes = sizes, scale.strides = strides;
  } else {
    scale.sizes.clear(), scale.strides.clear();
  }
  const int64_t low = in.integer(), high = in.integer();
  in.skip(); // the dtype, which is equal to the output's dtype
  const View out = in.tensor();
  if (x.type != ScalarType::Float || scale.type != ScalarType::Double) {
    return;
  }
  switch (out.type) {
    case ScalarType::Char:
      return saturate<int8_t>(x, scale, out, low, high);
    case ScalarType::Byte:
      return saturate<uint8_t>(x, scale, out, low, high);
    case ScalarType::Short:
      return saturate<int16_t>(x, scale, out, low, high);
    case ScalarType::UInt16:
      return saturate<uint16_t>(x, scale, out, low, high);
    case ScalarType::Int:
      return saturate<int32_t>(x, scale, out, low, high);
    default:
      return;
  }
}

template <Form form>
void quantize(KernelRuntimeContext& context, Span<EValue*> stack) {
  PATCHED[static_cast<int>(form)].original(context, stack);
  if (context.failure_state() != Error::Ok) {
    return;
  }
  try {
    saturate(form, stack);
  } catch (const std::exception&) { // unexpected arguments: do not change the kernel's result
  }
}

Patched PATCHED[3] = {
    {"quantized_decomposed::quantize_per_tensor.out", quantize<Form::PER_TENSOR>, nullptr},
    {"quantized_decomposed::quantize_per_tensor.Tensor_out", quantize<Form::OF_TENSORS>, nullptr},
    {"quantized_decomposed::quantize_per_channel.out", quantize<Form::PER_CHANNEL>, nullptr},
};

} // namespace
} // namespace ethorch

extern "C" {

// Wraps the kernels that are registered in one copy of ExecuTorch's core with the functions above.
__attribute__((visibility("default"))) void ethorch_saturate_quantize(void* registered) {
  using executorch::runtime::Kernel;
  using executorch::runtime::Span;
  for (const Kernel& kernel : reinterpret_cast<Span<const Kernel> (*)()>(registered)()) {
    for (ethorch::Patched& patched : ethorch::PATCHED) {
      if (std::strcmp(kernel.name_, patched.name) == 0 && kernel.op_ != patched.function) {
        patched.original = kernel.op_;
        const_cast<Kernel&>(kernel).op_ = patched.function; // the table is not const memory, because it is filled at run time
      }
    }
  }
}
}
