// The messages of compressed gradients: their format, which is described in
// resnet/exchange/codecs, how they are written, and how they are read and checked. A NumPy
// twin is in tests/reference/compression.py.

#ifndef RESNET_NATIVE_MESSAGES_H_
#define RESNET_NATIVE_MESSAGES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/lib/core/errors.h"

#include "resnet/native/bf16.h"
#include "resnet/native/rounding.h"

namespace resnet {

constexpr uint8_t kDense = 0, kSparseFloat32 = 1, kSparseBfloat16 = 2, kTernary = 3,
                  kQsgd = 4, kFloat16 = 5, kBfloat16 = 6, kSparseTwoBit = 7;
constexpr int64_t kHeaderBytes = 8;
// Per vector: the bytes of a dense message fit into 31 bits, also those of its header.
constexpr int64_t kMaxValues = (int64_t{1} << 29) - 3;
constexpr int64_t kMaxBytes = (int64_t{1} << 31) - 1;  // Per message.

// Values per task: a multiple of 5, 8 and 4, so that the pieces of a message begin at whole
// bytes and at whole groups of random numbers.
constexpr int64_t kPiece = 65520;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little-endian");

// Checks the length of a vector that is encoded or decoded.
inline absl::Status CheckNumValues(int64_t size) {
  if (0 <= size && size <= kMaxValues) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a vector must have at most 2^29 - 3 values; got ", size));
}

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

// A message in memory.
struct Message {
  uint8_t kind;
  int bit_width;
  const uint8_t* body;
  const uint8_t* end;

  int64_t size() const { return end - body; }
  bool is_sparse() const {
    return kind == kSparseFloat32 || kind == kSparseBfloat16 || kind == kSparseTwoBit;
  }
};

constexpr int64_t kLevelBytes = 16;  // Of the four levels of values that are sent in 2 bits.

// The bytes of the kept values in a sparse message.
inline int64_t KeptBytes(uint8_t kind, int64_t count) {
  if (kind == kSparseTwoBit) return kLevelBytes + CeilDivide(count, 4);
  return count * (kind == kSparseBfloat16 ? 2 : 4);
}

inline absl::Status Corrupt(const std::string& what) {
  return absl::DataLossError(
      absl::StrCat("a message of compressed gradients is corrupt: ", what));
}

// The body of a message of QSGD: states, bucket, norms and levels.
struct QsgdLayout {
  QsgdLayout(const Message& message, int64_t num_values)
      : states(Load<uint32_t>(message.body)),
        given_bucket(Load<uint32_t>(message.body + 4)),
        bucket(given_bucket == 0 ? std::max<int64_t>(num_values, 1) : given_bucket),
        levels(8 + 4 * CeilDivide(num_values, bucket)) {}

  // The bits of a level, which is sent as a code from 0 to 2 * states.
  static int BitWidth(int64_t states) {
    int bit_width = 0;
    while (int64_t{1} << bit_width <= 2 * states) ++bit_width;
    return bit_width;
  }

  bool HasLevel(int64_t code) const { return code <= 2 * states; }
  absl::Status CorruptLevel(int64_t code) const {
    return Corrupt(absl::StrCat("level ", code - states));
  }

