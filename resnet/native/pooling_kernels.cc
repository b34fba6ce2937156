// The loops of max pooling and of the mean over all positions, which the compiler turns
// into vectors.

#include "resnet/native/pooling_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "resnet/native/bf16.h"
#include "resnet/native/strips.h"
#include "resnet/native/vector.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace {

// Two vectors of AVX-512 with keys, which stay in registers.
template <typename T>
constexpr int kBlock = 128 / sizeof(T);

// Integers in the order of the floating-point numbers, of the same size. NaN is above all
// others, whatever its sign, so that it isn't lost.
template <typename T>
using Key = std::conditional_t<sizeof(T) == 2, int16_t, int32_t>;

template <typename T>
INLINED Key<T> ExchangeOrder(Key<T> bits) {  // Of negative numbers; its own inverse.
  constexpr Key<T> kMagnitude = std::numeric_limits<Key<T>>::max();
  return bits ^ ((bits >> (8 * sizeof(T) - 1)) & kMagnitude);
}
template <typename T>
INLINED Key<T> KeyOf(const T* value) {
  constexpr Key<T> kMagnitude = std::numeric_limits<Key<T>>::max();
  constexpr Key<T> kInfinity = sizeof(T) == 2 ? 0x7f80 : 0x7f800000;
  Key<T> bits;
  std::memcpy(&bits, value, sizeof(bits));
  const Key<T> key = ExchangeOrder<T>(bits);
  return (bits & kMagnitude) > kInfinity ? kMagnitude : key;
}

// The maxima of `size` channels, at most a block, in one window.
template <typename T>
INLINED void PoolBlock(const PoolShape& shape, const T* x, int64_t row, int64_t column,
                       int size, T* y, uint8_t* places) {
  const Windows &rows = shape.rows, &columns = shape.columns;
  Key<T> largest[kBlock<T>], place[kBlock<T>];
  for (int k = 0; k < size; ++k) {
    largest[k] = std::numeric_limits<Key<T>>::min();
    place[k] = 0;
  }
  for (int64_t i = rows.Begin(row); i < rows.End(row); ++i) {
    for (int64_t j = columns.Begin(column); j < columns.End(column); ++j) {
      const T* const values = x + (i * columns.in + j) * shape.channels;
      const Key<T> here = static_cast<Key<T>>(rows.Place(i, row) * columns.size +
                                              columns.Place(j, column));
#pragma GCC ivdep
      for (int k = 0; k < size; ++k) {
        const Key<T> key = KeyOf(values + k);
        place[k] = key > largest[k] ? here : place[k];
        largest[k] = key > largest[k] ? key : largest[k];
      }
    }
  }
  for (int k = 0; k < size; ++k) {
    const Key<T> bits = ExchangeOrder<T>(largest[k]);
    std::memcpy(y + k, &bits, sizeof(bits));
    places[k] = static_cast<uint8_t>(place[k]);
  }
}

// The gradients of `size` channels, at most a block, at one position.
template <typename T>
INLINED void UnpoolBlock(const PoolShape& shape, const T* dy, const uint8_t* places,
                         int64_t row, int64_t column, int size, T* dx) {
  const Windows &rows = shape.rows, &columns = shape.columns;
  float sum_buffer[kBlock<T>], dy_buffer[kBlock<T>];
  float* const sum = Unrounded(dx, sum_buffer);
  for (int k = 0; k < size; ++k) sum[k] = 0.0f;
  for (int64_t i = rows.First(row); i <= rows.Last(row); ++i) {
    for (int64_t j = columns.First(column); j <= columns.Last(column); ++j) {
      const int64_t from = (i * columns.out + j) * shape.channels;
      const float* const gradients = Widened(dy + from, size, dy_buffer);
      const uint8_t* const place = places + from;
      const int32_t here = static_cast<int32_t>(rows.Place(row, i) * columns.size +
                                                columns.Place(column, j));
#pragma GCC ivdep
      for (int k = 0; k < size; ++k) {
        sum[k] += static_cast<int32_t>(place[k]) == here ? gradients[k] : 0.0f;
      }
    }
  }
  Narrow(sum, size, dx);
}

