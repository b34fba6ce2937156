// Compares the kernels of each instruction set of this CPU with plain loops: kernels CASES
// [SEED]. It ends with 1 where a result is wrong. Each array ends where memory does, so
// reading past one ends the process.

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <vector>

#include "resnet/native/instruction_sets.h"
#include "resnet/native/kernels.h"
#include "resnet/native/rounding.h"
#include "tests/native/random_cases.h"

using namespace resnet;

namespace {

double Wide(float value) { return value; }
double Wide(Bf16 value) { return WidenBfloat16(value.bits); }
void Set(double value, float* to) { *to = static_cast<float>(value); }
void Set(double value, Bf16* to) { to->bits = RoundToBfloat16(static_cast<float>(value)); }

// An array that is followed by a page without access.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size) : size_(size) {
    constexpr int64_t kPage = 1 << 16;
    const int64_t bytes = RoundUp(size * sizeof(T), kPage);
    void* memory = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(static_cast<char*>(memory) + bytes, kPage, PROT_NONE)) {
      std::abort();
    }
    std::memset(memory, 0xff, bytes);  // NaN, where nothing is written.
    memory_ = {static_cast<char*>(memory), [=](char* all) { munmap(all, bytes + kPage); }};
    data_ = reinterpret_cast<T*>(memory_.get() + bytes) - size;
  }
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  double operator[](int64_t i) const { return Wide(data_[i]); }

 private:
  int64_t size_;
  T* data_;
  std::shared_ptr<char> memory_;
};

// Normally distributed values that bfloat16 has, so that only results are rounded.
template <typename T>
Array<T> Random(int64_t size) {
  Array<T> array(size);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < size; ++i) {
    Set(WidenBfloat16(RoundToBfloat16(normal(generator))), array.data() + i);
  }
  return array;
}

// Several threads, whose tasks one thread runs from the last to the first.
struct Tasks : Context {
  int num_threads() const override { return threads; }
  void RunOnWorkers(int64_t count,
                    const std::function<void(int64_t, int64_t)>& task) const override {
    for (int64_t i = count; i > 0; --i) task(i - 1, (i - 1) % threads);
  }
  void* Allocate(size_t bytes) override {
    memory.emplace_back(RoundUp(bytes, 64));
    std::memset(memory.back().data(), 0xff, memory.back().size());
    return memory.back().data();
  }
  const int threads = Draw(1, 5);
  std::vector<Array<uint8_t>> memory;
};

// `scale` is the size of the terms whose rounding errors may add up.
template <typename T>
void ExpectNear(const Array<T>& results, const std::vector<double>& expected,
                const std::vector<double>& scale, double tolerance, const std::string& what) {
  for (int64_t i = 0; i < results.size(); ++i) {
    const double rounding = std::fabs(expected[i]) * (sizeof(T) == 2 ? 0x1p-8 : 0x1p-23);
    if (std::fabs(results[i] - expected[i]) <= tolerance * scale[i] + rounding) continue;
    std::cerr << now << ": " << what << " " << i << " is " << results[i] << ", expected "
              << expected[i] << std::endl;
    std::exit(1);
  }
}

