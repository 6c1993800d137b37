/*
 * An event loop with netio3's names: descriptors, signals and timers whose callbacks run one after
 * the other on the thread that runs the loop, and the backends that it drives.
 *
 * Everything but run() and run_for() may be called from any thread. A callback may call whatever it
 * likes, and throw: the exception comes out of run(), which may be called again.
 */
#ifndef FABRICAST_NETIO_LOOP_HPP
#define FABRICAST_NETIO_LOOP_HPP

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <fabricast_result.hpp>

namespace fabricast::netio {

namespace detail {
/// A call of the system failed.
[[noreturn]] inline void raise_system(const char *what)
{
#ifdef FABRICAST_NO_EXCEPTIONS
    const int number = errno;
    std::string words = std::string(what) + ": " + std::strerror(number);
    fabricast::detail::raise({FCAST_SYSTEM, std::move(words), number});
#else
    throw std::system_error(errno, std::generic_category(), what);
#endif
}

/// A descriptor that is closed at its end.
class descriptor {
public:
    descriptor(int fd, const char *what) : fd_(fd)
    {
        if (fd < 0)
            raise_system(what);
    }
    descriptor(const descriptor &) = delete;
    descriptor &operator=(const descriptor &) = delete;
    ~descriptor() { ::close(fd_); }
    int get() const noexcept { return fd_; }

    /// Reads the counter of an eventfd or a timerfd; 0 where there is nothing.
    std::uint64_t drain() const noexcept
    {
        std::uint64_t count = 0;
        return ::read(fd_, &count, sizeof count) == sizeof count ? count : 0;
    }
    /// Adds one to the counter of an eventfd.
    void raise() const noexcept
    {
        const std::uint64_t one = 1;
        (void)!::write(fd_, &one, sizeof one);
    }

private:
    int fd_;
};
} // namespace detail

/// A descriptor, and what is called when it can be read.
struct EventContext {
    int fd = -1;
    std::function<void(int)> callback;
};

/// What a loop drives beside descriptors: a backend.
class Driver {
public:
    virtual ~Driver() = default;
    /// Does what there is to do. True: there was something.
    virtual bool drive() = 0;
    /// Right before a sleep: whether it may be, and `timeout_ms` made less where it must end.
    virtual bool prepare(int &timeout_ms) = 0;
};

class EventSignal;
class EventTimer;

/// What a backend, a program's descriptors, signals and timers need of a loop.
class BaseEventLoop : public std::enable_shared_from_this<BaseEventLoop> {
public:
    BaseEventLoop() = default;
    BaseEventLoop(const BaseEventLoop &) = delete;
    BaseEventLoop &operator=(const BaseEventLoop &) = delete;
    virtual ~BaseEventLoop() = default;

    /// Has `context.callback` called when `context.fd` can be read.
    virtual void register_fd(const EventContext &context) = 0;
    /// No more. `close_fd`: closes it, too; `wait`: behind a call that another thread is in.
    virtual void remove_fd(int fd, bool close_fd = false, bool wait = false) = 0;
    /// Runs until stop().
    virtual void run() = 0;
    virtual void run_for(std::uint64_t seconds) = 0;
    /// Ends the run that there is, or the next one.
    virtual void stop() = 0;

    // What netio3 has in other ways, if at all.
    virtual void run_for(std::chrono::milliseconds time) = 0;
    virtual void attach(Driver &driver) = 0;
    /// On the loop's thread, or while it does not run.
    virtual void detach(Driver &driver) = 0;
    /// Wakes the loop for a descriptor that a driver looks at.
    virtual void watch(int fd) = 0;
    virtual void unwatch(int fd) = 0;
    /// Ends the sleep that there is, or the next one.
    virtual void wake() = 0;
    /// Whether this is the thread that runs the loop.
    virtual bool is_own_thread() const = 0;

