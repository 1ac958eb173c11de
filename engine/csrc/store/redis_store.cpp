// The Redis store of engine/comm/store.py as a native c10d::Store: same keys, same scripts, same errors.
//
// Threads of C++ (NCCL's watchdog and heartbeat) use it without the interpreter's lock, and its lifetime
// is that of the C++ object. c10d::Store is not part of torch's stable interface: the library is built
// against one torch and one Python (engine/comm/native_store.py).
#include <algorithm>
#include <atomic>
#include <set>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "resp.hpp"

namespace {

using ms::redis::Clock;
using ms::redis::Command;
using ms::redis::Milliseconds;
using ms::redis::Reply;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

constexpr std::size_t kShown = 8;

std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// Replies of the scripts are texts, those of plain commands may be numbers.
std::string text(const Reply& reply) {
  return reply.kind == Reply::Kind::number ? std::to_string(reply.number) : reply.text;
}

Bytes bytes(const Reply& reply) {
  const auto found = text(reply);
  return {found.begin(), found.end()};
}

// Text whose special characters a SCAN pattern takes as they are.
std::string literal(const std::string& plain) {
  std::string out;
  for (const char c : plain) {
    if (std::string("*?[]^-\\").find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

class RedisStore : public c10d::Store {
 public:
  struct Scripts {
    std::string add, append, compare_set, push, pop;
  };

  RedisStore(std::shared_ptr<ms::redis::Client> client, std::string prefix, std::string ids,
             Scripts scripts, Milliseconds timeout)
      : Store(timeout), client_(std::move(client)), prefix_(std::move(prefix)), ids_(std::move(ids)),
        scripts_(std::move(scripts)) {}

  c10::intrusive_ptr<Store> clone() override {
    const auto& mine = *client_;
    return c10::make_intrusive<RedisStore>(
        std::make_shared<ms::redis::Client>(mine.address(), mine.io()), prefix_,
        ids_ + std::to_string(++next_) + ".", scripts_, timeout_);
  }

  using Store::compareSet;
  using Store::set;

  void set(const std::string& key, const Bytes& value) override {
    call({{"SET", data(key), text(value)}, wake(key)});
  }

  Bytes get(const std::string& key) override {
    auto found = call({{"GET", data(key)}})[0];
    if (found.is_nil()) {
      wait({key}, timeout_);
      found = call({{"GET", data(key)}})[0];
    }
    TORCH_CHECK_WITH(DistStoreError, !found.is_nil(), "key '", key, "' was deleted while it was waited for");
    return bytes(found);
  }

  int64_t add(const std::string& key, int64_t amount) override {
    if (amount == 0) {
      const auto found = call({{"GET", data(key)}})[0];
      if (!found.is_nil()) return std::stoll(text(found));
    }
    return std::stoll(text(once(scripts_.add, data(key), key, {std::to_string(amount)})));
  }

  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return bytes(once(scripts_.compare_set, data(key), key, {text(expected), text(desired)}));
  }

  void append(const std::string& key, const Bytes& value) override {
    once(scripts_.append, data(key), key, {text(value)});
  }

  bool deleteKey(const std::string& key) override {
    bool was_there = false;
    for (const auto& gone : call({{"DEL", data(key)}, {"DEL", stream(key)}, {"DEL", queue(key)}}))
      was_there |= gone.number > 0;
    return was_there;
  }

  bool check(const Keys& keys) override {
    const std::set<std::string> unique(keys.begin(), keys.end());
    if (unique.empty()) return true;
    Command command{"EXISTS"};
    for (const auto& key : unique) command.push_back(data(key));
    return call({command})[0].number == static_cast<int64_t>(unique.size());
  }

  void wait(const Keys& keys) override { wait(keys, timeout_); }

  void wait(const Keys& keys, const Milliseconds& limit) override {
    const auto left = await(keys, limit);
    if (left.empty()) return;
    const Keys shown(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, left.size())));
    const auto more = left.size() > kShown ? " and " + std::to_string(left.size() - kShown) + " more" : "";
    TORCH_CHECK_WITH(DistStoreError, false, "wait timeout after ", limit.count(), "ms, keys: ",
                     c10::Join(", ", shown), more, "; ", keys.size() - left.size(), " of ", keys.size(), " came");
  }

  std::vector<Bytes> multiGet(const Keys& keys) override {
    if (keys.empty()) return {};
    Command command{"MGET"};
    for (const auto& key : keys) command.push_back(data(key));
    auto found = list(command, keys.size());
    Keys missing;
    for (std::size_t i = 0; i < keys.size(); i++)
      if (found[i].is_nil()) missing.push_back(keys[i]);
    if (!missing.empty()) {
      wait(missing, timeout_);
      found = list(command, keys.size());
    }
    std::vector<Bytes> out;
    for (const auto& reply : found) {
      TORCH_CHECK_WITH(DistStoreError, !reply.is_nil(), "a key was deleted while it was waited for");
      out.push_back(bytes(reply));
    }
    return out;
  }

  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    TORCH_CHECK_WITH(DistStoreError, keys.size() == values.size(), "as many values as keys are needed");
    if (keys.empty()) return;
    Command command{"MSET"};
    std::vector<Command> batch;
    for (std::size_t i = 0; i < keys.size(); i++) {
      command.push_back(data(keys[i]));
      command.push_back(text(values[i]));
      batch.push_back(wake(keys[i]));
    }
    batch.insert(batch.begin(), std::move(command));
    call(batch);
  }

