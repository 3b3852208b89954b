// Builders and comparisons for the tests of a row store: batches of ids, and the rows that its
// records yield.
#ifndef EMBEDPS_KERNELS_STORE_ROW_STORE_TESTING_H_
#define EMBEDPS_KERNELS_STORE_ROW_STORE_TESTING_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {

using CutKind = RowStore::CutKind;

inline RowStoreConfig MakeConfig(int dim, int num_tables,
                                 OptimizerKind kind = OptimizerKind::kSgd) {
  RowStoreConfig config;
  config.group = "test-group";
  config.dim = dim;
  config.optimizer.kind = kind;
  for (int t = 0; t < num_tables; ++t) {
    TableConfig table;
    table.name = "t" + std::to_string(t);
    config.tables.push_back(table);
  }
  return config;
}

// A disk with small files, so that a few thousand rows fill many. Each stripe has one chunk of rows
// in memory.
inline TierConfig SmallTier(const std::string& directory) {
  TierConfig tier;
  tier.max_memory_bytes = 1;
  tier.directory = directory;
  tier.segment_bytes = 64 << 10;
  tier.buffer_bytes = 4 << 10;
  return tier;
}

// A batch that owns its ids. They are given by table.
struct Batch {
  Batch(std::initializer_list<std::vector<int64_t>> by_table) {
    splits.push_back(0);
    for (const auto& table : by_table) {
      ids.insert(ids.end(), table.begin(), table.end());
      splits.push_back(static_cast<int32_t>(ids.size()));
    }
  }
  IdsByTable view() const { return {ids.data(), static_cast<int64_t>(ids.size()), splits.data()}; }

  std::vector<int64_t> ids;
  std::vector<int32_t> splits;
};

inline std::vector<float> Lookup(RowStore* store, const Batch& batch, bool insert = true) {
  std::vector<float> rows(batch.ids.size() * store->config().dim);
  EXPECT_OK(store->Lookup(batch.view(), insert, SerialFor, rows.data()));
  return rows;
}

inline void Update(RowStore* store, const Batch& batch, float gradient, float learning_rate,
                   uint32_t step) {
  const std::vector<float> gradients(batch.ids.size() * store->config().dim, gradient);
  store->Update(batch.view(), gradients.data(), learning_rate, step, SerialFor);
}

inline int64_t NumRows(const RowStore& store, int table) { return store.Stats().rows[table]; }

struct Record {
  std::vector<float> floats;  // embedding, then slots
  uint32_t last_step = 0;
  uint32_t frequency = 0;
  bool operator==(const Record& other) const {
    return floats == other.floats && last_step == other.last_step && frequency == other.frequency;
  }
};
using Rows = std::map<std::pair<int, int64_t>, Record>;

// The rows of a reader that applies records in order.
inline void Apply(const RowColumns& columns, int dim, Rows* rows) {
  for (int64_t i = 0; i < columns.num_rows; ++i) {
    const std::pair<int, int64_t> key(columns.table[i], columns.id[i]);
    if (columns.removed[i]) {
      rows->erase(key);
      continue;
    }
    Record record;
    const float* embedding = &columns.embedding[i * dim];
    record.floats.assign(embedding, embedding + dim);
    for (const auto& slot : columns.optimizer_slots) {
      const int64_t width = static_cast<int64_t>(slot.size()) / columns.num_rows;
      record.floats.insert(record.floats.end(), &slot[i * width], &slot[i * width] + width);
    }
    record.last_step = columns.last_step[i];
    record.frequency = columns.frequency[i];
    (*rows)[key] = record;
  }
}

// Makes a cut and applies it to `rows`. Returns the cut and its number of records.
inline int64_t CutOnto(RowStore* store, CutKind kind, int64_t since, Rows* rows,
                       int64_t* records = nullptr) {
  int64_t cut = -100, count = 0;
  EXPECT_OK(store->Cut(
      kind, since,
      [&](const RowColumns& columns) {
        count += columns.num_rows;
        Apply(columns, store->config().dim, rows);
        return Status::Ok();
      },
      &cut));
  if (records != nullptr) *records = count;
  return cut;
}

inline Rows BaseOf(RowStore* store) {
  Rows rows;
  int64_t records;
  CutOnto(store, CutKind::kBase, -1, &rows, &records);
  EXPECT_EQ(records, static_cast<int64_t>(rows.size()));  // each once
  return rows;
}

inline std::vector<int64_t> Range(int64_t first, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t i = first; i < last; ++i) ids.push_back(i);
  return ids;
}

inline std::vector<RowColumns> RecordsOf(RowStore* store, CutKind kind, int64_t since,
                                         int64_t* cut) {
  std::vector<RowColumns> batches;
  EXPECT_OK(store->Cut(
      kind, since,
      [&](const RowColumns& columns) {
        batches.push_back(columns);
        return Status::Ok();
      },
      cut));
  return batches;
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_STORE_TESTING_H_
