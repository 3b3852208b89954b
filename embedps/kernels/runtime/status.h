// The result of a function that can fail. Plain C++17, for code with and without Arrow or
// TensorFlow.
#ifndef EMBEDPS_KERNELS_RUNTIME_STATUS_H_
#define EMBEDPS_KERNELS_RUNTIME_STATUS_H_

#include <string>
#include <utility>

namespace embedps {

enum class StatusCode { kOk, kInvalidArgument, kNotFound, kDataLoss, kIoError };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status NotFound(std::string message) {
    return Status(StatusCode::kNotFound, std::move(message));
  }
  static Status DataLoss(std::string message) {
    return Status(StatusCode::kDataLoss, std::move(message));
  }
  static Status IoError(std::string message) {
    return Status(StatusCode::kIoError, std::move(message));
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace embedps

#define EMBEDPS_RETURN_IF_ERROR(expr)                \
  do {                                               \
    ::embedps::Status embedps_status = (expr);       \
    if (!embedps_status.ok()) return embedps_status; \
  } while (0)

#endif  // EMBEDPS_KERNELS_RUNTIME_STATUS_H_
