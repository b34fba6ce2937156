// Passes over the rows of float32 or bfloat16 matrices, and sums over rows.

#ifndef RESNET_NATIVE_ROW_PASSES_H_
#define RESNET_NATIVE_ROW_PASSES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "resnet/native/bf16.h"
#include "resnet/native/context.h"
#include "resnet/native/ranges.h"
#include "resnet/native/rounding.h"
#include "resnet/native/task_grids.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

// Masks: which elements of a Unit are valid.
struct All {};
struct First {
  uint32_t mask;
};

// 64 bytes of elements of T, converted to float32.
template <typename T>
struct Unit {
  static constexpr int kSize = 64 / sizeof(T);
  static constexpr int kParts = kSize / kLanes;
  using Bits = std::conditional_t<kSize == 16, uint16_t, uint32_t>;
  Vector part[kParts];

  static Unit Load(const T* p, All) {
    Unit unit;
    for (int i = 0; i < kParts; ++i) unit.part[i] = RESNET_ISA::Load(p + kLanes * i);
    return unit;
  }
  static Unit Load(const T* p, First first) {
    Unit unit;
    for (int i = 0; i < kParts; ++i) {
      unit.part[i] =
          RESNET_ISA::Load(p + kLanes * i, FromBits(first.mask >> (kLanes * i)));
    }
    return unit;
  }
  void Store(T* p, All) const {
    for (int i = 0; i < kParts; ++i) RESNET_ISA::Store(p + kLanes * i, part[i]);
  }
  void Store(T* p, First first) const {
    for (int i = 0; i < kParts; ++i) {
      RESNET_ISA::Store(p + kLanes * i, FromBits(first.mask >> (kLanes * i)), part[i]);
    }
  }
  void Stream(T* p) const {
    for (int i = 0; i < kParts; ++i) RESNET_ISA::Stream(p + kLanes * i, part[i]);
  }
};

#if defined(RESNET_AVX512) || defined(RESNET_AVX512_BF16)
template <>
struct Unit<Bf16> {
  static constexpr int kSize = 32;
  static constexpr int kParts = 2;
  using Bits = uint32_t;
  Vector part[kParts];

  static Unit Load(const Bf16* p, All) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    return {{Widen(_mm256_loadu_si256(halves)), Widen(_mm256_loadu_si256(halves + 1))}};
  }
  static Unit Load(const Bf16* p, First first) {
    const __m512i bits = _mm512_maskz_loadu_epi16(first.mask, p);
    return {{Widen(_mm512_castsi512_si256(bits)),
             Widen(_mm512_extracti64x4_epi64(bits, 1))}};
  }
  __m512i Narrowed() const {
#ifdef RESNET_AVX512_BF16
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(part[1], part[0]));
#else
    return _mm512_inserti64x4(_mm512_castsi256_si512(Round(part[0])), Round(part[1]), 1);
#endif
  }
  void Store(Bf16* p, All) const { _mm512_storeu_si512(p, Narrowed()); }
  void Store(Bf16* p, First first) const {
    _mm512_mask_storeu_epi16(p, first.mask, Narrowed());
  }
  void Stream(Bf16* p) const {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), Narrowed());
  }
};
#endif

// The float32 values of a Unit's channels, loaded from an array of `Padded` size.
template <typename T>
Unit<T> LoadFloats(const float* p) {
  Unit<T> unit;
  for (int i = 0; i < unit.kParts; ++i) unit.part[i] = Load(p + kLanes * i);
  return unit;
}
template <typename T>
void StoreFloats(const Unit<T>& unit, float* p) {
  for (int i = 0; i < unit.kParts; ++i) Store(p + kLanes * i, unit.part[i]);
}

// Returns a bit mask in which bit i is set if element i is above 0.
template <typename T>
typename Unit<T>::Bits PositiveBits(const Unit<T>& unit) {
  uint32_t bits = 0;
  for (int i = 0; i < unit.kParts; ++i) {
    bits |= BitsOf(Positive(unit.part[i])) << (kLanes * i);
  }
  return bits;
}

