// The gradients of batch normalization, ReLU and residual addition in two passes over
// memory: the first computes the sums over the rows, the second writes dx.

#include <cstdint>
#include <vector>

#include "resnet/native/batch_norm_kernels.h"
#include "resnet/native/row_passes.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

// How to find the elements for which ReLU's derivative is 1: without ReLU these are all
// elements, with ReLU they follow from x, or from `positive` if there is a residual.
enum class Passes { kEverywhere, kByX, kByPositive };

// dx = scale * g - slope * (x - mean) - constant; one value per channel, padded.
struct Corrections {
  Corrections(int64_t channels, Context& context) {
    slope = AllocateFloats(2, channels, context);
    constant = slope + Padded(channels);
  }

  float* slope;
  float* constant;
};

// Returns g of one unit, not yet rounded to T.
template <typename T, Passes kPasses, typename Which>
[[gnu::always_inline]] inline Unit<T> Gradient(const BatchNormGradArguments<T>& a,
                                               const Channels& of, const Unit<T>& x,
                                               Which which, int64_t row, int64_t c) {
  const int64_t index = row * a.channels + c;
  Unit<T> g = Unit<T>::Load(a.dys[0] + index, which);
  for (int k = 1; k < a.num_dys; ++k) {
    const Unit<T> other = Unit<T>::Load(a.dys[k] + index, which);
    for (int i = 0; i < g.kParts; ++i) {
      g.part[i] = Add(g.part[i], other.part[i]);
    }
  }
  if constexpr (kPasses == Passes::kByX) {
    KeepWherePositive(Normalized(x, of, c), &g);
  } else if constexpr (kPasses == Passes::kByPositive) {
    using Bits = typename Unit<T>::Bits;
    const Bits* positive = reinterpret_cast<const Bits*>(a.positive);
    KeepBits(positive[row * UnitsOfRow<T>(a.channels) + c / g.kSize], &g);
  }
  return g;
}

// Sums g and g * (x - mean) over rows, and writes dresidual.
template <typename T, Passes kPasses, bool kResidual>
void AddUpGradients(const BatchNormGradArguments<T>& a, const Channels& of, int64_t begin,
                    int64_t end, const Sums& sums) {
  sums.AddUp<T>(
      begin, end, a.channels,
      [=](auto which, int64_t row, int64_t c, Unit<T>* sums) {
        const int64_t index = row * a.channels + c;
        const Unit<T> x = Unit<T>::Load(a.x + index, which);
        const Unit<T> g = Gradient<T, kPasses>(a, of, x, which, row, c);
        if constexpr (kResidual) g.Store(a.dresidual + index, which);
        const Unit<T> mean = LoadFloats<T>(of.mean + c);
        for (int i = 0; i < x.kParts; ++i) {
          const Vector deviation = Sub(x.part[i], mean.part[i]);
          sums[0].part[i] = Add(sums[0].part[i], g.part[i]);
          sums[1].part[i] = MulAdd(g.part[i], deviation, sums[1].part[i]);
        }
      });
}

// Combines the sums of all tasks, for a range of channels.
template <typename T>
void FinishSums(const BatchNormGradArguments<T>& a, const std::vector<Sums>& sums,
                int64_t begin, int64_t end, const Channels& of,
                const Corrections& corrections) {
  for (int64_t c = begin; c < end; ++c) {
    double dbeta = 0, products = 0;
    for (const Sums& one : sums) {
      dbeta += one.total(0, c);
      products += one.total(1, c);
    }
    const double dgamma = products * a.inverse_stddev[c];
    a.dbeta[c] = dbeta;
    a.dgamma[c] = dgamma;
    corrections.slope[c] = of.scale[c] * dgamma * a.inverse_stddev[c] / a.rows;
    corrections.constant[c] = of.scale[c] * dbeta / a.rows;
  }
}

// Writes dx = scale * g - slope * (x - mean) - constant. With a residual it reads g from
// dresidual, which the first pass wrote.
template <typename T, Passes kPasses, bool kResidual>
void WriteGradients(const BatchNormGradArguments<T>& a, const Channels& of,
                    const Corrections& corrections, int64_t begin, int64_t end) {
  ForEachUnit<T>(begin, end, a.channels, [=](auto which, int64_t row, int64_t c) {
    const int64_t index = row * a.channels + c;
    Unit<T> x = Unit<T>::Load(a.x + index, which);
    Unit<T> g;
    if constexpr (kResidual) {
      g = Unit<T>::Load(a.dresidual + index, which);
    } else {
      g = Gradient<T, kPasses>(a, of, x, which, row, c);
    }
    const Unit<T> mean = LoadFloats<T>(of.mean + c);
    const Unit<T> scale = LoadFloats<T>(of.scale + c);
    const Unit<T> slope = LoadFloats<T>(corrections.slope + c);
    const Unit<T> constant = LoadFloats<T>(corrections.constant + c);
    for (int i = 0; i < x.kParts; ++i) {
      const Vector deviation = Sub(x.part[i], mean.part[i]);
      const Vector rest = MulSub(scale.part[i], g.part[i], constant.part[i]);
      x.part[i] = SubMul(slope.part[i], deviation, rest);
    }
    x.Store(a.dx + index, which);
  });
}

template <typename T, Passes kPasses, bool kResidual>
void Run(const BatchNormGradArguments<T>& a, Context& context) {
  const Channels of(a.channels, context);
  const Corrections corrections(a.channels, context);
  for (int64_t c = 0; c < a.channels; ++c) {
    of.mean[c] = a.mean[c];
    of.scale[c] = a.gamma[c] * a.inverse_stddev[c];
    of.beta[c] = a.beta[c];
  }
  const Tasks tasks(a.rows, a.channels, context.num_threads());
  const std::vector<Sums> sums = SumsOfTasks(tasks, a.channels, context);
  context.Run(tasks.count(), [&](int64_t task) {
    AddUpGradients<T, kPasses, kResidual>(a, of, tasks.Begin(task), tasks.End(task),
                                          sums[task]);
  });
  RunOverChannels(tasks, a.channels, context, [&](int64_t begin, int64_t end) {
    FinishSums(a, sums, begin, end, of, corrections);
  });
  context.Run(tasks.count(), [&](int64_t task) {
    WriteGradients<T, kPasses, kResidual>(a, of, corrections, tasks.Begin(task),
                                          tasks.End(task));
  });
}

}  // namespace

template <typename T>
void BatchNormGrad(const BatchNormGradArguments<T>& a, Context& context) {
  if (a.dresidual == nullptr) {
    if (a.relu) return Run<T, Passes::kByX, false>(a, context);
    return Run<T, Passes::kEverywhere, false>(a, context);
  }
  if (a.relu) return Run<T, Passes::kByPositive, true>(a, context);
  return Run<T, Passes::kEverywhere, true>(a, context);
}

#define INSTANTIATE(T) template void BatchNormGrad(const BatchNormGradArguments<T>&, Context&);
RESNET_FOR_EACH_TYPE(INSTANTIATE)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
