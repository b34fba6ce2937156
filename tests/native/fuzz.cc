// Runs ops on random and on hostile inputs: fuzz CASES [SEED]. It ends with 1 where a result
// is wrong; where memory is misused, the sanitizer ends it.

#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <fstream>
#include <iostream>

#include "tests/native/random_cases.h"
#include "tests/native/tensorflow_stand_in.h"

namespace tf = tensorflow;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;
using Sizes = std::vector<int64_t>;
using tf::Tensor;

namespace {

template <typename T>
const T& OneOf(const std::vector<T>& values) { return values[Draw(0, values.size() - 1)]; }

void Expect(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << now << ": " << what << std::endl;
  std::exit(1);
}

struct Outcome {
  template <typename T> std::vector<T> values(int i) const {
    const auto flat = outputs[i].flat<T>();
    return {flat.data(), flat.data() + flat.size()};
  }
  absl::Status status;
  std::vector<Tensor> outputs;
};

Outcome Call(const std::string& op, const std::vector<Tensor>& inputs,
             const std::map<std::string, tf::Attribute>& attributes,
             const std::vector<tf::DataType>& types) {
  tf::OpKernelConstruction construction{attributes, {}};
  const std::unique_ptr<tf::OpKernel> kernel(tf::KernelsOfOps().at(op)(&construction));
  if (!construction.status.ok()) return {construction.status, {}};
  tf::OpKernelContext context;
  context.inputs = inputs;
  context.outputs.resize(types.size());
  context.types = types;
  context.kernel = kernel.get();
  kernel->Compute(&context);
  return {context.status, context.outputs};
}

template <typename T>
Tensor TensorOf(const std::vector<T>& values, const Sizes& sizes) {
  Tensor tensor(tf::DataTypeToEnum<T>::value, sizes);
  std::copy(values.begin(), values.end(), tensor.flat<T>().data());
  return tensor;
}
template <typename T>
Tensor VectorOf(const std::vector<T>& values) {
  return TensorOf(values, {static_cast<int64_t>(values.size())});
}
template <typename T>
Tensor Scalar(T value) { return TensorOf<T>({value}, {}); }

Outcome Decode(const Bytes& messages, const Sizes& sizes) {
  const int64_t count = sizes.size();
  return Call("ResnetDecodeMean", {VectorOf(messages)},
              {{"sizes", sizes}, {"num_vectors", count}, {"num_ranks", int64_t{1}}},
              std::vector<tf::DataType>(count, tf::DT_FLOAT));
}
Outcome Cut(const Bytes& message, const Sizes& sizes) {
  return Call("ResnetCutMessage", {VectorOf(message)}, {{"sizes", sizes}},
              {tf::DT_UINT8, tf::DT_INT32});
}

struct Vector {
  Floats values;
  int64_t alignment = 1;  // Of the pieces that its message can be cut into.
  Outcome encoded;
};

Vector Encode() {
  Vector vector;
  const int64_t size = OneIn(50) ? Draw(65'000, 140'000) : Draw(0, 2'000);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < size; ++i) vector.values.push_back(normal(generator));
  const Tensor values = VectorOf(vector.values);
  const Tensor stream = VectorOf<int64_t>({Draw(0, INT64_MAX), 1, Draw(0, UINT_MAX), 3});
  const std::vector<tf::DataType> types{tf::DT_UINT8, tf::DT_FLOAT};
  const int64_t kind = Draw(0, 3);
  if (kind == 0) {
    vector.encoded = Call("ResnetEncodeTernary", {values, stream}, {}, types);
    vector.alignment = 5;
  } else if (kind == 1) {
    const int64_t bucket = Draw(0, 1) * Draw(1, 40), states = int64_t{1} << Draw(0, 23);
    vector.encoded = Call("ResnetEncodeQsgd", {values, stream},
                          {{"states", states - (states > 1 && OneIn(2))}, {"bucket", bucket},
                           {"norm", std::string(OneIn(2) ? "l2" : "max")}}, types);
    vector.alignment = 8 * std::max<int64_t>(bucket, 1);
  } else {
    const float threshold = static_cast<float>(Draw(0, 30)) / 10;
    vector.encoded = Call("ResnetEncodeSparse", {values, Scalar(threshold)},
                          {{"kept_values", std::string(OneIn(3)    ? "2bit"
                                                       : kind == 2 ? "bfloat16"
                                                                   : "float32")}},
                          types);
  }
  Expect(vector.encoded.status.ok(), vector.encoded.status.message);
  return vector;
}

Sizes Pieces(int64_t size, int64_t alignment) {
  Sizes sizes;
  while (size > 0) {
    const int64_t most = size / alignment;
    sizes.push_back(most < 2 || OneIn(3) ? size : alignment * Draw(1, most));
    size -= sizes.back();
  }
  return sizes;
}

bool AreSame(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return x == y || (std::isnan(x) && std::isnan(y));
         });
}