  bool hasExtendedApi() const override { return true; }

  int64_t getNumKeys() override { return static_cast<int64_t>(listKeys().size()); }

  Keys listKeys() override {
    std::set<std::string> found;
    std::string cursor = "0";
    const auto start = data("");
    do {
      const auto reply = list({"SCAN", cursor, "MATCH", literal(start) + "*", "COUNT", "1000"}, 2);
      cursor = text(reply[0]);
      for (const auto& name : reply[1].items)
        if (name.text.size() >= start.size()) found.insert(name.text.substr(start.size()));
    } while (cursor != "0");
    return {found.begin(), found.end()};
  }

  void queuePush(const std::string& key, const Bytes& value) override {
    once(scripts_.push, queue(key), key, {text(value)});
  }

  Bytes queuePop(const std::string& key, bool block) override {
    const auto end = Clock::now() + timeout_;
    for (;;) {
      const auto found = once(scripts_.pop, queue(key), key, {});
      if (!found.is_nil()) return bytes(found);
      const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
      const bool come = block && left.count() > 0 && await({key}, left).empty();
      TORCH_CHECK_WITH(DistQueueEmptyError, come, "queue '", key, "' is empty");
    }
  }

  int64_t queueLen(const std::string& key) override { return call({{"LLEN", queue(key)}})[0].number; }

 private:
  // Wait for keys; returns those that did not come in time. Slices let a dead server be noticed.
  Keys await(const Keys& keys, Milliseconds limit) {
    const auto end = Clock::now() + limit;
    std::set<std::string> left(keys.begin(), keys.end());
    while (!left.empty()) {
      const auto remaining = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
      if (remaining.count() <= 0) break;
      const auto slice = std::min(remaining, Milliseconds(5000));
      Command command{"XREAD", "COUNT", "1", "BLOCK", std::to_string(slice.count()), "STREAMS"};
      for (const auto& key : left) command.push_back(stream(key));
      command.insert(command.end(), left.size(), "0");
      const auto reply = run({command}, remaining, slice)[0];
      const auto skip = stream("").size();
      for (const auto& entry : reply.items)
        if (!entry.items.empty() && entry.items[0].text.size() >= skip) left.erase(entry.items[0].text.substr(skip));
    }
    return {left.begin(), left.end()};
  }

  // A request that must not count twice although it may be sent twice: the scripts keep its answer.
  Reply once(const std::string& script, const std::string& name, const std::string& key, const Keys& arguments) {
    Command command{"EVAL", script, "3", name, stream(key), prefix_ + "o:" + ids_ + std::to_string(++next_)};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return call({command})[0];
  }

  std::vector<Reply> list(const Command& command, std::size_t size) {
    auto reply = call({command})[0];
    TORCH_CHECK_WITH(DistStoreError, reply.items.size() == size, "Redis answered ", command[0], " oddly");
    return std::move(reply.items);
  }

  std::vector<Reply> call(const std::vector<Command>& batch) { return run(batch, timeout_, Milliseconds(0)); }

  std::vector<Reply> run(const std::vector<Command>& batch, Milliseconds patience, Milliseconds block) {
    std::string why;
    try {
      return client_->call(batch, patience, block);
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    TORCH_CHECK_WITH(DistStoreError, false, why);
  }

  Command wake(const std::string& key) const { return {"XADD", stream(key), "MAXLEN", "1", "*", "x", "1"}; }
  std::string data(const std::string& key) const { return prefix_ + "d:" + key; }
  std::string stream(const std::string& key) const { return prefix_ + "w:" + key; }
  std::string queue(const std::string& key) const { return prefix_ + "q:" + key; }

  std::shared_ptr<ms::redis::Client> client_;
  std::string prefix_, ids_;
  Scripts scripts_;
  std::atomic<int64_t> next_{0};
};

Milliseconds milliseconds(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1000)); }

}  // namespace

PYBIND11_MODULE(msctl_store, module) {
  py::module_::import("torch._C._distributed_c10d");
  py::class_<ms::redis::Address>(module, "Address")
      .def(py::init([](std::string host, int port, std::string path, std::string user, std::string password,
                       int database) {
             return ms::redis::Address{host, port, path, user, password, database};
           }),
           py::arg("host"), py::arg("port"), py::arg("path"), py::arg("user"), py::arg("password"),
           py::arg("database"));
  py::class_<RedisStore, c10d::Store, c10::intrusive_ptr<RedisStore>>(module, "RedisStore")
      .def(py::init([](const ms::redis::Address& address, std::string prefix, std::string ids,
                       const std::vector<std::string>& scripts, double timeout_s, double io_s) {
             TORCH_CHECK(scripts.size() == 5, "five scripts are needed");
             return c10::make_intrusive<RedisStore>(
                 std::make_shared<ms::redis::Client>(address, milliseconds(io_s)), std::move(prefix),
                 std::move(ids), RedisStore::Scripts{scripts[0], scripts[1], scripts[2], scripts[3], scripts[4]},
                 milliseconds(timeout_s));
           }),
           py::arg("address"), py::arg("prefix"), py::arg("ids"), py::arg("scripts"), py::arg("timeout_s"),
           py::arg("io_s"));
}
