// A stand-in for what the ops of fuzz.cc use of TensorFlow and Abseil, so that they run under
// sanitizers. The Makefile gives it the names of their headers.
//
// An impossible shape ends the process, as in TensorFlow. Tensors have their exact size in
// memory, so that the sanitizer sees each access behind their end.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace absl {

enum class StatusCode {
  kOk, kInvalidArgument, kDataLoss, kNotFound, kUnimplemented, kUnknown, kResourceExhausted
};
struct Status {
  bool ok() const { return code == StatusCode::kOk; }
  void Update(const Status& other) { if (ok()) *this = other; }
  StatusCode code = StatusCode::kOk;
  std::string message;
};
inline Status OkStatus() { return {}; }
#define STAND_IN(NAME) \
  inline Status NAME##Error(std::string text) { return {StatusCode::k##NAME, std::move(text)}; }
STAND_IN(InvalidArgument) STAND_IN(DataLoss) STAND_IN(NotFound) STAND_IN(Unimplemented)
STAND_IN(Unknown) STAND_IN(ResourceExhausted)
#undef STAND_IN

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace absl

namespace Eigen {
struct half {
  uint16_t bits;
  explicit operator float() const {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? __builtin_nanf("") : __builtin_inff())
                       : exponent ? __builtin_ldexpf(1024 + fraction, exponent - 25)
                                  : __builtin_ldexpf(fraction, -24);
    return bits & 0x8000 ? -size : size;
  }
};
namespace numext {
template <typename To, typename From>
To bit_cast(From from) { return To{from}; }
}  // namespace numext
}  // namespace Eigen

namespace tensorflow {

struct bfloat16 { uint16_t bits; };
struct tstring : std::string {
  using std::string::string;
  explicit tstring(const std::string& text) : std::string(text) {}
  void resize_uninitialized(size_t size) { resize(size); }
  char* mdata() { return data(); }
};
enum DataType { DT_FLOAT, DT_BFLOAT16, DT_INT8, DT_UINT8, DT_INT32, DT_INT64, DT_BOOL, DT_STRING };
template <typename T> struct DataTypeToEnum;
#define STAND_IN(TYPE, NAME) \
  template <> struct DataTypeToEnum<TYPE> { static constexpr DataType value = NAME; };
STAND_IN(float, DT_FLOAT) STAND_IN(bfloat16, DT_BFLOAT16) STAND_IN(int8_t, DT_INT8)
STAND_IN(uint8_t, DT_UINT8) STAND_IN(int32_t, DT_INT32) STAND_IN(int64_t, DT_INT64)
STAND_IN(bool, DT_BOOL) STAND_IN(tstring, DT_STRING)
#undef STAND_IN
inline int64_t SizeOf(DataType type) {
  constexpr int64_t kSizes[] = {4, 2, 1, 1, 4, 8, 1, 0};
  return kSizes[type];
}
inline std::string DataTypeString(DataType type) { return std::to_string(type); }

class TensorShape {
 public:
  TensorShape(std::vector<int64_t> sizes = {}) : sizes_(std::move(sizes)) {
    if (!IsPossible(sizes_)) std::abort();
  }
  TensorShape(std::initializer_list<int64_t> sizes) : TensorShape(std::vector<int64_t>(sizes)) {}
  static absl::Status BuildTensorShape(std::vector<int64_t> sizes, TensorShape* shape) {
    if (!IsPossible(sizes)) return absl::InvalidArgumentError("an impossible shape");
    shape->sizes_ = std::move(sizes);
    return {};
  }
  int dims() const { return static_cast<int>(sizes_.size()); }
  int64_t dim_size(int i) const { return sizes_.at(i); }
  int64_t num_elements() const {
    int64_t product = 1;
    for (int64_t size : sizes_) product *= size;
    return product;
  }
  std::string DebugString() const { return "of " + std::to_string(dims()) + " dimensions"; }

 private:
  static bool IsPossible(const std::vector<int64_t>& sizes) {
    int64_t product = 1;
    for (int64_t size : sizes) {
      if (size < 0 || __builtin_mul_overflow(product, size, &product)) return false;
    }
    return true;
  }
  std::vector<int64_t> sizes_;
};

template <typename T>
struct Flat {
  T* values;
  int64_t count;
  T* data() const { return values; }
  int64_t size() const { return count; }
  T& operator()(int64_t i = 0) const { return values[i]; }
};

class Tensor {
 public:
  Tensor() : Tensor(DT_FLOAT, {0}) {}
  Tensor(DataType type, const TensorShape& shape) : type_(type), shape_(shape) {
    if (type == DT_STRING) strings_ = std::make_shared<std::vector<tstring>>(NumElements());
    const int64_t bytes = SizeOf(type) * NumElements();
    void* memory = nullptr;
    if (bytes > 0 && posix_memalign(&memory, 64, bytes) != 0) std::abort();
    if (bytes > 0) std::memset(memory, 0xff, bytes);  // NaN, where nothing is written.
    memory_.reset(memory, std::free);
  }
  const TensorShape& shape() const { return shape_; }
  int dims() const { return shape_.dims(); }
  int64_t dim_size(int i) const { return shape_.dim_size(i); }
  int64_t NumElements() const { return shape_.num_elements(); }
  void* data() const { return memory_.get(); }
  template <typename T> Flat<T> flat() const {
    if (DataTypeToEnum<T>::value != type_) std::abort();
    if constexpr (std::is_same_v<T, tstring>) return {strings_->data(), NumElements()};
    else return {static_cast<T*>(data()), NumElements()};
  }
  template <typename T> Flat<T> vec() const { return flat<T>(); }
  template <typename T> Flat<T> scalar() const { return flat<T>(); }

 private:
  DataType type_;
  TensorShape shape_;
  std::shared_ptr<void> memory_;
  std::shared_ptr<std::vector<tstring>> strings_;
};

namespace core {
inline uint32_t DecodeFixed32(const char* from) { uint32_t v; std::memcpy(&v, from, 4); return v; }
inline uint64_t DecodeFixed64(const char* from) { uint64_t v; std::memcpy(&v, from, 8); return v; }
}  // namespace core
namespace crc32c {
inline uint32_t Value(const char* data, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; ++i) {
    crc ^= static_cast<uint8_t>(data[i]);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}
inline uint32_t Unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}
}  // namespace crc32c

namespace thread {
struct ThreadPool {  // Of one thread, which is every worker in turn.
  struct SchedulingParams { static int Fixed(int64_t) { return 0; } };
  void ParallelFor(int64_t total, int, const std::function<void(int64_t, int64_t)>& work) {
    for (int64_t i = total; i > 0; --i) work(i - 1, i);
  }
};
}  // namespace thread
struct DeviceBase {
  struct CpuWorkerThreads { int num_threads; thread::ThreadPool* workers; };
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const { return &threads; }
  thread::ThreadPool pool;
  CpuWorkerThreads threads{3, &pool};
};

using Attribute =
    std::variant<int64_t, bool, std::string, std::vector<int64_t>, std::vector<float>>;
struct OpKernelConstruction {
  void CtxFailure(const absl::Status& error) { status.Update(error); }
  template <typename T> absl::Status GetAttr(const std::string& name, T* value) {
    using Stored = std::conditional_t<std::is_same_v<T, int>, int64_t, T>;
    *value = static_cast<T>(std::get<Stored>(attributes.at(name)));
    return {};
  }
  std::map<std::string, Attribute> attributes;
  absl::Status status;
};
struct OpKernelContext;
struct OpKernel {
  explicit OpKernel(OpKernelConstruction*) {}
  virtual ~OpKernel() = default;
  virtual void Compute(OpKernelContext* context) = 0;
  std::string type_string() const { return "The op"; }
};
struct OpOutputList {
  absl::Status allocate(int i, const TensorShape& shape, Tensor** tensor) const;
  OpKernelContext* context;
};
inline int64_t most_bytes = int64_t{1} << 28;  // There is no memory for larger tensors.
struct OpKernelContext {
  void CtxFailure(const absl::Status& error) { status.Update(error); }
  const Tensor& input(int i) const { return inputs.at(i); }
  absl::Status output_list(const char*, OpOutputList* list) { *list = {this}; return {}; }
  absl::Status allocate_temp(DataType type, const TensorShape& shape, Tensor* tensor) const {
    if (shape.num_elements() > most_bytes / std::max<int64_t>(SizeOf(type), 1)) {
      return absl::ResourceExhaustedError("no memory");
    }
    *tensor = Tensor(type, shape);
    return {};
  }
  absl::Status allocate_output(int i, const TensorShape& shape, Tensor** tensor) {
    *tensor = &outputs.at(i);
    return allocate_temp(types.at(i), shape, *tensor);
  }
  absl::Status forward_input_or_allocate_output(const std::vector<int>&, int i,
                                                const TensorShape& shape, Tensor** tensor) {
    return allocate_output(i, shape, tensor);
  }
  const DeviceBase* device() const { return &device_of_ops; }
  const OpKernel& op_kernel() const { return *kernel; }

