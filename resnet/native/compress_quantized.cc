// TensorFlow ops that encode vectors with fewer bits for each value, at random.
//
// Their NumPy twins are encode_ternary and encode_qsgd in tests/reference/compression.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
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
#include "resnet/native/without_fma.h"

namespace resnet {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

constexpr int64_t kStrip = 240;  // Values whose random numbers are drawn together.
constexpr int64_t kSumBlock = 1 << 16;
constexpr int kLanes = 8;
static_assert(kPiece % kStrip == 0 && kStrip % 4 == 0 && kStrip % 5 == 0);

// What the random numbers of a vector depend on (`Context.stream` of the codecs).
struct Stream {
  uint32_t key[2];
  uint32_t vector, step, rank;
};

absl::Status ReadStream(const Tensor& tensor, Stream* stream) {
  if (tensor.dims() != 1 || tensor.NumElements() != 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stream must have 4 numbers; got the shape ", tensor.shape().DebugString()));
  }
  const auto numbers = tensor.flat<int64_t>();
  for (int i = 1; i < 4; ++i) {
    if (numbers(i) < 0 || numbers(i) >= int64_t{1} << 32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "vector, step and rank must be from 0 to below 2^32; got ", numbers(i)));
    }
  }
  *stream = {{static_cast<uint32_t>(numbers(0)), static_cast<uint32_t>(numbers(0) >> 32)},
             static_cast<uint32_t>(numbers(1)),
             static_cast<uint32_t>(numbers(2)),
             static_cast<uint32_t>(numbers(3))};
  return absl::OkStatus();
}

// The results must be those of the NumPy twins on every CPU, so that no multiplication
// is fused with an addition.
RESNET_BEGIN_WITHOUT_FMA

// Draws kStrip numbers from 0 to below 1 for the values from `begin` on.
FOR_EACH_CPU void DrawUniform(const Stream& stream, int64_t begin, float* numbers) {
  constexpr int64_t kGroups = kStrip / 4;
  uint32_t a[kGroups], b[kGroups], c[kGroups], d[kGroups];
  for (int64_t i = 0; i < kGroups; ++i) {
    a[i] = begin / 4 + i;
    b[i] = stream.vector;
    c[i] = stream.step;
    d[i] = stream.rank;
  }
  uint32_t key0 = stream.key[0], key1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < kGroups; ++i) {
      const uint64_t first = uint64_t{0xD2511F53u} * a[i];
      const uint64_t second = uint64_t{0xCD9E8D57u} * c[i];
      a[i] = static_cast<uint32_t>(second >> 32) ^ b[i] ^ key0;
      b[i] = static_cast<uint32_t>(second);
      c[i] = static_cast<uint32_t>(first >> 32) ^ d[i] ^ key1;
      d[i] = static_cast<uint32_t>(first);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < kGroups; ++i) {
    numbers[4 * i] = static_cast<float>(static_cast<int32_t>(a[i] >> 8)) * 0x1p-24f;
    numbers[4 * i + 1] = static_cast<float>(static_cast<int32_t>(b[i] >> 8)) * 0x1p-24f;
    numbers[4 * i + 2] = static_cast<float>(static_cast<int32_t>(c[i] >> 8)) * 0x1p-24f;
    numbers[4 * i + 3] = static_cast<float>(static_cast<int32_t>(d[i] >> 8)) * 0x1p-24f;
  }
}

FOR_EACH_CPU uint32_t LargestMagnitude(const float* values, int64_t size) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < size; ++i) largest = std::max(largest, MagnitudeBits(values[i]));
  return largest;
}

// Adds up squares in lanes of their own, in an order that does not depend on the CPU. The
// squares of floats are exact.
FOR_EACH_CPU void SumSquares(const float* values, int64_t size, double* lanes) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      sums[j] += static_cast<double>(values[i + j]) * static_cast<double>(values[i + j]);
    }
  }
  for (int j = 0; i + j < size; ++j) {
    sums[j] += static_cast<double>(values[i + j]) * static_cast<double>(values[i + j]);
  }
  std::copy_n(sums, kLanes, lanes);
}

// Draws which values of a strip are sent as `scale`; writes -1, 0 or 1, and what is left.
FOR_EACH_CPU void DrawSigns(const float* values, const float* uniform, float scale,
                            int64_t size, int32_t* signs, float* left) {
  for (int64_t i = 0; i < size; ++i) {
    const float value = values[i];
    const bool is_sent = uniform[i] < std::fabs(value) / scale;
    signs[i] = is_sent ? (value > 0) - (value < 0) : 0;
    left[i] = value - static_cast<float>(signs[i]) * scale;
  }
}

