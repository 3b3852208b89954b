#include "embedps/kernels/store/spill_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/record_sum.h"
#include "embedps/kernels/runtime/throttle.h"

namespace embedps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNiceness = 10;  // as the threads that write checkpoints
constexpr Clock::duration kRetry = std::chrono::seconds(1);
constexpr Clock::duration kRest = std::chrono::milliseconds(200);
constexpr int64_t kMostAtOnce = 256 << 10;  // bytes that one call reads
constexpr int64_t kMostBetween = 16 << 10;  // bytes of other records that it reads too
constexpr size_t kSpareBuffers = 1, kMostUnwritten = 2;
constexpr int64_t kPage = 4096;  // what O_DIRECT wants of addresses, offsets and lengths
// A segment is not worth to be compacted if more of it is live.
constexpr double kMostLive = 0.9;

// Precedes a record's payload.
struct RecordHeader {
  uint64_t sum;  // of what follows, seeded with the record's number among all ever appended
  int64_t id;
  int32_t bin;
  int32_t unused;
};

// Lets the process have as many files as the system says: each segment is one.
void RaiseFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string Cause(int error) { return std::strerror(error); }

// Calls the system until no signal interrupts it; a signal says nothing of the disk.
template <typename Call>
int Uninterrupted(const Call& call) {
  int result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

int64_t Pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

struct SpillLog::Segment {
  ~Segment() {
    if (fd >= 0) ::close(fd);
  }

  int fd = -1;
  std::string path;
  uint32_t number = 0;
  uint64_t first_record = 0;  // its number among all ever appended
  int64_t used = 0;           // records, under the log's mutex, as what follows
  int64_t live = 0;
  int64_t spare = 0;      // of the live ones
  int64_t unwritten = 0;  // buffers
  bool damaged = false;   // it cannot be compacted
};

struct SpillLog::Buffer {
  std::shared_ptr<Segment> segment;
  int64_t first = 0;  // record of the segment
  int64_t count = 0;
  bool taken = false;   // somebody writes it, or tried; under the log's mutex, as what follows
  bool failed = false;  // to be written
  PageBytes bytes;
};

SpillLog::PageBytes SpillLog::NewPages(int64_t bytes) {
  void* const made = std::aligned_alloc(kPage, Pages(bytes));
  if (made == nullptr) throw std::bad_alloc();
  return PageBytes(static_cast<char*>(made));
}

SpillLog::SpillLog(const TierConfig& config, std::string name, size_t payload_bytes,
                   ReadPool* readers)
    : config_(config),
      name_(std::move(name)),
      payload_bytes_(payload_bytes),
      record_bytes_(static_cast<int64_t>((sizeof(RecordHeader) + payload_bytes + 7) / 8 * 8)),
      buffer_bytes_(Pages(std::max(config.buffer_bytes, record_bytes_))),
      // In tests of few rows too, most records leave the buffers.
      buffer_records_(
          std::min(config.chunk_slots == 0 ? INT64_MAX : 4 * int64_t{config.chunk_slots},
                   buffer_bytes_ / record_bytes_)),
      segment_bytes_(std::max<int64_t>(config.segment_bytes / buffer_bytes_, 1) * buffer_bytes_),
      segment_records_(segment_bytes_ / buffer_bytes_ * buffer_records_),
      readers_(readers) {
  RaiseFileLimit();
}

SpillLog::~SpillLog() { Stop(); }

void SpillLog::Start(Move move, std::function<bool()> is_busy) {
  move_ = std::move(move);
  is_busy_ = std::move(is_busy);
  compactor_ = std::thread([this] { Compact(); });
  writer_ = std::thread([this] { Write(); });
}

void SpillLog::Stop() {
  {
    const MutexLock lock(&mutex_);
    ended_ = true;
  }
  changed_.NotifyAll();
  for (std::thread* thread : {&compactor_, &writer_}) {
    if (thread->joinable()) thread->join();
  }
}

Status SpillLog::OpenFile(const std::string& directory, const std::string& path, int* fd) {
  *fd = Uninterrupted(
      [&] { return ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); });
  // Some file systems have no files without a name from the beginning.
  if (*fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    *fd = Uninterrupted(
        [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); });
    if (*fd >= 0) ::unlink(path.c_str());
  }
  if (*fd >= 0) {
    (void)::fcntl(*fd, F_SETFL, ::fcntl(*fd, F_GETFL) | O_DIRECT);  // not every file system has it
    return Status::Ok();
  }
  return Status::IoError("cannot make a spill file in " + directory + ": " + Cause(errno));
}

