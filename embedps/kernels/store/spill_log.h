// The rows of a store that are on disk: a log of records of one size.
#ifndef EMBEDPS_KERNELS_STORE_SPILL_LOG_H_
#define EMBEDPS_KERNELS_STORE_SPILL_LOG_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/read_pool.h"
#include "embedps/kernels/store/tier_memory.h"

namespace embedps {

// Records are appended to segments, which are files of one size, and never change. A record that
// nobody needs any more is dead. A thread moves the live records of the emptiest segment to the
// log's end and drops its file, once more than half of all records are dead. So the files hold at
// most twice the live records and kSlackSegments, and a record is written twice on average if the
// dead ones are spread evenly. Whoever is about to append many records calls Pace, which waits if
// two thirds are dead.
//
// The record of a row that came into memory and has not changed there is spare: the row can go back
// to it. It counts as live as long as the disk has room for kRoomySegments, and else as dead. The
// compaction drops it.
//
// A file has no name: it ends with the process, however that ends, so that no later one can trust
// it. Its blocks are reserved when it is made: a full disk refuses a segment, and no record. What
// cannot be written for another reason stays in memory until it can.
//
// A thread writes full buffers; if too many wait, whoever fills one writes it. Until it is written
// its records are read from memory. Reads and writes go past the cache of the system where it lets
// them (O_DIRECT): the memory is what the limit says, and what is slow is the disk alone.
class SpillLog {
 public:
  static constexpr uint32_t kNowhere = (1u << 30) - 1;
  static constexpr int64_t kSlackSegments = 3;
  static constexpr int64_t kRoomySegments = 16;

  // A record to read, and what became of it.
  struct Read {
    int64_t key = 0;  // the caller's
    int32_t bin = 0;
    uint32_t location = kNowhere;
    int64_t id = 0;
    char* payload = nullptr;  // where to; of the log's size
    // Whether it is the record of the id. Otherwise it has moved since the caller knew where it is.
    bool found = false;
    const void* segment = nullptr;  // that it was read from
    std::shared_ptr<void> keeps;    // that segment
  };

  struct Stats {
    int64_t live = 0;        // records
    int64_t spare = 0;       // of them
    int64_t bytes = 0;       // of the files
    int64_t appended = 0;    // records, those that moved included
    int64_t moved = 0;       // of them
    int64_t read = 0;        // records
    int64_t disk_reads = 0;  // calls of the system that read them
    int64_t full = 0;        // records that had no place
    std::string error;       // why the last one had none; empty if the log has room
  };

  // A record on disk, dead or live.
  struct OnDisk {
    int bin;
    int64_t id;
    uint32_t location;
    const char* payload;
    const void* segment;
  };

  // Asks whether a record is that of its id, and if so kills it there, and appends it unless it is
  // spare. Its segment may be dropped meanwhile, and another one have its location: see IsCurrent.
  // Returns false if the log has no place.
  using Move = std::function<bool(const OnDisk& record)>;

  // `name` is of the log, for messages. `readers` outlives it.
  SpillLog(const TierConfig& config, std::string name, size_t payload_bytes, ReadPool* readers);
  ~SpillLog();
  SpillLog(const SpillLog&) = delete;
  SpillLog& operator=(const SpillLog&) = delete;

  // Makes a directory of spill files if it is not there, and tries whether files can be in it.
  static Status CheckDirectory(const std::string& directory);

  // Starts to compact beside other calls, with `move`; `is_busy` as of a Throttle.
  void Start(Move move, std::function<bool()> is_busy);
  // Ends that. No call of `move` is under way when it returns.
  void Stop();

  // Appends a record; returns its location, or kNowhere if the disk is full.
  uint32_t Append(int bin, int64_t id, const char* payload);

  // Tell that a live record is dead, or spare; that a spare one is needed again, or dead.
  void Kill(uint32_t location) { Let(location, /*is_live=*/false, /*spare=*/0); }
  void Spare(uint32_t location) { Let(location, /*is_live=*/true, /*spare=*/1); }
  void Need(uint32_t location) { Let(location, /*is_live=*/true, /*spare=*/-1); }
  void KillSpare(uint32_t location) { Let(location, /*is_live=*/false, /*spare=*/-1); }

  // Reads records in the order of their locations, those that are close to each other at once.
  // Fails if one is damaged or cannot be read, and says which file and where.
  Status ReadAll(std::vector<Read>* reads);

  // Whether a record that was found is still the one at its location.
  bool IsCurrent(const Read& read) const;
  bool IsCurrent(const OnDisk& record) const;

