// The cortex_m image kernels: int8 convolutions and pooling. See cortex_m.cpp.

#include <algorithm>
#include <cmath>

#include "kernel.h"

namespace ethorch {
namespace {

// Returns a tensor as [N, C, H, W], for any memory layout.
View image(const View& tensor, bool nhwc) {
  return nhwc ? tensor.permuted({0, 3, 1, 2}) : tensor.permuted({0, 1, 2, 3});
}

int8_t* at(const View& x, int64_t n, int64_t c, int64_t h, int64_t w) {
  return x.as<int8_t>() + n * x.strides[0] + c * x.strides[1] + h * x.strides[2] + w * x.strides[3];
}

void demand(bool fits, const char* what) {
  if (!fits) {
    throw Refused(what);
  }
}

// Arguments that the three convolutions have in common.
struct Convolution {
  View x, weight, bias;
  bool has_bias;
  std::array<int64_t, 2> stride, padding, dilation;
  int64_t x_offset, out_offset, low, high;
  View multipliers, shifts, out;

  void read_input(Arguments& in, bool nhwc) {
    x = image(in.tensor(ScalarType::Char), nhwc);
    weight = in.tensor(ScalarType::Char);
    has_bias = !in.absent();
    bias = has_bias ? in.tensor(ScalarType::Int) : View{};
    stride = in.pair();
    padding = in.pair();
  }
  void read_output(Arguments& in, bool nhwc, int scratches) {
    x_offset = in.integer();
    out_offset = in.integer();
    multipliers = in.tensor(ScalarType::Int);
    shifts = in.tensor(ScalarType::Int);
    low = in.integer();
    high = in.integer();
    for (int i = 0; i < scratches; ++i) {
      in.skip();
    }
    out = image(in.tensor(ScalarType::Char), nhwc);
    const int64_t channels = out.sizes[1];
    demand(weight.rank() == 4, "convolution: expected weights with four dimensions");
    demand(multipliers.numel() >= channels && shifts.numel() >= channels, "convolution: expected a multiplier and a shift for each channel");
    demand(!has_bias || bias.numel() == channels, "convolution: expected a bias value for each channel");
    demand(stride[0] > 0 && stride[1] > 0 && dilation[0] > 0 && dilation[1] > 0, "convolution: expected a positive stride and dilation");
    demand(x.sizes[0] == out.sizes[0], "convolution: expected an output with the batch size of the input");
  }
  int64_t start(int64_t o) const {
    return has_bias ? bias.as<int32_t>()[o] : 0;
  }
  void put(int64_t n, int64_t o, int64_t h, int64_t w, int64_t sum) const {
    const int64_t result = requantize(static_cast<int32_t>(sum), multipliers.as<int32_t>()[o], shifts.as<int32_t>()[o]);
    *at(out, n, o, h, w) = clamped(result + out_offset, low, high);
  }
};

// `kernel` contains the weights as [O, I / groups, H, W].
void convolve(const Convolution& c, const View& kernel, int64_t groups) {
  const View &x = c.x, &out = c.out;
  const int64_t inner = kernel.sizes[1], outer = kernel.sizes[0];
  demand(groups > 0 && inner * groups == x.sizes[1] && outer % groups == 0, "convolution: weights do not match the input");
  for (int dim = 0; dim < 2; ++dim) {
    const int64_t size = x.sizes[2 + dim] + 2 * c.padding[dim] - c.dilation[dim] * (kernel.sizes[2 + dim] - 1) - 1;
    demand(size >= 0 && size / c.stride[dim] + 1 == out.sizes[2 + dim], "convolution: unexpected output shape");
  }
  demand(out.sizes[1] == outer, "convolution: unexpected number of output channels");
  for (int64_t n = 0; n < out.sizes[0]; ++n) {
    for (int64_t h = 0; h < out.sizes[2]; ++h) {
      for (int64_t w = 0; w < out.sizes[3]; ++w) {
        for (int64_t o = 0; o < outer; ++o) {
          const int64_t first = o / (outer / groups) * inner;
          int64_t sum = c.start(o);
          for (int64_t kh = 0; kh < kernel.sizes[2]; ++kh) {
            const int64_t ih = h * c.stride[0] - c.padding[0] + kh * c.dilation[0];
            if (ih < 0 || ih >= x.sizes[2]) {
              continue;
            }
            for (int64_t kw = 0; kw < kernel.sizes[3]; ++kw) {
              const int64_t iw = w * c.stride[1] - c.padding[1] + kw * c.dilation[1];
              if (iw < 0 || iw >= x.sizes[3]) {
                continue;
              }
              const int8_t *value = at(x, n, first, ih, iw), *factor = at(kernel, o, 0, kh, kw);
              for (int64_t i = 0; i < inner; ++i) {
                sum += (value[i * x.strides[1]] + c.x_offset) * factor[i * kernel.strides[1]];
              }
            }
          }
          c.put(n, o, h, w, sum);
        }
      }
    }
  }
}

struct Pooling {
  View x, out;
  std::array<int64_t, 2> kernel, stride, padding;