// Draws the levels of the values of a strip that share a norm; writes them from 0 on, and
// what is left.
FOR_EACH_CPU void DrawLevels(const float* values, const float* uniform, float norm,
                             int32_t states, int64_t size, uint32_t* levels, float* left) {
  const float num_states = states;
  const bool is_valid = norm > 0 && norm <= 3.4028234663852886e38f;
  for (int64_t i = 0; i < size; ++i) {
    const float value = values[i];
    const float scaled = is_valid ? std::fabs(value) / norm * num_states : 0.0f;
    const float drawn = std::floor(scaled + uniform[i]);
    int32_t level = is_valid ? static_cast<int32_t>(std::min(drawn, num_states)) : 0;
    level = std::signbit(value) ? -level : level;
    left[i] = value - norm * static_cast<float>(level) / num_states;
    levels[i] = level + states;
  }
}

RESNET_END_WITHOUT_FMA

class EncodeTernaryOp : public Op {
 public:
  explicit EncodeTernaryOp(OpKernelConstruction* context) : Op(context) {}

  void Run(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t size = input.NumElements();
    const float* values = input.flat<float>().data();
    Stream stream;
    OP_REQUIRES_OK(context, ReadStream(context->input(1), &stream));
    OP_REQUIRES_OK(context, CheckNumValues(size));
    const int64_t length = kHeaderBytes + 4 + CeilDivide(size, 5);
    Tensor *message, *left;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({length}), &message));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0}, 1, input.shape(), &left));
    uint8_t* bytes = message->flat<uint8_t>().data();
    float* rest = left->flat<float>().data();

    OpContext workers(context);
    const int64_t num_pieces = CeilDivide(size, kPiece);
    std::vector<uint32_t> largest(num_pieces);
    workers.Run(num_pieces, [&](int64_t piece) {
      const int64_t begin = piece * kPiece;
      largest[piece] = LargestMagnitude(values + begin, std::min(kPiece, size - begin));
    });
    uint32_t scale_bits = 0;
    for (uint32_t bits : largest) scale_bits = std::max(scale_bits, bits);
    const float scale = FloatOfBits(scale_bits);
    StoreHeader(length, kTernary, 0, bytes);
    Store(scale, bytes + kHeaderBytes);
    workers.Run(num_pieces, [&](int64_t piece) {
      float uniform[kStrip];
      int32_t signs[kStrip];
      const int64_t end = std::min((piece + 1) * kPiece, size);
      for (int64_t begin = piece * kPiece; begin < end; begin += kStrip) {
        const int64_t num_values = std::min(kStrip, end - begin);
        DrawUniform(stream, begin, uniform);
        DrawSigns(values + begin, uniform, scale, num_values, signs, rest + begin);
        std::fill(signs + num_values, signs + kStrip, -1);  // Digits of 0.
        uint8_t* digits = bytes + kHeaderBytes + 4 + begin / 5;
        for (int64_t i = 0; i < num_values; i += 5) {
          digits[i / 5] = signs[i] + 3 * signs[i + 1] + 9 * signs[i + 2] +
                          27 * signs[i + 3] + 81 * signs[i + 4] + 121;
        }
      }
    });
  }
};

