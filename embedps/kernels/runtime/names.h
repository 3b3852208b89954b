// Finds the values of an enumeration by name.
#ifndef EMBEDPS_KERNELS_RUNTIME_NAMES_H_
#define EMBEDPS_KERNELS_RUNTIME_NAMES_H_

#include <cstddef>
#include <string>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Sets `*value` to the enumerator whose name is `name`: enumerator i is called names[i]. `what`
// begins the error message.
template <typename Enum, size_t kCount>
Status ParseName(const std::string& what, const char* const (&names)[kCount],
                 const std::string& name, Enum* value) {
  std::string choices;
  for (size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) {
      *value = static_cast<Enum>(i);
      return Status::Ok();
    }
    choices += (i == 0 ? "" : i + 1 < kCount ? ", " : " or ") + std::string(names[i]);
  }
  return Status::InvalidArgument(what + " must be " + choices + " but got '" + name + "'");
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_NAMES_H_
