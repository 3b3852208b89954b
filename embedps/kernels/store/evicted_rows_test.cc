// Tests how evicted rows come into files, with a writer that keeps them in memory.
#include "embedps/kernels/store/evicted_rows.h"

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

// Of rows of 1,024 floats: a record has 31 bytes more.
constexpr int64_t kWideBatchRows = EvictedRows::kBatchBytes / (4 * 1024 + 31);
constexpr int64_t kWideFileRows = EvictedRows::kFileBatches * kWideBatchRows;

// What was written. A writer waits while `held`.
class Disk {
 public:
  EvictedRows::OpenFile open() {
    return [this](const std::string& path, const RowFileSchema&,
                  std::unique_ptr<EvictedFileWriter>* writer) {
      if (path == failing_) return Status::IoError("no place for " + path);
      *writer = std::make_unique<Writer>(this, path);
      return Status::Ok();
    };
  }

  void FailAt(const std::string& path) { failing_ = path; }

  void Hold(bool held) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }

  // The ids of each finished file, by batch.
  std::map<std::string, std::vector<std::vector<int64_t>>> files() {
    std::lock_guard<std::mutex> lock(mutex_);
    return files_;
  }

  std::vector<int64_t> Ids(const std::string& path) {
    const auto batches = files()[path];
    std::vector<int64_t> ids;
    for (const auto& batch : batches) ids.insert(ids.end(), batch.begin(), batch.end());
    return ids;
  }

 private:
  class Writer final : public EvictedFileWriter {
   public:
    Writer(Disk* disk, std::string path) : disk_(disk), path_(std::move(path)) {}
    Status Append(const EvictedColumns& columns) override {
      std::unique_lock<std::mutex> lock(disk_->mutex_);
      disk_->changed_.wait(lock, [this] { return !disk_->held_; });
      batches_.push_back(columns.rows.id);
      return Status::Ok();
    }
    Status Finish(RowFileInfo* info) override {
      std::lock_guard<std::mutex> lock(disk_->mutex_);
      disk_->files_[path_] = std::move(batches_);
      info->bytes = 10;
      return Status::Ok();
    }

   private:
    Disk* const disk_;
    const std::string path_;
    std::vector<std::vector<int64_t>> batches_;
  };

  std::mutex mutex_;  // guards the three below
  bool held_ = false;
  std::map<std::string, std::vector<std::vector<int64_t>>> files_;
  std::condition_variable changed_;
  std::string failing_;
};

// Rows of so many floats without optimizer slots.
class Rows {
 public:
  explicit Rows(int dim)
      : layout_(dim, 0, FloatDtype::kFloat32, FloatDtype::kFloat32), row_(layout_.row_bytes()) {
    schema_.dim = dim;
    schema_.tables = {"t"};
  }

  const RowLayout& layout() const { return layout_; }
  const RowFileSchema& schema() const { return schema_; }

  // Evicts rows of the ids [first, last).
  void Add(EvictedRows* evicted, int64_t first, int64_t last) {
    for (int64_t id = first; id < last; ++id) {
      RowHeader header{};
      header.id = id;
      std::memcpy(row_.data(), &header, sizeof(header));
      evicted->Add(0, *reinterpret_cast<const RowHeader*>(row_.data()), EvictionCause::kLimit, 1);
    }
  }

 private:
  const RowLayout layout_;
  RowFileSchema schema_;
  std::vector<char> row_;
};

std::vector<int64_t> Range(int64_t first, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

TEST(RowsBeforeTheFirstFileAreDropped) {
  Disk disk;
  Rows rows(4);
  EvictedRows evicted(rows.layout(), rows.schema(), disk.open());
  rows.Add(&evicted, 0, 10);
  EXPECT_EQ(evicted.NextFile("a.parquet").rows, 0);
  rows.Add(&evicted, 10, 20);
  const EvictedFileInfo info = evicted.NextFile("b.parquet");
  EXPECT_EQ(info.rows, 10);
  EXPECT_EQ(info.bytes, 10);
  EXPECT_EQ(evicted.NextFile("c.parquet").rows, 0);  // nothing went: no file
  EXPECT_EQ(disk.files().size(), 1);
  EXPECT_TRUE(disk.Ids("a.parquet") == Range(10, 20));
}

TEST(AFileHasBatchesOfLimitedBytesAndManyOfThemGoOnInAnother) {
  Disk disk;
  Rows rows(1024);
  EvictedRows evicted(rows.layout(), rows.schema(), disk.open());
  evicted.NextFile("a.parquet");
  rows.Add(&evicted, 0, 2 * kWideFileRows + 5);
  const EvictedFileInfo info = evicted.NextFile("b.parquet");
  EXPECT_EQ(info.rows, 2 * kWideFileRows + 5);
  EXPECT_EQ(info.bytes, 30);
  const auto files = disk.files();
  EXPECT_EQ(files.size(), 3);
  for (const std::vector<int64_t>& batch : files.at("a.2.parquet")) {
    EXPECT_EQ(static_cast<int64_t>(batch.size()), kWideBatchRows);
  }
  EXPECT_TRUE(disk.Ids("a.parquet") == Range(0, kWideFileRows));
  EXPECT_TRUE(disk.Ids("a.2.parquet") == Range(kWideFileRows, 2 * kWideFileRows));
  EXPECT_TRUE(disk.Ids("a.3.parquet") == Range(2 * kWideFileRows, 2 * kWideFileRows + 5));
  rows.Add(&evicted, 0, 1);
  evicted.NextFile("c.parquet");
  EXPECT_TRUE(disk.Ids("b.parquet") == Range(0, 1));
}

TEST(AFileThatCannotBeWrittenLosesItsRowsAndThoseAfterIt) {
  Disk disk;
  Rows rows(1024);
  disk.FailAt("a.2.parquet");
  EvictedRows evicted(rows.layout(), rows.schema(), disk.open());
  evicted.NextFile("a.parquet");
  rows.Add(&evicted, 0, 3 * kWideFileRows);
  const EvictedFileInfo info = evicted.NextFile("b.parquet");
  EXPECT_EQ(info.rows, kWideFileRows);
  EXPECT_EQ(info.lost, 2 * kWideFileRows);
  EXPECT_EQ(info.bytes, 10);
  EXPECT_FALSE(info.status.ok());
  rows.Add(&evicted, 0, 7);
  EXPECT_EQ(evicted.NextFile("c.parquet").rows, 7);
}

TEST(WhoeverEvictsMoreThanTwoBatchesAheadWaitsForTheWriter) {
  Disk disk;
  Rows rows(1024);
  EvictedRows evicted(rows.layout(), rows.schema(), disk.open());
  evicted.NextFile("a.parquet");
  disk.Hold(true);
  // All batches are full: one is being written, two wait.
  rows.Add(&evicted, 0, 3 * kWideBatchRows);
  std::thread more([&] { rows.Add(&evicted, 3 * kWideBatchRows, 9 * kWideBatchRows); });
  disk.Hold(false);
  more.join();
  EXPECT_EQ(evicted.NextFile("b.parquet").rows, 9 * kWideBatchRows);
  EXPECT_TRUE(disk.Ids("a.parquet") == Range(0, 9 * kWideBatchRows));
}

TEST(TheEndDropsTheRowsThatWait) {
  Disk disk;
  Rows rows(4);
  {
    EvictedRows evicted(rows.layout(), rows.schema(), disk.open());
    evicted.NextFile("a.parquet");
    rows.Add(&evicted, 0, 10);
  }
  EXPECT_EQ(disk.files().size(), 0);
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
