#include "embedps/kernels/files/mapped_vectors.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "embedps/kernels/files/input_file.h"
#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/object_files.h"
#include "embedps/kernels/files/row_file_schema.h"

namespace embedps {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

using Batches = std::vector<std::shared_ptr<arrow::RecordBatch>>;

class MappedBuffer final : public arrow::Buffer {
 public:
  MappedBuffer(void* data, int64_t size) : arrow::Buffer(static_cast<const uint8_t*>(data), size) {}
  ~MappedBuffer() override { ::munmap(const_cast<uint8_t*>(data()), size()); }
};

Status ReadError(const std::string& path, const arrow::Status& status) {
  return Status::DataLoss("row file " + Quoted(path) +
                          " cannot be decoded as Arrow IPC: " + status.ToString());
}

Status WriteAll(const char* data, int64_t bytes, const std::string& path, int fd) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count = ::write(fd, data + done, static_cast<size_t>(bytes - done));
    if (count < 0 && errno != EINTR) return Errno("cannot copy to a file beside", path, errno);
    done += std::max<ssize_t>(0, count);
  }
  return Status::Ok();
}

// Copies a file to one without a name.
Status CopyToDisk(const std::string& path, InputFile* from, FileDescriptor* to) {
  const char* folder = std::getenv("TMPDIR");
  std::string name = std::string(folder != nullptr ? folder : "/tmp") + "/embedps-XXXXXX";
  *to = FileDescriptor(::mkstemp(name.data()));
  if (to->get() < 0) return Errno("cannot make", name, errno);
  ::unlink(name.c_str());
  std::vector<char> chunk(kChunkBytes);
  for (int64_t at = 0;;) {
    const auto count = from->ReadAt(at, kChunkBytes, chunk.data());
    if (!count.ok()) return Status::IoError(Quoted(path) + ": " + count.status().ToString());
    if (*count == 0) return Status::Ok();
    EMBEDPS_RETURN_IF_ERROR(WriteAll(chunk.data(), *count, name, to->get()));
    at += *count;
  }
}

// Checks a file and maps it.
Status Map(const std::string& path, const FileSum& expected,
           std::shared_ptr<arrow::Buffer>* buffer) {
  std::shared_ptr<InputFile> file;
  EMBEDPS_RETURN_IF_ERROR(InputFile::Open(path, /*max_whole_bytes=*/0, &file));
  FileDescriptor fd(-1);
  if (IsObject(path)) {
    EMBEDPS_RETURN_IF_ERROR(CopyToDisk(path, file.get(), &fd));
  } else {
    fd = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) return Errno("cannot open", path, errno);
  }
  FileSum found;
  const auto sum = file->Xxh3_64(&found.bytes);
  if (!sum.ok()) return Status::IoError(Quoted(path) + ": " + sum.status().ToString());
  found.xxh3_64 = *sum;
  EMBEDPS_RETURN_IF_ERROR(CheckSum(path, expected, found));
  void* const data =
      ::mmap(nullptr, static_cast<size_t>(found.bytes), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Errno("cannot map", path, errno);
  *buffer = std::make_shared<MappedBuffer>(data, found.bytes);
  return Status::Ok();
}

class VectorsOfTable final : public InitialVectors {
 public:
  struct Entry {
    int64_t id;
    const float* vector;
  };

  VectorsOfTable(std::shared_ptr<const Batches> batches, int dim, std::vector<Entry> entries)
      : batches_(std::move(batches)), dim_(dim), entries_(std::move(entries)) {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.id < b.id; });
  }

  bool Read(int64_t id, float* vector) const override {
    const auto found =
        std::lower_bound(entries_.begin(), entries_.end(), id,
                         [](const Entry& entry, int64_t wanted) { return entry.id < wanted; });
    if (found == entries_.end() || found->id != id) return false;
    std::copy_n(found->vector, dim_, vector);
    return true;
  }

 private:
  const std::shared_ptr<const Batches> batches_;  // to whose buffers the entries point
  const int dim_;
  std::vector<Entry> entries_;  // by id
};

class ArrowMappedVectors final : public MappedVectors {
 public:
  Status Init(const std::string& path, const FileSum& expected) {
    std::shared_ptr<arrow::Buffer> buffer;
    EMBEDPS_RETURN_IF_ERROR(Map(path, expected, &buffer));
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.use_threads = false;
    auto reader = arrow::ipc::RecordBatchFileReader::Open(
        std::make_shared<arrow::io::BufferReader>(std::move(buffer)), options);
    if (!reader.ok()) return ReadError(path, reader.status());
    EMBEDPS_RETURN_IF_ERROR(FromArrow(path, *(*reader)->schema(), &schema_));
    if (schema_.embedding_encoding != EmbeddingEncoding::kFloat32) {
      return Mismatch(path, FieldName("embedding"), "float32", "another encoding");
    }
    auto batches = std::make_shared<Batches>();
    for (int i = 0; i < (*reader)->num_record_batches(); ++i) {
      auto batch = (*reader)->ReadRecordBatch(i);
      if (!batch.ok()) return ReadError(path, batch.status());
      const arrow::Status valid = (*batch)->ValidateFull();
      if (!valid.ok()) return ReadError(path, valid);
      batches->push_back(*std::move(batch));
    }
    batches_ = std::move(batches);
    return Status::Ok();
  }

  const RowFileSchema& schema() const override { return schema_; }

  std::shared_ptr<const InitialVectors> OfTable(int table, const IsWanted& is_wanted,
                                                int64_t* count) const override {
    std::vector<VectorsOfTable::Entry> entries;
    for (const auto& batch : *batches_) {
      const auto& tables = static_cast<const arrow::DictionaryArray&>(*batch->column(0));
      const auto& ids = static_cast<const arrow::Int64Array&>(*batch->column(1));
      const auto& lists = static_cast<const arrow::FixedSizeListArray&>(*batch->column(2));
      const auto& floats = static_cast<const arrow::FloatArray&>(*lists.values());
      for (int64_t i = 0; i < batch->num_rows(); ++i) {
        if (tables.GetValueIndex(i) != table || !is_wanted(ids.Value(i))) continue;
        entries.push_back({ids.Value(i), floats.raw_values() + lists.value_offset(i)});
      }
    }
    entries.shrink_to_fit();
    *count += static_cast<int64_t>(entries.size());
    return std::make_shared<VectorsOfTable>(batches_, schema_.dim, std::move(entries));
  }

 private:
  RowFileSchema schema_;
  std::shared_ptr<const Batches> batches_;
};

}  // namespace

Status MappedVectors::Open(const std::string& path, const FileSum& expected,
                           std::unique_ptr<MappedVectors>* vectors) {
  auto opened = std::make_unique<ArrowMappedVectors>();
  EMBEDPS_RETURN_IF_ERROR(opened->Init(path, expected));
  *vectors = std::move(opened);
  return Status::Ok();
}

}  // namespace embedps
