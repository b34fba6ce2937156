// Reads the messages of compressed gradients, and checks them.
//
// The reference implementation is resnet/exchange/codecs, whose files document the formats.

#ifndef RESNET_NATIVE_MESSAGES_H_
#define RESNET_NATIVE_MESSAGES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/lib/core/errors.h"

#include "resnet/native/compression.h"

namespace resnet {

// A message in memory.
struct Message {
  uint8_t kind;
  int bit_width;
  const uint8_t* body;
  const uint8_t* end;

  int64_t size() const { return end - body; }
  bool is_sparse() const { return kind == kSparseFloat32 || kind == kSparseBfloat16; }
};

inline absl::Status Corrupt(const std::string& what) {
  return absl::DataLossError(
      absl::StrCat("a message of compressed gradients is corrupt: ", what));
}

// Checks that a message is one of a vector of so many values, as far as its header and
// length say it.
inline absl::Status Check(const Message& message, int64_t num_values) {
  const auto wrong_length = [&](int64_t expected) {
    return Corrupt(absl::StrCat(message.size(), " bytes instead of ", expected));
  };
  switch (message.kind) {
    case kDense:
      return message.size() == 4 * num_values ? absl::OkStatus()
                                              : wrong_length(4 * num_values);
    case kFloat16:
    case kBfloat16:
      return message.size() == 2 * num_values ? absl::OkStatus()
                                              : wrong_length(2 * num_values);
    case kSparseFloat32:
    case kSparseBfloat16: {
      if (message.size() < 4) return wrong_length(4);
      const int64_t count = Load<uint32_t>(message.body);
      if (count > num_values || message.bit_width > 31) {
        return Corrupt(absl::StrCat(count, " of ", num_values, " values are kept"));
      }
      const int64_t value_bytes = message.kind == kSparseFloat32 ? 4 : 2;
      const int64_t least =
          4 + count * value_bytes + CeilDivide(count * message.bit_width, 8);
      return message.size() >= least ? absl::OkStatus() : wrong_length(least);
    }
    case kTernary: {
      const int64_t expected = 4 + CeilDivide(num_values, 5);
      return message.size() == expected ? absl::OkStatus() : wrong_length(expected);
    }
    case kQsgd: {
      if (message.size() < 8) return wrong_length(8);
      const int64_t states = Load<uint32_t>(message.body);
      const int64_t bucket = Load<uint32_t>(message.body + 4);
      if (states < 1 || states > 1 << 23) {
        return Corrupt(absl::StrCat(states, " states"));
      }
      int bit_width = 0;
      while (int64_t{1} << bit_width <= 2 * states) ++bit_width;
      if (bit_width != message.bit_width) {
        return Corrupt(absl::StrCat(message.bit_width, " bits for ", states, " states"));
      }
      const int64_t size = bucket == 0 ? std::max<int64_t>(num_values, 1) : bucket;
      const int64_t expected =
          8 + 4 * CeilDivide(num_values, size) + CeilDivide(num_values * bit_width, 8);
      return message.size() == expected ? absl::OkStatus() : wrong_length(expected);
    }
    default:
      return Corrupt(absl::StrCat("kind ", message.kind));
  }
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
  return Check(*message, num_values);
}

// Calls `visit(place, value)` for each kept value of a sparse message that was checked.
template <typename Visit>
absl::Status ForEachKept(const Message& message, int64_t num_values, const Visit& visit) {
  const int64_t count = Load<uint32_t>(message.body);
  const bool is_bfloat16 = message.kind == kSparseBfloat16;
  const uint8_t* values = message.body + 4;
  const uint8_t* remainders = values + count * (is_bfloat16 ? 2 : 4);
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
      visit(place, is_bfloat16
                       ? FloatOfBits(uint32_t{Load<uint16_t>(values + 2 * i)} << 16)
                       : Load<float>(values + 4 * i));
      ++i;
    }
  }
  return i == count ? absl::OkStatus() : Corrupt("there are fewer indices than values");
}

}  // namespace resnet

#endif  // RESNET_NATIVE_MESSAGES_H_