    /// A callback that any thread can have called: see EventSignal::fire.
    EventSignal create_signal(std::function<void()> callback);
    /// A callback that comes again and again: see EventTimer::start.
    EventTimer create_timer(std::function<void()> callback);
};

namespace detail {
/// A descriptor with a counter that is registered with a loop for as long as this lives.
class counter_source {
public:
    counter_source(BaseEventLoop &loop, int fd, const char *what, std::function<void()> callback)
        : fd_(std::make_shared<descriptor>(fd, what)), loop_(loop.weak_from_this())
    {
        auto shared = fd_;
        loop.register_fd({fd, [shared, callback = std::move(callback)](int) {
                              if (shared->drain() != 0)
                                  callback();
                          }});
    }
    counter_source(counter_source &&) = default;
    counter_source &operator=(counter_source &&) = delete;
    ~counter_source()
    {
        if (fd_)
            if (auto loop = loop_.lock())
                loop->remove_fd(fd_->get());
    }

protected:
    std::shared_ptr<descriptor> fd_;

private:
    std::weak_ptr<BaseEventLoop> loop_;
};
} // namespace detail

/// A signal of the program's own: its callback runs on the loop's thread. Gone with this object.
class EventSignal : public detail::counter_source {
public:
    EventSignal(BaseEventLoop &loop, std::function<void()> callback)
        : counter_source(loop, ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd",
                         std::move(callback))
    {
    }
    /// Has the callback called; several before that are one. Any thread.
    void fire() const noexcept { fd_->raise(); }
};

/// A timer: its callback runs on the loop's thread. Gone with this object.
class EventTimer : public detail::counter_source {
public:
    EventTimer(BaseEventLoop &loop, std::function<void()> callback)
        : counter_source(loop, ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC),
                         "timerfd_create", std::move(callback))
    {
    }
    /// Every so often from now on. Any thread.
    template <class Rep, class Period> void start(std::chrono::duration<Rep, Period> every) const
    {
        set(std::chrono::duration_cast<std::chrono::nanoseconds>(every));
    }
    void stop() const { set(std::chrono::nanoseconds(0)); }

private:
    void set(std::chrono::nanoseconds every) const
    {
        itimerspec spec{};
        spec.it_interval.tv_sec = static_cast<time_t>(every.count() / 1'000'000'000);
        spec.it_interval.tv_nsec = static_cast<long>(every.count() % 1'000'000'000);
        spec.it_value = spec.it_interval;
        if (::timerfd_settime(fd_->get(), 0, &spec, nullptr) != 0)
            detail::raise_system("timerfd_settime");
    }
};

inline EventSignal BaseEventLoop::create_signal(std::function<void()> callback)
{
    return EventSignal(*this, std::move(callback));
}

inline EventTimer BaseEventLoop::create_timer(std::function<void()> callback)
{
    return EventTimer(*this, std::move(callback));
}

/// The loop, over epoll.
class EpollEventLoop : public BaseEventLoop {
public:
    /// `cb_init` is called at the begin of each run. `spin`: for how long after the last work the
    /// loop looks around before it sleeps, which costs a core and saves the time of a wake-up.
    explicit EpollEventLoop(std::function<void()> cb_init = nullptr,
                            std::chrono::microseconds spin = {})
        : init_(std::move(cb_init)), spin_(spin),
          epoll_(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"),
          wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")
    {
        add(wake_.get());
    }

    void register_fd(const EventContext &context) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        add(context.fd);
        callbacks_[context.fd] = std::make_shared<std::function<void(int)>>(context.callback);
    }

    void remove_fd(int fd, bool close_fd = false, bool wait = false) override
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (callbacks_.erase(fd) != 0)
            ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
        if (wait && !is_own_thread())
            called_.wait(lock, [this, fd] { return in_call_ != fd; });
        if (close_fd)
            ::close(fd);
    }

    void run() override { run_until(std::nullopt); }
    void run_for(std::uint64_t seconds) override { run_for(std::chrono::seconds(seconds)); }
    void run_for(std::chrono::milliseconds time) override
    {
        run_until(std::chrono::steady_clock::now() + time);
    }

    void stop() override
    {
        stop_.store(true);
        wake();
    }

    void attach(Driver &driver) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (Driver *&at : drivers_)
            if (!at) {
                at = &driver;
                return;
            }
        drivers_.push_back(&driver);
    }
    void detach(Driver &driver) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (Driver *&at : drivers_)
            if (at == &driver)
                at = nullptr;
    }

    void watch(int fd) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (watched_[fd]++ == 0)
            add(fd);
        wake();
    }
    void unwatch(int fd) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = watched_.find(fd);
        if (found == watched_.end() || --found->second > 0)
            return;
        watched_.erase(found);
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }

    void wake() override
    {
        if (!woken_.exchange(true))
            wake_.raise();
    }
    bool is_own_thread() const override { return thread_.load() == std::this_thread::get_id(); }

