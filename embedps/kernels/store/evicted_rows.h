// Rows that a store evicts, on their way to files.
#ifndef EMBEDPS_KERNELS_STORE_EVICTED_ROWS_H_
#define EMBEDPS_KERNELS_STORE_EVICTED_ROWS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/files/evicted_file.h"
#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/eviction.h"
#include "embedps/kernels/store/row_layout.h"

namespace embedps {

// What became of the rows between two calls of NextFile.
struct EvictedFileInfo {
  int64_t rows = 0;   // in files; without any there is no file
  int64_t lost = 0;   // that could not be written
  int64_t bytes = 0;  // of the files
  Status status;      // why rows were lost
};

// A thread writes the rows in batches, of which there are kBatches: one is filled, one waits, and
// one is written. Whoever evicts a row more than the first two hold waits too. A file that cannot
// be written loses its rows, and the next one is tried.
//
// All of it takes at most kMemoryBytes, which byte limits count: the batches, what Parquet makes of
// one of them, the output's buffer, and the records of a file's batches, which stay in memory until
// it is finished. So a file has at most kFileBatches batches, and the next ones go to another file.
class EvictedRows {
 public:
  static constexpr int64_t kBatchBytes = 128 << 10;
  static constexpr size_t kBatches = 3;
  static constexpr int64_t kFileBatches = 64;
  static constexpr int64_t kMemoryBytes = 3 << 20;

  using OpenFile = std::function<Status(const std::string&, const RowFileSchema&,
                                        std::unique_ptr<EvictedFileWriter>*)>;

  // `layout` outlives the object.
  EvictedRows(const RowLayout& layout, RowFileSchema schema, OpenFile open);
  ~EvictedRows();  // drops the rows of the file that is being written
  EvictedRows(const EvictedRows&) = delete;
  EvictedRows& operator=(const EvictedRows&) = delete;

  // Adds a row that is about to go. The caller holds its stripe's lock. Does nothing before the
  // first call of NextFile.
  void Add(int table, const RowHeader& row, EvictionCause cause, uint32_t step);

  // Finishes the files of the rows that were added; those to come get one at `path`, and others
  // beside it if there are many: "a.parquet", "a.2.parquet", "a.3.parquet".
  EvictedFileInfo NextFile(const std::string& path);

 private:
  // What the thread does next: it writes a batch, if there is one, and then may finish the file.
  struct Item {
    std::unique_ptr<EvictedColumns> batch;
    std::promise<EvictedFileInfo>* finished = nullptr;
    std::string next_path;
  };

  void Run();
  std::unique_ptr<EvictedColumns> MakeBatch() const;
  void Write(const EvictedColumns& batch);
  void FinishFile();
  std::string Path() const;

  const RowLayout& layout_;
  const RowFileSchema schema_;
  const int64_t batch_rows_;
  const OpenFile open_;
  std::atomic<bool> active_{false};

  Mutex mutex_;
  std::unique_ptr<EvictedColumns> current_ GUARDED_BY(mutex_);  // null until the first row
  std::vector<std::unique_ptr<EvictedColumns>> free_ GUARDED_BY(mutex_);  // batches without rows
  std::deque<Item> items_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  CondVar changed_;

  // Of the thread.
  std::string path_;
  int64_t num_files_ = 0;     // at the path and beside it, until now
  int64_t file_rows_ = 0;     // of the file that is being written
  int64_t file_batches_ = 0;  // of this file
  std::unique_ptr<EvictedFileWriter> writer_;
  EvictedFileInfo info_;  // since the last call of NextFile

  std::thread thread_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_EVICTED_ROWS_H_
