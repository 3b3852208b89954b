#include "embedps/kernels/requests/request_parts.h"

#include <algorithm>

#include "embedps/kernels/requests/wire_format.h"

namespace embedps {
namespace {

// The messages of a PredictRequest. A part of kOther has no parts that are counted.
enum Kind { kRequest, kEntry, kTensor, kShape, kMessage, kOther };

Kind PartOf(Kind kind, uint64_t number) {
  if (kind == kRequest) return number == 1 ? kMessage : number == 2 ? kEntry : kOther;
  if (kind == kEntry) return number == 2 ? kTensor : kOther;
  if (kind == kTensor) return number == 2 ? kShape : kOther;
  return kind == kShape && number == 2 ? kMessage : kOther;
}

// Whether a part is a name, or a message whose texts are all names.
bool HasNames(Kind kind, uint64_t number) {
  if (kind == kRequest) return number == 1 || number == 3;
  return (kind == kEntry && number == 1) || (kind == kTensor && number == 2);
}

// Bytes of a value in a TensorProto's list of numbers: 0 of variable length, -1 is no such list.
int WidthOf(uint64_t number) {
  switch (number) {
    case 5:
    case 9:
      return 4;
    case 6:
    case 12:
      return 8;
    case 7:
    case 10:
    case 11:
    case 13:
    case 16:
    case 17:
      return 0;
    default:
      return -1;
  }
}

int64_t CountPacked(const WireBytes& part, int width) {
  if (width > 0) return part.size() / width;
  return std::count_if(part.at, part.end, [](char byte) { return byte >= 0; });
}

bool Count(WireBytes message, Kind kind, RequestParts* parts) {
  while (message.size() > 0) {
    uint64_t number, value;
    int type;
    WireBytes part = {};
    if (!message.Field(&number, &type, &part, &value)) return false;
    const int width = kind == kTensor ? WidthOf(number) : -1;
    if (type != kBytes) {
      parts->numbers += width >= 0;
    } else if (width >= 0) {
      parts->numbers += CountPacked(part, width);
    } else if (kind == kTensor && number == 8) {
      ++parts->texts;
    } else if (kind == kTensor && (number == 14 || number == 15)) {
      parts->objects += 1 + part.size();  // handles and variants, of whatever depth
    } else {
      ++parts->objects;
      if (HasNames(kind, number)) parts->name_bytes += part.size();
      const Kind inner = PartOf(kind, number);
      if (inner != kOther && !Count(part, inner, parts)) return false;
    }
  }
  return true;
}

}  // namespace

bool CountParts(const char* data, int64_t size, RequestParts* parts) {
  *parts = {};
  return Count({data, data + size}, kRequest, parts);
}

}  // namespace embedps
