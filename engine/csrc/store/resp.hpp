// Talk to a Redis server from C++: one connection, and a pool that survives the server's restart.
//
// The rules are those of engine/comm/resp.py: one write a batch, every wait bounded, a batch that got no
// answer is sent again until patience ends, nothing shared across a fork. Knows nothing of torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

namespace ms::redis {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Command = std::vector<std::string>;

struct Address {
  std::string host;
  int port = 6379;
  std::string path;  // of a unix socket; host and port do not count then
  std::string user;
  std::string password;
  int database = 0;

  std::string shown() const { return path.empty() ? host + ":" + std::to_string(port) : "unix:" + path; }
};

// The connection broke, the server was silent or is not ready: the batch may be sent again.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The server answered with an error: sending again gives the same.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Reply {
  enum class Kind { nil, number, text, list, error };
  Kind kind = Kind::nil;
  std::int64_t number = 0;
  std::string text;
  std::vector<Reply> items;

  bool is_nil() const { return kind == Kind::nil; }
};

class Connection {
 public:
  Connection(const Address& address, Milliseconds limit);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Replies of a batch; Broken or Refused.
  std::vector<Reply> call(const std::vector<Command>& batch, Milliseconds limit);

 private:
  void dial(const Address& address);
  void dial_tcp(const Address& address);
  void connect(int fd, const void* where, unsigned size);
  void wait(short events);
  void send(const std::string& data);
  void receive();
  std::string line();
  std::string bytes(std::size_t count);
  Reply read(int depth = 0);

  int fd_ = -1;
  std::string in_;
  std::size_t at_ = 0;
  Clock::time_point end_;
};

class Client {
 public:
  Client(Address address, Milliseconds io);

  // Replies of a batch. `block` is how long the commands themselves may wait on the server.
  std::vector<Reply> call(const std::vector<Command>& batch, Milliseconds patience,
                          Milliseconds block = Milliseconds(0));

  const Address& address() const { return address_; }
  Milliseconds io() const { return io_; }

 private:
  std::vector<Reply> once(const std::vector<Command>& batch, Milliseconds limit);

  Address address_;
  Milliseconds io_;
  std::mutex lock_;
  std::vector<std::unique_ptr<Connection>> free_;
  pid_t pid_;
};

}  // namespace ms::redis
