// A TensorFlow op that cuts the message of a vector into messages of its pieces.
//
// Together the pieces hold what the message holds: sparse ones are written again, of others
// the bits are copied. The op never reads outside of the message, and a corrupt one is an
// error here: every rank can decode what this op returns.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "resnet/native/messages.h"
#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Bytes in the message of a vector that are copied.
struct Bytes {
  const uint8_t* begin;
  int64_t size;
};

// Makes the messages of pieces, one behind the other.
class PieceWriter {
 public:
  explicit PieceWriter(const Message& whole) : whole_(whole) {}

  // Appends a message whose body is copied.
  void AppendCopy(const std::vector<Bytes>& parts) {
    int64_t length = kHeaderBytes;
    for (const Bytes& part : parts) length += part.size;
    uint8_t* to = Append(length);
    StoreHeader(length, whole_.kind, whole_.bit_width, to);
    to += kHeaderBytes;
    for (const Bytes& part : parts) to = std::copy_n(part.begin, part.size, to);
  }

  // Appends the message of kept values, which are in the vector's values from `begin` on.
  void AppendSparse(const uint32_t* places, const float* kept, int64_t count,
                    int64_t begin, int64_t size) {
    const SparseLayout layout(places, count, begin, size, whole_.kind);
    WriteSparse(layout, places, kept, Append(layout.length));
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }
  const std::vector<int32_t>& lengths() const { return lengths_; }

 private:
  uint8_t* Append(int64_t length) {
    lengths_.push_back(length);
    bytes_.resize(bytes_.size() + length);
    return bytes_.data() + bytes_.size() - length;
  }

  const Message whole_;
  std::vector<uint8_t> bytes_;
  std::vector<int32_t> lengths_;
};

absl::Status CutSparse(const Message& message, const std::vector<int64_t>& sizes,
                       int64_t num_values, PieceWriter* writer) {
  std::vector<uint32_t> places;
  std::vector<float> kept;
  TF_RETURN_IF_ERROR(ForEachKept(message, num_values, [&](int64_t place, float value) {
    places.push_back(place);
    kept.push_back(value);
  }));
  int64_t begin = 0;
  size_t first = 0;
  for (int64_t size : sizes) {
    size_t last = first;
    while (last < places.size() && places[last] < begin + size) ++last;
    writer->AppendSparse(places.data() + first, kept.data() + first, last - first, begin,
                         size);
    first = last;
    begin += size;
  }
  return absl::OkStatus();
}

// Cuts a message with `numerator` bytes for each `denominator` values.
absl::Status CutValues(const uint8_t* values, const std::vector<Bytes>& fixed,
                       int64_t numerator, int64_t denominator,
                       const std::vector<int64_t>& sizes, PieceWriter* writer) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] % denominator != 0 && i + 1 < sizes.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a piece must have a multiple of ", denominator, " values; got ", sizes[i]));
    }
    const int64_t num_bytes = CeilDivide(sizes[i] * numerator, denominator);
    std::vector<Bytes> parts = fixed;
    parts.push_back({values, num_bytes});
    writer->AppendCopy(parts);
    values += num_bytes;
  }
  return absl::OkStatus();
}

absl::Status CutQsgd(const Message& message, const std::vector<int64_t>& sizes,
                     int64_t num_values, PieceWriter* writer) {
  const QsgdLayout layout(message, num_values);
  const int64_t bucket = layout.bucket;
  const Bytes fixed{message.body, layout.norms};
  const uint8_t* norms = message.body + layout.norms;
  if (bucket >= num_values) {
    return CutValues(norms + 4, {fixed, {norms, 4}}, message.bit_width, 8, sizes, writer);
  }
  const uint8_t* levels = message.body + layout.levels;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool is_last = i + 1 == sizes.size();
    if (!is_last && (sizes[i] % 8 != 0 || sizes[i] % bucket != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a piece must have a multiple of 8 and of ", bucket,
                       " values; got ", sizes[i]));
    }
    const int64_t norm_bytes = 4 * CeilDivide(sizes[i], bucket);
    const int64_t level_bytes = CeilDivide(sizes[i] * message.bit_width, 8);
    writer->AppendCopy({fixed, {norms, norm_bytes}, {levels, level_bytes}});
    norms += norm_bytes;
    levels += level_bytes;
  }
  return absl::OkStatus();
}

class CutMessageOp : public Op {
 public:
  explicit CutMessageOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sizes", &sizes_));
    for (int64_t size : sizes_) {
      OP_REQUIRES(context, 0 < size && size <= kMaxValues,
                  absl::InvalidArgumentError(absl::StrCat(
                      "a piece must have from 1 to 2^29 - 3 values; got ", size)));
    }
    num_values_ = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
    OP_REQUIRES_OK(context, CheckNumValues(num_values_));
  }

  void Run(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const uint8_t* from = input.flat<uint8_t>().data();
    const uint8_t* const end = from + input.NumElements();
    Message message;
    OP_REQUIRES_OK(context, TakeMessage(&from, end, num_values_, &message));
    OP_REQUIRES(context, from == end, Corrupt("there are bytes behind it"));
    std::vector<absl::Status> outcomes(CeilDivide(num_values_, kPiece));
    OpContext(context).Run(outcomes.size(), [&](int64_t i) {
      outcomes[i] = CheckCodes(message, num_values_, i * kPiece,
                               std::min((i + 1) * kPiece, num_values_));
    });
    for (const absl::Status& outcome : outcomes) OP_REQUIRES_OK(context, outcome);
    PieceWriter writer(message);
    OP_REQUIRES_OK(context, Cut(message, &writer));
    Tensor *pieces, *lengths;
    const int64_t num_bytes = writer.bytes().size(), num_pieces = writer.lengths().size();
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({num_bytes}), &pieces));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, TensorShape({num_pieces}), &lengths));
    std::copy_n(writer.bytes().data(), num_bytes, pieces->flat<uint8_t>().data());
    std::copy_n(writer.lengths().data(), num_pieces, lengths->flat<int32_t>().data());
  }

 private:
  absl::Status Cut(const Message& message, PieceWriter* writer) const {
    switch (message.kind) {
      case kDense:
        return CutValues(message.body, {}, 4, 1, sizes_, writer);
      case kFloat16:
      case kBfloat16:
        return CutValues(message.body, {}, 2, 1, sizes_, writer);
      case kTernary:
        return CutValues(message.body + 4, {{message.body, 4}}, 1, 5, sizes_, writer);
      case kQsgd:
        return CutQsgd(message, sizes_, num_values_, writer);
      default:
        return CutSparse(message, sizes_, num_values_, writer);
    }
  }

  std::vector<int64_t> sizes_;
  int64_t num_values_;
};

REGISTER_OP("ResnetCutMessage")
    .Input("message: uint8")
    .Output("pieces: uint8")
    .Output("lengths: int32")
    .Attr("sizes: list(int) >= 1")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> sizes;
      TF_RETURN_IF_ERROR(c->GetAttr("sizes", &sizes));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(sizes.size()));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetCutMessage").Device(tensorflow::DEVICE_CPU),
                        CutMessageOp);

}  // namespace
}  // namespace resnet
