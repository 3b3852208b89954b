#include "embedps/kernels/store/read_pool.h"

#include <algorithm>
#include <utility>

namespace embedps {

ReadPool::~ReadPool() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(&mutex_);
    ended_ = true;
    threads.swap(threads_);
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

int64_t ReadPool::Work(Job* job) {
  int64_t did = 0;
  for (int64_t i = job->next++; i < job->count; i = job->next++) {
    (*job->work)(i);
    ++did;
  }
  return did;
}

void ReadPool::Run(int64_t count, const std::function<void(int64_t)>& work) {
  if (count <= 0) return;
  if (count == 1) return work(0);
  const auto job = std::make_shared<Job>();
  job->count = count;
  job->work = &work;
  {
    const MutexLock lock(&mutex_);
    while (static_cast<int>(threads_.size()) < num_threads_) {
      threads_.emplace_back([this] { Serve(); });
    }
    jobs_.push_back(job);
  }
  changed_.NotifyAll();
  const int64_t did = Work(job.get());
  const MutexLock lock(&mutex_);
  job->done += did;
  while (job->done < job->count) changed_.Wait(&mutex_);
  const auto found = std::find(jobs_.begin(), jobs_.end(), job);
  if (found != jobs_.end()) jobs_.erase(found);
}

void ReadPool::Serve() {
  mutex_.Lock();
  while (!ended_) {
    if (jobs_.empty()) {
      changed_.Wait(&mutex_);
      continue;
    }
    const std::shared_ptr<Job> job = jobs_.front();
    mutex_.Unlock();
    const int64_t did = Work(job.get());
    mutex_.Lock();
    job->done += did;
    if (!jobs_.empty() && jobs_.front() == job) jobs_.pop_front();
    if (did > 0) changed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace embedps
