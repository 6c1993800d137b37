// Declarations in the place of netio3-backend's event loops; see Netio3Backend.hpp.
#ifndef NETIO3_STUBS_EPOLLEVENTLOOP_HPP
#define NETIO3_STUBS_EPOLLEVENTLOOP_HPP

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace netio3 {

struct EventContext {  // name seen
    int fd;
    std::function<void(int)> callback;
};

class EventSignal {  // inferred
public:
    void fire();
};
class EventTimer {  // as programs use it
public:
    void start(std::chrono::milliseconds);
    void stop();
};

class BaseEventLoop : public std::enable_shared_from_this<BaseEventLoop> {  // seen
public:
    virtual ~BaseEventLoop() = default;
    virtual void register_fd(const EventContext &) = 0;
    virtual void remove_fd(int fd, bool close_fd = false, bool wait = false) = 0;
    virtual void run() = 0;
    virtual void run_for(std::uint64_t seconds) = 0;
    virtual void stop() = 0;
    EventSignal create_signal(std::function<void()>);
    EventTimer create_timer(std::function<void()>);
};

class EpollEventLoop : public BaseEventLoop {  // seen
public:
    explicit EpollEventLoop(std::function<void()> cb_init = nullptr);
    void register_fd(const EventContext &) override;
    void remove_fd(int fd, bool close_fd = false, bool wait = false) override;
    void run() override;
    void run_for(std::uint64_t seconds) override;
    void stop() override;
};

} // namespace netio3

#endif
