#include "embedps/kernels/requests/predict_request.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "embedps/kernels/requests/wire_format.h"

namespace embedps {
namespace {

constexpr uint64_t kLastField = 3, kMaxField = (1 << 29) - 1;  // of a PredictRequest, of protobuf
constexpr int kMaxSkipped = 1024;                              // fields
constexpr uint64_t kFloat = 1, kInt64 = 9;                     // of TensorFlow's DataType

// Reads a TensorShapeProto of one dimension without a name.
bool ReadShape(WireBytes shape, int64_t max_rows, int64_t* rows) {
  uint64_t number, value;
  int type;
  WireBytes dim = {}, none = {};
  if (!shape.Field(&number, &type, &dim, &value) || type != kBytes || number != 2) return false;
  if (shape.size() != 0) return false;
  if (!dim.Field(&number, &type, &none, &value) || type != kVarint || number != 1) return false;
  if (dim.size() != 0 || value < 1 || value > static_cast<uint64_t>(max_rows)) return false;
  *rows = static_cast<int64_t>(value);
  return true;
}

int64_t CountVarints(WireBytes values) {
  int64_t count = 0;
  uint64_t value;
  while (values.size() > 0) {
    if (!values.Varint(&value)) return -1;
    ++count;
  }
  return count;
}

// Reads a TensorProto of a dtype.
bool ReadTensor(const char* data, WireBytes tensor, uint64_t dtype, int64_t max_rows,
                ColumnPlace* place) {
  const uint64_t packed_field = dtype == kFloat ? 5 : 10;
  uint32_t seen = 0;
  int64_t rows = 0;
  WireBytes content = {}, packed = {};
  while (tensor.size() > 0) {
    uint64_t number, value;
    int type;
    WireBytes part = {};
    if (!tensor.Field(&number, &type, &part, &value)) return false;
    if (number > 10 || (seen >> number & 1)) return false;
    seen |= 1u << number;
    if (number == 1 && type == kVarint && value == dtype) continue;
    if (type != kBytes) return false;
    if (number == 2) {
      if (!ReadShape(part, max_rows, &rows)) return false;
    } else if (number == 4) {
      content = part;
    } else if (number == packed_field) {
      packed = part;
    } else {
      return false;
    }
  }
  if (!(seen & 2) || rows == 0) return false;
  if ((content.size() == 0) == (packed.size() == 0)) return false;
  const bool is_varints = packed.size() != 0 && dtype == kInt64;
  const WireBytes values = packed.size() != 0 ? packed : content;
  const int64_t width = dtype == kFloat ? sizeof(float) : sizeof(int64_t);
  if (is_varints ? CountVarints(values) != rows : values.size() != rows * width) return false;
  *place = {values.at - data, values.size(), rows, is_varints};
  return true;
}

// Gives the place of a column by name, or -1. Those after `guess` are looked at first.
int64_t FindName(const RequestColumns& columns, WireBytes name, int64_t guess) {
  for (int64_t i = 0; i < columns.num_columns; ++i) {
    const int64_t place = (guess + i) % columns.num_columns;
    const int64_t begin = place == 0 ? 0 : columns.name_end[place - 1];
    if (columns.name_end[place] - begin == name.size() &&
        std::memcmp(columns.names + begin, name.at, name.size()) == 0) {
      return place;
    }
  }
  return -1;
}

template <typename T>
void CopyColumn(const char* data, const ColumnPlace& place, int64_t rows, T* to) {
  if (place.is_packed) {
    WireBytes values = {data + place.offset, data + place.offset + place.num_bytes};
    for (int64_t row = 0; row < place.rows; ++row) {
      uint64_t value;
      values.Varint(&value);
      to[row] = static_cast<T>(value);
    }
  } else {
    std::memcpy(to, data + place.offset, place.num_bytes);
  }
  std::fill(to + place.rows, to + rows, to[0]);
}

}  // namespace

int64_t FindColumns(const char* data, int64_t size, const RequestColumns& columns,
                    ColumnPlace* places) {
  WireBytes request = {data, data + size};
  std::vector<bool> seen(columns.num_columns);
  int64_t num_seen = 0, guess = 0, rows = 1;
  bool has_spec = false;
  int num_skipped = 0;
  while (request.size() > 0) {
    uint64_t number, value;
    int type;
    WireBytes entry = {};
    if (!request.Field(&number, &type, &entry, &value)) return -1;
    if (number > kLastField && number <= kMaxField && num_skipped++ < kMaxSkipped) continue;
    if (type != kBytes) return -1;
    if (number == 1 && !has_spec) {
      has_spec = true;
      continue;
    }
    WireBytes name = {}, tensor = {};
    if (number != 2) return -1;
    if (!entry.Field(&number, &type, &name, &value) || type != kBytes || number != 1) return -1;
    if (!entry.Field(&number, &type, &tensor, &value) || type != kBytes || number != 2) return -1;
    if (entry.size() != 0) return -1;
    const int64_t place = FindName(columns, name, guess);
    if (place < 0 || seen[place]) return -1;
    seen[place] = true;
    ++num_seen;
    guess = place + 1;
    const uint64_t dtype = place < columns.num_floats ? kFloat : kInt64;
    if (!ReadTensor(data, tensor, dtype, columns.max_rows, &places[place])) return -1;
    rows = std::max(rows, places[place].rows);
  }
  if (num_seen != columns.num_columns) return -1;
  for (int64_t i = 0; i < columns.num_columns; ++i) {
    if (places[i].rows != 1 && places[i].rows != rows) return -1;
  }
  return rows;
}

void CopyColumns(const char* data, const RequestColumns& columns, const ColumnPlace* places,
                 int64_t rows, float* floats, int64_t* integers) {
  for (int64_t i = 0; i < columns.num_columns; ++i) {
    if (i < columns.num_floats) {
      CopyColumn(data, places[i], rows, floats + i * rows);
    } else {
      CopyColumn(data, places[i], rows, integers + (i - columns.num_floats) * rows);
    }
  }
}

}  // namespace embedps
