// Writes the message of the kept values of a vector, or of a piece of it.
//
// The reference implementation is resnet/exchange/codecs/sparse.py.

#ifndef RESNET_NATIVE_SPARSE_MESSAGE_H_
#define RESNET_NATIVE_SPARSE_MESSAGE_H_

#include <algorithm>
#include <cstdint>

#include "resnet/native/compression.h"

namespace resnet {

inline float NearestBfloat16(float value) {
  return FloatOfBits(uint32_t{RoundToBfloat16(value)} << 16);
}

// The largest b with 2^b <= ln(2) size / count.
inline int RiceWidth(int64_t size, int64_t count) {
  if (count == 0) return 0;
  int bit_width = 0;
  while ((int64_t{1} << (bit_width + 1)) <= 693 * size / (1000 * count)) ++bit_width;
  return bit_width;
}

// Where the parts of a message begin, in bytes.
struct SparseLayout {
  // Args:
  //   places: Places of the kept values in the vector, in increasing order.
  //   num_kept: Their number.
  //   first_place: The place at which the piece begins.
  //   num_values: Length of the piece.
  //   bfloat16: Whether the kept values are sent in bfloat16.
  SparseLayout(const uint32_t* places, int64_t num_kept, int64_t first_place,
               int64_t num_values, bool bfloat16)
      : count(num_kept),
        begin(first_place),
        size(num_values),
        is_bfloat16(bfloat16),
        bit_width(RiceWidth(num_values, num_kept)) {
    int64_t num_unary_bits = count;
    for (int64_t i = 0; i < count; ++i) num_unary_bits += Gap(places, i) >> bit_width;
    remainders = values + count * (is_bfloat16 ? 2 : 4);
    unary = remainders + CeilDivide(count * bit_width, 8);
    const int64_t sparse_length = unary + CeilDivide(num_unary_bits, 8);
    const int64_t dense_length = kHeaderBytes + 4 * size;
    is_dense = sparse_length > dense_length;
    length = is_dense ? dense_length : sparse_length;
  }

  uint32_t Gap(const uint32_t* places, int64_t i) const {
    return places[i] - (i == 0 ? begin : places[i - 1] + int64_t{1});
  }

  int64_t count, begin, size;
  bool is_bfloat16;
  int bit_width;
  int64_t values = kHeaderBytes + 4, remainders, unary;
  bool is_dense;   // Whether the sparse message would be longer.
  int64_t length;  // Of the whole message.
};

// Writes `layout.length` bytes.
inline void WriteSparse(const SparseLayout& layout, const uint32_t* places,
                        const float* kept, uint8_t* to) {
  std::fill_n(to, layout.length, 0);
  if (layout.is_dense) {
    StoreHeader(layout.length, kDense, 0, to);
    for (int64_t i = 0; i < layout.count; ++i) {
      Store(layout.is_bfloat16 ? NearestBfloat16(kept[i]) : kept[i],
            to + kHeaderBytes + 4 * (places[i] - layout.begin));
    }
    return;
  }
  StoreHeader(layout.length, layout.is_bfloat16 ? kSparseBfloat16 : kSparseFloat32,
              layout.bit_width, to);
  Store(static_cast<uint32_t>(layout.count), to + kHeaderBytes);
  BitWriter remainders(to + layout.remainders);
  uint8_t* unary = to + layout.unary;
  int64_t bit = -1;
  for (int64_t i = 0; i < layout.count; ++i) {
    if (layout.is_bfloat16) {
      Store(RoundToBfloat16(kept[i]), to + layout.values + 2 * i);
    } else {
      Store(kept[i], to + layout.values + 4 * i);
    }
    const uint32_t gap = layout.Gap(places, i);
    remainders.Append(gap & ((uint32_t{1} << layout.bit_width) - 1), layout.bit_width);
    bit += (gap >> layout.bit_width) + 1;
    unary[bit >> 3] |= 1 << (bit & 7);
  }
  remainders.Finish();
}

}  // namespace resnet

#endif  // RESNET_NATIVE_SPARSE_MESSAGE_H_
