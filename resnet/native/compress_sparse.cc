// TensorFlow ops that find the largest values of a vector, and encode them.
//
// The reference implementation is resnet/compression/sparse.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/compression.h"
#include "resnet/native/for_each_cpu.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

constexpr int64_t kSampled = 1 << 16;
constexpr int64_t kBlock = 64;

// Writes the places of the values of at least a magnitude; returns their number.
FOR_EACH_CPU int64_t FindLarge(const float* values, int64_t size, uint32_t smallest,
                               uint32_t* places) {
  int64_t found = 0;
  int64_t i = 0;
  for (; i + kBlock <= size; i += kBlock) {
    uint32_t largest = 0;  // Most blocks have no large value, and are passed over fast.
    for (int64_t j = i; j < i + kBlock; ++j) {
      largest = std::max(largest, MagnitudeBits(values[j]));
    }
    if (largest < smallest) continue;
    for (int64_t j = i; j < i + kBlock; ++j) {
      places[found] = j;
      found += MagnitudeBits(values[j]) >= smallest;
    }
  }
  for (; i < size; ++i) {
    places[found] = i;
    found += MagnitudeBits(values[i]) >= smallest;
  }
  return found;
}

// The values of at least a magnitude in each piece of a vector.
struct Large {
  uint32_t* places;  // In their piece; those of piece i begin at i * (kPiece + 1).
  std::vector<int64_t> counts;

  const uint32_t* of_piece(int64_t piece) const { return places + piece * (kPiece + 1); }
};

Large FindLargeInPieces(const float* values, int64_t size, uint32_t smallest,
                        OpContext* context) {
  const int64_t num_pieces = CeilDivide(size, kPiece);
  // One more place a piece: the place behind the last one found is written as well. The
  // memory of places that aren't found is never touched.
  Large large{static_cast<uint32_t*>(context->Allocate(std::max<int64_t>(
                  num_pieces * (kPiece + 1) * sizeof(uint32_t), 1))),
              std::vector<int64_t>(num_pieces)};
  context->Run(num_pieces, [&](int64_t piece) {
    const int64_t begin = piece * kPiece;
    large.counts[piece] =
        FindLarge(values + begin, std::min(kPiece, size - begin), smallest,
                  large.places + piece * (kPiece + 1));
  });
  return large;
}

// Returns a magnitude that probably a few more than `count` values have at least.
uint32_t GuessFromSample(const float* values, int64_t size, int64_t count) {
  std::vector<uint32_t> sample(kSampled);
  const int64_t stride = size / kSampled;
  for (int64_t i = 0; i < kSampled; ++i) sample[i] = MagnitudeBits(values[i * stride]);
  const double expected = static_cast<double>(count) * kSampled / size;
  const int64_t rank = std::ceil(expected + 6 * std::sqrt(expected) + 16);
  if (rank >= kSampled) return 0;
  std::nth_element(sample.begin(), sample.begin() + rank, sample.end(),
                   std::greater<uint32_t>());
  return sample[rank];
}

// Finds the magnitude of which exactly `count` values are as large or larger, except for
// more that equal it. A sample gives a lower bound, so that memory is read once.
class TopkThresholdOp : public OpKernel {
 public:
  explicit TopkThresholdOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("count", &count_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t size = input.NumElements();
    OP_REQUIRES(context, 1 <= count_ && count_ <= size,
                absl::InvalidArgumentError(
                    absl::StrCat("count must be from 1 to the number of values, ", size,
                                 "; got ", count_)));
    Tensor* threshold;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &threshold));
    const float* values = input.flat<float>().data();
    OpContext workers(context);
    uint32_t smallest = size > 4 * kSampled ? GuessFromSample(values, size, count_) : 0;
    Large large = FindLargeInPieces(values, size, smallest, &workers);
    if (Total(large) < count_) large = FindLargeInPieces(values, size, 0, &workers);
    std::vector<uint32_t> candidates;
    candidates.reserve(Total(large));
    for (size_t piece = 0; piece < large.counts.size(); ++piece) {
      for (int64_t i = 0; i < large.counts[piece]; ++i) {
        candidates.push_back(
            MagnitudeBits(values[piece * kPiece + large.of_piece(piece)[i]]));
      }
    }
    std::nth_element(candidates.begin(), candidates.begin() + count_ - 1,
                     candidates.end(), std::greater<uint32_t>());
    threshold->scalar<float>()() = FloatOfBits(candidates[count_ - 1]);
  }

 private:
  static int64_t Total(const Large& large) {
    int64_t total = 0;
    for (int64_t count : large.counts) total += count;
    return total;
  }

  int64_t count_;
};

