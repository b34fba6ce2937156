// Batch normalization in two passes over memory: the first computes the moments, the
// second writes y.
//
// It is bound by memory bandwidth. The first pass goes from the last rows to the first
// ones, where the second pass starts, so that part of x is still in the cache.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "resnet/native/batch_norm_kernels.h"
#include "resnet/native/row_passes.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

// Returns a value near `number` with few significant bits, so that the differences
// x - value have few bits too. Otherwise sums of them would have a rounding error with a
// common sign, which accumulates.
template <typename T>
float Near(float number) {
  if constexpr (sizeof(T) == 2) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    bits &= 0xffff0000;
    std::memcpy(&number, &bits, sizeof(bits));
  }
  return number;
}

// Sums x - shift and its square. Sums of x and x^2 would cancel catastrophically where the
// mean is much larger than the deviations; the shift is the mean of a few rows, which is
// near enough to the mean.
template <typename T>
void AddUpDeviations(const T* x, int64_t begin, int64_t end, int64_t channels,
                     float* shift, const Sums& sums) {
  constexpr int64_t kShiftRows = 16;
  const auto add = [=](auto which, int64_t row, int64_t c, Unit<T>* sums) {
    const Unit<T> unit = Unit<T>::Load(x + row * channels + c, which);
    const Unit<T> from = LoadFloats<T>(shift + c);
    for (int i = 0; i < unit.kParts; ++i) {
      const Vector deviation = Sub(unit.part[i], from.part[i]);
      sums[0].part[i] = Add(sums[0].part[i], deviation);
      sums[1].part[i] = MulAdd(deviation, deviation, sums[1].part[i]);
    }
  };
  const int64_t few = std::max(begin, end - kShiftRows);
  sums.AddUp<T>(few, end, channels, add);
  for (int64_t c = 0; c < channels; ++c) {
    shift[c] = Near<T>(sums.total(0, c) / (end - few));
  }
  sums.AddUp<T>(begin, end, channels, add);
}

template <typename T>
void SetChannel(const NormalizeArguments<T>& a, int64_t c, float mean, float inverse_stddev,
                const Channels& of) {
  of.mean[c] = mean;
  of.scale[c] = a.gamma[c] * inverse_stddev;
  of.beta[c] = a.beta[c];
}

// Combines the sums of all tasks, for a range of channels.
// Source: Chan, Golub and LeVeque 1979, Stanford STAN-CS-79-773, equation 2.1.
template <typename T>
void FinishMoments(const BatchNormArguments<T>& a, const Tasks& tasks, const float* shifts,
                   const std::vector<Sums>& sums, int64_t begin, int64_t end,
                   const Channels& of) {
  for (int64_t c = begin; c < end; ++c) {
    double mean = 0;
    for (int64_t task = 0; task < tasks.count(); ++task) {
      const double rows = tasks.End(task) - tasks.Begin(task);
      mean += rows * shifts[task * Padded(a.channels) + c] + sums[task].total(0, c);
    }
    mean /= a.rows;
    double squares = 0;
    for (int64_t task = 0; task < tasks.count(); ++task) {
      const double rows = tasks.End(task) - tasks.Begin(task);
      const double from_shift = sums[task].total(0, c) / rows;
      const double from_mean = shifts[task * Padded(a.channels) + c] + from_shift - mean;
      squares += sums[task].total(1, c) - rows * from_shift * from_shift +
                 rows * from_mean * from_mean;
    }
    squares = squares < 0 ? 0 : squares;  // Negative by rounding; keeps NaN.
    a.mean[c] = mean;
    a.unbiased_variance[c] = squares / std::max<int64_t>(a.rows - 1, 1);
    a.inverse_stddev[c] = 1 / std::sqrt(squares / a.rows + a.epsilon);
    SetChannel(a, c, a.mean[c], a.inverse_stddev[c], of);
  }
}

