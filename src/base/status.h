// Status and Result<T>: how a failure the world can cause travels up to whoever may report it.
//
// Invariant: a Status with code kOk carries no message; every other one carries a single line that
// names the thing, what was found and what was expected. Success costs a null pointer. Library code
// returns these; only src/cli and src/server print them. A bug is not a Status: see check.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "src/base/check.h"

namespace moray {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // an option, a request or a prompt is wrong
  kInvalidFile,      // a file is damaged, inconsistent or not what its name promises
  kNotFound,         // a named thing does not exist
  kUnsupported,      // well formed, but outside what this build or machine does
  kExhausted,        // memory, context or disk does not suffice
  kIo,               // the operating system refused a read or write
  kCancelled,        // the caller asked to stop
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : rep_(code == StatusCode::kOk ? nullptr : new Rep{code, std::move(message)}) {}
  Status(const Status& other) : rep_(other.rep_ ? new Rep(*other.rep_) : nullptr) {}
  Status(Status&&) noexcept = default;
  Status& operator=(Status other) noexcept {
    rep_.swap(other.rep_);
    return *this;
  }

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  const std::string& message() const {
    static const std::string empty;
    return rep_ ? rep_->message : empty;
  }

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<Rep> rep_;
};

// A value or the Status that explains its absence. Reading the value of a failed Result is a bug.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    CHECK(ok(), status_.message());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace moray

#define MORAY_CONCAT_INNER(a, b) a##b
#define MORAY_CONCAT(a, b) MORAY_CONCAT_INNER(a, b)

// Leaves the enclosing function with the error, if there is one.
#define RETURN_IF_ERROR(expression)                                  \
  do {                                                               \
    ::moray::Status return_if_error_status = (expression);           \
    if (!return_if_error_status.ok()) return return_if_error_status; \
  } while (false)

// ASSIGN_OR_RETURN(auto file, MappedFile::open(path)); binds the value or leaves with the error.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(MORAY_CONCAT(result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.status();                    \
  declaration = std::move(result).value()
