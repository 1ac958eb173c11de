#include "resp.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace ms::redis {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t(1) << 30;
constexpr std::int64_t kMostItems = std::int64_t(1) << 24;
constexpr std::size_t kLongestLine = 1 << 16;
constexpr int kDeepest = 8;
constexpr Milliseconds kFirstPause(20), kLongestPause(1000);

std::string packed(const Command& command) {
  std::string out = "*" + std::to_string(command.size()) + "\r\n";
  for (const auto& word : command) {
    out += "$" + std::to_string(word.size()) + "\r\n";
    out += word;
    out += "\r\n";
  }
  return out;
}

std::int64_t number(const std::string& text) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size()) throw Broken("not an answer of a Redis server");
  return value;
}

// What a server's error means for the caller, in the words of the Python form.
[[noreturn]] void refuse(const std::string& text) {
  const auto word = text.substr(0, text.find(' '));
  for (const char* again : {"LOADING", "MASTERDOWN", "READONLY", "BUSY", "TRYAGAIN"})
    if (word == again) throw Broken(text);
  if (word == "NOAUTH" || word == "WRONGPASS" || text.find("invalid password") != text.npos)
    throw Refused("Redis refused the password: " + text);
  if (word == "OOM") throw Refused("Redis is out of memory: " + text);
  throw Refused("Redis refused a command: " + text);
}

}  // namespace

Connection::Connection(const Address& address, Milliseconds limit) {
  end_ = Clock::now() + limit;
  try {
    dial(address);
    std::vector<Command> greeting;
    if (!address.password.empty()) {
      Command auth{"AUTH"};
      if (!address.user.empty()) auth.push_back(address.user);
      auth.push_back(address.password);
      greeting.push_back(std::move(auth));
    }
    if (address.database) greeting.push_back({"SELECT", std::to_string(address.database)});
    if (!greeting.empty()) call(greeting, limit);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

Connection::~Connection() {
  if (fd_ >= 0) ::close(fd_);
}

std::vector<Reply> Connection::call(const std::vector<Command>& batch, Milliseconds limit) {
  end_ = Clock::now() + limit;
  std::string out;
  for (const auto& command : batch) out += packed(command);
  send(out);
  std::vector<Reply> replies;
  std::string refusal;
  for (std::size_t i = 0; i < batch.size(); i++) {
    replies.push_back(read());
    if (replies.back().kind == Reply::Kind::error && refusal.empty()) refusal = replies.back().text;
  }
  if (!refusal.empty()) refuse(refusal);  // only now, so that the connection is at a boundary
  return replies;
}

void Connection::dial(const Address& address) {
  if (address.path.empty()) return dial_tcp(address);
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  if (address.path.size() >= sizeof where.sun_path) throw Refused("the path of the socket is too long");
  std::memcpy(where.sun_path, address.path.data(), address.path.size());
  fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) throw Broken(std::strerror(errno));
  connect(fd_, &where, sizeof where);
}

void Connection::dial_tcp(const Address& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const auto port = std::to_string(address.port);
  if (const int code = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found))
    throw Broken(::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::string why = "no address";
  for (const auto* at = found; at; at = at->ai_next) {
    fd_ = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) continue;
    try {
      connect(fd_, at->ai_addr, at->ai_addrlen);
      const int on = 1;
      ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
      return;
    } catch (const Broken& error) {
      why = error.what();
      ::close(fd_);
      fd_ = -1;
    }
  }
  throw Broken(why);
}

void Connection::connect(int fd, const void* where, unsigned size) {
  if (::connect(fd, static_cast<const sockaddr*>(where), size) == 0) return;
  if (errno != EINPROGRESS) throw Broken(std::strerror(errno));
  wait(POLLOUT);
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error) throw Broken(std::strerror(error));
}