// Where windows don't overlap, each position is in one of them at most.
template <typename T>
INLINED void UnpoolRowOfDisjoint(const PoolShape& shape, const T* dy,
                                 const uint8_t* places, int64_t row, T* dx) {
  const Windows &rows = shape.rows, &columns = shape.columns;
  const int64_t channels = shape.channels;
  const int64_t i = rows.First(row);
  for (int64_t column = 0; column < columns.in; ++column, dx += channels) {
    const int64_t j = columns.First(column);
    if (i > rows.Last(row) || j > columns.Last(column)) {
      std::memset(dx, 0, channels * sizeof(T));
      continue;
    }
    const int64_t from = (i * columns.out + j) * channels;
    const uint8_t here =
        static_cast<uint8_t>(rows.Place(row, i) * columns.size + columns.Place(column, j));
    for (int64_t k = 0; k < channels; ++k) {
      Key<T> bits;
      std::memcpy(&bits, dy + from + k, sizeof(bits));
      bits = places[from + k] == here ? bits : 0;
      std::memcpy(dx + k, &bits, sizeof(bits));
    }
  }
}

// Calls block(channel, size) with a constant size if possible. The last block may overlap
// the one before it, so that the same results are written twice.
template <typename T, typename Block>
INLINED void ForEachBlock(int64_t channels, const Block& block) {
  if (channels < kBlock<T>) return block(0, static_cast<int>(channels));
  for (int64_t c = 0; c < channels; c += kBlock<T>) {
    block(std::min(c, channels - kBlock<T>), kBlock<T>);
  }
}

}  // namespace

template <typename T>
void MaxPool(const PoolShape& shape, const T* x, int64_t row, T* y, uint8_t* places) {
  for (int64_t column = 0; column < shape.columns.out; ++column) {
    const int64_t to = column * shape.channels;
    ForEachBlock<T>(shape.channels, [&](int64_t c, int size) __attribute__((
                                        always_inline)) {
      PoolBlock(shape, x + c, row, column, size, y + to + c, places + to + c);
    });
  }
}

template <typename T>
void MaxPoolGrad(const PoolShape& shape, const T* dy, const uint8_t* places, int64_t row,
                 T* dx) {
  if (shape.rows.size <= shape.rows.stride && shape.columns.size <= shape.columns.stride) {
    return UnpoolRowOfDisjoint(shape, dy, places, row, dx);
  }
  for (int64_t column = 0; column < shape.columns.in; ++column) {
    T* const to = dx + column * shape.channels;
    ForEachBlock<T>(shape.channels, [&](int64_t c, int size) __attribute__((
                                        always_inline)) {
      UnpoolBlock(shape, dy + c, places + c, row, column, size, to + c);
    });
  }
}

template <typename T>
void Mean(const T* x, int64_t positions, int64_t channels, T* y) {
  float sum_buffer[kStrip], x_buffer[kStrip];
  const float factor = 1.0f / static_cast<float>(positions);
  for (int64_t c = 0; c < channels; c += kStrip) {
    const int64_t size = std::min(kStrip, channels - c);
    float* sum = Unrounded(y + c, sum_buffer);
    std::fill_n(sum, size, 0.0f);
    for (int64_t i = 0; i < positions; ++i) {
      const float* values = Widened(x + i * channels + c, size, x_buffer);
#pragma GCC ivdep
      for (int64_t k = 0; k < size; ++k) sum[k] += values[k];
    }
    for (int64_t k = 0; k < size; ++k) sum[k] *= factor;
    Narrow(sum, size, y + c);
  }
}

template <typename T>
void MeanGrad(const T* dy, int64_t positions, int64_t channels, T* dx) {
  float dy_buffer[kStrip], dx_buffer[kStrip];
  const float factor = 1.0f / static_cast<float>(positions);
  for (int64_t c = 0; c < channels; c += kStrip) {
    const int64_t size = std::min(kStrip, channels - c);
    const float* gradients = Widened(dy + c, size, dy_buffer);
    float* scaled = Unrounded(dx + c, dx_buffer);
    for (int64_t k = 0; k < size; ++k) scaled[k] = gradients[k] * factor;
    Narrow(scaled, size, dx + c);
  }
  for (int64_t i = 1; i < positions; ++i) std::copy_n(dx, channels, dx + i * channels);
}

#define INSTANTIATE(T)                                                                  \
  template void MaxPool(const PoolShape&, const T*, int64_t, T*, uint8_t*);             \
  template void MaxPoolGrad(const PoolShape&, const T*, const uint8_t*, int64_t, T*);   \
  template void Mean(const T*, int64_t, int64_t, T*);                                   \
  template void MeanGrad(const T*, int64_t, int64_t, T*);
INSTANTIATE(float)
INSTANTIATE(Bf16)

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET
