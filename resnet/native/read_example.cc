// TensorFlow ops that read the image and label of one record in a TFRecord file, given
// its byte offset, or an image in any file, given also its size and its checksum.
//
// The reference implementation of the first is record_files.read_with_stock_ops. The op
// does two preads, checks both checksums, and walks over the fields of the serialized
// Example.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/coding.h"
#include "tensorflow/core/lib/hash/crc32c.h"

#include "resnet/native/op_context.h"

namespace resnet {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

constexpr size_t kHeaderBytes = 12;  // Length of the data and its checksum.
constexpr size_t kFooterBytes = 4;   // The data's checksum.
// The limit of a protobuf message; a longer one is a corrupt length.
constexpr uint64_t kMaxExampleBytes = (uint64_t{1} << 31) - 1;
constexpr size_t kKeptBytes = size_t{16} << 20;  // Larger buffers are freed after use.

// An open file, closed with the last reference to it.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// A cache of open files. Opening a file for each record costs more than reading the record,
// and loads the metadata server of a parallel file system, which all nodes share. All ops
// of the process share the cache, since each phase of a run has an op of its own, and ops
// live as long as the data set. It may use a quarter of the process's file descriptors.
class OpenFiles {
 public:
  // Returns the cache of the process, whose files are closed with the last op.
  static std::shared_ptr<OpenFiles> OfProcess() {
    static std::mutex mutex;
    static std::weak_ptr<OpenFiles> shared;
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<OpenFiles> files = shared.lock();
    if (files == nullptr) {
      files = std::make_shared<OpenFiles>();
      shared = files;
    }
    return files;
  }

  absl::Status Get(const std::string& path, std::shared_ptr<File>* file) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto place = files_.find(path);
      if (place != files_.end()) {
        *file = place->second;
        return absl::OkStatus();
      }
    }
    // Without waiting for a writer, if it is a pipe.
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
      return absl::NotFoundError(
          absl::StrCat(path, " can't be opened (", strerror(errno), ")"));
    }
    *file = std::make_shared<File>(descriptor);
    struct stat status;
    if (fstat(descriptor, &status) == 0 && !S_ISREG(status.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    // Any file may go, because reads are in random order.
    if (files_.size() >= MostFiles()) files_.erase(files_.begin());
    files_[path] = *file;
    return absl::OkStatus();
  }

  // Closes a file as soon as nobody reads it, so that its name is opened again.
  void Forget(const std::string& path, const std::shared_ptr<File>& file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = files_.find(path);
    if (place != files_.end() && place->second == file) files_.erase(place);
  }

 private:
  static size_t MostFiles() {
    rlimit limit;
    const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    return known ? std::max<rlim_t>(limit.rlim_cur / 4, 1) : 64;
  }

  std::mutex mutex_;  // Guards `files_`.
  std::unordered_map<std::string, std::shared_ptr<File>> files_;
};

// Reads `size` bytes, or up to the end of the file; returns the number read, or -1.
ssize_t ReadFully(int descriptor, char* buffer, size_t size, int64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(descriptor, buffer + done, size - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

bool ChecksumIsRight(const char* data, size_t size, const char* stored) {
  const uint32_t masked = tensorflow::core::DecodeFixed32(stored);
  return tensorflow::crc32c::Unmask(masked) == tensorflow::crc32c::Value(data, size);
}

// Reads a varint (seven bits per byte, lowest first) and advances past it.
bool ReadVarint(const char** at, const char* end, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *at < end; shift += 7) {
    const uint8_t byte = *(*at)++;
    *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// A protobuf message, or a part of one, that is read from start to end.
// Source: protobuf.dev, "Encoding"; the messages are those of example.proto.
class Fields {
 public:
  Fields(const char* begin, size_t size) : at_(begin), end_(begin + size) {}

  // Advances to the next field; returns false at the end or if the message is corrupt.
  bool Next() {
    uint64_t tag;
    if (broken_ || at_ == end_ || !Varint(&tag)) return false;
    number_ = tag >> 3;
    wire_type_ = tag & 7;
    data_ = at_;
    switch (wire_type_) {
      case 0:
        return Varint(&value_);
      case 1:
        return Take(8);
      case 2: {
        uint64_t size;
        if (!Varint(&size)) return false;
        data_ = at_;
        return Take(size);
      }
      case 5:
        return Take(4);
      default:
        broken_ = true;
        return false;
    }
  }

  bool Is(uint64_t number, uint64_t wire_type) const {
    return number_ == number && wire_type_ == wire_type;
  }
  bool broken() const { return broken_; }
  uint64_t value() const { return value_; }
  const char* data() const { return data_; }
  size_t size() const { return at_ - data_; }
  Fields Inside() const { return Fields(data(), size()); }
  bool Equals(const std::string& text) const {
    return size() == text.size() && memcmp(data(), text.data(), size()) == 0;
  }

 private:
  bool Varint(uint64_t* value) {
    broken_ = !ReadVarint(&at_, end_, value);
    return !broken_;
  }

  bool Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) {
      broken_ = true;
      return false;
    }
    at_ += size;
    return true;
  }

  const char* at_;
  const char* end_;
  const char* data_ = nullptr;
  uint64_t number_ = 0;
  uint64_t wire_type_ = 0;
  uint64_t value_ = 0;
  bool broken_ = false;
};

// The features of an Example to extract.
struct Wanted {
  int num_images = 0;
  const char* image = nullptr;
  size_t image_size = 0;
  int num_labels = 0;
  int64_t label = 0;
};

// Stores the values of a Feature, image or label, in `wanted` and counts them.
bool TakeFeature(Fields feature, bool is_image, Wanted* wanted) {
  int& count = is_image ? wanted->num_images : wanted->num_labels;
  count = 0;  // The last of several entries with the same key counts.
  while (feature.Next()) {
    if (!feature.Is(is_image ? 1 : 3, 2)) continue;  // bytes_list, int64_list.
    Fields values = feature.Inside();
    while (values.Next()) {
      if (is_image && values.Is(1, 2)) {
        wanted->image = values.data();
        wanted->image_size = values.size();
        ++count;
      } else if (!is_image && values.Is(1, 0)) {
        wanted->label = values.value();
        ++count;
      } else if (!is_image && values.Is(1, 2)) {  // Packed, the usual encoding.
        const char* at = values.data();
        const char* const end = at + values.size();
        while (at < end) {
          uint64_t value = 0;
          if (!ReadVarint(&at, end, &value)) return false;
          wanted->label = value;
          ++count;
        }
      }
    }
    if (values.broken()) return false;
  }
  return !feature.broken();
}

// Finds the features in a serialized Example; returns false if it is corrupt.
bool ParseExample(const char* data, size_t size, const std::string& image_key,
                  const std::string& label_key, Wanted* wanted) {
  Fields example(data, size);
  while (example.Next()) {
    if (!example.Is(1, 2)) continue;
    Fields features = example.Inside();
    while (features.Next()) {
      if (!features.Is(1, 2)) continue;
      Fields entry = features.Inside();
      bool is_image = false;
      bool is_label = false;
      while (entry.Next()) {
        if (entry.Is(1, 2)) {
          is_image = entry.Equals(image_key);
          is_label = entry.Equals(label_key);
        } else if (entry.Is(2, 2) && (is_image || is_label)) {
          if (!TakeFeature(entry.Inside(), is_image, wanted)) return false;
        }
      }
      if (entry.broken()) return false;
    }
    if (features.broken()) return false;
  }
  return !example.broken();
}

// An op that reads a part of a file, which its messages name `what`.
class ReadOp : public Op {
 protected:
  ReadOp(OpKernelConstruction* context, const char* what) : Op(context), what_(what) {}

  // Opens the file that has this name now.
  absl::Status Open(const std::string& path, int64_t offset, std::shared_ptr<File>* file,
                    struct stat* status) {
    const absl::Status opened = files_->Get(path, file);
    if (!opened.ok()) return opened;
    if (fstat((*file)->descriptor(), status) != 0) return ReadError(path, offset);
    if (status->st_nlink == 0) {  // Another file may have its name now.
      files_->Forget(path, *file);
      std::shared_ptr<File> replacement;
      if (files_->Get(path, &replacement).ok()) *file = replacement;
      if (fstat((*file)->descriptor(), status) != 0) return ReadError(path, offset);
    }
    return absl::OkStatus();
  }

  absl::Status Corrupt(const std::string& path, int64_t offset, const char* why) const {
    return absl::DataLossError(
        absl::StrCat("the ", what_, " at byte ", offset, " of ", path, " is corrupt: ", why));
  }
  absl::Status ReadError(const std::string& path, int64_t offset) const {
    return absl::UnknownError(absl::StrCat("the ", what_, " at byte ", offset, " of ", path,
                                           " can't be read (", strerror(errno), ")"));
  }

 private:
  const char* const what_;
  const std::shared_ptr<OpenFiles> files_ = OpenFiles::OfProcess();
};

class ReadImageOp : public ReadOp {
 public:
  explicit ReadImageOp(OpKernelConstruction* context) : ReadOp(context, "image") {}

  void Run(OpKernelContext* context) override {
    for (int i = 0; i < 4; ++i) {
      OP_REQUIRES(context, context->input(i).dims() == 0,
                  absl::InvalidArgumentError(absl::StrCat(
                      "each input must be a scalar; number ", i, " has the shape ",
                      context->input(i).shape().DebugString())));
    }
    const std::string path(context->input(0).scalar<tstring>()());
    const int64_t offset = context->input(1).scalar<int64_t>()();
    const int64_t size = context->input(2).scalar<int64_t>()();
    const int64_t checksum = context->input(3).scalar<int64_t>()();

    struct stat status;
    std::shared_ptr<File> file;
    OP_REQUIRES_OK(context, Open(path, offset, &file, &status));
    // Checked before allocation, because the file can have changed.
    OP_REQUIRES(context,
                offset >= 0 && size >= 0 && offset <= status.st_size &&
                    size <= status.st_size - offset,
                Corrupt(path, offset, "the file ends inside the image"));
    Tensor* image = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &image));
    tstring& data = image->scalar<tstring>()();
    data.resize_uninitialized(size);
    const ssize_t got = ReadFully(file->descriptor(), data.mdata(), size, offset);
    OP_REQUIRES(context, got >= 0, ReadError(path, offset));
    OP_REQUIRES(context, got == size,
                Corrupt(path, offset, "the file ends inside the image"));
    OP_REQUIRES(context, tensorflow::crc32c::Value(data.data(), size) == checksum,
                Corrupt(path, offset, "its checksum doesn't match that of the index"));
  }
};

class ReadExampleOp : public ReadOp {
 public:
  explicit ReadExampleOp(OpKernelConstruction* context) : ReadOp(context, "record") {
    OP_REQUIRES_OK(context, context->GetAttr("image_key", &image_key_));
    OP_REQUIRES_OK(context, context->GetAttr("label_key", &label_key_));
  }

  void Run(OpKernelContext* context) override {
    OP_REQUIRES(context, context->input(0).dims() == 0 && context->input(1).dims() == 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "path and offset must be scalars; got ",
                    context->input(0).shape().DebugString(), " and ",
                    context->input(1).shape().DebugString())));
    const std::string path(context->input(0).scalar<tstring>()());
    const int64_t offset = context->input(1).scalar<int64_t>()();

    struct stat status;
    std::shared_ptr<File> file;
    OP_REQUIRES_OK(context, Open(path, offset, &file, &status));
    char header[kHeaderBytes];
    ssize_t got = ReadFully(file->descriptor(), header, kHeaderBytes, offset);
    OP_REQUIRES(context, got >= 0, ReadError(path, offset));
    OP_REQUIRES(context, got == kHeaderBytes,
                Corrupt(path, offset, "the file ends before the record"));
    OP_REQUIRES(context, ChecksumIsRight(header, 8, header + 8),
                Corrupt(path, offset, "the checksum of its length doesn't match"));
    const uint64_t size = tensorflow::core::DecodeFixed64(header);
    // Checked before allocation, because the length in a corrupt file can be anything.
    const uint64_t rest = status.st_size - std::min<int64_t>(offset, status.st_size);
    OP_REQUIRES(context,
                rest >= kHeaderBytes + kFooterBytes &&
                    size <= rest - kHeaderBytes - kFooterBytes,
                Corrupt(path, offset, "the file ends inside the record"));
    OP_REQUIRES(context, size <= kMaxExampleBytes,
                Corrupt(path, offset, "its length exceeds 2 GiB"));

    // Thread-local, because the system would have to zero fresh memory for each record.
    thread_local std::string buffer;
    if (buffer.capacity() > kKeptBytes) std::string().swap(buffer);
    buffer.resize(size + kFooterBytes);
    got = ReadFully(file->descriptor(), &buffer[0], buffer.size(),
                    offset + kHeaderBytes);
    OP_REQUIRES(context, got >= 0, ReadError(path, offset));
    OP_REQUIRES(context, static_cast<size_t>(got) == buffer.size(),
                Corrupt(path, offset, "the file ends inside the record"));
    OP_REQUIRES(context, ChecksumIsRight(buffer.data(), size, &buffer[size]),
                Corrupt(path, offset, "the checksum of its data doesn't match"));

    Wanted wanted;
    OP_REQUIRES(context,
                ParseExample(buffer.data(), size, image_key_, label_key_, &wanted),
                Corrupt(path, offset, "its data is no tf.train.Example"));
    OP_REQUIRES(context, wanted.num_images == 1 && wanted.num_labels == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "the record at byte ", offset, " of ", path,
                    " must have one value in each of the features ", image_key_,
                    " and ", label_key_)));
    Tensor* image = nullptr;
    Tensor* label = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &image));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &label));
    image->scalar<tstring>()().assign(wanted.image, wanted.image_size);
    label->scalar<int64_t>()() = wanted.label;
  }

 private:
  std::string image_key_;
  std::string label_key_;
};

REGISTER_OP("ResnetReadExample")
    .Input("path: string")
    .Input("offset: int64")
    .Output("encoded: string")
    .Output("label: int64")
    .Attr("image_key: string")
    .Attr("label_key: string")
    .SetIsStateful()  // A file's content isn't constant.
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle scalar;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &scalar));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &scalar));
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Scalar());
      return absl::OkStatus();
    });

REGISTER_OP("ResnetReadImage")
    .Input("path: string")
    .Input("offset: int64")
    .Input("num_bytes: int64")
    .Input("crc32c: int64")
    .Output("encoded: string")
    .SetIsStateful()  // A file's content isn't constant.
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle scalar;
      for (int i = 0; i < 4; ++i) {
        TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &scalar));
      }
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("ResnetReadImage").Device(tensorflow::DEVICE_CPU),
                        ReadImageOp);
REGISTER_KERNEL_BUILDER(Name("ResnetReadExample").Device(tensorflow::DEVICE_CPU),
                        ReadExampleOp);

}  // namespace
}  // namespace resnet