Status SpillLog::CheckDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Status::InvalidArgument("spill_dir " + directory +
                                   " must be a directory of each server: " + error.message());
  }
  int fd = -1;
  const std::string path = directory + "/embedps-spill-" + std::to_string(::getpid()) + "-check";
  const Status opened = OpenFile(directory, path, &fd);
  if (!opened.ok()) return Status::InvalidArgument("spill_dir: " + opened.message());
  ::close(fd);
  return Status::Ok();
}

Status SpillLog::NewSegment() {
  auto segment = std::make_shared<Segment>();
  if (free_numbers_.empty()) {
    if ((segments_.size() + 1) * segment_records_ >= kNowhere) {
      return Status::IoError("there are " + std::to_string(segments_.size()) +
                             " spill files, and more have no numbers");
    }
    segment->number = static_cast<uint32_t>(segments_.size());
  } else {
    segment->number = free_numbers_.back();
  }
  segment->path = config_.directory + "/embedps-spill-" + std::to_string(::getpid()) + "-" + name_ +
                  "-" + std::to_string(next_sequence_);
  std::replace(segment->path.begin() + config_.directory.size() + 1, segment->path.end(), '/', '_');
  EMBEDPS_RETURN_IF_ERROR(OpenFile(config_.directory, segment->path, &segment->fd));
  const int reserved =
      Uninterrupted([&] { return ::fallocate(segment->fd, 0, 0, segment_bytes_); });
  if (reserved != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {  // not every file system reserves
    return Status::IoError("cannot reserve " + std::to_string(segment_bytes_) +
                           " bytes for a spill file in " + config_.directory + ": " + Cause(errno));
  }
  ::posix_fadvise(segment->fd, 0, 0, POSIX_FADV_RANDOM);
  segment->first_record = next_sequence_++ * segment_records_;
  if (free_numbers_.empty()) {
    segments_.push_back(segment);
  } else {
    free_numbers_.pop_back();
    segments_[segment->number] = segment;
  }
  ++num_segments_;
  struct statvfs disk{};
  const bool is_known = ::fstatvfs(segment->fd, &disk) == 0;
  has_room_ =
      !is_known || static_cast<int64_t>(disk.f_bavail) >=
                       kRoomySegments * segment_bytes_ / static_cast<int64_t>(disk.f_frsize);
  last_ = segment;
  return Status::Ok();
}

bool SpillLog::OpenBuffer() {
  if (last_ == nullptr) {
    const Time now = Clock::now();
    if (now < retry_at_) return false;
    const Status made = NewSegment();
    if (!made.ok()) {
      has_room_ = false;
      retry_at_ = now + kRetry;
      stats_.error = made.message();
      return false;
    }
    if (unwritten_.empty()) stats_.error.clear();
  }
  open_ = std::make_shared<Buffer>();
  open_->segment = last_;
  open_->first = last_->used;
  if (spare_.empty()) {
    open_->bytes = NewPages(buffer_bytes_);
    std::memset(open_->bytes.get() + buffer_records_ * record_bytes_, 0,
                buffer_bytes_ - buffer_records_ * record_bytes_);
  } else {
    open_->bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  ++last_->unwritten;
  return true;
}

uint32_t SpillLog::Append(int bin, int64_t id, const char* payload) {
  std::shared_ptr<Buffer> full;
  uint32_t location;
  // What could not be written takes memory, so there is no more of it until it could.
  if (has_failed_.load(std::memory_order_relaxed) && !WriteFailed()) {
    const MutexLock lock(&mutex_);
    ++stats_.full;
    return kNowhere;
  }
  {
    const MutexLock lock(&mutex_);
    if (open_ == nullptr && !OpenBuffer()) {
      ++stats_.full;
      return kNowhere;
    }
    Segment& segment = *open_->segment;
    const int64_t index = segment.used++;
    Encode(segment, index, bin, id, payload, open_->bytes.get() + open_->count * record_bytes_);
    location = static_cast<uint32_t>(segment.number * segment_records_ + index);
    ++segment.live;
    ++live_;
    ++stats_.appended;
    if (++open_->count == buffer_records_) {
      if (ended_ || unwritten_.size() >= kMostUnwritten) {
        full = open_;
        full->taken = true;
      }
      unwritten_.push_back(std::move(open_));
      open_ = nullptr;
      changed_.NotifyAll();
      if (segment.used == segment_records_) last_ = nullptr;
    }
  }
  if (full != nullptr) WriteOut(full);
  return location;
}

bool SpillLog::WriteFailed() {
  std::vector<std::shared_ptr<Buffer>> failed;
  {
    const MutexLock lock(&mutex_);
    if (Clock::now() < retry_at_) return false;
    has_failed_ = false;
    for (const auto& buffer : unwritten_) {
      if (buffer->failed) failed.push_back(buffer);
      buffer->failed = false;
    }
  }
  for (const auto& buffer : failed) WriteOut(buffer);
  return !has_failed_;
}

void SpillLog::Write() {
  while (true) {
    std::shared_ptr<Buffer> next;
    {
      const MutexLock lock(&mutex_);
      while (!ended_ && next == nullptr) {
        const auto found = std::find_if(unwritten_.begin(), unwritten_.end(),
                                        [](const auto& buffer) { return !buffer->taken; });
        if (found != unwritten_.end()) {
          next = *found;
        } else {
          changed_.Wait(&mutex_);
        }
      }
      if (ended_) return;
      next->taken = true;
    }
    WriteOut(next);
  }
}

void SpillLog::WriteOut(const std::shared_ptr<Buffer>& buffer) {
  const int64_t bytes = buffer_bytes_;
  const int64_t offset = OffsetOf(buffer->first);
  int error = 0;
  DieIfFault("spill");
  for (int64_t at = 0; at < bytes && error == 0;) {
    const ssize_t wrote =
        ::pwrite(buffer->segment->fd, buffer->bytes.get() + at, bytes - at, offset + at);
    if (wrote > 0) {
      at += wrote;
    } else if (wrote == 0 || errno != EINTR) {
      error = wrote == 0 ? ENOSPC : errno;
    }
  }
  std::shared_ptr<Segment> dropped;
  const MutexLock lock(&mutex_);
  if (error != 0) {
    buffer->failed = true;
    has_failed_ = true;
    has_room_ = false;
    retry_at_ = Clock::now() + kRetry;
    stats_.error = "cannot write " + std::to_string(bytes) + " bytes to " + buffer->segment->path +
                   " at offset " + std::to_string(offset) + ": " + Cause(error) +
                   "; they stay in memory";
    return;
  }
  unwritten_.remove(buffer);
  if (unwritten_.empty() && last_ != nullptr) stats_.error.clear();
  Segment& segment = *buffer->segment;
  if (--segment.unwritten == 0 && segment.live == 0 && segment.used == segment_records_) {
    dropped = Drop(segment.number);
  }
  if (spare_.size() < kSpareBuffers) spare_.push_back(std::move(buffer->bytes));
  changed_.NotifyAll();
}

void SpillLog::Encode(const Segment& segment, int64_t index, int bin, int64_t id,
                      const char* payload, char* record) const {
  RecordHeader header{0, id, bin, 0};
  std::memcpy(record, &header, sizeof(header));
  std::memcpy(record + sizeof(header), payload, payload_bytes_);
  std::memset(record + sizeof(header) + payload_bytes_, 0,
              record_bytes_ - sizeof(header) - payload_bytes_);
  header.sum = RecordSum(record + sizeof(header.sum), record_bytes_ - sizeof(header.sum),
                         segment.first_record + index);
  std::memcpy(record, &header.sum, sizeof(header.sum));
}

bool SpillLog::IsWhole(const Segment& segment, int64_t index, const char* record) const {
  uint64_t sum;
  std::memcpy(&sum, record, sizeof(sum));
  return sum ==
         RecordSum(record + sizeof(sum), record_bytes_ - sizeof(sum), segment.first_record + index);
}

void SpillLog::Take(const char* record, Read* read) const {
  RecordHeader header;
  std::memcpy(&header, record, sizeof(header));
  if (header.id != read->id || header.bin != read->bin) return;
  std::memcpy(read->payload, record + sizeof(header), payload_bytes_);
  read->found = true;
}

void SpillLog::Let(uint32_t location, bool is_live, int spare) {
  std::shared_ptr<Segment> dropped;  // its file is closed without the lock
  const MutexLock lock(&mutex_);
  const int64_t number = location / segment_records_;
  Segment& segment = *segments_[number];
  segment.spare += spare;
  spare_records_ += spare;
  if (is_live) return;
  --live_;
  if (--segment.live == 0 && segment.used == segment_records_ && segment.unwritten == 0) {
    dropped = Drop(static_cast<uint32_t>(number));
  } else if (IsOverShare(2)) {
    changed_.NotifyAll();
  }
}

std::shared_ptr<SpillLog::Segment> SpillLog::Drop(uint32_t number) {
  std::shared_ptr<Segment> dropped;
  dropped.swap(segments_[number]);
  free_numbers_.push_back(number);
  --num_segments_;
  changed_.NotifyAll();
  return dropped;
}

void SpillLog::CountMove() {
  const MutexLock lock(&mutex_);
  ++stats_.moved;
}

const char* SpillLog::InMemory(const Segment* segment, int64_t index) const {
  const auto find = [&](const std::shared_ptr<Buffer>& buffer) -> const char* {
    const int64_t at = index - buffer->first;
    const bool has = buffer->segment.get() == segment && at >= 0 && at < buffer->count;
    return has ? buffer->bytes.get() + at * record_bytes_ : nullptr;
  };
  if (open_ != nullptr) {
    if (const char* record = find(open_)) return record;
  }
  for (const auto& buffer : unwritten_) {
    if (const char* record = find(buffer)) return record;
  }
  return nullptr;
}

Status SpillLog::ReadAll(std::vector<Read>* reads) {
  std::vector<Read*> of_disk;
  {
    const MutexLock lock(&mutex_);
    stats_.read += static_cast<int64_t>(reads->size());
    for (Read& read : *reads) {
      read.found = false;
      const size_t number = read.location / segment_records_;
      const int64_t index = read.location % segment_records_;
      if (number >= segments_.size() || segments_[number] == nullptr ||
          index >= segments_[number]->used) {
        continue;
      }
      read.keeps = segments_[number];
      read.segment = segments_[number].get();
      if (const char* record = InMemory(segments_[number].get(), index)) {
        Take(record, &read);
      } else {
        of_disk.push_back(&read);
      }
    }
  }
  if (of_disk.empty()) return Status::Ok();
  std::sort(of_disk.begin(), of_disk.end(),
            [](const Read* a, const Read* b) { return a->location < b->location; });
  std::vector<size_t> runs;  // where each begins
  for (size_t i = 0; i < of_disk.size(); ++i) {
    const bool continues =
        !runs.empty() && of_disk[i]->segment == of_disk[i - 1]->segment &&
        (of_disk[i]->location - of_disk[i - 1]->location) * record_bytes_ <= kMostBetween &&
        (of_disk[i]->location - of_disk[runs.back()]->location + 1) * record_bytes_ <= kMostAtOnce;
    if (!continues) runs.push_back(i);
  }
  const auto num_runs = static_cast<int64_t>(runs.size());
  runs.push_back(of_disk.size());
  std::vector<Status> done(num_runs);
  readers_->Run(num_runs, [&](int64_t i) {
    done[i] = ReadRun(of_disk.data() + runs[i], of_disk.data() + runs[i + 1]);
  });
  {
    const MutexLock lock(&mutex_);
    stats_.disk_reads += num_runs;
  }
  for (const Status& status : done) EMBEDPS_RETURN_IF_ERROR(status);
  return Status::Ok();
}

Status SpillLog::ReadRun(Read* const* first, Read* const* last) {
  const auto& segment = *static_cast<const Segment*>((*first)->segment);
  const char* records;
  EMBEDPS_RETURN_IF_ERROR(ReadBytes(segment, (*first)->location % segment_records_,
                                    last[-1]->location - (*first)->location + 1, &records));
  for (Read* const* read = first; read < last; ++read) {
    const int64_t index = (*read)->location % segment_records_;
    const char* record = records + OffsetOf(index);
    if (!IsWhole(segment, index, record)) {
      return Status::DataLoss("spill file " + segment.path + ": the record at offset " +
                              std::to_string(OffsetOf(index)) + ", of id " +
                              std::to_string((*read)->id) + ", is damaged: its checksum is wrong");
    }
    Take(record, *read);
  }
  return Status::Ok();
}

Status SpillLog::ReadBytes(const Segment& segment, int64_t index, int64_t count,
                           const char** records) const {
  const int64_t begin = OffsetOf(index) / kPage * kPage;
  const int64_t end = OffsetOf(index + count - 1) + record_bytes_;
  const int64_t bytes = Pages(end) - begin;
  thread_local PageBytes to;
  thread_local int64_t room = 0;
  if (room < bytes) {
    to = NewPages(bytes);
    room = bytes;
  }
  *records = to.get() - begin;
  for (int64_t at = 0; at < bytes;) {
    const ssize_t got = ::pread(segment.fd, to.get() + at, bytes - at, begin + at);
    if (got > 0) {
      at += got;
    } else if (got == 0 || errno != EINTR) {
      return Status::DataLoss("spill file " + segment.path + ": cannot read " +
                              std::to_string(bytes - at) + " bytes at offset " +
                              std::to_string(begin + at) + ": " +
                              (got == 0 ? std::string("the file ends") : Cause(errno)));
    }
  }
  return Status::Ok();
}

bool SpillLog::IsCurrent(const Read& read) const {
  const MutexLock lock(&mutex_);
  const size_t number = read.location / segment_records_;
  return read.found && number < segments_.size() && segments_[number].get() == read.segment;
}

bool SpillLog::IsCurrent(const OnDisk& record) const {
  const MutexLock lock(&mutex_);
  const size_t number = record.location / segment_records_;
  return number < segments_.size() && segments_[number].get() == record.segment;
}

bool SpillLog::IsClosed(const Segment& segment) const {
  return segment.used == segment_records_ && segment.unwritten == 0;
}

int64_t SpillLog::NumRecords() const { return num_segments_ * segment_records_; }

int64_t SpillLog::LiveOf(const Segment& segment) const {
  return segment.live - (has_room_ ? 0 : segment.spare);
}

bool SpillLog::IsOverShare(int64_t times) const {
  const int64_t live = live_ - (has_room_ ? 0 : spare_records_);
  return NumRecords() > times * live + kSlackSegments * segment_records_;
}

std::shared_ptr<SpillLog::Segment> SpillLog::Emptiest() const {
  std::shared_ptr<Segment> emptiest;
  for (const auto& segment : segments_) {
    if (segment == nullptr || segment->damaged || !IsClosed(*segment)) continue;
    if (emptiest == nullptr || LiveOf(*segment) < LiveOf(*emptiest)) emptiest = segment;
  }
  const double most = kMostLive * static_cast<double>(segment_records_);
  if (emptiest != nullptr && static_cast<double>(LiveOf(*emptiest)) > most) emptiest = nullptr;
  return emptiest;
}

void SpillLog::Pace() {
  const MutexLock lock(&mutex_);
  // Each wait is for one segment: if none can be compacted, the log is as large as it must be.
  while (!ended_ && move_ != nullptr && IsOverShare(3) && Clock::now() >= compact_again_at_ &&
         Emptiest() != nullptr) {
    // Looks again after a while: the last segment that could be compacted may go by itself.
    const int64_t finished = finished_;
    const Time until = Clock::now() + kRest;
    changed_.NotifyAll();
    while (!ended_ && finished == finished_ && IsOverShare(3) &&
           changed_.WaitUntil(&mutex_, until)) {
    }
  }
}

void SpillLog::Compact() {
  ::setpriority(PRIO_PROCESS, 0, kNiceness);  // 0 is this thread
  ThrottleClock clock;
  const auto may_rest = [this] {
    const MutexLock lock(&mutex_);
    return !ended_ && !IsOverShare(3);
  };
  while (true) {
    std::shared_ptr<Segment> segment;
    {
      const MutexLock lock(&mutex_);
      while (!ended_) {
        if (IsOverShare(2) && Clock::now() >= compact_again_at_) segment = Emptiest();
        if (segment != nullptr) break;
        (void)changed_.WaitUntil(&mutex_, Clock::now() + kRest);
      }
      if (ended_) return;
    }
    Throttle throttle(
        Throttle::DefaultCores(), std::numeric_limits<double>::infinity(),
        [&] { return is_busy_() && may_rest(); }, &clock);
    const bool has_place = CompactOne(segment, [&] { throttle.Pause(); });
    segment.reset();
    {
      const MutexLock lock(&mutex_);
      ++finished_;
      if (!has_place) compact_again_at_ = Clock::now() + kRetry;
    }
    changed_.NotifyAll();
  }
}

bool SpillLog::VisitBuffer(const Segment& segment, int64_t first,
                           const std::function<bool(const OnDisk& record)>& visit) const {
  const char* records;
  if (!ReadBytes(segment, first, buffer_records_, &records).ok()) return false;
  bool is_whole = true;
  for (int64_t index = first; index < first + buffer_records_; ++index) {
    const char* const record = records + OffsetOf(index);
    if (!IsWhole(segment, index, record)) {
      is_whole = false;
      continue;
    }
    RecordHeader header;
    std::memcpy(&header, record, sizeof(header));
    const auto location = static_cast<uint32_t>(segment.number * segment_records_ + index);
    if (!visit({header.bin, header.id, location, record + sizeof(header), &segment})) break;
  }
  return is_whole;
}

bool SpillLog::CompactOne(const std::shared_ptr<Segment>& segment,
                          const std::function<void()>& pause) {
  bool has_place = true;
  for (int64_t first = 0; first < segment_records_; first += buffer_records_) {
    const bool is_whole = VisitBuffer(*segment, first, [&](const OnDisk& record) {
      has_place = move_(record);
      return has_place;
    });
    {
      const MutexLock lock(&mutex_);
      // Whoever needs one of its records will find out, and say so.
      if (!is_whole) segment->damaged = true;
      if (!has_place) return false;
      if (ended_ || segments_[segment->number] != segment) return true;
    }
    pause();
  }
  return true;
}

void SpillLog::Scan(const std::function<bool(int64_t records)>& begins,
                    const std::function<bool(const OnDisk& record)>& visit) {
  std::vector<std::shared_ptr<Segment>> closed;
  {
    const MutexLock lock(&mutex_);
    for (const auto& segment : segments_) {
      if (segment != nullptr && IsClosed(*segment)) closed.push_back(segment);
    }
  }
  for (auto& segment : closed) {
    for (int64_t first = 0; first < segment_records_; first += buffer_records_) {
      if (!begins(buffer_records_)) return;
      int64_t needed = 0;
      (void)VisitBuffer(*segment, first, [&](const OnDisk& record) {
        needed += visit(record);
        return true;
      });
      const MutexLock lock(&mutex_);
      ++stats_.disk_reads;
      stats_.read += needed;
      if (segments_[segment->number] != segment) break;  // what it had moved, or is dead
    }
    segment.reset();
  }
}

SpillLog::Stats SpillLog::stats() const {
  const MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.live = live_;
  stats.spare = spare_records_;
  stats.bytes = num_segments_ * segment_bytes_;
  return stats;
}

}  // namespace embedps
