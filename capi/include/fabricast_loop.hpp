/*
 * Event loops for C++17: descriptors, timers, signals, endpoints and channels whose callbacks run
 * one after the other on the thread that runs the loop.
 *
 * A callback may call whatever it likes, run the loop itself, end its own watch, and throw: the
 * exception comes out of run(), which may be called again and goes on with what is left.
 */
#ifndef FABRICAST_LOOP_HPP
#define FABRICAST_LOOP_HPP

#include <fabricast.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace fabricast {

class object_channel;

/// How a loop is made; as fcast_loop_settings, with the defaults.
struct loop_settings : fcast_loop_settings {
    loop_settings() noexcept : fcast_loop_settings() { size = sizeof(fcast_loop_settings); }
};

/// How a round of a loop ended.
enum class loop_round {
    /// What there was to do was done, or the time is over.
    done,
    /// Somebody called stop().
    stopped,
};

namespace detail {
/// A callback of a loop, which is held while it runs.
struct loop_source {
    std::function<void(std::uint32_t)> callback;
    /// It goes with its first event.
    bool once;
};

/// One thread's leave to run a loop, again in a callback, too.
class loop_turn {
public:
    explicit loop_turn(std::atomic<std::thread::id> &runner) noexcept : runner_(runner)
    {
        std::thread::id found{};
        const std::thread::id self = std::this_thread::get_id();
        is_outer_ = runner.compare_exchange_strong(found, self);
        is_let_in_ = is_outer_ || found == self;
    }
    loop_turn(const loop_turn &) = delete;
    loop_turn &operator=(const loop_turn &) = delete;
    ~loop_turn()
    {
        if (is_outer_)
            runner_.store(std::thread::id());
    }
    explicit operator bool() const noexcept { return is_let_in_; }

private:
    std::atomic<std::thread::id> &runner_;
    bool is_outer_ = false, is_let_in_ = false;
};

/// A loop of C's, and the callbacks of its sources by their tokens.
class loop_core {
public:
    explicit loop_core(fcast_loop made) noexcept : loop_(made) {}

    fcast_loop raw() const noexcept { return loop_.raw(); }

    /// Has C add a source, and takes its callback: the source's token.
    template <class Add>
    result<std::uint64_t> add(std::function<void(std::uint32_t)> callback, bool once, Add &&how)
    {
        auto source = std::make_shared<loop_source>(loop_source{std::move(callback), once});
        // Held over both, so that no event is told between them.
        std::lock_guard<std::mutex> lock(mutex_);
        std::uint64_t token = 0;
        if (fcast_status code = how(raw(), &token))
            return failure::last(code);
        sources_[token] = std::move(source);
        return token;
    }
    void forget(std::uint64_t token) noexcept
    {
        // Ended behind the lock: what it holds may call back.
        const std::shared_ptr<loop_source> ended = take(token);
        (void)fcast_loop_remove(raw(), token);
    }
    void on_wake(std::function<void()> callback)
    {
        auto next = std::make_shared<std::function<void()>>(std::move(callback));
        std::lock_guard<std::mutex> lock(mutex_);
        woken_.swap(next);
    }

    /// Waits where nothing is left of the round before, and calls the callbacks.
    result<loop_round> round(std::int32_t timeout_ms)
    {
        const loop_turn turn(runner_);
        if (!turn)
            return failure{FCAST_BUSY, "this event loop is run by another thread"};
        if (at_ == count_) {
            at_ = count_ = 0;
            if (fcast_status code = fcast_loop_run_once(raw(), timeout_ms, room_.data(),
                                                        room_.size(), &count_))
                return failure::last(code);
        }
        while (at_ < count_) {
            const fcast_loop_event next = room_[at_++];
            if (next.kind == FCAST_LOOP_STOPPED)
                return loop_round::stopped;
            tell(next);
        }
        return loop_round::done;
    }

private:
    std::shared_ptr<loop_source> take(std::uint64_t token) noexcept
    {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = sources_.find(token);
        if (found == sources_.end())
            return nullptr;
        auto taken = std::move(found->second);
        sources_.erase(found);
        return taken;
    }
    std::shared_ptr<loop_source> find(std::uint64_t token)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = sources_.find(token);
        if (found == sources_.end())
            return nullptr;
        auto source = found->second;
        if (source->once)
            sources_.erase(found);
        return source;
    }
    void tell(const fcast_loop_event &next)
    {
        if (next.kind == FCAST_LOOP_WOKEN) {
            std::unique_lock<std::mutex> lock(mutex_);
            const auto woken = woken_;
            lock.unlock();
            if (woken && *woken)
                (*woken)();
            return;
        }
        if (const auto source = find(next.token))
            source->callback(next.readiness);
        else
            // Its watch ended where C could not let it in.
            (void)fcast_loop_remove(raw(), next.token);
    }