template <typename T, bool kResidual, bool kStream>
void WriteNormalized(const NormalizeArguments<T>& a, int64_t begin, int64_t end,
                     const Channels& of) {
  using Bits = typename Unit<T>::Bits;
  const Vector floor = Set(a.relu ? 0 : -INFINITY);
  Bits* positive = reinterpret_cast<Bits*>(a.positive);
  const int64_t units = UnitsOfRow<T>(a.channels);
  ForEachUnit<T>(begin, end, a.channels, [=](auto which, int64_t row, int64_t c) {
    const int64_t index = row * a.channels + c;
    Unit<T> unit = Normalized<T>(Unit<T>::Load(a.x + index, which), of, c);
    if constexpr (kResidual) {
      const Unit<T> other = Unit<T>::Load(a.residual + index, which);
      for (int i = 0; i < unit.kParts; ++i) {
        unit.part[i] = Add(unit.part[i], other.part[i]);
      }
      if (positive) positive[row * units + c / unit.kSize] = PositiveBits(unit);
    }
    for (int i = 0; i < unit.kParts; ++i) {
      unit.part[i] = Max(floor, unit.part[i]);  // This order keeps NaN.
    }
    if constexpr (kStream) {
      unit.Stream(a.y + index);
    } else {
      unit.Store(a.y + index, which);
    }
  });
  if (kStream) FinishStreams();
}

// Whether to use non-temporal stores, which don't fetch the memory of y before it is
// written. Afterwards y isn't in the cache, so they only pay if y is too large to stay
// there.
template <typename T>
bool WritesAroundCache(const NormalizeArguments<T>& a) {
  constexpr int64_t kLargeBytes = 1 << 24;
  const int64_t row_bytes = a.channels * sizeof(T);
  return a.rows * row_bytes >= kLargeBytes && row_bytes % 64 == 0 &&
         reinterpret_cast<uintptr_t>(a.y) % 64 == 0;
}

template <typename T>
void WriteAll(const NormalizeArguments<T>& a, const Tasks& tasks, const Channels& of,
              Context& context) {
  const bool stream = WritesAroundCache(a);
  const auto write = a.residual == nullptr
                         ? (stream ? WriteNormalized<T, false, true>
                                   : WriteNormalized<T, false, false>)
                         : (stream ? WriteNormalized<T, true, true>
                                   : WriteNormalized<T, true, false>);
  context.Run(tasks.count(), [&](int64_t task) {
    write(a, tasks.Begin(task), tasks.End(task), of);
  });
}

}  // namespace

template <typename T>
void BatchNorm(const BatchNormArguments<T>& a, Context& context) {
  const int64_t padded = Padded(a.channels);
  const Tasks tasks(a.rows, a.channels, context.num_threads());
  const std::vector<Sums> sums = SumsOfTasks(tasks, a.channels, context);
  float* shifts = AllocateFloats(tasks.count(), a.channels, context);
  const Channels of(a.channels, context);
  context.Run(tasks.count(), [&](int64_t task) {
    AddUpDeviations(a.x, tasks.Begin(task), tasks.End(task), a.channels,
                    shifts + task * padded, sums[task]);
  });
  RunOverChannels(tasks, a.channels, context, [&](int64_t begin, int64_t end) {
    FinishMoments(a, tasks, shifts, sums, begin, end, of);
  });
  WriteAll(a, tasks, of, context);
}

template <typename T>
void Normalize(const NormalizeArguments<T>& a, const float* mean,
               const float* inverse_stddev, Context& context) {
  const Tasks tasks(a.rows, a.channels, context.num_threads());
  const Channels of(a.channels, context);
  for (int64_t c = 0; c < a.channels; ++c) {
    SetChannel(a, c, mean[c], inverse_stddev[c], of);
  }
  WriteAll(a, tasks, of, context);
}

#define INSTANTIATE(T)                                                            \
  template void BatchNorm(const BatchNormArguments<T>&, Context&);                \
  template void Normalize(const NormalizeArguments<T>&, const float*, const float*, \
                          Context&);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
