#include "embedps/kernels/store/outgoing_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace embedps {
namespace {

constexpr int64_t kBatchRows = 32768;  // records per batch

}  // namespace

OutgoingRows::OutgoingRows(int dim, std::vector<OptimizerSlot> optimizer_slots, const RowSink& sink)
    : dim_(dim), optimizer_slots_(std::move(optimizer_slots)), sink_(sink) {
  columns_.optimizer_slots.resize(optimizer_slots_.size());
}

void OutgoingRows::Reserve(uint32_t num_records) {
  if (columns_.num_rows + num_records > kBatchRows) (void)Flush();
  const int64_t rows = columns_.num_rows + num_records;
  if (rows > static_cast<int64_t>(columns_.id.size())) Resize(rows);
}

void OutgoingRows::AppendRow(int table, const RowHeader& row, const float* floats) {
  Append(table, row.id, row.last_step, row.frequency, false);
  const auto take = [&floats](std::vector<float>* to, int64_t width, int64_t i) {
    std::memcpy(to->data() + i * width, floats, sizeof(float) * width);
    floats += width;
  };
  const int64_t i = columns_.num_rows++;
  take(&columns_.embedding, dim_, i);
  for (size_t s = 0; s < optimizer_slots_.size(); ++s) {
    take(&columns_.optimizer_slots[s], optimizer_slots_[s].width, i);
  }
}

void OutgoingRows::AppendRemoval(int table, int64_t id) {
  Append(table, id, 0, 0, true);
  const int64_t i = columns_.num_rows++;
  std::fill_n(columns_.embedding.data() + i * dim_, dim_, 0.0f);
  for (size_t s = 0; s < optimizer_slots_.size(); ++s) {
    const int64_t width = optimizer_slots_[s].width;
    std::fill_n(columns_.optimizer_slots[s].data() + i * width, width, 0.0f);
  }
}

Status OutgoingRows::Flush() {
  if (columns_.num_rows > 0 && status_.ok()) {
    Resize(columns_.num_rows);
    status_ = sink_(columns_);
  }
  columns_.num_rows = 0;
  return status_;
}

void OutgoingRows::Append(int table, int64_t id, uint32_t last_step, uint32_t frequency,
                          bool removed) {
  const int64_t i = columns_.num_rows;
  columns_.table[i] = static_cast<int16_t>(table);
  columns_.id[i] = id;
  columns_.last_step[i] = last_step;
  columns_.frequency[i] = frequency;
  columns_.removed[i] = removed;
}

void OutgoingRows::Resize(int64_t rows) {
  columns_.table.resize(rows);
  columns_.id.resize(rows);
  columns_.embedding.resize(rows * dim_);
  for (size_t s = 0; s < optimizer_slots_.size(); ++s) {
    columns_.optimizer_slots[s].resize(rows * optimizer_slots_[s].width);
  }
  columns_.last_step.resize(rows);
  columns_.frequency.resize(rows);
  columns_.removed.resize(rows);
}

}  // namespace embedps