    const owner<fcast_loop, fcast_loop_release> loop_;
    std::atomic<std::thread::id> runner_{};
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, std::shared_ptr<loop_source>> sources_;
    std::shared_ptr<std::function<void()>> woken_;
    /// Of who runs it: told by C, and not told on yet.
    std::array<fcast_loop_event, 64> room_{};
    std::size_t at_ = 0, count_ = 0;
};

inline failure no_callback() { return {FCAST_INVALID, "the callback of a loop is empty"}; }
} // namespace detail

/// A source of a loop: its callback is called for as long as this lives. It may go in its own
/// callback, and behind the loop. One that goes on another thread while the loop runs calls nothing
/// more, either; its descriptor is let go of with the next event.
class [[nodiscard]] loop_watch {
public:
    loop_watch() noexcept = default;
    loop_watch(std::weak_ptr<detail::loop_core> of, std::uint64_t token) noexcept
        : of_(std::move(of)), token_(token)
    {
    }
    loop_watch(loop_watch &&other) noexcept
        : of_(std::move(other.of_)), token_(std::exchange(other.token_, 0))
    {
    }
    loop_watch &operator=(loop_watch &&other) noexcept
    {
        if (this != &other) {
            reset();
            of_ = std::move(other.of_);
            token_ = std::exchange(other.token_, 0);
        }
        return *this;
    }
    ~loop_watch() { reset(); }

    explicit operator bool() const noexcept { return token_ != 0; }
    /// The number of the source, as C has it.
    std::uint64_t token() const noexcept { return token_; }
    /// Changes what a descriptor is watched for.
    status set_interest(std::uint32_t interest) const noexcept
    {
        const auto core = of_.lock();
        return fcast_loop_set_interest(core ? core->raw() : fcast_loop{}, token_, interest);
    }
    /// Ends it now.
    void reset() noexcept
    {
        const auto core = of_.lock();
        const std::uint64_t token = std::exchange(token_, 0);
        of_.reset();
        if (core && token != 0)
            core->forget(token);
    }

private:
    std::weak_ptr<detail::loop_core> of_;
    std::uint64_t token_ = 0;
};

/// A signal of a loop: any thread has its callback called, on the loop's thread. It may go on any
/// thread, too.
class [[nodiscard]] loop_signal {
public:
    loop_signal() noexcept = default;
    loop_signal(fcast_signal raw, loop_watch watch) noexcept
        : signal_(raw), watch_(std::move(watch))
    {
    }
    fcast_signal raw() const noexcept { return signal_.raw(); }
    explicit operator bool() const noexcept { return static_cast<bool>(signal_); }
    /// Has the callback called soon: once for all calls before that. Any thread.
    status fire() const noexcept { return fcast_signal_fire(signal_.raw()); }
    /// Ends it now.
    void reset() noexcept
    {
        watch_.reset();
        signal_.reset();
    }

private:
    detail::owner<fcast_signal, fcast_signal_release> signal_;
    loop_watch watch_;
};

/// An event loop. One thread at a time runs it and adds to it, another one gets FCAST_BUSY; wake(),
/// stop() and signals are for any thread, at any time.
class event_loop {
public:
    event_loop() noexcept = default;
    static result<event_loop> create(const loop_settings &of = {})
    {
        fcast_loop raw{};
        if (fcast_status code = fcast_loop_create(&of, &raw))
            return failure::last(code);
        return event_loop(raw);
    }

    /// The handle for functions of fabricast.h; sources that those add have no callback, and are
    /// taken out.
    fcast_loop raw() const noexcept { return core_ ? core_->raw() : fcast_loop{}; }
    explicit operator bool() const noexcept { return core_ != nullptr; }

    // ---- sources --------------------------------------------------------------------------------

