// Collects records from a row store in batches and gives them to a sink.
#ifndef EMBEDPS_KERNELS_STORE_OUTGOING_ROWS_H_
#define EMBEDPS_KERNELS_STORE_OUTGOING_ROWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

using RowSink = std::function<Status(const RowColumns&)>;

// The columns of one batch. They are allocated once and reused for every batch.
class OutgoingRows {
 public:
  // `layout` and `sink` must outlive the object.
  OutgoingRows(const RowLayout& layout, std::vector<OptimizerSlot> optimizer_slots,
               const RowSink& sink);

  // Makes room for `num_records` more records. Gives the batch to the sink if it would overflow.
  void Reserve(uint32_t num_records);

  // Add a record, for which there must be room.
  void AppendRow(int table, const RowHeader& row);
  void AppendRemoval(int table, int64_t id);

  // Gives the batch to the sink. After a failure it returns that failure and gives nothing more.
  Status Flush();

 private:
  void Append(int table, int64_t id, uint32_t last_step, uint32_t frequency, bool removed);
  void Resize(int64_t rows);

  const RowLayout& layout_;
  const std::vector<OptimizerSlot> optimizer_slots_;
  const RowSink& sink_;
  RowColumns columns_;
  Status status_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_OUTGOING_ROWS_H_