// Sets the elements whose bit is 0 to 0.
template <typename T>
void KeepBits(typename Unit<T>::Bits bits, Unit<T>* unit) {
  for (int i = 0; i < unit->kParts; ++i) {
    unit->part[i] = Keep(FromBits(bits >> (kLanes * i)), unit->part[i]);
  }
}

// Sets the elements to 0 where those of `of` are not above 0.
template <typename T>
void KeepWherePositive(const Unit<T>& of, Unit<T>* unit) {
  for (int i = 0; i < unit->kParts; ++i) {
    unit->part[i] = Keep(Positive(of.part[i]), unit->part[i]);
  }
}

// Returns the number of channels, rounded up to whole units of any type.
inline int64_t Padded(int64_t channels) { return RoundUp(channels, 32); }

template <typename T>
int64_t UnitsOfRow(int64_t channels) {
  return CeilDivide(channels, Unit<T>::kSize);
}

// Calls visit(mask, row, channel) for each unit of each row, in the order of memory.
//
// Another order could keep sums over several rows in registers, but the hardware
// prefetcher only follows sequential reads.
template <typename T, typename Visit>
void ForEachUnit(int64_t begin, int64_t end, int64_t channels, const Visit& visit) {
  constexpr int kSize = Unit<T>::kSize;
  const int64_t whole = channels / kSize * kSize;
  const First rest{(uint32_t{1} << (channels - whole)) - 1};
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t c = 0; c < whole; c += kSize) visit(All(), row, c);
    if (whole < channels) visit(rest, row, whole);
  }
}

// The division of the rows into tasks for threads.
class Tasks {
 public:
  Tasks(int64_t rows, int64_t channels, int num_threads) : rows_(rows) {
    constexpr int64_t kTaskSize = 1 << 14;  // The least number of elements per task.
    const int64_t most = num_threads == 1 ? 1 : 2 * num_threads;
    count_ = std::max<int64_t>(1, std::min({most, rows * channels / kTaskSize, rows}));
  }
  int64_t count() const { return count_; }
  int64_t Begin(int64_t task) const { return rows_ * task / count_; }
  int64_t End(int64_t task) const { return Begin(task + 1); }

 private:
  int64_t rows_, count_;
};

// Two sums over rows per channel: in float32 over a block of rows, in double over blocks.
class Sums {
 public:
  // `memory` has `Bytes(channels)` bytes, a multiple of a cache line.
  Sums(int64_t channels, char* memory)
      : padded_(Padded(channels)),
        total_(reinterpret_cast<double*>(memory)),
        part_(reinterpret_cast<float*>(total_ + 2 * padded_)) {}

  static size_t Bytes(int64_t channels) {
    return 2 * Padded(channels) * (sizeof(double) + sizeof(float));
  }

  double total(int i, int64_t channel) const { return total_[i * padded_ + channel]; }

  // Computes the totals. add(mask, row, channel, sums) is called for each unit and adds to
  // the two sums. Pieces of several blocks are visited from the last to the first, so that
  // this pass ends where the next pass over the rows starts.
  template <typename T, typename Add>
  void AddUp(int64_t begin, int64_t end, int64_t channels, const Add& add) const {
    constexpr int64_t kRows = 256;            // Few enough for accurate sums in float32.
    constexpr int64_t kPieceBytes = 1 << 18;  // Large enough for the hardware prefetcher.
    const int64_t blocks = kPieceBytes / (kRows * channels * sizeof(T));
    const int64_t piece = kRows * std::max<int64_t>(1, blocks);
    std::fill_n(total_, 2 * padded_, 0.);
    while (end > begin) {
      const int64_t start = std::max(begin, end - piece);
      for (int64_t row = start; row < end; row += kRows) {
        AddBlock<T>(row, std::min(end, row + kRows), channels, add);
      }
      end = start;
    }
  }

 private:
  // With this number of channels, a multiple of a Unit's, sums stay in registers.
  static constexpr int kFewChannels = std::max(32, 4 * kLanes);

