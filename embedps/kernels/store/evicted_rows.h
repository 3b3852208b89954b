// Rows that a store evicts, on their way to files.
#ifndef EMBEDPS_KERNELS_STORE_EVICTED_ROWS_H_
#define EMBEDPS_KERNELS_STORE_EVICTED_ROWS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/files/evicted_file.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/eviction.h"
#include "embedps/kernels/store/row_layout.h"

namespace embedps {

// What became of the rows of one file.
struct EvictedFileInfo {
  int64_t rows = 0;   // in the file; without any there is no file
  int64_t lost = 0;   // that could not be written
  int64_t bytes = 0;  // of the file
  Status status;      // why rows were lost
};

// A thread writes the rows. At most kMaxBatches batches of kBatchRows wait for it: whoever evicts
// one row more waits too. A file that cannot be written loses its rows, and the next one is tried.
class EvictedRows {
 public:
  static constexpr int64_t kBatchRows = 8192;
  static constexpr size_t kMaxBatches = 4;

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

  // Finishes the file of the rows that were added; those to come get one at `path`.
  EvictedFileInfo NextFile(const std::string& path);

 private:
  // What the thread does next: it writes a batch, and then may finish the file.
  struct Item {
    EvictedColumns batch;
    std::promise<EvictedFileInfo>* finished = nullptr;
    std::string next_path;
  };

  void Run();
  void Write(const EvictedColumns& batch);
  EvictedFileInfo Finish();

  const RowLayout& layout_;
  const RowFileSchema schema_;
  const OpenFile open_;
  std::atomic<bool> active_{false};

  std::mutex mutex_;  // guards the three below
  EvictedColumns current_;
  std::deque<Item> items_;
  bool ended_ = false;
  std::condition_variable changed_;

  // Of the thread.
  std::string path_;
  std::unique_ptr<EvictedFileWriter> writer_;
  EvictedFileInfo info_;  // of the file so far

  std::thread thread_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_EVICTED_ROWS_H_