  std::vector<Tensor> inputs, outputs;
  std::vector<DataType> types;  // Of the outputs.
  OpKernel* kernel = nullptr;
  absl::Status status;
  DeviceBase device_of_ops;
};
inline absl::Status OpOutputList::allocate(int i, const TensorShape& shape, Tensor** t) const {
  return context->allocate_output(i, shape, t);
}

#define OP_REQUIRES(context, holds, error) \
  do { if (!(holds)) { (context)->CtxFailure(error); return; } } while (false)
#define OP_REQUIRES_OK(context, expression)                  \
  do {                                                       \
    const absl::Status outcome_of_it = (expression);         \
    OP_REQUIRES(context, outcome_of_it.ok(), outcome_of_it); \
  } while (false)
#define TF_RETURN_IF_ERROR(expression)               \
  do {                                               \
    const absl::Status outcome_of_it = (expression); \
    if (!outcome_of_it.ok()) return outcome_of_it;   \
  } while (false)

namespace shape_inference {  // Shape functions are compiled, and never called.
using DimensionHandle = int;
using ShapeHandle = int;
struct InferenceContext {
  template <typename T> absl::Status GetAttr(const char*, T*) { return {}; }
  void set_output(int, ShapeHandle) {}
  int num_outputs() { return 0; }
  ShapeHandle input(int) { return 0; }
  ShapeHandle Scalar() { return 0; }
  ShapeHandle Vector(int64_t) { return 0; }
  ShapeHandle UnknownShape() { return 0; }
  DimensionHandle UnknownDim() { return 0; }
  absl::Status WithRank(ShapeHandle, int, ShapeHandle*) { return {}; }
  absl::Status MakeShapeFromShapeTensor(int, ShapeHandle*) { return {}; }
  absl::Status Concatenate(ShapeHandle, ShapeHandle, ShapeHandle*) { return {}; }
};
}  // namespace shape_inference

struct OpDef {
  explicit OpDef(const char*) {}
  OpDef& Input(const char*) { return *this; }
  OpDef& Output(const char*) { return *this; }
  OpDef& Attr(const char*) { return *this; }
  OpDef& SetIsStateful() { return *this; }
  template <typename Function> OpDef& SetShapeFn(Function) { return *this; }
};
constexpr const char* DEVICE_CPU = "CPU";
struct Name {
  explicit Name(const char* name) : op(name) {}
  Name& Device(const char*) { return *this; }
  const char* op;
};
using MakeKernel = std::function<OpKernel*(OpKernelConstruction*)>;
inline std::map<std::string, MakeKernel>& KernelsOfOps() {
  static std::map<std::string, MakeKernel> kernels;
  return kernels;
}

}  // namespace tensorflow

#define STAND_IN_JOIN_(A, B) A##B
#define STAND_IN_JOIN(A, B) STAND_IN_JOIN_(A, B)
#define REGISTER_OP(NAME) \
  static const auto STAND_IN_JOIN(op_, __COUNTER__) = ::tensorflow::OpDef(NAME)
#define REGISTER_KERNEL_BUILDER(NAME, KERNEL)                         \
  static const bool STAND_IN_JOIN(kernel_, __COUNTER__) = [] {        \
    using ::tensorflow::Name;                                         \
    const auto make = [](auto* context) { return new KERNEL(context); }; \
    return ::tensorflow::KernelsOfOps().emplace((NAME).op, make).second; \
  }()
