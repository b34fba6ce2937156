// A TensorFlow op that decodes the messages of all ranks to the mean of their vectors.
//
// Its NumPy twin is decode_mean in tests/reference/compression.py. The op never reads
// outside of the messages: corrupt ones are an error.

#include <algorithm>
#include <cstdint>
#include <cstring>
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
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Of a part of a vector that one task adds up.
struct Part {
  int vector;
  int64_t begin, end;
};

RESNET_BEGIN_WITHOUT_FMA

FOR_EACH_CPU void AddScaled(const float* values, float factor, int64_t size, float* sums) {
  for (int64_t i = 0; i < size; ++i) sums[i] += values[i] * factor;
}

absl::Status AddSparse(const Message& message, float factor, int64_t num_values,
                       float* sums) {
  return ForEachKept(message, num_values, [&](int64_t place, float value) {
    sums[place] += value * factor;
  });
}

template <typename Widen>
absl::Status AddCast(const Message& message, float factor, const Part& part,
                     const Widen& widen, float* sums) {
  const uint8_t* values = message.body;
  for (int64_t i = part.begin; i < part.end; ++i) {
    sums[i] += widen(Load<uint16_t>(values + 2 * i)) * factor;
  }
  return absl::OkStatus();
}

absl::Status AddTernary(const Message& message, float factor, const Part& part,
                        float* sums) {
  const float scale = Load<float>(message.body);
  const uint8_t* digits = message.body + 4;
  for (int64_t i = part.begin; i < part.end; i += 5) {
    uint8_t byte = digits[i / 5];
    if (!HasDigits(byte)) return CorruptDigits();
    for (int64_t j = i; j < std::min(i + 5, part.end); ++j, byte /= 3) {
      sums[j] += static_cast<float>(byte % 3 - 1) * scale * factor;
    }
  }
  return absl::OkStatus();
}

absl::Status AddQsgd(const Message& message, float factor, const Part& part,
                     int64_t num_values, float* sums) {
  const QsgdLayout layout(message, num_values);
  const int64_t states = layout.states, bucket = layout.bucket;
  const uint8_t* norms = message.body + layout.norms;
  const uint8_t* levels = message.body + layout.levels;
  BitReader reader(levels + part.begin / 8 * message.bit_width, message.end);
  const float num_states = states;
  for (int64_t from = part.begin; from < part.end;) {
    const int64_t number = from / bucket;
    const int64_t to = std::min((number + 1) * bucket, part.end);
    const float norm = Load<float>(norms + 4 * number);
    for (; from < to; ++from) {
      const int64_t code = reader.Next(message.bit_width);
      if (!layout.HasLevel(code)) return layout.CorruptLevel(code);
      sums[from] += norm * static_cast<float>(code - states) / num_states * factor;
    }
  }
  return absl::OkStatus();
}

RESNET_END_WITHOUT_FMA

