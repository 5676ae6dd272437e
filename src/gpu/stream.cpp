#include "src/gpu/stream.h"

#include "src/gpu/open_device.h"

namespace moray::gpu {
namespace {

class DeviceStream final : public Stream {
 public:
  DeviceStream(std::shared_ptr<Device> device, Handle handle)
      : device_(std::move(device)), handle_(handle) {}
  ~DeviceStream() override {
    device_->make_current();
    opened(*device_).api().stream_destroy(handle_);
  }
  Status synchronize() override {
    const OpenDevice& on = opened(*device_);
    on.make_current();
    return on.outcome(on.api().stream_synchronize(handle_), "the end of enqueued work");
  }
  void wait_for(const Event& event) override {
    const OpenDevice& on = opened(*device_);
    on.make_current();
    on.settle(on.api().stream_wait_event(handle_, event.handle(), 0), "a wait for an event");
  }
  const Device& device() const override { return *device_; }
  void* handle() const override { return handle_; }

 private:
  std::shared_ptr<Device> device_;
  Handle handle_;
};

class DeviceEvent final : public Event {
 public:
  DeviceEvent(std::shared_ptr<Device> device, Handle handle)
      : device_(std::move(device)), handle_(handle) {}
  ~DeviceEvent() override {
    device_->make_current();
    opened(*device_).api().event_destroy(handle_);
  }
  void record(Stream& stream) override {
    const OpenDevice& on = opened(*device_);
    on.make_current();
    on.settle(on.api().event_record(handle_, stream.handle()), "an event");
  }
  double seconds_since(const Event& earlier) const override {
    const OpenDevice& on = opened(*device_);
    on.make_current();
    on.settle(on.api().event_synchronize(handle_), "a wait for an event");
    float milliseconds = 0;
    on.settle(on.api().event_elapsed(&milliseconds, earlier.handle(), handle_), "event times");
    return double(milliseconds) * 1e-3;
  }
  void* handle() const override { return handle_; }

 private:
  std::shared_ptr<Device> device_;
  Handle handle_;
};

class DeviceGraph final : public Graph {
 public:
  DeviceGraph(const OpenDevice& device, Handle executable, int nodes)
      : device_(std::static_pointer_cast<const OpenDevice>(device.shared_from_this())),
        executable_(executable),
        nodes_(nodes) {}
  ~DeviceGraph() override {
    device_->make_current();
    device_->api().graph_executable_destroy(executable_);
  }
  void launch(Stream& stream) override {
    device_->make_current();
    device_->settle(device_->api().graph_launch(executable_, stream.handle()), "a graph");
  }
  int nodes() const override { return nodes_; }

 private:
  std::shared_ptr<const OpenDevice> device_;
  Handle executable_;
  int nodes_;
};

}  // namespace

Result<std::unique_ptr<Stream>> Stream::create(std::shared_ptr<Device> device) {
  const OpenDevice& on = opened(*device);
  on.make_current();
  Handle handle = nullptr;
  RETURN_IF_ERROR(check(on.api(), on.api().stream_create(&handle, kStreamNonBlocking), "stream"));
  return std::unique_ptr<Stream>(std::make_unique<DeviceStream>(std::move(device), handle));
}

Result<std::unique_ptr<Event>> Event::create(std::shared_ptr<Device> device) {
  const OpenDevice& on = opened(*device);
  on.make_current();
  Handle handle = nullptr;
  RETURN_IF_ERROR(check(on.api(), on.api().event_create(&handle, 0), "event"));
  return std::unique_ptr<Event>(std::make_unique<DeviceEvent>(std::move(device), handle));
}

// The graph is uploaded at once, so that its first launch costs what every launch costs.
Result<std::unique_ptr<Graph>> Graph::capture(Stream& stream,
                                              const std::function<void()>& enqueue) {
  const OpenDevice& on = opened(stream.device());
  const Driver& api = on.api();
  on.make_current();
  RETURN_IF_ERROR(on.fault());
  RETURN_IF_ERROR(
      check(api, api.capture_begin(stream.handle(), kCaptureThreadLocal), "the start of a graph"));
  enqueue();
  Handle graph = nullptr;
  RETURN_IF_ERROR(check(api, api.capture_end(stream.handle(), &graph), "the end of a graph"));
  size_t nodes = 0;
  Code code = api.graph_nodes(graph, nullptr, &nodes);
  Handle executable = nullptr;
  if (code == Code::kSuccess) code = api.graph_instantiate(&executable, graph, 0);
  api.graph_destroy(graph);
  RETURN_IF_ERROR(check(api, code, "a graph"));
  auto made = std::make_unique<DeviceGraph>(on, executable, static_cast<int>(nodes));
  RETURN_IF_ERROR(check(api, api.graph_upload(executable, stream.handle()), "a graph's upload"));
  return std::unique_ptr<Graph>(std::move(made));
}

}  // namespace moray::gpu
