// Records on their way from a row store to a sink, in batches.
#ifndef EMBEDPS_KERNELS_STORE_OUTGOING_ROWS_H_
#define EMBEDPS_KERNELS_STORE_OUTGOING_ROWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

using RowSink = std::function<Status(const RowColumns&)>;

// Columns of a batch, made once, and filled from the start again after each time that they are
// given.
class OutgoingRows {
 public:
  // `sink` must outlive it.
  OutgoingRows(int dim, std::vector<OptimizerSlot> slots, const RowSink& sink);

  // Makes room for so many more, giving what is there where it is not enough.
  void Reserve(uint32_t num_records);

  // For which there must be room. `floats` has the embedding, then the slots.
  void AppendRow(int table, const RowHeader& row, const float* floats);
  void AppendRemoval(int table, int64_t id);

  // Gives what is there. After a failure, which it returns again, nothing more is given.
  Status Flush();

 private:
  void Append(int table, int64_t id, uint32_t last_step, uint32_t frequency, bool removed);
  void Resize(int64_t rows);

  const int dim_;
  const std::vector<OptimizerSlot> slots_;
  const RowSink& sink_;
  RowColumns columns_;
  Status status_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_OUTGOING_ROWS_H_