class DecodeMeanOp : public Op {
 public:
  explicit DecodeMeanOp(OpKernelConstruction* context) : Op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_ranks", &num_ranks_));
    OP_REQUIRES_OK(context, context->GetAttr("sizes", &sizes_));
    int num_vectors;
    OP_REQUIRES_OK(context, context->GetAttr("num_vectors", &num_vectors));
    OP_REQUIRES(context, num_vectors == static_cast<int>(sizes_.size()),
                absl::InvalidArgumentError(absl::StrCat(
                    "sizes must have one number for each of ", num_vectors, " vectors")));
    for (int64_t size : sizes_) OP_REQUIRES_OK(context, CheckNumValues(size));
  }

  void Run(OpKernelContext* context) override {
    std::vector<std::vector<Message>> of_vectors(sizes_.size());
    OP_REQUIRES_OK(context, Parse(context->input(0), &of_vectors));
    OpOutputList means;
    OP_REQUIRES_OK(context, context->output_list("means", &means));
    std::vector<float*> sums(sizes_.size());
    std::vector<Part> pieces, parts;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      Tensor* mean;
      OP_REQUIRES_OK(context, means.allocate(i, TensorShape({sizes_[i]}), &mean));
      sums[i] = mean->flat<float>().data();
      const bool is_sparse =
          std::any_of(of_vectors[i].begin(), of_vectors[i].end(),
                      [](const Message& message) { return message.is_sparse(); });
      for (int64_t begin = 0; begin < sizes_[i]; begin += kPiece) {
        pieces.push_back(
            {static_cast<int>(i), begin, std::min(begin + kPiece, sizes_[i])});
      }
      // Whatever the size: the messages of an empty vector are checked as well.
      if (is_sparse) parts.push_back({static_cast<int>(i), 0, sizes_[i]});
      for (int64_t begin = 0; !is_sparse && begin < sizes_[i]; begin += kPiece) {
        parts.push_back(
            {static_cast<int>(i), begin, std::min(begin + kPiece, sizes_[i])});
      }
    }
    OpContext workers(context);
    workers.Run(pieces.size(), [&](int64_t i) {
      std::fill(sums[pieces[i].vector] + pieces[i].begin,
                sums[pieces[i].vector] + pieces[i].end, 0.0f);
    });
    std::vector<absl::Status> outcomes(parts.size());
    workers.Run(parts.size(), [&](int64_t i) {
      const Part& part = parts[i];
      for (const Message& message : of_vectors[part.vector]) {  // In the order of ranks.
        outcomes[i].Update(Add(message, part, sums[part.vector]));
      }
    });
    for (const absl::Status& outcome : outcomes) OP_REQUIRES_OK(context, outcome);
  }

 private:
  absl::Status Parse(const Tensor& input,
                     std::vector<std::vector<Message>>* of_vectors) const {
    const uint8_t* from = input.flat<uint8_t>().data();
    const uint8_t* const end = from + input.NumElements();
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      for (size_t i = 0; i < sizes_.size(); ++i) {
        Message message;
        TF_RETURN_IF_ERROR(TakeMessage(&from, end, sizes_[i], &message));
        (*of_vectors)[i].push_back(message);
      }
    }
    return from == end ? absl::OkStatus() : Corrupt("there are bytes behind it");
  }

  absl::Status Add(const Message& message, const Part& part, float* sums) const {
    const float factor = 1.0f / num_ranks_;
    const int64_t num_values = sizes_[part.vector];
    switch (message.kind) {
      case kDense: {
        float values[256];  // A message may begin at any byte.
        for (int64_t begin = part.begin; begin < part.end; begin += 256) {
          const int64_t size = std::min<int64_t>(256, part.end - begin);
          std::memcpy(values, message.body + 4 * begin, 4 * size);
          AddScaled(values, factor, size, sums + begin);
        }
        return absl::OkStatus();
      }
      case kFloat16:
        return AddCast(
            message, factor, part,
            [](uint16_t bits) {
              return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits));
            },
            sums);
      case kBfloat16:
        return AddCast(
            message, factor, part,
            [](uint16_t bits) { return WidenBfloat16(bits); }, sums);
      case kTernary:
        return AddTernary(message, factor, part, sums);
      case kQsgd:
        return AddQsgd(message, factor, part, num_values, sums);
      default:
        return AddSparse(message, factor, num_values, sums);
    }
  }

  int64_t num_ranks_;
  std::vector<int64_t> sizes_;
};

REGISTER_OP("ResnetDecodeMean")
    .Input("messages: uint8")
    .Output("means: num_vectors * float")
    .Attr("num_vectors: int >= 1")
    .Attr("sizes: list(int)")
    .Attr("num_ranks: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> sizes;
      TF_RETURN_IF_ERROR(c->GetAttr("sizes", &sizes));
      for (int i = 0; i < c->num_outputs(); ++i) {
        c->set_output(i, i < static_cast<int>(sizes.size()) ? c->Vector(sizes[i])
                                                             : c->UnknownShape());
      }
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetDecodeMean").Device(tensorflow::DEVICE_CPU),
                        DecodeMeanOp);

}  // namespace
}  // namespace resnet
