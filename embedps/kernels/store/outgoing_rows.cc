#include "embedps/kernels/store/outgoing_rows.h"

#include <algorithm>
#include <utility>

namespace embedps {
namespace {

// A batch has so many bytes, or rows, whichever comes first. Memory for it is a constant part of
// what a server needs beside its tables.
constexpr int64_t kBatchBytes = 1 << 20;
constexpr int64_t kMaxBatchRows = 32768;

int64_t BatchRows(const RowLayout& layout) {
  constexpr int64_t kBookkeeping =
      sizeof(int16_t) + sizeof(int64_t) + 2 * sizeof(uint32_t) + sizeof(uint8_t);
  const int64_t floats = layout.dim + layout.slot_floats;
  return std::min(kMaxBatchRows, kBatchBytes / (kBookkeeping + floats * int64_t{sizeof(float)}));
}

}  // namespace

OutgoingRows::OutgoingRows(const RowLayout& layout, std::vector<OptimizerSlot> optimizer_slots,
                           const RowSink& sink)
    : layout_(layout), optimizer_slots_(std::move(optimizer_slots)), sink_(sink) {
  columns_.optimizer_slots.resize(optimizer_slots_.size());
  // Vectors that grow leave the memory of before behind. Pages that no record reaches stay
  // untouched.
  const int64_t rows = BatchRows(layout_);
  columns_.table.reserve(rows);
  columns_.id.reserve(rows);
  columns_.embedding.reserve(rows * layout_.dim);
  for (size_t s = 0; s < optimizer_slots_.size(); ++s) {
    columns_.optimizer_slots[s].reserve(rows * optimizer_slots_[s].width);
  }
  columns_.last_step.reserve(rows);
  columns_.frequency.reserve(rows);
  columns_.removed.reserve(rows);
}

void OutgoingRows::Reserve(uint32_t num_records) {
  if (columns_.num_rows > 0 && columns_.num_rows + num_records > BatchRows(layout_)) (void)Flush();
  const int64_t rows = columns_.num_rows + num_records;
  if (rows > static_cast<int64_t>(columns_.id.size())) Resize(rows);
}

void OutgoingRows::AppendRow(int table, const RowHeader& row) {
  Append(table, row.id, row.last_step, row.frequency, false);
  const int64_t i = columns_.num_rows++;
  layout_.ReadEmbedding(row, columns_.embedding.data() + i * layout_.dim);
  int first = 0;
  for (size_t s = 0; s < optimizer_slots_.size(); ++s) {
    const int width = optimizer_slots_[s].width;
    layout_.ReadOptimizerSlots(row, first, width, columns_.optimizer_slots[s].data() + i * width);
    first += width;
  }
}

void OutgoingRows::AppendRemoval(int table, int64_t id) {
  Append(table, id, 0, 0, true);
  const int64_t i = columns_.num_rows++;
  std::fill_n(columns_.embedding.data() + i * layout_.dim, layout_.dim, 0.0f);
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
  columns_.embedding.resize(rows * layout_.dim);
  for (size_t s = 0; s < optimizer_slots_.size(); ++s) {
    columns_.optimizer_slots[s].resize(rows * optimizer_slots_[s].width);
  }
  columns_.last_step.resize(rows);
  columns_.frequency.resize(rows);
  columns_.removed.resize(rows);
}

}  // namespace embedps
