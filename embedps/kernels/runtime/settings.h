// Settings by name, as Python gives them to an op: what a table or an optimizer is declared with.
#ifndef EMBEDPS_KERNELS_RUNTIME_SETTINGS_H_
#define EMBEDPS_KERNELS_RUNTIME_SETTINGS_H_

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "embedps/kernels/runtime/names.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Each kind reads its own settings. The first failure stays until Check.
class Settings {
 public:
  // `text` has a line "name=value" per setting. `whose` begins the messages.
  Settings(std::string whose, const std::string& text) : whose_(std::move(whose)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find('=');
      if (at == std::string::npos) {
        Fail("a setting must be name=value but got '" + line + "'");
      } else {
        unread_[line.substr(0, at)] = line.substr(at + 1);
      }
    }
  }

  // Sets `*value`, if the setting is given, to its number, which must be in [least, most].
  template <typename T>
  void Number(const std::string& name, std::common_type_t<T> least, std::common_type_t<T> most,
              T* value) {
    std::string text;
    if (!Take(name, &text)) return;
    using Parsed = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    Parsed number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (is_number && number >= static_cast<Parsed>(least) && number <= static_cast<Parsed>(most)) {
      *value = static_cast<T>(number);
      return;
    }
    std::ostringstream bounds;
    bounds << name << " must be in [" << least << ", " << most << "] but got '" << text << "'";
    Fail(bounds.str());
  }

  // The same of a setting that is 0 or 1.
  void Flag(const std::string& name, bool* value) {
    int number = *value;
    Number(name, 0, 1, &number);
    *value = number != 0;
  }

  // The same of a text.
  void Text(const std::string& name, std::string* value) { (void)Take(name, value); }

  // The same of an enumerator: enumerator i is called names[i].
  template <typename Enum, size_t kCount>
  void Name(const std::string& name, const char* const (&names)[kCount], Enum* value) {
    std::string text;
    if (!Take(name, &text)) return;
    const Status status = ParseName(name, names, text, value);
    if (!status.ok()) Fail(status.message());
  }

  // Returns the first failure. A setting that no kind has read is one.
  Status Check() {
    if (!unread_.empty()) Fail("there is no setting " + unread_.begin()->first);
    return status_;
  }

 private:
  bool Take(const std::string& name, std::string* text) {
    const auto found = unread_.find(name);
    if (found == unread_.end()) return false;
    *text = found->second;
    unread_.erase(found);
    return true;
  }
  void Fail(const std::string& why) {
    if (status_.ok()) status_ = Status::InvalidArgument(whose_ + why);
  }

  const std::string whose_;
  std::map<std::string, std::string> unread_;
  Status status_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_SETTINGS_H_