void Connection::wait(short events) {
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(end_ - Clock::now()).count();
    if (left <= 0) throw Broken("timed out");
    pollfd one{fd_, events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(std::min<std::int64_t>(left, 1 << 30)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw Broken(std::strerror(errno));
  }
}

void Connection::send(const std::string& data) {
  for (std::size_t done = 0; done < data.size();) {
    const auto sent = ::send(fd_, data.data() + done, data.size() - done, MSG_NOSIGNAL);
    if (sent > 0)
      done += static_cast<std::size_t>(sent);
    else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      wait(POLLOUT);
    else if (sent < 0 && errno != EINTR)
      throw Broken(std::strerror(errno));
  }
}

void Connection::receive() {
  if (at_ == in_.size()) {
    in_.clear();
    at_ = 0;
  }
  wait(POLLIN);
  char part[1 << 16];
  const auto got = ::recv(fd_, part, sizeof part, 0);
  if (got > 0)
    in_.append(part, static_cast<std::size_t>(got));
  else if (got == 0)
    throw Broken("the server closed the connection");
  else if (errno != EAGAIN && errno != EINTR)
    throw Broken(std::strerror(errno));
}

std::string Connection::line() {
  std::size_t end = 0;
  while ((end = in_.find("\r\n", at_)) == in_.npos) {
    if (in_.size() - at_ > kLongestLine) throw Broken("not an answer of a Redis server");
    receive();
  }
  auto found = in_.substr(at_, end - at_);
  at_ = end + 2;
  return found;
}

std::string Connection::bytes(std::size_t count) {
  while (in_.size() - at_ < count + 2) receive();
  auto found = in_.substr(at_, count);
  at_ += count + 2;
  return found;
}

Reply Connection::read(int depth) {
  const auto head = line();
  if (head.empty() || depth > kDeepest) throw Broken("not an answer of a Redis server");
  Reply reply;
  const auto rest = head.substr(1);
  switch (head[0]) {
    case '+':
      reply.kind = Reply::Kind::text;
      reply.text = rest;
      return reply;
    case '-':
      reply.kind = Reply::Kind::error;
      reply.text = rest;
      return reply;
    case ':':
      reply.kind = Reply::Kind::number;
      reply.number = number(rest);
      return reply;
    case '$':
    case '*':
      break;
    default:
      throw Broken("not an answer of a Redis server");
  }
  const auto size = number(rest);
  if (size < 0) return reply;
  if (size > (head[0] == '$' ? kMostBytes : kMostItems)) throw Broken("the answer is too large");
  if (head[0] == '$') {
    reply.kind = Reply::Kind::text;
    reply.text = bytes(static_cast<std::size_t>(size));
    return reply;
  }
  reply.kind = Reply::Kind::list;
  for (std::int64_t i = 0; i < size; i++) reply.items.push_back(read(depth + 1));
  return reply;
}

Client::Client(Address address, Milliseconds io)
    : address_(std::move(address)), io_(io), pid_(::getpid()) {}

std::vector<Reply> Client::call(const std::vector<Command>& batch, Milliseconds patience,
                                Milliseconds block) {
  const auto end = Clock::now() + patience;
  auto pause = kFirstPause;
  for (;;) {
    std::string why;
    try {
      return once(batch, block + io_);
    } catch (const Broken& error) {
      why = error.what();
    }
    if (Clock::now() + pause >= end)
      throw Refused("Redis at " + address_.shown() + " does not answer: " + why);
    std::this_thread::sleep_for(pause);
    pause = std::min(kLongestPause, pause * 2);
  }
}

std::vector<Reply> Client::once(const std::vector<Command>& batch, Milliseconds limit) {
  std::unique_ptr<Connection> connection;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (pid_ != ::getpid()) {  // forked: the parent's sockets are not ours
      free_.clear();
      pid_ = ::getpid();
    }
    if (!free_.empty()) {
      connection = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!connection) connection = std::make_unique<Connection>(address_, io_);
  const auto put_back = [&] {
    const std::lock_guard<std::mutex> guard(lock_);
    free_.push_back(std::move(connection));
  };
  try {
    auto replies = connection->call(batch, limit);
    put_back();
    return replies;
  } catch (const Refused&) {
    put_back();
    throw;
  }
}

}  // namespace ms::redis
