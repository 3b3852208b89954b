// Tests the log of rows on disk with a disk that has little room, answers late, or is interrupted
// by signals: this program's calls stand before the system's.
#include "embedps/kernels/store/spill_log.h"

#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/read_pool.h"
#include "embedps/kernels/store/tier_memory.h"
#include "embedps/kernels/testing/testing.h"

namespace {

std::atomic<bool> has_little_room{false};
std::atomic<int> reserve_errors{0};  // the next calls that fail
std::atomic<int> reserve_error{0};

// Whether the next read answers late: with what the disk had when it began.
enum class Late { kNone, kNext, kHeld };
std::atomic<Late> late{Late::kNone};

}  // namespace

extern "C" int fstatvfs(int fd, struct statvfs* disk) noexcept {
  (void)fd;
  std::memset(disk, 0, sizeof(*disk));
  disk->f_frsize = 4096;
  disk->f_bavail = has_little_room ? 1 : 1 << 30;
  return 0;
}

extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (reserve_errors.fetch_sub(1) > 0) {
    errno = reserve_error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  const auto got = static_cast<ssize_t>(syscall(SYS_pread64, fd, to, bytes, offset));
  if (late == Late::kNext) {
    late = Late::kHeld;
    while (late == Late::kHeld) std::this_thread::yield();
  }
  return got;
}

namespace embedps {
namespace {

using testing::TemporaryDirectory;

constexpr int64_t kPayload = 400;
constexpr int kBin = 3;

TierConfig Config(const std::string& directory) {
  TierConfig config;
  config.directory = directory;
  config.segment_bytes = 64 << 10;
  config.buffer_bytes = 4 << 10;
  return config;
}

// A log, and whose rows they are: where each id's record is, and whether it is spare. A payload is
// the id and the version of the row.
class Owner {
 public:
  Owner() : readers_(2), log(Config(directory_.Path("")), "rows", kPayload, &readers_) {
    log.Start([this](const SpillLog::OnDisk& record) { return Move(record); },
              [] { return false; });
  }

  // Writes a row, whose last record is dead then; returns whether it has a place.
  bool Write(int64_t id, int64_t version) {
    const MutexLock lock(&mutex_);
    const auto found = rows_.find(id);
    if (found != rows_.end()) Forget(found->second);
    const int64_t row[kPayload / 8] = {id, version};
    const uint32_t at = log.Append(kBin, id, reinterpret_cast<const char*>(row));
    if (at == SpillLog::kNowhere) {
      rows_.erase(id);
      return false;
    }
    rows_[id] = {at, version, false};
    return true;
  }

  void Remove(int64_t id) {
    const MutexLock lock(&mutex_);
    Forget(rows_.at(id));
    rows_.erase(id);
  }

  void Spare(int64_t id) {
    const MutexLock lock(&mutex_);
    Row& row = rows_.at(id);
    log.Spare(row.at);
    row.is_spare = true;
  }

  // Checks that each row that is on disk has the version that was written last.
  void ExpectLast() {
    const MutexLock lock(&mutex_);
    for (const auto& [id, row] : rows_) {
      std::vector<char> to(kPayload);
      std::vector<SpillLog::Read> reads(1);
      reads[0].bin = kBin;
      reads[0].location = row.at;
      reads[0].id = id;
      reads[0].payload = to.data();
      EXPECT_OK(log.ReadAll(&reads));
      EXPECT_TRUE(reads[0].found);
      int64_t read[2];
      std::memcpy(read, to.data(), sizeof(read));
      EXPECT_EQ(read[0], id);
      EXPECT_EQ(read[1], row.version);
    }
  }

  uint32_t LocationOf(int64_t id) {
    const MutexLock lock(&mutex_);
    return rows_.at(id).at;
  }
  // The most files that the log has for as many records, once who appends waited for the compactor.
  int64_t MostBytes(int64_t records) const {
    const int64_t segments = 3 * records / log.segment_records() + 1 + SpillLog::kSlackSegments;
    return segments * SegmentBytes();
  }
  static int64_t SegmentBytes() { return Config("").segment_bytes; }

  std::atomic<int> num_stale{0};  // records that came to be moved and whose segment was gone

 private:
  struct Row {
    uint32_t at;
    int64_t version;
    bool is_spare;
  };

  void Forget(const Row& row) {
    if (row.is_spare) {
      log.KillSpare(row.at);
    } else {
      log.Kill(row.at);
    }
  }

  // As RowTier::MoveRecord.
  bool Move(const SpillLog::OnDisk& record) {
    const MutexLock lock(&mutex_);
    const auto found = rows_.find(record.id);
    if (found == rows_.end() || found->second.at != record.location) return true;
    if (!log.IsCurrent(record)) {
      ++num_stale;
      return true;
    }
    if (found->second.is_spare) {
      Forget(found->second);
      rows_.erase(found);
      return true;
    }
    const uint32_t moved = log.Append(kBin, record.id, record.payload);
    if (moved == SpillLog::kNowhere) return false;
    log.Kill(record.location);
    log.CountMove();
    found->second.at = moved;
    return true;
  }