// Whoever cuts a message and whoever decodes it agree about it.
void CheckMessage(const Bytes& message, int64_t size, int64_t alignment) {
  const Outcome whole = Decode(message, {size});
  const Sizes sizes = Pieces(size, alignment);
  if (sizes.empty()) return;
  const Outcome cut = Cut(message, sizes);
  if (cut.status.code == absl::StatusCode::kInvalidArgument) return;  // Not where it may be cut.
  Expect(cut.status.ok() == whole.status.ok(),
         "cut: '" + cut.status.message + "', decoded: '" + whole.status.message + "'");
  if (!cut.status.ok()) return;
  const Outcome pieces = Decode(cut.values<uint8_t>(0), sizes);
  Expect(pieces.status.ok(), "the pieces are refused: " + pieces.status.message);
  Floats joined;
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (float value : pieces.values<float>(i)) joined.push_back(value);
  }
  Expect(AreSame(joined, whole.values<float>(0)), "the pieces hold other values");
}

template <typename T>
void Mutate(T* bytes) {
  for (int64_t i = Draw(1, 4); i > 0; --i) {
    // The header and what follows it decide most.
    const int64_t last = static_cast<int64_t>(bytes->size()) - 1;
    if (last < 0) return;
    const int64_t place = Draw(0, OneIn(2) ? last : std::min<int64_t>(last, 15));
    switch (Draw(0, 4)) {
      case 0: (*bytes)[place] = Draw(0, 255); break;
      case 1: (*bytes)[place] = OneIn(2) ? 0xff : 0; break;
      case 2: (*bytes)[place] ^= 1 << Draw(0, 7); break;
      case 3: bytes->resize(Draw(0, last + 1)); break;
      default: bytes->insert(bytes->begin() + place, Draw(1, 9), Draw(0, 255));
    }
  }
}