  void read(Arguments& in, bool nhwc) {
    x = image(in.tensor(ScalarType::Char), nhwc);
    kernel = in.pair();
    stride = in.pair();
    padding = in.pair();
  }
  void read_output(Arguments& in, bool nhwc) {
    out = image(in.tensor(ScalarType::Char), nhwc);
    demand(kernel[0] > 0 && kernel[1] > 0 && stride[0] > 0 && stride[1] > 0, "pooling: expected a positive kernel size and stride");
    demand(x.sizes[0] == out.sizes[0] && x.sizes[1] == out.sizes[1], "pooling: unexpected output shape");
    for (int dim = 0; dim < 2; ++dim) { // with ceil_mode, the output is one larger if the last window is partly outside
      const int64_t room = x.sizes[2 + dim] + 2 * padding[dim] - kernel[dim];
      const int64_t floor = room / stride[dim] + 1, ceil = (room + stride[dim] - 1) / stride[dim] + 1;
      demand(room >= 0 && (out.sizes[2 + dim] == floor || out.sizes[2 + dim] == ceil), "pooling: unexpected output shape");
    }
  }
  // Calls action(value) for each integer value in the window of one output, and returns the number of values.
  template <typename Action>
  int64_t window(int64_t n, int64_t c, int64_t h, int64_t w, Action action) const {
    const int64_t top = h * stride[0] - padding[0], left = w * stride[1] - padding[1];
    const int64_t bottom = std::min(top + kernel[0], x.sizes[2]), right = std::min(left + kernel[1], x.sizes[3]);
    int64_t count = 0;
    for (int64_t ih = std::max<int64_t>(top, 0); ih < bottom; ++ih) {
      for (int64_t iw = std::max<int64_t>(left, 0); iw < right; ++iw) {
        action(*at(x, n, c, ih, iw));
        ++count;
      }
    }
    return count;
  }
  template <typename Action>
  void each_output(Action action) const {
    for (int64_t n = 0; n < out.sizes[0]; ++n) {
      for (int64_t c = 0; c < out.sizes[1]; ++c) {
        for (int64_t h = 0; h < out.sizes[2]; ++h) {
          for (int64_t w = 0; w < out.sizes[3]; ++w) {
            action(n, c, h, w);
          }
        }
      }
    }
  }
};

} // namespace

// Weights are int8[O, H, W, I / groups].
template <bool Nhwc>
void quantized_conv2d(Arguments& in) {
  Convolution c;
  c.read_input(in, Nhwc);
  c.dilation = in.pair();
  c.read_output(in, Nhwc, 1);
  const View kernel = c.weight.permuted({0, 3, 1, 2});
  demand(kernel.sizes[1] > 0, "convolution: expected weights with at least one channel");
  convolve(c, kernel, c.x.sizes[1] / kernel.sizes[1]);
}

// Weights are int8[1, H, W, O]; output channel o reads input channel o / (O / I).
template <bool Nhwc>
void quantized_depthwise_conv2d(Arguments& in) {
  Convolution c;
  c.read_input(in, Nhwc);
  c.dilation = in.pair();
  in.skip(); // the depth multiplier, O / I
  c.read_output(in, Nhwc, 1);
  convolve(c, c.weight.permuted({3, 0, 1, 2}), c.x.sizes[1]);
}

// Weights are int8[O, H, W, I]: each input value is added to the outputs that its kernel covers.
template <bool Nhwc>
void quantized_transpose_conv2d(Arguments& in) {
  Convolution c;
  c.read_input(in, Nhwc);
  const auto output_padding = in.pair();
  c.dilation = in.pair();
  c.read_output(in, Nhwc, 2);
  const View kernel = c.weight.permuted({0, 3, 1, 2});
  const View &x = c.x, &out = c.out;
  demand(kernel.sizes[1] == x.sizes[1] && kernel.sizes[0] == out.sizes[1], "convolution: weights do not match the input");
  for (int dim = 0; dim < 2; ++dim) {
    const int64_t size = (x.sizes[2 + dim] - 1) * c.stride[dim] - 2 * c.padding[dim] +
        c.dilation[dim] * (kernel.sizes[2 + dim] - 1) + output_padding[dim] + 1;
    demand(size == out.sizes[2 + dim], "convolution: unexpected output shape");
  }
  for (int64_t n = 0; n < out.sizes[0]; ++n) {
    for (int64_t h = 0; h < out.sizes[2]; ++h) {
      for (int64_t w = 0; w < out.sizes[3]; ++w) {
        for (int64_t o = 0; o < out.sizes[1]; ++o) {
          int64_t sum = c.start(o);
          for (int64_t kh = 0; kh < kernel.sizes[2]; ++kh) {
            const int64_t up = h + c.padding[0] - kh * c.dilation[0];
            if (up < 0 || up % c.stride[0] != 0 || up / c.stride[0] >= x.sizes[2]) {
              continue;
            }
            for (int64_t kw = 0; kw < kernel.sizes[3]; ++kw) {
              const int64_t left = w + c.padding[1] - kw * c.dilation[1];
              if (left < 0 || left % c.stride[1] != 0 || left / c.stride[1] >= x.sizes[3]) {
                continue;
              }
              for (int64_t i = 0; i < x.sizes[1]; ++i) {
                sum += (*at(x, n, i, up / c.stride[0], left / c.stride[1]) + c.x_offset) * *at(kernel, o, i, kh, kw);
              }
            }
          }
          c.put(n, o, h, w, sum);
        }
      }
    }
  }
}

// Computes the mean of the values inside the image. Like the definition, dequantizes and quantizes in float32.
template <bool Nhwc>
void quantized_avg_pool2d(Arguments& in) {
  Pooling pool;
  pool.read(in, Nhwc);
  if (in.next_is_boolean()) { // ceil_mode, which ExecuTorch 1.4 does not have; ignored, because the output shape is known
    in.skip();
  }
  const auto zero_point = static_cast<float>(in.integer());
  const auto multiplier = static_cast<double>(in.integer());
  const auto scale = static_cast<float>(std::ldexp(multiplier, static_cast<int>(in.integer()) - 31));
  in.skip(); // scratch
  pool.read_output(in, Nhwc);
  pool.each_output([&](int64_t n, int64_t c, int64_t h, int64_t w) {
    float sum = 0;
    const int64_t count =
        pool.window(n, c, h, w, [&](int8_t code) { sum += (static_cast<float>(code) - zero_point) * scale; });
    const float mean = count == 0 ? 0.0F : sum / static_cast<float>(count);
    const float code = std::nearbyint(mean / scale) + zero_point;
    *at(pool.out, n, c, h, w) = static_cast<int8_t>(code < -128 ? -128 : code > 127 ? 127 : code);
  });
}

template <bool Nhwc>
void quantized_max_pool2d(Arguments& in) {
  Pooling pool;
  pool.read(in, Nhwc);
  const auto dilation = in.pair();
  const bool ceil_mode = in.boolean();
  const int64_t zero_in = in.integer(), zero_out = in.integer(), low = in.integer(), high = in.integer();
  demand(dilation[0] == 1 && dilation[1] == 1 && !ceil_mode, "quantized_max_pool2d does not support dilation or ceil_mode");
  demand(zero_in == zero_out, "quantized_max_pool2d: expected equal zero points of input and output");
  pool.read_output(in, Nhwc);
  pool.each_output([&](int64_t n, int64_t c, int64_t h, int64_t w) {
    int64_t greatest = -128;
    pool.window(n, c, h, w, [&](int8_t code) { greatest = std::max<int64_t>(greatest, code); });
    *at(pool.out, n, c, h, w) = clamped(greatest, low, high);
  });
}

template void quantized_conv2d<false>(Arguments&);
template void quantized_conv2d<true>(Arguments&);
template void quantized_depthwise_conv2d<false>(Arguments&);
template void quantized_depthwise_conv2d<true>(Arguments&);
template void quantized_transpose_conv2d<false>(Arguments&);
template void quantized_transpose_conv2d<true>(Arguments&);
template void quantized_avg_pool2d<false>(Arguments&);
template void quantized_avg_pool2d<true>(Arguments&);
template void quantized_max_pool2d<false>(Arguments&);
template void quantized_max_pool2d<true>(Arguments&);

} // namespace ethorch