template <typename T>
void Convolve(const Kernels<T>& kernels) {
  const bool may_be_winograd = OneIn(2);
  ConvShape s;
  s.kernel_size = may_be_winograd ? 3 : Draw(1, 4);
  s.stride = may_be_winograd ? 1 : Draw(1, 3);
  const int64_t most = OneIn(50) ? 60 : 9;  // Large images are divided into strips.
  s.batch = Draw(1, 3), s.in_height = Draw(1, most), s.in_width = Draw(1, most);
  const bool is_wide = OneIn(8) && most == 9;
  s.in_channels = is_wide ? Draw(300, 700) : Draw(1, 70), s.out_channels = Draw(1, 70);
  s.out_height = CeilDivide(s.in_height, s.stride);
  s.out_width = CeilDivide(s.in_width, s.stride);
  const int64_t size = s.batch * s.out_height * s.out_width, filters = s.out_channels;
  const auto x = Random<T>(s.batch * s.in_height * s.in_width * s.in_channels);
  const auto kernel = Random<float>(s.kernel_size * s.kernel_size * s.in_channels * filters);
  const auto bias = Random<float>(filters);
  const auto dy = Random<T>(size * filters), residual = Random<T>(size * filters);
  const Epilogue<T> epilogue{OneIn(2) ? bias.data() : nullptr,
                             OneIn(2) ? residual.data() : nullptr, OneIn(2)};

  std::vector<double> y(size * filters), dx(x.size()), dk(kernel.size());
  std::vector<double> y_scale = y, dx_scale = dx, dk_scale = dk;
  for (int64_t at = 0; at < size; ++at) {
    const int64_t row = at / s.out_width % s.out_height, column = at % s.out_width;
    for (int64_t i = 0; i < s.kernel_size; ++i) {
      for (int64_t j = 0; j < s.kernel_size; ++j) {
        const int64_t h = row * s.stride + i - s.pad(), w = column * s.stride + j - s.pad();
        if (h < 0 || h >= s.in_height || w < 0 || w >= s.in_width) continue;
        const int64_t image = at / (s.out_height * s.out_width);
        for (int64_t c = 0; c < s.in_channels; ++c) {
          const int64_t in = ((image * s.in_height + h) * s.in_width + w) * s.in_channels + c;
          const int64_t tap = ((i * s.kernel_size + j) * s.in_channels + c) * filters;
          for (int64_t k = 0; k < filters; ++k) {
            const double a = x[in], b = kernel[tap + k], g = dy[at * filters + k];
            y[at * filters + k] += a * b, y_scale[at * filters + k] += std::fabs(a * b);
            dx[in] += g * b, dx_scale[in] += std::fabs(g * b);
            dk[tap + k] += g * a, dk_scale[tap + k] += std::fabs(g * a);
          }
        }
      }
    }
  }
  for (size_t i = 0; i < y.size(); ++i) {
    if (epilogue.bias) y[i] += bias[i % filters];
    if (epilogue.residual) y[i] += residual[i];
    if (epilogue.relu) y[i] = std::max(y[i], 0.);
    y_scale[i] += 4;
  }
  const auto check = [&](auto forward, auto input_gradient, auto kernel_gradient,
                         double tolerance, const std::string& name) {
    Array<T> out(y.size()), out_dx(dx.size());
    Array<float> out_dk(dk.size());
    Tasks tasks;
    forward(s, x.data(), kernel.data(), nullptr, epilogue, out.data(), tasks);
    ExpectNear(out, y, y_scale, tolerance, name + " output");
    input_gradient(s, dy.data(), kernel.data(), out_dx.data(), tasks);
    ExpectNear(out_dx, dx, dx_scale, tolerance, name + " input gradient");
    kernel_gradient(s, x.data(), dy.data(), out_dk.data(), tasks);
    ExpectNear(out_dk, dk, dk_scale, tolerance, name + " kernel gradient");
  };
  check(kernels.forward_gemm, kernels.input_gradient_gemm, kernels.kernel_gradient_gemm, 1e-6,
        "product");
  if (!may_be_winograd) return;
  for (auto* scale : {&y_scale, &dx_scale, &dk_scale}) {  // A tile's errors mix.
    std::fill(scale->begin(), scale->end(), *std::max_element(scale->begin(), scale->end()));
  }
  check(kernels.forward_winograd, kernels.input_gradient_winograd,
        kernels.kernel_gradient_winograd, 1e-5, "Winograd");
}

