#include "embedps/kernels/store/evicted_rows.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace embedps {
namespace {

int64_t NowMillis() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Of a row in the columns of a batch.
int64_t ColumnBytes(const RowLayout& layout) {
  constexpr int64_t kFixedBytes =
      sizeof(int16_t) + 2 * sizeof(int64_t) + sizeof(int8_t) + 3 * sizeof(uint32_t);
  return kFixedBytes + static_cast<int64_t>(sizeof(float)) * (layout.dim + layout.slot_floats);
}

void Clear(EvictedColumns* batch) {
  RowColumns& rows = batch->rows;
  rows.num_rows = 0;
  rows.table.clear();
  rows.id.clear();
  rows.last_step.clear();
  rows.frequency.clear();
  rows.embedding.clear();
  for (std::vector<float>& values : rows.optimizer_slots) values.clear();
  batch->reason.clear();
  batch->evicted_step.clear();
  batch->evicted_millis.clear();
}

}  // namespace

EvictedRows::EvictedRows(const RowLayout& layout, RowFileSchema schema, OpenFile open)
    : layout_(layout),
      schema_(std::move(schema)),
      batch_rows_(std::max<int64_t>(kBatchBytes / ColumnBytes(layout), 1)),
      open_(std::move(open)),
      thread_([this] { Run(); }) {}

EvictedRows::~EvictedRows() {
  {
    const MutexLock lock(&mutex_);
    ended_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

std::unique_ptr<EvictedColumns> EvictedRows::MakeBatch() const {
  auto batch = std::make_unique<EvictedColumns>();
  RowColumns& rows = batch->rows;
  rows.table.reserve(batch_rows_);
  rows.id.reserve(batch_rows_);
  rows.last_step.reserve(batch_rows_);
  rows.frequency.reserve(batch_rows_);
  rows.embedding.reserve(batch_rows_ * layout_.dim);
  rows.optimizer_slots.resize(schema_.optimizer_slots.size());
  for (size_t s = 0; s < schema_.optimizer_slots.size(); ++s) {
    rows.optimizer_slots[s].reserve(batch_rows_ * schema_.optimizer_slots[s].width);
  }
  batch->reason.reserve(batch_rows_);
  batch->evicted_step.reserve(batch_rows_);
  batch->evicted_millis.reserve(batch_rows_);
  return batch;
}

void EvictedRows::Add(int table, const RowHeader& row, EvictionCause cause, uint32_t step) {
  if (!active_.load(std::memory_order_relaxed)) return;
  const int64_t millis = NowMillis();
  const MutexLock lock(&mutex_);
  while (!ended_ && current_ == nullptr && free_.empty()) changed_.Wait(&mutex_);
  if (ended_) return;
  if (current_ == nullptr) {
    current_ = std::move(free_.back());
    free_.pop_back();
  }
  RowColumns& rows = current_->rows;
  rows.table.push_back(static_cast<int16_t>(table));
  rows.id.push_back(row.id);
  rows.last_step.push_back(row.last_step);
  rows.frequency.push_back(row.frequency);
  rows.embedding.resize(rows.embedding.size() + layout_.dim);
  layout_.ReadEmbedding(row, rows.embedding.data() + rows.embedding.size() - layout_.dim);
  int first = 0;
  for (size_t s = 0; s < schema_.optimizer_slots.size(); ++s) {
    const int width = schema_.optimizer_slots[s].width;
    std::vector<float>& values = rows.optimizer_slots[s];
    values.resize(values.size() + width);
    layout_.ReadOptimizerSlots(row, first, width, values.data() + values.size() - width);
    first += width;
  }
  current_->reason.push_back(static_cast<int8_t>(cause));
  current_->evicted_step.push_back(step);
  current_->evicted_millis.push_back(millis);
  if (++rows.num_rows < batch_rows_) return;
  items_.push_back({std::move(current_), nullptr, {}});
  changed_.NotifyAll();
}

EvictedFileInfo EvictedRows::NextFile(const std::string& path) {
  std::promise<EvictedFileInfo> finished;
  {
    const MutexLock lock(&mutex_);
    if (!active_.load(std::memory_order_relaxed)) {
      for (size_t i = 0; i < kBatches; ++i) free_.push_back(MakeBatch());
    }
    items_.push_back({std::move(current_), &finished, path});
    active_.store(true, std::memory_order_relaxed);
  }
  changed_.NotifyAll();
  return finished.get_future().get();
}

void EvictedRows::Run() {
  while (true) {
    Item item;
    {
      const MutexLock lock(&mutex_);
      while (!ended_ && items_.empty()) changed_.Wait(&mutex_);
      if (ended_) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    if (item.batch != nullptr) {
      Write(*item.batch);
      Clear(item.batch.get());
    }
    if (item.finished != nullptr) {
      FinishFile();
      path_ = item.next_path;
      num_files_ = 0;
      item.finished->set_value(std::exchange(info_, EvictedFileInfo()));
    }
    if (item.batch == nullptr) continue;
    const MutexLock lock(&mutex_);
    free_.push_back(std::move(item.batch));
    changed_.NotifyAll();
  }
}

std::string EvictedRows::Path() const {
  if (num_files_ == 1) return path_;
  const size_t dot = path_.rfind('.');
  return path_.substr(0, dot) + "." + std::to_string(num_files_) + path_.substr(dot);
}

void EvictedRows::Write(const EvictedColumns& batch) {
  if (info_.status.ok() && writer_ == nullptr) {
    ++num_files_;
    info_.status = open_(Path(), schema_, &writer_);
  }
  if (info_.status.ok()) info_.status = writer_->Append(batch);
  (info_.status.ok() ? file_rows_ : info_.lost) += batch.rows.num_rows;
  if (++file_batches_ == kFileBatches) FinishFile();
}

void EvictedRows::FinishFile() {
  RowFileInfo file;
  if (writer_ != nullptr && info_.status.ok()) info_.status = writer_->Finish(&file);
  writer_.reset();
  (info_.status.ok() ? info_.rows : info_.lost) += std::exchange(file_rows_, 0);
  if (info_.status.ok()) info_.bytes += file.bytes;
  file_batches_ = 0;
}

}  // namespace embedps