class EncodeQsgdOp : public Op {
 public:
  explicit EncodeQsgdOp(OpKernelConstruction* context) : Op(context) {
    std::string norm;
    OP_REQUIRES_OK(context, context->GetAttr("states", &states_));
    OP_REQUIRES_OK(context, context->GetAttr("bucket", &bucket_));
    OP_REQUIRES_OK(context, context->GetAttr("norm", &norm));
    is_largest_ = norm == "max";
    OP_REQUIRES(context, 1 <= states_ && states_ <= 1 << 23,
                absl::InvalidArgumentError(
                    absl::StrCat("states must be from 1 to 2^23; got ", states_)));
    OP_REQUIRES(context, 0 <= bucket_ && bucket_ < int64_t{1} << 32,
                absl::InvalidArgumentError(
                    absl::StrCat("bucket must be from 0 to below 2^32; got ", bucket_)));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t size = input.NumElements();
    const float* values = input.flat<float>().data();
    Stream stream;
    OP_REQUIRES_OK(context, ReadStream(context->input(1), &stream));
    OP_REQUIRES_OK(context, CheckNumValues(size));
    const int bit_width = QsgdLayout::BitWidth(states_);
    const int64_t bucket = bucket_ == 0 ? std::max<int64_t>(size, 1) : bucket_;
    const int64_t num_buckets = CeilDivide(size, bucket);
    const int64_t levels_begin = kHeaderBytes + 8 + 4 * num_buckets;
    const int64_t length = levels_begin + CeilDivide(size * bit_width, 8);
    OP_REQUIRES(context, length <= kMaxBytes,
                absl::InvalidArgumentError(absl::StrCat(
                    "a message must have less than 2^31 bytes; that of ", size,
                    " values in buckets of ", bucket, " would have ", length)));
    Tensor *message, *left;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({length}), &message));
    OpContext workers(context);
    const std::vector<float> norms = Norms(values, size, bucket, &workers);
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0}, 1, input.shape(), &left));
    uint8_t* bytes = message->flat<uint8_t>().data();
    float* rest = left->flat<float>().data();
    StoreHeader(length, kQsgd, bit_width, bytes);
    Store(static_cast<uint32_t>(states_), bytes + kHeaderBytes);
    Store(static_cast<uint32_t>(bucket_), bytes + kHeaderBytes + 4);
    for (int64_t i = 0; i < num_buckets; ++i) {
      Store(norms[i], bytes + kHeaderBytes + 8 + 4 * i);
    }
    workers.Run(CeilDivide(size, kPiece), [&](int64_t piece) {
      float uniform[kStrip];
      uint32_t levels[kStrip];
      BitWriter writer(bytes + levels_begin + piece * kPiece / 8 * bit_width);
      const int64_t end = std::min((piece + 1) * kPiece, size);
      for (int64_t begin = piece * kPiece; begin < end; begin += kStrip) {
        const int64_t strip_end = std::min(begin + kStrip, end);
        DrawUniform(stream, begin, uniform);
        for (int64_t from = begin; from < strip_end;) {  // Parts that share a norm.
          const int64_t number = from / bucket;
          const int64_t to = std::min((number + 1) * bucket, strip_end);
          DrawLevels(values + from, uniform + (from - begin), norms[number], states_,
                     to - from, levels + (from - begin), rest + from);
          from = to;
        }
        for (int64_t i = 0; i < strip_end - begin; ++i) writer.Append(levels[i], bit_width);
      }
      writer.Finish();
    });
  }

 private:
  std::vector<float> Norms(const float* values, int64_t size, int64_t bucket,
                           OpContext* workers) const {
    const int64_t num_buckets = CeilDivide(size, bucket);
    const int64_t blocks_per_bucket = CeilDivide(bucket, kSumBlock);
    const int64_t num_blocks = num_buckets * blocks_per_bucket;
    std::vector<double> lanes(is_largest_ ? 0 : num_blocks * kLanes, 0.0);
    std::vector<uint32_t> largest(is_largest_ ? num_blocks : 0, 0);
    const int64_t blocks_per_task = std::max<int64_t>(kSumBlock / bucket, 1);
    workers->Run(CeilDivide(num_blocks, blocks_per_task), [&](int64_t task) {
      const int64_t last = std::min((task + 1) * blocks_per_task, num_blocks);
      for (int64_t block = task * blocks_per_task; block < last; ++block) {
        const int64_t number = block / blocks_per_bucket;
        const int64_t begin =
            number * bucket + block % blocks_per_bucket * kSumBlock;
        const int64_t end =
            std::min({begin + kSumBlock, (number + 1) * bucket, size});
        if (begin >= end) continue;
        if (is_largest_) {
          largest[block] = LargestMagnitude(values + begin, end - begin);
        } else {
          SumSquares(values + begin, end - begin, &lanes[block * kLanes]);
        }
      }
    });
    std::vector<float> norms(num_buckets);
    for (int64_t i = 0; i < num_buckets; ++i) {
      const int64_t first = i * blocks_per_bucket;
      if (is_largest_) {
        norms[i] = FloatOfBits(*std::max_element(&largest[first],
                                                 &largest[first] + blocks_per_bucket));
      } else {
        double total = 0;
        for (int64_t j = 0; j < blocks_per_bucket * kLanes; ++j) {
          total += lanes[first * kLanes + j];
        }
        norms[i] = static_cast<float>(std::sqrt(total));
      }
    }
    return norms;
  }

  int64_t states_, bucket_;
  bool is_largest_;
};

absl::Status MessageAndLeft(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->input(0));
  return absl::OkStatus();
}

REGISTER_OP("ResnetEncodeTernary")
    .Input("values: float")
    .Input("stream: int64")
    .Output("message: uint8")
    .Output("left: float")
    .SetShapeFn(MessageAndLeft);

REGISTER_KERNEL_BUILDER(Name("ResnetEncodeTernary").Device(tensorflow::DEVICE_CPU),
                        EncodeTernaryOp);

REGISTER_OP("ResnetEncodeQsgd")
    .Input("values: float")
    .Input("stream: int64")
    .Output("message: uint8")
    .Output("left: float")
    .Attr("states: int")
    .Attr("bucket: int")
    .Attr("norm: {'l2', 'max'}")
    .SetShapeFn(MessageAndLeft);

REGISTER_KERNEL_BUILDER(Name("ResnetEncodeQsgd").Device(tensorflow::DEVICE_CPU),
                        EncodeQsgdOp);

}  // namespace
}  // namespace resnet