template <typename T>
void Normalize(const Kernels<T>& kernels) {
  const int64_t rows = OneIn(4) ? Draw(500, 900) : Draw(2, 40);
  const int64_t channels = OneIn(4) ? 64 : Draw(1, 80), size = rows * channels;
  const auto x = Random<T>(size), residual = Random<T>(size), dy = Random<T>(size);
  const auto gamma = Random<float>(channels), beta = Random<float>(channels);
  Array<T> y(size), dx(size), dresidual(size);
  Array<float> mean(channels), variance(channels), inverse(channels);
  Array<float> dgamma(channels), dbeta(channels);
  Array<uint8_t> positive(PositiveBytes<T>(rows, channels));
  const bool has_residual = OneIn(2), relu = OneIn(2);
  BatchNormArguments<T> forward;
  static_cast<NormalizeArguments<T>&>(forward) = {
      rows, channels, x.data(), gamma.data(), beta.data(),
      has_residual ? residual.data() : nullptr, relu, y.data(), positive.data()};
  forward.epsilon = 1e-3f, forward.mean = mean.data();
  forward.unbiased_variance = variance.data(), forward.inverse_stddev = inverse.data();
  Tasks tasks;
  kernels.batch_norm(forward, tasks);
  const T* const dys[] = {dy.data()};
  kernels.batch_norm_grad(
      {rows, channels, dys, 1, x.data(), positive.data(), gamma.data(), beta.data(),
       mean.data(), inverse.data(), relu, dx.data(), dgamma.data(), dbeta.data(),
       has_residual ? dresidual.data() : nullptr},
      tasks);
  Array<T> again(size);
  forward.y = again.data();
  kernels.normalize(forward, mean.data(), inverse.data(), tasks);

  std::vector<double> of_y(size), of_dx(size), g(size), scale(size, 10);
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0, sum_g = 0, sum_gx = 0;
    bool is_clear = true;
    for (int64_t i = c; i < size; i += channels) sum += x[i];
    for (int64_t i = c; i < size; i += channels) squares += std::pow(x[i] - sum / rows, 2);
    const double factor = 1 / std::sqrt(squares / rows + 1e-3);
    const auto xhat = [&](int64_t i) { return (x[i] - sum / rows) * factor; };
    for (int64_t i = c; i < size; i += channels) {
      of_y[i] = gamma[c] * xhat(i) + beta[c] + (has_residual ? residual[i] : 0);
      is_clear &= !relu || std::fabs(of_y[i]) > 1e-4;  // Else it may be rounded to either side.
      g[i] = relu && of_y[i] < 0 ? 0 : dy[i];
      if (relu) of_y[i] = std::max(of_y[i], 0.);
      sum_g += g[i], sum_gx += g[i] * xhat(i);
    }
    for (int64_t i = c; i < size; i += channels) {
      of_dx[i] = gamma[c] * factor * (g[i] - sum_g / rows - xhat(i) * sum_gx / rows);
      scale[i] += is_clear ? std::fabs(gamma[c]) * factor * 10 : INFINITY;
    }
  }
  ExpectNear(y, of_y, scale, 1e-5, "y");
  ExpectNear(again, of_y, scale, 1e-5, "y of Normalize");
  ExpectNear(dx, of_dx, scale, 1e-5, "dx");
  if (has_residual) ExpectNear(dresidual, g, scale, 1e-30, "dresidual");
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t cases = argc > 1 ? std::atoll(argv[1]) : 100;
  const uint64_t seed = argc > 2 ? std::atoll(argv[2]) : 1;
  const int best = resnet_best_instruction_set();
  for (int set = best; set > 0; --set) {
    resnet_limit_instruction_set(set);
    const KernelSet kernels = CurrentKernels();
    for (int64_t i = 0; i < cases; ++i) {
      generator.seed(seed * 1'000'003 + i / 2);
      now = "instruction set " + std::to_string(set) + ", case " + std::to_string(i) +
            " of seed " + std::to_string(seed);
      if (i % 2 == 0) {
        Convolve(*kernels.float32);
        if (kernels.bf16 != nullptr) Convolve(*kernels.bf16);
      } else {
        Normalize(*kernels.float32);
        if (kernels.bf16 != nullptr) Normalize(*kernels.bf16);
      }
    }
    std::cout << "instruction set " << set << ": " << cases << " cases, no failure\n";
  }
  return best > 0 ? 0 : 1;  // Else nothing was tested.
}
