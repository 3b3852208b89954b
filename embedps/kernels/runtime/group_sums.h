// Holds parts of steps on a server until it is told which of them it applies together.
#ifndef EMBEDPS_KERNELS_RUNTIME_GROUP_SUMS_H_
#define EMBEDPS_KERNELS_RUNTIME_GROUP_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/runtime/step_log.h"

namespace embedps {

// Thread-safe. Groups are applied in the order of their indexes, each once, by one attempt at a
// time. If that ends before it has, the next attempt at the group applies it.
template <typename Part>
class GroupSums {
 public:
  using Parts = std::vector<std::shared_ptr<const Part>>;
  // Gets the group's parts in the order of `numbers` if the caller must apply it now, and then call
  // `Applied` or `Abandoned`. Otherwise it gets no parts: the group is applied.
  using Decided = std::function<void(const Parts& parts)>;
  using Begin = std::function<void()>;

  // The log gets the parts that were applied, and outlives this.
  explicit GroupSums(StepLog* log) : log_(log) {}

  // Keeps a part, unless it has it or the part was applied: the first attempt counts.
  void Hold(const StepLog::Entry& entry, Part part) {
    const MutexLock lock(&mutex_);
    if (log_->Has(entry.step)) return;
    held_.emplace(entry.step, Held{entry, std::make_shared<const Part>(std::move(part))});
  }

  // Calls `decided` once: when the group is applied, or when the caller must apply it. Returns a
  // number for `Cancel` by `ticket`.
  Status Take(int64_t index, const std::vector<int64_t>& numbers, Decided decided,
              int64_t* ticket) {
    *ticket = -1;
    Turn turn;
    {
      const MutexLock lock(&mutex_);
      if (index >= num_applied_) {
        for (const int64_t number : numbers) {
          if (held_.count(static_cast<uint32_t>(number))) continue;
          return Status::InvalidArgument("group " + std::to_string(index) + " has part " +
                                         std::to_string(number) + ", which did not come");
        }
        *ticket = next_ticket_++;
        waiting_.push_back({*ticket, index, numbers, std::move(decided)});
        turn = NextTurn();
      }
    }
    if (*ticket < 0) decided({});
    turn();
    return Status::Ok();
  }

  // Calls `begin` once so many groups are applied, maybe at once. Returns a number for `Cancel`.
  int64_t Await(int64_t num_groups, Begin begin) {
    {
      const MutexLock lock(&mutex_);
      if (num_applied_ < num_groups) {
        const auto applied = [begin = std::move(begin)](const Parts&) { begin(); };
        waiting_.push_back({next_ticket_, num_groups - 1, {}, applied});
        return next_ticket_++;
      }
    }
    begin();
    return -1;
  }

  int64_t NumApplied() const {
    const MutexLock lock(&mutex_);
    return num_applied_;
  }

  // Forgets who waits.
  void Cancel(int64_t ticket) {
    const MutexLock lock(&mutex_);
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                  [ticket](const Waiting& each) { return each.ticket == ticket; }),
                   waiting_.end());
  }

  // Logs the group that the caller has applied.
  void Applied() {
    std::vector<StepLog::Entry> entries;
    {
      const MutexLock lock(&mutex_);
      for (const int64_t number : taken_) entries.push_back(held_.at(number).entry);
    }
    log_->Add(entries);  // first, so that a part meets either the log or what is held
    std::vector<Waiting> released;
    Turn turn;
    {
      const MutexLock lock(&mutex_);
      for (const int64_t number : taken_) held_.erase(number);
      taken_.clear();
      is_taken_ = false;
      ++num_applied_;
      const auto first = std::stable_partition(
          waiting_.begin(), waiting_.end(),
          [num = num_applied_](const Waiting& each) { return each.index >= num; });
      std::move(first, waiting_.end(), std::back_inserter(released));
      waiting_.erase(first, waiting_.end());
      turn = NextTurn();
    }
    for (const Waiting& each : released) each.decided({});
    turn();
  }

  // The caller ends without having applied the group: another attempt must.
  void Abandoned() {
    Turn turn;
    {
      const MutexLock lock(&mutex_);
      is_taken_ = false;
      turn = NextTurn();
    }
    turn();
  }

 private:
  struct Held {
    StepLog::Entry entry;
    std::shared_ptr<const Part> part;
  };
  struct Waiting {
    int64_t ticket, index;
    std::vector<int64_t> numbers;  // empty if it cannot apply the group
    Decided decided;
  };
  // An attempt that must apply a group now; maybe none.
  struct Turn {
    Decided decided;
    Parts parts;
    void operator()() const {
      if (decided) decided(parts);
    }
  };

  Turn NextTurn() EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_taken_) return {};
    const auto at =
        std::find_if(waiting_.begin(), waiting_.end(), [num = num_applied_](const Waiting& each) {
          return each.index == num && !each.numbers.empty();
        });
    if (at == waiting_.end()) return {};
    is_taken_ = true;
    taken_ = std::move(at->numbers);
    Turn turn{std::move(at->decided), {}};
    waiting_.erase(at);
    for (const int64_t number : taken_) turn.parts.push_back(held_.at(number).part);
    return turn;
  }

  StepLog* const log_;
  mutable Mutex mutex_;
  std::map<uint32_t, Held> held_ GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ GUARDED_BY(mutex_);
  int64_t num_applied_ GUARDED_BY(mutex_) = 0;
  bool is_taken_ GUARDED_BY(mutex_) = false;       // the next group, by an attempt that applies it
  std::vector<int64_t> taken_ GUARDED_BY(mutex_);  // its parts
  int64_t next_ticket_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_GROUP_SUMS_H_
