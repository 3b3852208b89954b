#include "embedps/kernels/store/evicted_rows.h"

#include <chrono>
#include <utility>

namespace embedps {
namespace {

int64_t NowMillis() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

EvictedRows::EvictedRows(const RowLayout& layout, RowFileSchema schema, OpenFile open)
    : layout_(layout),
      schema_(std::move(schema)),
      open_(std::move(open)),
      thread_([this] { Run(); }) {}

EvictedRows::~EvictedRows() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EvictedRows::Add(int table, const RowHeader& row, EvictionCause cause, uint32_t step) {
  if (!active_.load(std::memory_order_relaxed)) return;
  const int64_t millis = NowMillis();
  std::unique_lock<std::mutex> lock(mutex_);
  RowColumns& rows = current_.rows;
  rows.table.push_back(static_cast<int16_t>(table));
  rows.id.push_back(row.id);
  rows.last_step.push_back(row.last_step);
  rows.frequency.push_back(row.frequency);
  rows.embedding.resize(rows.embedding.size() + layout_.dim);
  layout_.ReadEmbedding(row, rows.embedding.data() + rows.embedding.size() - layout_.dim);
  rows.optimizer_slots.resize(schema_.optimizer_slots.size());
  int first = 0;
  for (size_t s = 0; s < schema_.optimizer_slots.size(); ++s) {
    const int width = schema_.optimizer_slots[s].width;
    std::vector<float>& values = rows.optimizer_slots[s];
    values.resize(values.size() + width);
    layout_.ReadOptimizerSlots(row, first, width, values.data() + values.size() - width);
    first += width;
  }
  current_.reason.push_back(static_cast<int8_t>(cause));
  current_.evicted_step.push_back(step);
  current_.evicted_millis.push_back(millis);
  if (++rows.num_rows < kBatchRows) return;
  changed_.wait(lock, [this] { return ended_ || items_.size() < kMaxBatches; });
  if (rows.num_rows < kBatchRows) return;  // another thread has given the batch meanwhile
  items_.push_back({std::exchange(current_, EvictedColumns()), nullptr, {}});
  changed_.notify_all();
}

EvictedFileInfo EvictedRows::NextFile(const std::string& path) {
  std::promise<EvictedFileInfo> finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back({std::exchange(current_, EvictedColumns()), &finished, path});
  }
  changed_.notify_all();
  EvictedFileInfo info = finished.get_future().get();
  active_.store(true, std::memory_order_relaxed);
  return info;
}

void EvictedRows::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !items_.empty(); });
    if (ended_) return;
    const Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    changed_.notify_all();
    if (item.batch.rows.num_rows > 0) Write(item.batch);
    if (item.finished != nullptr) {
      path_ = item.next_path;
      item.finished->set_value(Finish());
    }
    lock.lock();
  }
}

void EvictedRows::Write(const EvictedColumns& batch) {
  if (info_.status.ok() && writer_ == nullptr) info_.status = open_(path_, schema_, &writer_);
  if (info_.status.ok()) info_.status = writer_->Append(batch);
  (info_.status.ok() ? info_.rows : info_.lost) += batch.rows.num_rows;
}

EvictedFileInfo EvictedRows::Finish() {
  if (writer_ != nullptr && info_.status.ok()) {
    RowFileInfo file;
    info_.status = writer_->Finish(&file);
    info_.bytes = file.bytes;
  }
  writer_.reset();
  if (!info_.status.ok()) {
    info_.lost += std::exchange(info_.rows, 0);
    info_.bytes = 0;
  }
  return std::exchange(info_, EvictedFileInfo());
}

}  // namespace embedps
