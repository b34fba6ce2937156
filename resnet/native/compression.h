// What the ops of compression share: the header of a message, and pieces of a vector.
//
// The formats are documented in resnet/exchange/codecs, whose functions are the reference
// implementation: wire.py, sparse.py, ternary.py and qsgd.py.

#ifndef RESNET_NATIVE_COMPRESSION_H_
#define RESNET_NATIVE_COMPRESSION_H_

#include <cstdint>
#include <cstring>

#ifdef __FAST_MATH__
#error "Bits that all ranks must agree on, and NaN, need arithmetic without -ffast-math."
#endif

namespace resnet {

constexpr uint8_t kDense = 0, kSparseFloat32 = 1, kSparseBfloat16 = 2, kTernary = 3,
                  kQsgd = 4, kFloat16 = 5, kBfloat16 = 6;
constexpr int64_t kHeaderBytes = 8;
// Per vector: the bytes of a dense message fit into 31 bits, also those of its header.
constexpr int64_t kMaxValues = (int64_t{1} << 29) - 3;

// Values per task: a multiple of 5, 8 and 4, so that the pieces of a message begin at whole
// bytes and at whole groups of random numbers.
constexpr int64_t kPiece = 65520;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little-endian");

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void Store(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof(T));
}

inline void StoreHeader(int64_t length, uint8_t kind, uint8_t bit_width, uint8_t* to) {
  Store(static_cast<uint32_t>(length), to);
  to[4] = kind;
  to[5] = bit_width;
  to[6] = to[7] = 0;
}

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The bits of a float without its sign. Their order is that of magnitudes, and NaN is the
// largest.
inline uint32_t MagnitudeBits(float value) {
  return Load<uint32_t>(reinterpret_cast<const uint8_t*>(&value)) & 0x7fffffffu;
}
inline float FloatOfBits(uint32_t bits) {
  return Load<float>(reinterpret_cast<const uint8_t*>(&bits));
}

// The nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t RoundToBfloat16(float value) {
  const uint32_t bits = Load<uint32_t>(reinterpret_cast<const uint8_t*>(&value));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits | 0x400000u) >> 16;
  return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

// Appends integers of a few bits, from the lowest bit of the first byte.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) {}

  void Append(uint32_t integer, int bit_width) {
    held_ |= static_cast<uint64_t>(integer) << num_held_;
    num_held_ += bit_width;
    while (num_held_ >= 8) {
      *to_++ = static_cast<uint8_t>(held_);
      held_ >>= 8;
      num_held_ -= 8;
    }
  }

  // Writes the last byte, if it has begun.
  void Finish() {
    if (num_held_ > 0) *to_++ = static_cast<uint8_t>(held_);
    num_held_ = 0;
    held_ = 0;
  }

 private:
  uint8_t* to_;
  uint64_t held_ = 0;
  int num_held_ = 0;
};

// Reads what BitWriter has written; it never reads behind the end.
class BitReader {
 public:
  BitReader(const uint8_t* from, const uint8_t* end) : from_(from), end_(end) {}

  uint32_t Next(int bit_width) {
    while (num_held_ < bit_width) {
      const uint64_t byte = from_ < end_ ? *from_++ : 0;
      held_ |= byte << num_held_;
      num_held_ += 8;
    }
    const uint32_t integer = held_ & ((uint64_t{1} << bit_width) - 1);
    held_ >>= bit_width;
    num_held_ -= bit_width;
    return integer;
  }

 private:
  const uint8_t* from_;
  const uint8_t* const end_;
  uint64_t held_ = 0;
  int num_held_ = 0;
};

}  // namespace resnet

#endif  // RESNET_NATIVE_COMPRESSION_H_