void Messages() {
  const Vector vector = Encode();
  Bytes message = vector.encoded.values<uint8_t>(0);
  if (OneIn(4)) return CheckMessage(message, vector.values.size(), vector.alignment);
  Mutate(&message);
  if (message.size() >= 4 && !OneIn(4)) {  // Else most are refused for their length.
    const uint32_t length = message.size();
    std::memcpy(message.data(), &length, 4);
  }
  const int64_t size = OneIn(8) ? Draw(0, 5'000) : vector.values.size();
  CheckMessage(message, size, OneOf<int64_t>({1, vector.alignment, 40 * vector.alignment}));
}

std::string Varint(uint64_t value) {
  std::string text;
  for (; value >= 128; value >>= 7) text += static_cast<char>(value | 128);
  return text + static_cast<char>(value);
}
std::string Field(int number, const std::string& content) {
  return Varint(8 * number + 2) + Varint(content.size()) + content;
}
std::string Feature(const std::string& name, const std::string& value) {
  return Field(1, Field(1, name) + Field(2, value));
}
std::string Checksum(const std::string& data) {
  const uint32_t crc = tf::crc32c::Value(data.data(), data.size());
  const uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8u;
  return {reinterpret_cast<const char*>(&masked), 4};
}

Outcome Read(const std::string& path, int64_t offset) {
  return Call("ResnetReadExample", {Scalar(tf::tstring(path)), Scalar(offset)},
              {{"image_key", std::string("image")}, {"label_key", std::string("label")}},
              {tf::DT_STRING, tf::DT_INT64});
}

void Records() {
  static const std::string path = "/tmp/fuzz_" + std::to_string(getpid());
  std::string image(Draw(0, 60), static_cast<char>(Draw(0, 255)));
  const int64_t label = OneIn(2) ? Draw(0, 1000) : Draw(INT64_MIN, INT64_MAX);
  std::string example = Field(1, Feature("image", Field(1, Field(1, image))) +
                                     Feature("other", Field(2, Field(1, "12345678"))) +
                                     Feature("label", Field(3, Field(1, Varint(label)))));
  const bool is_whole = OneIn(3);
  if (!is_whole) Mutate(&example);
  uint64_t size = !is_whole && OneIn(20) ? generator() >> Draw(0, 63) : example.size();
  const std::string length(reinterpret_cast<const char*>(&size), 8), before(Draw(0, 3), 'x');
  std::string file = before + length + Checksum(length) + example + Checksum(example);
  if (!is_whole && OneIn(10)) Mutate(&file);
  std::ofstream(path, std::ios::binary) << file;
  const bool is_elsewhere = !is_whole && OneIn(30);
  const Outcome read = Read(path, is_elsewhere ? Draw(INT64_MIN, INT64_MAX) : before.size());
  unlink(path.c_str());
  if (!is_whole) return;
  Expect(read.status.ok(), read.status.message);
  Expect(read.values<tf::tstring>(0)[0] == image && read.values<int64_t>(1)[0] == label,
         "another image or label is read");
}

void NoRecords() {
  const std::string path = "/tmp/fuzz_pipe_" + std::to_string(getpid());
  mkfifo(path.c_str(), 0600);
  for (const std::string& file : {path, std::string("/tmp"), std::string("/dev/null")}) {
    Expect(Read(file, 0).status.message == file + " is no regular file", file + " is read");
  }
  unlink(path.c_str());
}

void Resize() {
  const int64_t height = Draw(0, 30), width = Draw(0, 30), gray = Draw(0, 255);
  const auto side = [] {
    return static_cast<int32_t>(OneIn(8) ? OneOf<int64_t>({INT_MIN, -1, 0, 1 << 28, INT_MAX})
                                         : Draw(1, 40));
  };
  std::vector<int32_t> sides(OneIn(20) ? Draw(0, 3) : 2);
  std::generate(sides.begin(), sides.end(), side);
  const int64_t channels = OneIn(20) ? Draw(0, 4) : 3;
  const Bytes pixels(height * width * channels, gray);
  const Outcome resized =
      Call("ResnetResizeBicubic",
           {TensorOf(pixels, {height, width, channels}), VectorOf(sides), Scalar(OneIn(2))},
           {{"mean", Floats{0, 0, 0}}, {"stddev", Floats{1, 1, 1}}}, {tf::DT_FLOAT});
  const bool is_usual = channels == 3 && !pixels.empty() && sides.size() == 2 &&
                        std::min(sides[0], sides[1]) > 0 && std::max(sides[0], sides[1]) <= 40;
  Expect(resized.status.ok() == is_usual, "'" + resized.status.message + "'");
  if (!is_usual) return;
  for (float value : resized.values<float>(0)) {
    Expect(std::fabs(value - gray) < 1e-2f, "a gray image has another gray");
  }
}

// What doesn't fit into memory is an error. The last test, since it leaves little memory.
void ShortMemory() {
  tf::most_bytes = 10'000;
  const Tensor values(tf::DT_FLOAT, tf::TensorShape({70'000}));
  const Tensor stream = VectorOf<int64_t>({1, 2, 3, 4});
  const std::vector<tf::DataType> types{tf::DT_UINT8, tf::DT_FLOAT};
  const std::vector<Outcome> outcomes{
      Call("ResnetTopkThreshold", {values, Scalar<int64_t>(9)}, {}, {tf::DT_FLOAT}),
      Call("ResnetEncodeSparse", {values, Scalar(1.0f)}, {{"kept_values", std::string("2bit")}},
           types),
      Call("ResnetEncodeTernary", {values, stream}, {}, types)};
  for (const Outcome& outcome : outcomes) {
    Expect(outcome.status.code == absl::StatusCode::kResourceExhausted, "memory suffices");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t cases = argc > 1 ? std::atoll(argv[1]) : 1000;
  const uint64_t seed = argc > 2 ? std::atoll(argv[2]) : 1;
  const std::vector<std::pair<std::string, void (*)()>> kinds{
      {"messages", Messages}, {"messages", Messages}, {"records", Records}, {"resize", Resize}};
  NoRecords();
  for (int64_t i = 0; i < cases; ++i) {
    generator.seed(seed * 1'000'003 + i);
    const auto& [name, run] = kinds[i % kinds.size()];
    now = name + ", case " + std::to_string(i) + " of seed " + std::to_string(seed);
    run();
  }
  ShortMemory();
  std::cout << cases << " cases, no failure" << std::endl;
}