class EncodeSparseOp : public OpKernel {
 public:
  explicit EncodeSparseOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("is_bfloat16", &is_bfloat16_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t size = input.NumElements();
    OP_REQUIRES(context, context->input(1).dims() == 0,
                absl::InvalidArgumentError(
                    absl::StrCat("threshold must be a scalar; got the shape ",
                                 context->input(1).shape().DebugString())));
    OP_REQUIRES(context, size < int64_t{1} << 30,
                absl::InvalidArgumentError(absl::StrCat(
                    "a vector must have fewer than 2^30 values; got ", size)));
    const float threshold = context->input(1).scalar<float>()();
    const float* values = input.flat<float>().data();
    OpContext workers(context);
    const Large large = FindLargeInPieces(
        values, size, std::max<uint32_t>(MagnitudeBits(threshold), 1), &workers);

    // All places, in the whole vector, and the kept values.
    const int64_t num_pieces = large.counts.size();
    std::vector<int64_t> starts(num_pieces + 1, 0);
    for (int64_t i = 0; i < num_pieces; ++i) starts[i + 1] = starts[i] + large.counts[i];
    const int64_t count = starts[num_pieces];
    std::vector<uint32_t> places(count);
    std::vector<float> kept(count);
    workers.Run(num_pieces, [&](int64_t piece) {
      const uint32_t* of_piece = large.of_piece(piece);
      for (int64_t i = 0; i < large.counts[piece]; ++i) {
        const int64_t place = piece * kPiece + of_piece[i];
        places[starts[piece] + i] = place;
        kept[starts[piece] + i] = values[place];
      }
    });

    // The input's memory becomes that of what is left, if nobody else reads it.
    Tensor* left;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0}, 1, input.shape(), &left));
    float* rest = left->flat<float>().data();
    workers.Run(num_pieces, [&](int64_t piece) {
      const int64_t begin = piece * kPiece;
      if (rest != values) {
        std::copy_n(values + begin, std::min(kPiece, size - begin), rest + begin);
      }
      for (int64_t i = starts[piece]; i < starts[piece + 1]; ++i) {
        const float sent =
            is_bfloat16_ ? FloatOfBits(uint32_t{RoundToBfloat16(kept[i])} << 16) : kept[i];
        rest[places[i]] = kept[i] - sent;
      }
    });
    WriteMessage(places, kept, size, context);
  }

 private:
  void WriteMessage(const std::vector<uint32_t>& places, const std::vector<float>& kept,
                    int64_t size, OpKernelContext* context) const {
    const int64_t count = places.size();
    const int bit_width = RiceWidth(size, count);
    int64_t num_unary_bits = count;
    for (int64_t i = 0; i < count; ++i) {
      num_unary_bits += Gap(places, i) >> bit_width;
    }
    const int64_t value_bytes = is_bfloat16_ ? 2 : 4;
    const int64_t values_begin = kHeaderBytes + 4;
    const int64_t remainders_begin = values_begin + count * value_bytes;
    const int64_t unary_begin = remainders_begin + CeilDivide(count * bit_width, 8);
    const int64_t sparse_length = unary_begin + CeilDivide(num_unary_bits, 8);
    const int64_t dense_length = kHeaderBytes + 4 * size;
    const bool is_dense = sparse_length > dense_length;
    const int64_t length = is_dense ? dense_length : sparse_length;
    Tensor* message;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({length}), &message));
    uint8_t* bytes = message->flat<uint8_t>().data();
    std::fill_n(bytes, length, 0);
    if (is_dense) {
      StoreHeader(length, kDense, 0, bytes);
      for (int64_t i = 0; i < count; ++i) {
        const float sent =
            is_bfloat16_ ? FloatOfBits(uint32_t{RoundToBfloat16(kept[i])} << 16) : kept[i];
        Store(sent, bytes + kHeaderBytes + 4 * int64_t{places[i]});
      }
      return;
    }
    StoreHeader(length, is_bfloat16_ ? kSparseBfloat16 : kSparseFloat32, bit_width, bytes);
    Store(static_cast<uint32_t>(count), bytes + kHeaderBytes);
    BitWriter remainders(bytes + remainders_begin);
    uint8_t* unary = bytes + unary_begin;
    int64_t bit = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (is_bfloat16_) {
        Store(RoundToBfloat16(kept[i]), bytes + values_begin + 2 * i);
      } else {
        Store(kept[i], bytes + values_begin + 4 * i);
      }
      const uint32_t gap = Gap(places, i);
      remainders.Append(gap & ((uint32_t{1} << bit_width) - 1), bit_width);
      bit += (gap >> bit_width) + 1;
      unary[bit >> 3] |= 1 << (bit & 7);
    }
    remainders.Finish();
  }

  static uint32_t Gap(const std::vector<uint32_t>& places, int64_t i) {
    return i == 0 ? places[0] : places[i] - places[i - 1] - 1;
  }

  static int RiceWidth(int64_t size, int64_t count) {
    if (count == 0) return 0;
    int bit_width = 0;
    while ((int64_t{1} << (bit_width + 1)) <= 693 * size / (1000 * count)) ++bit_width;
    return bit_width;
  }

  bool is_bfloat16_;
};

REGISTER_OP("ResnetTopkThreshold")
    .Input("values: float")
    .Output("threshold: float")
    .Attr("count: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetTopkThreshold").Device(tensorflow::DEVICE_CPU),
                        TopkThresholdOp);

REGISTER_OP("ResnetEncodeSparse")
    .Input("values: float")
    .Input("threshold: float")
    .Output("message: uint8")
    .Output("left: float")
    .Attr("is_bfloat16: bool")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(0));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetEncodeSparse").Device(tensorflow::DEVICE_CPU),
                        EncodeSparseOp);

}  // namespace
}  // namespace resnet
