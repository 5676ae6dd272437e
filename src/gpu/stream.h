// Order of work on a device: a stream, events on it, and graphs captured from it.
//
// Invariant: work enqueued on one Stream runs in order. Only synchronize() and Event's
// seconds_since() block. Each object keeps its Device alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "src/base/status.h"

namespace moray::gpu {

class Device;
class Event;

class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(std::shared_ptr<Device> device);
  virtual ~Stream() = default;
  // Waits for all enqueued work. Errors: kIo, the device was lost or a kernel faulted (it names the
  // driver's reason); every later call gives the same error.
  virtual Status synchronize() = 0;
  // Work enqueued from now on starts after `event`, recorded on another stream, has passed.
  virtual void wait_for(const Event& event) = 0;
  virtual const Device& device() const = 0;
  virtual void* handle() const = 0;  // CUstream
};

// Time stamps on a stream, for benchmarks and for order between streams.
class Event {
 public:
  static Result<std::unique_ptr<Event>> create(std::shared_ptr<Device> device);
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  // Waits for both, which must have been recorded. 0 on a lost device. Resolution about 0.5 us.
  virtual double seconds_since(const Event& earlier) const = 0;
  virtual void* handle() const = 0;
};

// What `enqueue` puts on the stream, captured once and replayed with one launch.
class Graph {
 public:
  // Errors: kIo, what the driver says against the graph; nothing `enqueue` started has run.
  static Result<std::unique_ptr<Graph>> capture(Stream& stream,
                                                const std::function<void()>& enqueue);
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
  virtual int nodes() const = 0;
};

}  // namespace moray::gpu