  // Reads the files from their beginnings to their ends, and gives the records of each buffer.
  // Before a buffer it asks `begins` with the most records that it may have, and ends if that
  // returns false. `visit` returns whether it needed the record. Left out are records that are
  // still to be written, that come meanwhile, and that cannot be read: who needs one of them asks
  // ReadAll.
  void Scan(const std::function<bool(int64_t records)>& begins,
            const std::function<bool(const OnDisk& record)>& visit);

  // Counts a record that a call of `move` appended.
  void CountMove();

  // Waits until there are not too many dead records. The caller holds no lock.
  void Pace();

  Stats stats() const;
  size_t payload_bytes() const { return payload_bytes_; }
  int64_t segment_records() const { return segment_records_; }
  // Of the buffers, about.
  int64_t MemoryBytes() const { return kMostBuffers * buffer_bytes_; }
  static constexpr int64_t kMostBuffers = 4;  // open, to be written, and spare

 private:
  struct Segment;
  struct Buffer;
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  using PageBytes = std::unique_ptr<char[], Free>;  // it begins at a page's begin
  static PageBytes NewPages(int64_t bytes);
  using Time = std::chrono::steady_clock::time_point;

  // Changes what a live record is.
  void Let(uint32_t location, bool is_live, int spare);
  bool OpenBuffer() EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Status OpenFile(const std::string& directory, const std::string& path, int* fd);
  Status NewSegment() EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes full buffers until the log ends.
  void Write();
  void WriteOut(const std::shared_ptr<Buffer>& buffer);
  // Tries again what could not be written; returns whether all of it could.
  bool WriteFailed();
  // Takes a segment out of the log. The file closes with the last pointer, best without the lock.
  std::shared_ptr<Segment> Drop(uint32_t number) EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a record in memory, or null.
  const char* InMemory(const Segment* segment, int64_t index) const
      EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Encode(const Segment& segment, int64_t index, int bin, int64_t id, const char* payload,
              char* record) const;
  // Checks a record's bytes.
  bool IsWhole(const Segment& segment, int64_t index, const char* record) const;
  void Take(const char* record, Read* read) const;
  Status ReadRun(Read* const* first, Read* const* last);
  // Reads records into memory of this thread's; a record is at `records` + OffsetOf its index.
  Status ReadBytes(const Segment& segment, int64_t index, int64_t count,
                   const char** records) const;
  // Returns where a record of a segment is. None is in two buffers.
  int64_t OffsetOf(int64_t index) const {
    return index / buffer_records_ * buffer_bytes_ + index % buffer_records_ * record_bytes_;
  }

  int64_t NumRecords() const EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // of all files
  // Live records of a segment, without spare ones where the disk has little room.
  int64_t LiveOf(const Segment& segment) const EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOverShare(int64_t times) const EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Segment> Emptiest() const EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether all its records are on disk.
  bool IsClosed(const Segment& segment) const EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the whole records of the buffer that begins with record `first`, until `visit` returns
  // false. Returns false if one is damaged or cannot be read.
  bool VisitBuffer(const Segment& segment, int64_t first,
                   const std::function<bool(const OnDisk& record)>& visit) const;
  void Compact();
  bool CompactOne(const std::shared_ptr<Segment>& segment, const std::function<void()>& pause);

  const TierConfig config_;
  const std::string name_;
  const size_t payload_bytes_;
  const int64_t record_bytes_;
  const int64_t buffer_bytes_;  // of whole pages
  const int64_t buffer_records_;
  const int64_t segment_bytes_;  // of whole buffers
  const int64_t segment_records_;
  ReadPool* const readers_;
  Move move_;
  std::function<bool()> is_busy_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<Segment>> segments_ GUARDED_BY(mutex_);  // by number; null if free
  std::vector<uint32_t> free_numbers_ GUARDED_BY(mutex_);
  int64_t num_segments_ GUARDED_BY(mutex_) = 0;
  uint64_t next_sequence_ GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Segment> last_ GUARDED_BY(mutex_);  // where records are appended, if anywhere
  std::shared_ptr<Buffer> open_ GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Buffer>> unwritten_ GUARDED_BY(mutex_);  // full
  std::vector<PageBytes> spare_ GUARDED_BY(mutex_);                  // of buffers
  int64_t live_ GUARDED_BY(mutex_) = 0, spare_records_ GUARDED_BY(mutex_) = 0;
  bool has_room_ GUARDED_BY(mutex_) = true;     // the disk, for many more segments
  Time retry_at_ GUARDED_BY(mutex_){};          // when a full disk is asked again
  Time compact_again_at_ GUARDED_BY(mutex_){};  // when one that had no place for moves is
  int64_t finished_ GUARDED_BY(mutex_) = 0;     // segments that were compacted, or could not be
  Stats stats_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_failed_{false};  // a buffer could not be written
  std::thread compactor_, writer_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_SPILL_LOG_H_