private:
    using time_point = std::chrono::steady_clock::time_point;
    static constexpr int ready_max = 32;
    /// Rounds of work in a row after which descriptors are looked at.
    static constexpr int busy_max = 16;

    void add(int fd)
    {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
            detail::raise_system("epoll_ctl");
    }

    void run_until(std::optional<time_point> end)
    {
        // Within a callback it may run again: the outer run goes on with it.
        const std::thread::id before = thread_.exchange(std::this_thread::get_id());
        struct guard {
            std::atomic<std::thread::id> &thread;
            std::thread::id before;
            ~guard() { thread.store(before); }
        } restore{thread_, before};
        if (init_)
            init_();
        time_point last_work = std::chrono::steady_clock::now();
        int busy = 0;
        while (!stop_.exchange(false)) {
            const bool worked = drive();
            const time_point now = std::chrono::steady_clock::now();
            if (end && now >= *end)
                return;
            if (worked) {
                last_work = now;
                if (++busy < busy_max)
                    continue;
            }
            busy = 0;
            int timeout = worked || now - last_work < spin_ ? 0 : until(end, now);
            if (timeout != 0)
                timeout = prepare(timeout);
            look(timeout);
        }
    }

    /// Rounded up, so that a sleep does not end a little too early again and again.
    static int until(std::optional<time_point> end, time_point now)
    {
        if (!end)
            return -1;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end - now).count();
        return left > 1'000'000 ? 1'000'000 : static_cast<int>(left);
    }

    Driver *driver(std::size_t at)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return at < drivers_.size() ? drivers_[at] : nullptr;
    }
    std::size_t count()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return drivers_.size();
    }

    bool drive()
    {
        bool worked = false;
        for (std::size_t at = 0; at < count(); at++)
            if (Driver *one = driver(at))
                worked |= one->drive();
        return worked;
    }

    int prepare(int timeout)
    {
        for (std::size_t at = 0; at < count(); at++)
            if (Driver *one = driver(at); one && !one->prepare(timeout))
                return 0;
        return timeout;
    }

    void look(int timeout)
    {
        epoll_event ready[ready_max];
        const int count = ::epoll_wait(epoll_.get(), ready, ready_max, timeout);
        if (count < 0 && errno != EINTR)
            detail::raise_system("epoll_wait");
        for (int at = 0; at < count; at++)
            on_ready(ready[at].data.fd);
    }

    void on_ready(int fd)
    {
        if (fd == wake_.get()) {
            wake_.drain();
            // From now on a wake is for the drivers' next round, which is after this.
            woken_.store(false);
            return;
        }
        std::shared_ptr<std::function<void(int)>> callback;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            const auto found = callbacks_.find(fd);
            if (found == callbacks_.end())
                return;
            callback = found->second;
            in_call_ = fd;
        }
        struct guard {
            EpollEventLoop &loop;
            ~guard()
            {
                std::lock_guard<std::mutex> lock(loop.mutex_);
                loop.in_call_ = -1;
                loop.called_.notify_all();
            }
        } done{*this};
        (*callback)(fd);
    }

    std::function<void()> init_;
    std::chrono::microseconds spin_;
    detail::descriptor epoll_, wake_;
    std::atomic<bool> stop_{false}, woken_{false};
    std::atomic<std::thread::id> thread_{};
    std::mutex mutex_;
    std::condition_variable called_;
    int in_call_ = -1;
    std::map<int, std::shared_ptr<std::function<void(int)>>> callbacks_;
    std::map<int, int> watched_;
    std::vector<Driver *> drivers_;
};

} // namespace fabricast::netio

#endif