  int64_t states, given_bucket, bucket;
  int64_t norms = 8, levels;  // Where they begin in the body.
};

// A byte of five ternary digits.
inline bool HasDigits(uint8_t byte) { return byte < 243; }
inline absl::Status CorruptDigits() {
  return Corrupt("a byte of five ternary digits is above 242");
}

// Checks that a message is one of a vector of so many values, as far as its header and
// length say it.
inline absl::Status CheckLength(const Message& message, int64_t num_values) {
  const auto wrong_length = [&](int64_t expected) {
    return Corrupt(absl::StrCat(message.size(), " bytes instead of ", expected));
  };
  int64_t expected = 0;
  switch (message.kind) {
    case kDense:
      expected = 4 * num_values;
      break;
    case kFloat16:
    case kBfloat16:
      expected = 2 * num_values;
      break;
    case kSparseFloat32:
    case kSparseBfloat16:
    case kSparseTwoBit: {
      if (message.size() < 4) return wrong_length(4);
      const int64_t count = Load<uint32_t>(message.body);
      if (count > num_values || message.bit_width > 31) {
        return Corrupt(absl::StrCat(count, " of ", num_values, " values are kept"));
      }
      const int64_t least = 4 + KeptBytes(message.kind, count) +
                            CeilDivide(count * message.bit_width, 8);
      return message.size() >= least ? absl::OkStatus() : wrong_length(least);
    }
    case kTernary:
      expected = 4 + CeilDivide(num_values, 5);
      break;
    case kQsgd: {
      if (message.size() < 8) return wrong_length(8);
      const QsgdLayout layout(message, num_values);
      if (layout.states < 1 || layout.states > 1 << 23) {
        return Corrupt(absl::StrCat(layout.states, " states"));
      }
      const int bit_width = QsgdLayout::BitWidth(layout.states);
      if (bit_width != message.bit_width) {
        return Corrupt(
            absl::StrCat(message.bit_width, " bits for ", layout.states, " states"));
      }
      expected = layout.levels + CeilDivide(num_values * bit_width, 8);
      break;
    }
    default:
      return Corrupt(absl::StrCat("kind ", message.kind));
  }
  return message.size() == expected ? absl::OkStatus() : wrong_length(expected);
}

// Splits the first message off the bytes from `*from`, which it moves behind it, and checks
// that it is one of a vector of so many values.
inline absl::Status TakeMessage(const uint8_t** from, const uint8_t* end,
                                int64_t num_values, Message* message) {
  if (end - *from < kHeaderBytes) return Corrupt("it is cut");
  const uint8_t* header = *from;
  const int64_t length = Load<uint32_t>(header);
  if (length < kHeaderBytes || length > end - header || header[6] != 0 || header[7] != 0) {
    return Corrupt(absl::StrCat("a length of ", length, " bytes in its header"));
  }
  *message = {header[4], header[5], header + kHeaderBytes, header + length};
  *from += length;
  return CheckLength(*message, num_values);
}

// Calls `visit(place, value)` for each kept value of a sparse message that was checked.
template <typename Visit>
absl::Status ForEachKept(const Message& message, int64_t num_values, const Visit& visit) {
  const int64_t count = Load<uint32_t>(message.body);
  const uint8_t* values = message.body + 4;
  const auto value_at = [&](int64_t i) {
    switch (message.kind) {
      case kSparseTwoBit:
        return Load<float>(values + 4 * (values[kLevelBytes + i / 4] >> 2 * (i % 4) & 3));
      case kSparseBfloat16:
        return WidenBfloat16(Load<uint16_t>(values + 2 * i));
      default:
        return Load<float>(values + 4 * i);
    }
  };
  const uint8_t* remainders = values + KeptBytes(message.kind, count);
  const uint8_t* unary = remainders + CeilDivide(count * message.bit_width, 8);
  BitReader reader(remainders, unary);
  int64_t place = -1, last_bit = -1, i = 0;
  for (const uint8_t* from = unary; from < message.end; from += 8) {
    uint64_t word = 0;
    std::memcpy(&word, from, std::min<int64_t>(8, message.end - from));
    for (; word != 0; word &= word - 1) {
      if (i == count) return Corrupt("there are more indices than values");
      const int64_t bit = 8 * (from - unary) + __builtin_ctzll(word);
      const int64_t quotient = bit - last_bit - 1;
      if (quotient >= num_values) return Corrupt("an index is behind the end");
      last_bit = bit;
      place += (quotient << message.bit_width) + reader.Next(message.bit_width) + 1;
      if (place >= num_values) {
        return Corrupt(absl::StrCat("index ", place, " of ", num_values));
      }
      visit(place, value_at(i));
      ++i;
    }
  }
  return i == count ? absl::OkStatus() : Corrupt("there are fewer indices than values");
}

// Checks the digits or the levels of the values from `begin`, a multiple of 5 and of 8, to
// `end`, as decoding does. In messages of other kinds all bits are values.
inline absl::Status CheckCodes(const Message& message, int64_t num_values, int64_t begin,
                               int64_t end) {
  if (message.kind == kTernary) {
    uint8_t largest = 0;
    for (int64_t i = begin / 5; i < CeilDivide(end, 5); ++i) {
      largest = std::max(largest, message.body[4 + i]);
    }
    return HasDigits(largest) ? absl::OkStatus() : CorruptDigits();
  }
  if (message.kind == kQsgd) {
    const QsgdLayout layout(message, num_values);
    const int64_t width = message.bit_width, count = end - begin;
    const uint8_t* from = message.body + layout.levels + begin / 8 * width;
    // The codes for which 8 bytes can be read: `BitReader` takes several times as long.
    const int64_t num_fast =
        std::clamp<int64_t>(8 * (message.end - from - 8) / width, 0, count);
    const uint64_t mask = (uint64_t{1} << width) - 1;
    uint64_t largest = 0;
    for (int64_t bit = 0; bit < num_fast * width; bit += width) {
      largest = std::max(largest, Load<uint64_t>(from + bit / 8) >> bit % 8 & mask);
    }
    if (!layout.HasLevel(largest)) return layout.CorruptLevel(largest);
    BitReader reader(from + num_fast / 8 * width, message.end);
    for (int64_t i = num_fast / 8 * 8; i < count; ++i) {
      const int64_t code = reader.Next(message.bit_width);
      if (!layout.HasLevel(code)) return layout.CorruptLevel(code);
    }
  }
  return absl::OkStatus();
}

inline float NearestBfloat16(float value) { return WidenBfloat16(RoundToBfloat16(value)); }

// The largest b with 2^b <= ln(2) size / count.
inline int RiceWidth(int64_t size, int64_t count) {
  if (count == 0) return 0;
  int bit_width = 0;
  while ((int64_t{1} << (bit_width + 1)) <= 693 * size / (1000 * count)) ++bit_width;
  return bit_width;
}

// Where the parts of the message of kept values begin, in bytes.
struct SparseLayout {
  // Args:
  //   places: Places of the kept values in the vector, in increasing order.
  //   num_kept: Their number.
  //   first_place: The place at which the piece begins.
  //   num_values: Length of the piece.
  //   kind_of_message: That of a sparse message.
  SparseLayout(const uint32_t* places, int64_t num_kept, int64_t first_place,
               int64_t num_values, uint8_t kind_of_message)
      : count(num_kept),
        begin(first_place),
        size(num_values),
        kind(kind_of_message),
        bit_width(RiceWidth(num_values, num_kept)) {
    int64_t num_unary_bits = count;
    for (int64_t i = 0; i < count; ++i) num_unary_bits += Gap(places, i) >> bit_width;
    remainders = values + KeptBytes(kind, count);
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
  uint8_t kind;
  int bit_width;
  int64_t values = kHeaderBytes + 4, remainders, unary;
  bool is_dense;   // Whether the sparse message would be longer.
  int64_t length;  // Of the whole message.
};

// Writes the message of the kept values of a vector, or of a piece of it:
// `layout.length` bytes. The values are those that are sent: bfloat16 ones, or up to four
// different ones, where the kind of the message has no others.
inline void WriteSparse(const SparseLayout& layout, const uint32_t* places,
                        const float* sent, uint8_t* to) {
  std::fill_n(to, layout.length, 0);
  if (layout.is_dense) {
    StoreHeader(layout.length, kDense, 0, to);
    for (int64_t i = 0; i < layout.count; ++i) {
      Store(sent[i], to + kHeaderBytes + 4 * (places[i] - layout.begin));
    }
    return;
  }
  StoreHeader(layout.length, layout.kind, layout.bit_width, to);
  Store(static_cast<uint32_t>(layout.count), to + kHeaderBytes);
  uint8_t* values = to + layout.values;
  int num_levels = 0;
  BitWriter remainders(to + layout.remainders);
  uint8_t* unary = to + layout.unary;
  int64_t bit = -1;
  for (int64_t i = 0; i < layout.count; ++i) {
    if (layout.kind == kSparseTwoBit) {
      int level = 0;  // By its bits, as NaN equals nothing.
      while (level < num_levels && std::memcmp(values + 4 * level, sent + i, 4) != 0) {
        ++level;
      }
      if (level == num_levels && level < 4) Store(sent[i], values + 4 * num_levels++);
      values[kLevelBytes + i / 4] |= (level & 3) << 2 * (i % 4);
    } else if (layout.kind == kSparseBfloat16) {
      Store(RoundToBfloat16(sent[i]), values + 2 * i);
    } else {
      Store(sent[i], values + 4 * i);
    }
    const uint32_t gap = layout.Gap(places, i);
    remainders.Append(gap & ((uint32_t{1} << layout.bit_width) - 1), layout.bit_width);
    bit += (gap >> layout.bit_width) + 1;
    unary[bit >> 3] |= 1 << (bit & 7);
  }
  remainders.Finish();
}

}  // namespace resnet

#endif  // RESNET_NATIVE_MESSAGES_H_