  const TemporaryDirectory directory_;
  ReadPool readers_;
  Mutex mutex_;
  std::map<int64_t, Row> rows_ GUARDED_BY(mutex_);

 public:
  SpillLog log;
};

void FillWithSpare(Owner* owner, int64_t rows) {
  for (int64_t id = 0; id < rows; ++id) EXPECT_TRUE(owner->Write(id, 1));
  for (int64_t id = 0; id < rows; ++id) {
    if (id % 20 != 0) owner->Spare(id);
  }
}

TEST(OnANearlyFullDiskSpareRecordsGo) {
  has_little_room = true;
  Owner owner;
  const int64_t rows = 40 * owner.log.segment_records();
  FillWithSpare(&owner, rows);
  owner.log.Pace();
  SpillLog::Stats stats = owner.log.stats();
  EXPECT_TRUE(stats.bytes <= owner.MostBytes(stats.live - stats.spare));
  EXPECT_TRUE(stats.bytes < 40 * Owner::SegmentBytes());
  EXPECT_TRUE(stats.spare < rows / 2);
  EXPECT_EQ(stats.full, 0);
  for (int64_t id = 0; id < rows; id += 20) EXPECT_TRUE(owner.LocationOf(id) != SpillLog::kNowhere);
  owner.ExpectLast();
  has_little_room = false;
}

TEST(OnADiskWithRoomSpareRecordsStayAndGoOnceItHasLittle) {
  has_little_room = false;
  Owner owner;
  const int64_t rows = 40 * owner.log.segment_records();
  FillWithSpare(&owner, rows);
  owner.log.Pace();
  EXPECT_EQ(owner.log.stats().spare, rows - rows / 20);
  EXPECT_EQ(owner.log.stats().moved, 0);
  has_little_room = true;
  // Another segment asks the disk.
  const int64_t more = owner.log.segment_records() + 1;
  for (int64_t id = rows; id < rows + more; ++id) EXPECT_TRUE(owner.Write(id, 1));
  owner.log.Pace();
  const SpillLog::Stats stats = owner.log.stats();
  EXPECT_TRUE(stats.bytes <= owner.MostBytes(stats.live - stats.spare));
  EXPECT_TRUE(stats.spare < rows / 2);
  owner.ExpectLast();
  has_little_room = false;
}

TEST(ASignalOrADiskThatCannotReserveIsNoFullDisk) {
  for (const int error : {EINTR, EOPNOTSUPP, ENOSYS}) {
    Owner owner;
    reserve_error = error;
    reserve_errors = error == EINTR ? 5 : std::numeric_limits<int>::max();
    const int64_t rows = 3 * owner.log.segment_records();
    for (int64_t id = 0; id < rows; ++id) EXPECT_TRUE(owner.Write(id, id));
    reserve_errors = 0;
    EXPECT_EQ(owner.log.stats().full, 0);
    EXPECT_EQ(owner.log.stats().error, "");
    owner.ExpectLast();
  }
}

// A slow disk gives the compactor records of a segment that is gone meanwhile. Another segment has
// its number, and newer records of the same ids at the same locations.
TEST(ARecordOfASegmentThatIsGoneIsNotMoved) {
  Owner owner;
  constexpr int64_t kSegments = 12, kKept = 5, kKeptOfOthers = 50;
  const int64_t records = owner.log.segment_records();
  for (int64_t id = 0; id < kSegments * records; ++id) EXPECT_TRUE(owner.Write(id, 1));
  const uint32_t at = owner.LocationOf(0);
  bool is_written = false;  // the first segment: only then it can be compacted
  while (!is_written) {
    owner.log.Scan([](int64_t) { return true; },
                   [&](const SpillLog::OnDisk& record) {
                     is_written = is_written || record.location == at;
                     return false;
                   });
  }
  late = Late::kNext;
  // The first segment becomes the emptiest; then most records are dead.
  for (int64_t id = kKept; id < records; ++id) owner.Remove(id);
  for (int64_t id = records; id < kSegments * records; ++id) {
    if (id % records >= kKeptOfOthers) owner.Remove(id);
  }
  while (late != Late::kHeld) std::this_thread::yield();
  for (int64_t id = 0; id < kKept; ++id) EXPECT_TRUE(owner.Write(id, 2));  // it goes
  const int64_t first = kSegments * records;
  for (int64_t id = first; id < first + records - kKept; ++id) EXPECT_TRUE(owner.Write(id, 1));
  EXPECT_TRUE(owner.Write(0, 3));
  EXPECT_EQ(owner.LocationOf(0), at);
  late = Late::kNone;
  while (owner.num_stale == 0) std::this_thread::yield();
  owner.log.Pace();
  owner.ExpectLast();
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
