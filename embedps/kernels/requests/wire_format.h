// Reads the wire format of protobuf.
#ifndef EMBEDPS_KERNELS_REQUESTS_WIRE_FORMAT_H_
#define EMBEDPS_KERNELS_REQUESTS_WIRE_FORMAT_H_

#include <cstdint>

namespace embedps {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// A part of a message, read from its front.
struct WireBytes {
  const char* at;
  const char* end;

  int64_t size() const { return end - at; }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && at < end; shift += 7) {
      const uint64_t byte = static_cast<unsigned char>(*at++);
      if (shift == 63 && byte > 1) return false;
      *value |= (byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  // Reads a field's number and, of wire type kBytes, its part, else its value.
  bool Field(uint64_t* number, int* type, WireBytes* part, uint64_t* value) {
    uint64_t tag;
    if (!Varint(&tag)) return false;
    *number = tag >> 3;
    *type = static_cast<int>(tag & 7);
    *value = 0;
    if (*type == kFixed64 || *type == kFixed32) {
      const int64_t width = *type == kFixed64 ? 8 : 4;
      if (size() < width) return false;
      at += width;
      return true;
    }
    if (!Varint(value)) return false;
    if (*type == kVarint) return true;
    if (*type != kBytes || *value > static_cast<uint64_t>(size())) return false;
    *part = {at, at + *value};
    at += *value;
    return true;
  }
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_REQUESTS_WIRE_FORMAT_H_