    /// Calls whenever a descriptor is ready for `interest`, FCAST_LOOP_READ, FCAST_LOOP_WRITE or
    /// both, with what it is ready for. It is open for as long as the watch lives.
    result<loop_watch> on_fd(int fd, std::uint32_t interest,
                             std::function<void(std::uint32_t readiness)> callback) const
    {
        if (!callback)
            return detail::no_callback();
        return add(std::move(callback), false, [=](fcast_loop in, std::uint64_t *token) {
            return fcast_loop_add_fd(in, fd, interest, 0, token);
        });
    }
    /// Calls after a time, and every so often from then on; 0: once.
    result<loop_watch> on_timer(std::chrono::microseconds after, std::chrono::microseconds every,
                                std::function<void()> callback) const
    {
        const auto first = after.count(), next = every.count();
        if (first < 0 || next < 0)
            return failure{FCAST_INVALID, "the times of a timer must not be negative"};
        return add(std::move(callback), next == 0, [=](fcast_loop in, std::uint64_t *token) {
            return fcast_loop_add_timer(in, static_cast<std::uint64_t>(first),
                                        static_cast<std::uint64_t>(next), 0, token);
        });
    }
    /// Calls once, after a time.
    result<loop_watch> on_timer(std::chrono::microseconds after,
                                std::function<void()> callback) const
    {
        return on_timer(after, std::chrono::microseconds(0), std::move(callback));
    }
    /// Calls whenever the endpoint should be polled, and once at the start; the loop polls nothing
    /// itself.
    result<loop_watch> on_endpoint(const endpoint &which, std::function<void()> callback) const
    {
        return add(std::move(callback), false,
                   [raw = which.raw()](fcast_loop in, std::uint64_t *token) {
                       return fcast_loop_add_endpoint(in, raw, 0, token);
                   });
    }
    /// The same of a channel of objects: an object_channel of fabricast_object.hpp, which needs to
    /// be there only where this is called.
    template <class Channel>
    result<loop_watch> on_channel(const Channel &which, std::function<void()> callback) const
    {
        static_assert(std::is_same_v<Channel, object_channel>, "this watches an object_channel");
        return add(std::move(callback), false,
                   [raw = which.raw()](fcast_loop in, std::uint64_t *token) {
                       return fcast_loop_add_channel(in, raw, 0, token);
                   });
    }
    /// Calls when the signal is fired.
    result<loop_signal> on_signal(std::function<void()> callback) const
    {
        fcast_signal raw{};
        auto watch = add(std::move(callback), false, [&raw](fcast_loop in, std::uint64_t *token) {
            return fcast_loop_add_signal(in, 0, &raw, token);
        });
        if (!watch)
            return watch.error();
        return loop_signal(raw, *std::move(watch));
    }
    /// Calls when wake() was called, in place of the callback before; an empty one: nothing.
    result<void> on_wake(std::function<void()> callback) const
    {
        if (!core_)
            return none();
        core_->on_wake(std::move(callback));
        return {};
    }

    // ---- rounds ---------------------------------------------------------------------------------

    /// Waits for something to do, for at most `timeout_ms` (-1: as long as it takes), and does it.
    result<loop_round> run_once(std::int32_t timeout_ms = -1) const
    {
        const auto core = core_;
        return core ? core->round(timeout_ms) : none();
    }
    /// Runs until stop().
    result<void> run() const
    {
        // Held: a callback may end this object.
        const auto core = core_;
        if (!core)
            return none();
        for (;;) {
            auto round = core->round(-1);
            if (!round)
                return round.error();
            if (*round == loop_round::stopped)
                return {};
        }
    }
    /// Runs for a time, or until stop().
    result<loop_round> run_for(std::chrono::milliseconds time) const
    {
        const auto core = core_;
        if (!core)
            return none();
        const auto end = std::chrono::steady_clock::now() + time;
        for (;;) {
            auto round = core->round(left(end));
            if (!round || *round == loop_round::stopped)
                return round;
            if (std::chrono::steady_clock::now() >= end)
                return loop_round::done;
        }
    }
    /// Ends the run that there is, or the next one. What else there is to do may wait for the run
    /// after. Any thread.
    status stop() const noexcept { return fcast_loop_stop(raw()); }
    /// Has the callback of on_wake() called soon. Any thread.
    status wake() const noexcept { return fcast_loop_wake(raw()); }
    /// In the mode FCAST_LOOP_ADAPTIVE: there was work, so that it spins for its window from now.
    status mark_busy() const noexcept { return fcast_loop_mark_busy(raw()); }

private:
    explicit event_loop(fcast_loop made) : core_(std::make_shared<detail::loop_core>(made)) {}

    static failure none() { return {FCAST_STALE, "this event loop was not made, or moved away"}; }

    template <class Add>
    result<loop_watch> add(std::function<void(std::uint32_t)> callback, bool once, Add &&how) const
    {
        if (!core_)
            return none();
        auto token = core_->add(std::move(callback), once, std::forward<Add>(how));
        if (!token)
            return token.error();
        return loop_watch(core_, *token);
    }
    template <class Add>
    result<loop_watch> add(std::function<void()> callback, bool once, Add &&how) const
    {
        if (!callback)
            return detail::no_callback();
        return add(std::function<void(std::uint32_t)>(
                       [callback = std::move(callback)](std::uint32_t) { callback(); }),
                   once, std::forward<Add>(how));
    }
    /// Rounded up, so that a sleep does not end a little too early again and again.
    static std::int32_t left(std::chrono::steady_clock::time_point end)
    {
        const auto now = std::chrono::steady_clock::now();
        const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end - now).count();
        return static_cast<std::int32_t>(rest < 0 ? 0 : rest > 1'000'000 ? 1'000'000 : rest);
    }

    std::shared_ptr<detail::loop_core> core_;
};

} // namespace fabricast

#endif
