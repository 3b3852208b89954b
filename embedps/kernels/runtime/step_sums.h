// Collects the parts of steps that several workers take together, until a server can apply a step.
#ifndef EMBEDPS_KERNELS_RUNTIME_STEP_SUMS_H_
#define EMBEDPS_KERNELS_RUNTIME_STEP_SUMS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/runtime/step_log.h"

namespace embedps {

// Thread-safe. A step is numbered by its first part; the number of part `rank` is step + rank. Only
// one attempt at a time applies a step. If it ends before it has, the parts stay, and the next
// attempt at any part applies the step.
template <typename Part>
class StepSums {
 public:
  using Parts = std::vector<std::shared_ptr<const Part>>;
  // Gets the step's parts in order of rank if the caller must apply the step now, and then call
  // `Applied` or `Abandoned`. Otherwise it gets no parts: the step needs nothing of the caller.
  using Decided = std::function<void(const Parts& parts)>;

  // The log gets the parts of the steps that were applied, and outlives this.
  explicit StepSums(StepLog* log) : log_(log) {}

  // Adds a part of a step of `num_parts`, if the step lacks it and was not applied. Calls `decided`
  // once: at once, or when it is known whether an attempt that applies the step now succeeds.
  // Returns a number for `Cancel` by `ticket`.
  Status Add(int64_t rank, int64_t num_parts, const StepLog::Entry& entry, Part part,
             Decided decided, int64_t* ticket) {
    *ticket = -1;
    if (num_parts < 1 || rank < 0 || rank >= num_parts || entry.step < rank) {
      return Status::InvalidArgument("part " + std::to_string(entry.step) + " cannot have rank " +
                                     std::to_string(rank) + " of " + std::to_string(num_parts));
    }
    const auto number = static_cast<uint32_t>(entry.step - rank);
    Parts parts;
    {
      const MutexLock lock(&mutex_);
      if (!log_->Has(number)) {
        Step& step = steps_[number];
        if (step.parts.empty()) {
          step.parts.resize(num_parts);
          step.entries.resize(num_parts);
        }
        if (static_cast<int64_t>(step.parts.size()) != num_parts) {
          return Status::InvalidArgument("step " + std::to_string(number) + " has " +
                                         std::to_string(step.parts.size()) +
                                         " parts but got one of " + std::to_string(num_parts));
        }
        if (step.parts[rank] == nullptr) {
          step.parts[rank] = std::make_shared<const Part>(std::move(part));
          step.entries[rank] = entry;
          ++step.num_present;
        }
        if (step.num_present == num_parts) {
          if (step.is_taken) {
            *ticket = next_ticket_++;
            step.waiting.push_back({*ticket, std::move(decided)});
            return Status::Ok();
          }
          step.is_taken = true;
          parts = step.parts;
        }
      }
    }
    decided(parts);
    return Status::Ok();
  }

  // Forgets an attempt that waits.
  void Cancel(int64_t ticket) {
    const MutexLock lock(&mutex_);
    for (auto& [number, step] : steps_) {
      auto& waiting = step.waiting;
      waiting.erase(std::remove_if(waiting.begin(), waiting.end(),
                                   [ticket](const Waiting& each) { return each.ticket == ticket; }),
                    waiting.end());
    }
  }

  // Logs a step that the caller has applied.
  void Applied(uint32_t number) {
    std::deque<Waiting> waiting;
    std::vector<StepLog::Entry> entries;
    {
      const MutexLock lock(&mutex_);
      entries = steps_[number].entries;
    }
    log_->Add(entries);  // first, so that a part meets either the log's step or the open one
    {
      const MutexLock lock(&mutex_);
      waiting = std::move(steps_[number].waiting);
      steps_.erase(number);
    }
    for (const Waiting& each : waiting) each.decided({});
  }

  // The caller ends without having applied the step: another attempt must.
  void Abandoned(uint32_t number) {
    Decided next;
    Parts parts;
    {
      const MutexLock lock(&mutex_);
      Step& step = steps_[number];
      step.is_taken = !step.waiting.empty();
      if (!step.is_taken) return;
      next = std::move(step.waiting.front().decided);
      step.waiting.pop_front();
      parts = step.parts;
    }
    next(parts);
  }

  // Lists (step, rank, worker) of the steps that lack parts, sorted; worker is -1 if the part is
  // absent.
  std::vector<std::array<int64_t, 3>> Open() const {
    const MutexLock lock(&mutex_);
    std::vector<std::array<int64_t, 3>> found;
    for (const auto& [number, step] : steps_) {
      const auto num_parts = static_cast<int64_t>(step.parts.size());
      if (step.num_present == num_parts) continue;
      for (int64_t rank = 0; rank < num_parts; ++rank) {
        const bool is_present = step.parts[rank] != nullptr;
        found.push_back({number, rank, is_present ? step.entries[rank].worker : -1});
      }
    }
    return found;
  }

 private:
  struct Waiting {
    int64_t ticket;
    Decided decided;
  };
  struct Step {
    Parts parts;  // by rank; null if absent
    std::vector<StepLog::Entry> entries;
    int64_t num_present = 0;
    bool is_taken = false;  // by an attempt that applies it
    std::deque<Waiting> waiting;
  };

  StepLog* const log_;
  mutable Mutex mutex_;
  std::map<uint32_t, Step> steps_ GUARDED_BY(mutex_);
  int64_t next_ticket_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_STEP_SUMS_H_
