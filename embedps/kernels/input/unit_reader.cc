#include "embedps/kernels/input/unit_reader.h"

#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "embedps/kernels/files/input_file.h"
#include "embedps/kernels/files/object_files.h"
#include "embedps/kernels/input/parquet_columns.h"
#include "embedps/kernels/input/unit_columns.h"
#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/runtime/mutex.h"

namespace embedps {
namespace {

constexpr int64_t kMinBlockRows = 8192;
constexpr int64_t kReadBufferBytes = 256 << 10;  // per column
// An object of at most this size is read whole by one request.
constexpr int64_t kMaxWholeObjectBytes = 8 << 20;
// The most memory for decoded pages. A page's header can ask for 2 GiB, whatever its file holds.
constexpr int64_t kMaxDecodedBytes = int64_t{1} << 30;
constexpr int64_t kMaxThriftItems = 1'000'000;  // Parquet's default

std::atomic<int64_t> live_readers{0};

// Random numbers by SplitMix64: full period, and the same on every machine.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed) { state_ = Next() ^ stream; }

  uint64_t Next() {
    const uint64_t number = Mix64(state_);
    state_ += kSplitMixIncrement;
    return number;
  }

  // Returns a uniform number in [0, limit), without bias (Lemire 2019).
  uint64_t Below(uint64_t limit) {
    unsigned __int128 product = static_cast<unsigned __int128>(Next()) * limit;
    if (static_cast<uint64_t>(product) < limit) {
      const uint64_t threshold = (0 - limit) % limit;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<unsigned __int128>(Next()) * limit;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t state_;
};

Status CheckOptions(const UnitReaderOptions& options) {
  const auto must = [&options](const std::string& what, int64_t found) {
    return Status::InvalidArgument("unit of '" + options.path + "': " + what + " but is " +
                                   std::to_string(found));
  };
  if (options.batch_rows < 1) return must("batch_rows must be at least 1", options.batch_rows);
  if (options.shuffle_rows < 0) {
    return must("shuffle_rows must be at least 0", options.shuffle_rows);
  }
  if (options.prefetch_batches < 1) {
    return must("prefetch_batches must be at least 1", options.prefetch_batches);
  }
  if (options.integer_limits.size() != options.integer_columns.size()) {
    return must("integer_limits must be as many as integer_columns",
                static_cast<int64_t>(options.integer_limits.size()));
  }
  if (options.first_row < 0) return must("first_row must be at least 0", options.first_row);
  if (options.num_rows < -1) {
    return must("num_rows must be at least 0, or -1 for all", options.num_rows);
  }
  return Status::Ok();
}

class ParquetUnitReader final : public UnitReader {
 public:
  explicit ParquetUnitReader(UnitReaderOptions options)
      : options_(std::move(options)),
        own_pool_(arrow::system_memory_pool()),  // malloc reuses freed memory, other pools do not
        pool_(&own_pool_, kMaxDecodedBytes) {
    ++live_readers;
  }

  ~ParquetUnitReader() override {
    {
      const MutexLock lock(&mutex_);
      stopped_ = true;
    }
    changed_.NotifyAll();
    if (thread_.joinable()) thread_.join();
    --live_readers;
  }

  Status Init() {
    EMBEDPS_RETURN_IF_ERROR(CheckOptions(options_));
    EMBEDPS_RETURN_IF_ERROR(IsObject(options_.path) ? InitObject() : InitFile());
    EMBEDPS_RETURN_IF_ERROR(CheckRange());
    thread_ = std::thread([this] { Produce(); });
    return Status::Ok();
  }

  Status Next(UnitBatch* batch) override {
    {
      const MutexLock lock(&mutex_);
      while (ready_.empty() && !done_) changed_.Wait(&mutex_);
      if (ready_.empty()) {
        *batch = EmptyBatch(options_);
        return result_;
      }
      *batch = std::move(ready_.front());
      ready_.pop_front();
    }
    changed_.NotifyAll();
    return Status::Ok();
  }

 private:
  Status InitFile() {
    struct stat attributes;
    if (::stat(options_.path.c_str(), &attributes) != 0) {
      const int error = errno;
      const std::string message =
          "cannot open Parquet file '" + options_.path + "': " + std::strerror(error);
      const bool absent = error == ENOENT || error == ENOTDIR;
      return absent ? Status::NotFound(message) : Status::IoError(message);
    }
    if (!S_ISREG(attributes.st_mode)) {  // opening a FIFO would block
      return Status::DataLoss("Parquet file '" + options_.path +
                              "' must be a file but is not a regular one");
    }
    return Guard([&] {
      std::shared_ptr<arrow::io::ReadableFile> source;
      PARQUET_ASSIGN_OR_THROW(source, arrow::io::ReadableFile::Open(options_.path, &pool_));
      parquet::ReaderProperties properties = Properties(attributes.st_size);
      properties.enable_buffered_stream();  // otherwise memory holds a whole column chunk
      properties.set_buffer_size(kReadBufferBytes);
      OpenFile(std::move(source), properties);
    });
  }

  Status InitObject() {
    std::shared_ptr<InputFile> source;
    EMBEDPS_RETURN_IF_ERROR(InputFile::Open(options_.path, kMaxWholeObjectBytes, &source));
    return Guard([&] {
      int64_t size;
      PARQUET_ASSIGN_OR_THROW(size, source->GetSize());
      // Without a buffered stream: each read is a request, so one reads a whole column chunk.
      OpenFile(std::move(source), Properties(size));
    });
  }

  // Turns the exceptions of Parquet, Arrow and the columns into a status that names the file and
  // the place.
  template <typename Body>
  Status Guard(Body body) const {
    const std::string file = "Parquet file '" + options_.path + "'";
    const auto where = [&file, this] {
      if (group_index_ < 0) return file + ", footer: ";
      return file + ", row group " + std::to_string(group_index_) + ": ";
    };
    try {
      body();
      return Status::Ok();
    } catch (const ColumnError& error) {
      return Status::InvalidArgument(file + ": " + error.what());
    } catch (const DataError& error) {
      return Status::DataLoss(where() + error.what());
    } catch (const std::bad_alloc&) {
      return Status::IoError(where() + "out of memory");
    } catch (const parquet::ParquetStatusException& error) {
      const bool unread = IsObject(options_.path) && error.status().IsIOError();
      const std::string message = where() + "cannot be decoded: " + error.what();
      return unread ? Status::IoError(message) : Status::DataLoss(message);
    } catch (const std::exception& error) {
      return Status::DataLoss(where() + "cannot be decoded: " + error.what());
    }
  }

  parquet::ReaderProperties Properties(int64_t file_bytes) {
    parquet::ReaderProperties properties(&pool_);
    // Thrift allocates memory for the number of items that it finds, before it reads them. An item
    // takes at least one byte.
    properties.set_thrift_container_size_limit(
        static_cast<int32_t>(std::min(kMaxThriftItems, std::max<int64_t>(1, file_bytes))));
    properties.set_page_checksum_verification(true);
    return properties;
  }

  void OpenFile(std::shared_ptr<arrow::io::RandomAccessFile> source,
                const parquet::ReaderProperties& properties) {
    file_ = parquet::ParquetFileReader::Open(std::move(source), properties);
    columns_ = std::make_unique<UnitColumns>(*file_->metadata()->schema(), options_);
  }

  Status CheckRange() {
    const int64_t file_rows = file_->metadata()->num_rows();
    const bool fits =
        options_.first_row <= file_rows &&
        (options_.num_rows < 0 || options_.num_rows <= file_rows - options_.first_row);
    if (!fits) {
      const std::string end =
          options_.num_rows < 0 ? "the end" : "+" + std::to_string(options_.num_rows);
      return Status::InvalidArgument("Parquet file '" + options_.path + "' has " +
                                     std::to_string(file_rows) + " rows: the unit's [" +
                                     std::to_string(options_.first_row) + ", " + end +
                                     ") must lie within");
    }
    rows_left_ = options_.num_rows < 0 ? file_rows - options_.first_row : options_.num_rows;
    return Status::Ok();
  }

  // The thread's work: reads blocks and splits them into batches.
  void Produce() {
    Status status;
    if (rows_left_ > 0) status = Guard([this] { SkipTo(options_.first_row); });
    const int64_t block_rows = options_.shuffle_rows > 0
                                   ? options_.shuffle_rows
                                   : std::max(kMinBlockRows, options_.batch_rows);
    UnitBlock block;
    UnitBatch batch;
    for (uint64_t index = 0; status.ok() && rows_left_ > 0; ++index) {
      status = Guard([&] { ReadBlock(std::min(block_rows, rows_left_), &block); });
      if (!status.ok()) break;
      Order(index, &block);
      for (int64_t next = 0; next < block.num_rows;) {
        const int64_t rows = std::min(options_.batch_rows - batch.num_rows, block.num_rows - next);
        AppendRows(block, next, rows, &batch);
        next += rows;
        const bool is_last = rows_left_ == 0 && next == block.num_rows;
        if (batch.num_rows < options_.batch_rows && !is_last) break;  // the next block fills it
        if (!Push(std::exchange(batch, UnitBatch()))) return;
      }
    }
    const MutexLock lock(&mutex_);
    result_ = std::move(status);
    done_ = true;
    changed_.NotifyAll();
  }

  // Hands a batch over. Returns false once the reader is told to stop.
  bool Push(UnitBatch batch) {
    {
      const MutexLock lock(&mutex_);
      const size_t limit = static_cast<size_t>(options_.prefetch_batches);
      while (!stopped_ && ready_.size() >= limit) changed_.Wait(&mutex_);
      if (stopped_) return false;
      ready_.push_back(std::move(batch));
    }
    changed_.NotifyAll();
    return true;
  }

  void Order(uint64_t block_index, UnitBlock* block) const {
    block->order.resize(block->num_rows);
    std::iota(block->order.begin(), block->order.end(), 0);
    if (options_.shuffle_rows == 0) return;
    Random random(options_.seed, block_index);
    for (int64_t i = block->num_rows - 1; i > 0; --i) {
      std::swap(block->order[i], block->order[random.Below(static_cast<uint64_t>(i) + 1)]);
    }
  }

  void SkipTo(int64_t row) {
    NextRowGroup();
    while (row >= group_rows_left_) {
      row -= group_rows_left_;
      NextRowGroup();
    }
    OpenRowGroup();
    columns_->Skip(row);
    group_rows_left_ -= row;
  }

  void ReadBlock(int64_t rows, UnitBlock* block) {
    columns_->Prepare(rows, block);
    while (block->num_rows < rows) {
      if (group_rows_left_ == 0) {
        while (group_rows_left_ == 0) NextRowGroup();
        OpenRowGroup();
      }
      const int64_t take = std::min(rows - block->num_rows, group_rows_left_);
      columns_->Append(take, group_first_row_ + group_rows_ - group_rows_left_, block);
      group_rows_left_ -= take;
      rows_left_ -= take;
    }
  }

  void NextRowGroup() {
    const parquet::FileMetaData& metadata = *file_->metadata();
    if (group_index_ + 1 >= metadata.num_row_groups()) {
      throw DataError("the row groups hold fewer rows than the footer's " +
                      std::to_string(metadata.num_rows()));
    }
    ++group_index_;
    group_first_row_ += group_rows_;
    group_rows_left_ = group_rows_ = metadata.RowGroup(group_index_)->num_rows();
    if (group_rows_ < 0) {
      throw DataError("must have at least 0 rows but has " + std::to_string(group_rows_));
    }
  }

  void OpenRowGroup() {
    group_ = file_->RowGroup(group_index_);
    columns_->StartRowGroup(group_.get(), group_first_row_);
  }

  const UnitReaderOptions options_;
  arrow::ProxyMemoryPool own_pool_;  // counts this reader's bytes, for the cap
  arrow::CappedMemoryPool pool_;

  // Only the thread uses these once it runs.
  std::unique_ptr<parquet::ParquetFileReader> file_;
  std::unique_ptr<UnitColumns> columns_;
  std::shared_ptr<parquet::RowGroupReader> group_;
  int group_index_ = -1;
  int64_t group_first_row_ = 0;  // of the file
  int64_t group_rows_ = 0;
  int64_t group_rows_left_ = 0;
  int64_t rows_left_ = 0;  // of the unit

  Mutex mutex_;
  CondVar changed_;
  std::deque<UnitBatch> ready_ GUARDED_BY(mutex_);
  bool done_ GUARDED_BY(mutex_) = false;  // no more batches come; result_ says why
  bool stopped_ GUARDED_BY(mutex_) = false;
  Status result_ GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace

Status UnitReader::Open(const UnitReaderOptions& options, std::unique_ptr<UnitReader>* reader) {
  auto opened = std::make_unique<ParquetUnitReader>(options);
  EMBEDPS_RETURN_IF_ERROR(opened->Init());
  *reader = std::move(opened);
  return Status::Ok();
}

int64_t UnitReader::num_live() { return live_readers; }

}  // namespace embedps
