// TensorFlow ops that find the largest values of a vector, and encode them.
//
// Their NumPy twins are threshold_of_topk and encode_sparse in
// tests/reference/compression.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/for_each_cpu.h"
#include "resnet/native/messages.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

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
class TopkThresholdOp : public Op {
 public:
  explicit TopkThresholdOp(OpKernelConstruction* context) : Op(context) {}

  void Run(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t size = input.NumElements();
    OP_REQUIRES(context, context->input(1).dims() == 0,
                absl::InvalidArgumentError(
                    absl::StrCat("count must be a scalar; got the shape ",
                                 context->input(1).shape().DebugString())));
    const int64_t count = context->input(1).scalar<int64_t>()();
    OP_REQUIRES(context, 1 <= count && count <= size,
                absl::InvalidArgumentError(
                    absl::StrCat("count must be from 1 to the number of values, ", size,
                                 "; got ", count)));
    Tensor* threshold;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &threshold));
    const float* values = input.flat<float>().data();
    OpContext workers(context);
    uint32_t smallest = size > 4 * kSampled ? GuessFromSample(values, size, count) : 0;
    Large large = FindLargeInPieces(values, size, smallest, &workers);
    if (Total(large) < count) large = FindLargeInPieces(values, size, 0, &workers);
    std::vector<uint32_t> candidates;
    candidates.reserve(Total(large));
    for (size_t piece = 0; piece < large.counts.size(); ++piece) {
      for (int64_t i = 0; i < large.counts[piece]; ++i) {
        candidates.push_back(
            MagnitudeBits(values[piece * kPiece + large.of_piece(piece)[i]]));
      }
    }
    std::nth_element(candidates.begin(), candidates.begin() + count - 1,
                     candidates.end(), std::greater<uint32_t>());
    threshold->scalar<float>()() = FloatOfBits(candidates[count - 1]);
  }

 private:
  static int64_t Total(const Large& large) {
    int64_t total = 0;
    for (int64_t count : large.counts) total += count;
    return total;
  }
};

// Replaces values by up to four: the means of those of a sign that are at most as large as
// the mean magnitude of all, and of those that are larger.
void RoundToLevels(std::vector<float>* values) {
  double sum = 0;
  for (float value : *values) sum += std::fabs(value);
  const float mean = sum / values->size();
  const auto level_of = [mean](float value) {
    return 2 * std::signbit(value) + (std::fabs(value) > mean);
  };
  double sums[4] = {};
  int64_t counts[4] = {};
  for (float value : *values) {
    sums[level_of(value)] += value;
    ++counts[level_of(value)];
  }
  for (float& value : *values) value = sums[level_of(value)] / counts[level_of(value)];
}

class EncodeSparseOp : public Op {
 public:
  explicit EncodeSparseOp(OpKernelConstruction* context) : Op(context) {
    std::string kept_values;
    OP_REQUIRES_OK(context, context->GetAttr("kept_values", &kept_values));
    if (kept_values == "bfloat16") kind_ = kSparseBfloat16;
    if (kept_values == "2bit") kind_ = kSparseTwoBit;
  }

  void Run(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t size = input.NumElements();
    OP_REQUIRES(context, context->input(1).dims() == 0,
                absl::InvalidArgumentError(
                    absl::StrCat("threshold must be a scalar; got the shape ",
                                 context->input(1).shape().DebugString())));
    OP_REQUIRES_OK(context, CheckNumValues(size));
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

    std::vector<float> sent = kept;
    if (kind_ == kSparseTwoBit) RoundToLevels(&sent);
    if (kind_ == kSparseBfloat16) {
      std::transform(kept.begin(), kept.end(), sent.begin(), NearestBfloat16);
    }

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
        rest[places[i]] = kept[i] - sent[i];
      }
    });
    const SparseLayout layout(places.data(), count, 0, size, kind_);
    Tensor* message;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({layout.length}), &message));
    WriteSparse(layout, places.data(), sent.data(), message->flat<uint8_t>().data());
  }

 private:
  uint8_t kind_ = kSparseFloat32;
};

REGISTER_OP("ResnetTopkThreshold")
    .Input("values: float")
    .Input("count: int64")
    .Output("threshold: float")
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
    .Attr("kept_values: {'float32', 'bfloat16', '2bit'}")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(0));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetEncodeSparse").Device(tensorflow::DEVICE_CPU),
                        EncodeSparseOp);

}  // namespace
}  // namespace resnet
