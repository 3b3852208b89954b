// Bounds how many steps of others meet a server's state between a step's read and its update.
#ifndef EMBEDPS_KERNELS_RUNTIME_STEP_GATE_H_
#define EMBEDPS_KERNELS_RUNTIME_STEP_GATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

// Thread-safe. A step may begin if no step that is under way, itself included, would then meet more
// than `most` others: those under way when it began, and those that began since.
class StepGate {
 public:
  using Begin = std::function<void()>;

  // Calls `begin` as soon as the worker's step may begin, maybe at once. Steps that the worker left
  // behind are forgotten: it has one under way. Returns a number for `Cancel`.
  int64_t Enter(int64_t worker, int64_t most, Begin begin) {
    std::vector<Begin> begun;
    int64_t ticket;
    {
      const MutexLock lock(&mutex_);
      Forget(worker);
      ticket = next_ticket_++;
      waiting_.push_back({ticket, worker, most, std::move(begin)});
      begun = Admit();
    }
    for (const Begin& each : begun) each();
    return ticket;
  }

  // Forgets a step that waits; returns whether it did.
  bool Cancel(int64_t ticket) {
    std::vector<Begin> begun;
    bool found = false;
    {
      const MutexLock lock(&mutex_);
      const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                   [ticket](const Waiting& each) { return each.ticket == ticket; });
      if (at != waiting_.end()) {
        waiting_.erase(at);
        found = true;
        begun = Admit();
      }
    }
    for (const Begin& each : begun) each();
    return found;
  }

  // The worker's step has ended, or never will.
  void Leave(int64_t worker) {
    std::vector<Begin> begun;
    {
      const MutexLock lock(&mutex_);
      Forget(worker);
      begun = Admit();
    }
    for (const Begin& each : begun) each();
  }

 private:
  struct Waiting {
    int64_t ticket, worker, most;
    Begin begin;
  };
  struct UnderWay {
    int64_t worker, most, others;
  };

  void Forget(int64_t worker) EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    under_way_.remove_if([worker](const UnderWay& each) { return each.worker == worker; });
  }

  // Lets those in that may begin, in the order in which they came.
  std::vector<Begin> Admit() EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Begin> begun;
    while (!waiting_.empty()) {
      const int64_t others = static_cast<int64_t>(under_way_.size());
      const bool full = std::any_of(under_way_.begin(), under_way_.end(),
                                    [](const UnderWay& each) { return each.others >= each.most; });
      if (full || others > waiting_.front().most) break;
      for (UnderWay& each : under_way_) ++each.others;
      under_way_.push_back({waiting_.front().worker, waiting_.front().most, others});
      begun.push_back(std::move(waiting_.front().begin));
      waiting_.pop_front();
    }
    return begun;
  }

  Mutex mutex_;
  std::list<UnderWay> under_way_ GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  int64_t next_ticket_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_STEP_GATE_H_