  template <typename T, typename Add>
  void AddBlock(int64_t begin, int64_t end, int64_t channels, const Add& add) const {
    if (channels == kFewChannels) {
      AddFewChannels<T>(begin, end, add);
    } else {
      float* first = part_;
      float* second = part_ + padded_;
      std::fill_n(part_, 2 * padded_, 0.f);
      ForEachUnit<T>(begin, end, channels, [=](auto which, int64_t row, int64_t c) {
        Unit<T> sums[2] = {LoadFloats<T>(first + c), LoadFloats<T>(second + c)};
        add(which, row, c, sums);
        StoreFloats(sums[0], first + c);
        StoreFloats(sums[1], second + c);
      });
    }
    for (int64_t c = 0; c < 2 * padded_; ++c) total_[c] += part_[c];
  }

  template <typename T, typename Add>
  void AddFewChannels(int64_t begin, int64_t end, const Add& add) const {
    constexpr int kSize = Unit<T>::kSize;
    constexpr int kUnits = kFewChannels / kSize;
    Unit<T> sums[kUnits][2] = {};
    for (int64_t row = begin; row < end; ++row) {
      for (int k = 0; k < kUnits; ++k) add(All(), row, k * kSize, sums[k]);
    }
    for (int k = 0; k < kUnits; ++k) {
      StoreFloats(sums[k][0], part_ + k * kSize);
      StoreFloats(sums[k][1], part_ + padded_ + k * kSize);
    }
  }

  int64_t padded_;
  double* total_;
  float* part_;
};

// Returns the Sums of each task, uninitialized.
inline std::vector<Sums> SumsOfTasks(const Tasks& tasks, int64_t channels,
                                     Context& context) {
  const Pieces memory(context, tasks.count(), Sums::Bytes(channels));
  std::vector<Sums> sums;
  for (int64_t task = 0; task < tasks.count(); ++task) {
    sums.emplace_back(channels, memory.of(task));
  }
  return sums;
}

// Calls finish(begin, end) for ranges of channels that together cover all of them. They
// are whole cache lines of floats, and as many as there are tasks if there are enough: each
// range reads the sums of all tasks.
template <typename Finish>
void RunOverChannels(const Tasks& tasks, int64_t channels, const Context& context,
                     const Finish& finish) {
  constexpr int64_t kStep = kLine / sizeof(float);
  const int64_t parts = std::min(tasks.count(), CeilDivide(channels, kStep));
  context.Run(parts, [&](int64_t part) {
    const Range range = Part(channels, parts, part, kStep);
    finish(range.begin, range.end);
  });
}

// Returns `count` consecutive arrays of `Padded` floats, filled with 0.
inline float* AllocateFloats(int count, int64_t channels, Context& context) {
  const int64_t size = count * Padded(channels);
  float* memory = AllocateFor<float>(context, size);
  std::fill_n(memory, size, 0.f);
  return memory;
}

// Values per channel, padded.
struct Channels {
  Channels(int64_t channels, Context& context) {
    mean = AllocateFloats(3, channels, context);
    scale = mean + Padded(channels);
    beta = scale + Padded(channels);
  }

  float* mean;
  float* scale;  // gamma * inverse_stddev
  float* beta;
};

// Returns (x - mean) * scale + beta of the unit at channel c. Written as
// x * scale + offset it would cancel where the mean is much larger than the deviations.
template <typename T>
[[gnu::always_inline]] inline Unit<T> Normalized(const Unit<T>& x, const Channels& of,
                                                 int64_t c) {
  const Unit<T> mean = LoadFloats<T>(of.mean + c);
  const Unit<T> scale = LoadFloats<T>(of.scale + c);
  Unit<T> y = LoadFloats<T>(of.beta + c);
  for (int i = 0; i < x.kParts; ++i) {
    const Vector deviation = Sub(x.part[i], mean.part[i]);
    y.part[i] = MulAdd(deviation, scale.part[i], y.part[i]);
  }
  return y;
}

}  // namespace
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_ROW_PASSES_H_
