// Decides which parts are applied together where a step does not wait for its slowest workers.
#ifndef EMBEDPS_KERNELS_RUNTIME_STEP_GROUPS_H_
#define EMBEDPS_KERNELS_RUNTIME_STEP_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/step_log.h"

namespace embedps {

// Thread-safe. A part joins the group that is open. It is fresh if its worker had read a state with
// all groups that are closed. The group closes once it has a fresh part of each worker that is
// there, but for the backup workers: the slowest ones, as many as are said. So a late part is in
// the next group, and nobody waits for it.
class StepGroups {
 public:
  struct Group {
    int64_t index = -1;          // groups are applied in this order; -1 is no group
    std::vector<int64_t> parts;  // their numbers, sorted
  };
  using Closed = std::function<void(const Group& group)>;

  // The log has the parts that are applied, and outlives this.
  explicit StepGroups(const StepLog* log) : log_(log) {}

  // A worker begins a unit; a group does not wait for `backup_workers` of those that are there.
  // Returns the number of groups that are closed.
  int64_t Enter(int64_t worker, int64_t backup_workers) {
    const MutexLock lock(&mutex_);
    backup_workers_ = backup_workers;
    Worker& known = workers_[worker];
    ++known.units;
    known.is_lost = false;
    return index_;
  }

  // A worker ends a unit, or is lost in it.
  void Leave(int64_t worker) {
    Release([this, worker]() EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto at = workers_.find(worker);
      if (at != workers_.end() && --at->second.units <= 0) workers_.erase(at);
    });
  }

  // A worker does not answer: no group waits for it until it brings a part.
  void Forget(int64_t worker) {
    Release([this, worker]() EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto at = workers_.find(worker);
      if (at != workers_.end()) at->second.is_lost = true;
    });
  }

  // Adds a part of a worker that read the state after `seen` parts. Calls `closed` once: for a
  // fresh part with its group when it closes; else at once with the last group that closed. A part
  // that joined before changes nothing. Returns a number for `Cancel`.
  int64_t Join(uint32_t number, int64_t worker, int64_t seen, Closed closed) {
    int64_t ticket = -1;
    bool waits = false;
    Release([&]() EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto at = workers_.find(worker);
      if (at != workers_.end()) at->second.is_lost = false;
      if (group_of_.count(number) || log_->Has(number)) return;
      group_of_[number] = index_;
      open_.push_back(number);
      waits = seen >= num_closed_parts_;
      if (!waits) return;
      ++num_fresh_;
      if (at != workers_.end()) at->second.fresh_in = index_;
      ticket = next_ticket_++;
      waiting_.push_back({ticket, closed});
    });
    if (!waits) closed({NumClosed() - 1, {}});
    return ticket;
  }

  // Calls `closed` with the group of a part once that is closed, maybe at once; with no group if
  // the part is in none or was applied long ago. Returns a number for `Cancel`.
  int64_t Await(uint32_t number, Closed closed) {
    Group found;
    {
      const MutexLock lock(&mutex_);
      const auto at = group_of_.find(number);
      if (at != group_of_.end() && at->second == index_) {
        waiting_.push_back({next_ticket_, std::move(closed)});
        return next_ticket_++;
      }
      if (at != group_of_.end()) found = closed_[at->second - closed_.front().index];
    }
    closed(found);
    return -1;
  }

  // Forgets who waits; the part stays.
  void Cancel(int64_t ticket) {
    const MutexLock lock(&mutex_);
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                  [ticket](const Waiting& each) { return each.ticket == ticket; }),
                   waiting_.end());
  }

  // Lists the last groups that closed, in order, and then the open one, which may have no parts.
  std::vector<Group> Last() const {
    const MutexLock lock(&mutex_);
    std::vector<Group> found = {closed_.begin(), closed_.end()};
    found.push_back({index_, open_});
    return found;
  }

  // Lists the workers that have no fresh part in the open group, if others wait for theirs.
  std::vector<int64_t> Awaited() const {
    const MutexLock lock(&mutex_);
    std::vector<int64_t> found;
    for (const auto& [worker, known] : workers_) {
      if (num_fresh_ && !known.is_lost && known.fresh_in != index_) found.push_back(worker);
    }
    return found;
  }

 private:
  // Many more than can close before all servers have applied them: a worker waits for that.
  static constexpr size_t kKept = 1024;

  struct Worker {
    int64_t units = 0;  // that it is in; more than one if an attempt outlives the next one's start
    bool is_lost = false;
    int64_t fresh_in = -1;  // the last group that got a fresh part of it
  };
  struct Waiting {
    int64_t ticket;
    Closed closed;
  };

  int64_t NumClosed() const {
    const MutexLock lock(&mutex_);
    return index_;
  }

  // Does something under the lock, closes the group if it is complete then, and tells who waits.
  void Release(const std::function<void()>& change) {
    std::vector<Waiting> released;
    Group group;
    {
      const MutexLock lock(&mutex_);
      change();
      const auto present = std::count_if(workers_.begin(), workers_.end(),
                                         [](const auto& each) { return !each.second.is_lost; });
      const int64_t awaited = present - backup_workers_;
      // A late part alone waits for a fresh one, as long as somebody can bring that.
      if (open_.empty() || num_fresh_ < std::max<int64_t>(awaited, present > 0)) return;
      std::sort(open_.begin(), open_.end());
      group = {index_++, std::move(open_)};
      open_.clear();
      num_fresh_ = 0;
      num_closed_parts_ += static_cast<int64_t>(group.parts.size());
      closed_.push_back(group);
      if (closed_.size() > kKept) {
        for (const int64_t part : closed_.front().parts) group_of_.erase(part);
        closed_.pop_front();
      }
      released.swap(waiting_);
    }
    for (const Waiting& each : released) each.closed(group);
  }

  const StepLog* const log_;
  mutable Mutex mutex_;
  std::map<int64_t, Worker> workers_ GUARDED_BY(mutex_);
  int64_t backup_workers_ GUARDED_BY(mutex_) = 0;
  int64_t index_ GUARDED_BY(mutex_) = 0;             // of the open group
  std::vector<int64_t> open_ GUARDED_BY(mutex_);     // its parts
  int64_t num_fresh_ GUARDED_BY(mutex_) = 0;         // of them
  int64_t num_closed_parts_ GUARDED_BY(mutex_) = 0;  // of all closed groups
  std::deque<Group> closed_ GUARDED_BY(mutex_);      // the last ones
  std::unordered_map<uint32_t, int64_t> group_of_
      GUARDED_BY(mutex_);                            // by part, of these and the open one
  std::vector<Waiting> waiting_ GUARDED_BY(mutex_);  // for the open group
  int64_t next_ticket_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_STEP_GROUPS_H_
