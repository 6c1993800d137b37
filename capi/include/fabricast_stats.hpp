/*
 * What the library tells of itself, for C++17: counters, as structs and as text, and the log.
 */
#ifndef FABRICAST_STATS_HPP
#define FABRICAST_STATS_HPP

#include <fabricast_file.hpp>
#include <fabricast_loop.hpp>

#include <atomic>

namespace fabricast {

// ---- counters -----------------------------------------------------------------------------------

namespace detail {
/// Counters that a function of C writes to a struct whose size it is told.
template <class Stats, class Read> result<Stats> counted(Read &&read)
{
    Stats stats{};
    stats.size = sizeof stats;
    if (fcast_status code = read(&stats))
        return failure::last(code);
    return stats;
}
} // namespace detail

/// Of an endpoint that sends: a sender of either kind, or a connectionless one. FCAST_UNSUPPORTED,
/// here and below: it is of another kind. One thread at a time uses an endpoint.
inline result<fcast_send_stats> send_stats_of(const endpoint &which)
{
    return detail::counted<fcast_send_stats>(
        [&](auto *into) { return fcast_endpoint_send_stats(which.raw(), into); });
}
/// Of an endpoint that receives: a receiver, or a connectionless one.
inline result<fcast_receive_stats> receive_stats_of(const endpoint &which)
{
    return detail::counted<fcast_receive_stats>(
        [&](auto *into) { return fcast_endpoint_receive_stats(which.raw(), into); });
}
/// Of a buffered sender: its small messages.
inline result<fcast_buffered_stats> buffered_stats_of(const endpoint &which)
{
    return detail::counted<fcast_buffered_stats>(
        [&](auto *into) { return fcast_endpoint_buffered_stats(which.raw(), into); });
}
/// Of a publisher.
inline result<fcast_publish_stats> publish_stats_of(const endpoint &which)
{
    return detail::counted<fcast_publish_stats>(
        [&](auto *into) { return fcast_endpoint_publish_stats(which.raw(), into); });
}
/// Of a subscriber.
inline result<fcast_subscribe_stats> subscribe_stats_of(const endpoint &which)
{
    return detail::counted<fcast_subscribe_stats>(
        [&](auto *into) { return fcast_endpoint_subscribe_stats(which.raw(), into); });
}
/// Of a loop since it was made. One thread at a time.
inline result<fcast_loop_stats> stats_of(const event_loop &which)
{
    return detail::counted<fcast_loop_stats>(
        [&](auto *into) { return fcast_loop_read_stats(which.raw(), into); });
}
/// What was done with a file.
inline result<fcast_file_stats> stats_of(const file &which)
{
    return detail::counted<fcast_file_stats>(
        [&](auto *into) { return fcast_file_read_stats(which.raw(), into); });
}
/// Of the process. Any thread.
inline result<fcast_process_stats> process_stats()
{
    return detail::counted<fcast_process_stats>(
        [](auto *into) { return fcast_process_read_stats(into); });
}

/// All counters of an endpoint as text, as Prometheus reads it.
inline result<std::string> stats_text_of(const endpoint &which)
{
    return detail::text([&](char *text, std::size_t capacity, std::size_t *len) {
        return fcast_endpoint_stats_text(which.raw(), text, capacity, len);
    });
}
/// The counters of the process, of its files, and of all clients and servers of objects, as text
/// that Prometheus reads. Any thread.
inline result<std::string> process_stats_text()
{
    return detail::text([](char *text, std::size_t capacity, std::size_t *len) {
        return fcast_process_stats_text(text, capacity, len);
    });
}
/// All that the process counts, by kind and name, as text of OpenMetrics 1.0. Any thread.
inline result<std::string> metrics_text()
{
    std::size_t needed = 0;
    if (fcast_status code = fcast_metrics_text(nullptr, 0, &needed))
        return failure::last(code);
    for (;;) {
        // It may grow from one call to the next.
        std::string text(needed + 4096, '\0');
        if (fcast_status code = fcast_metrics_text(&text[0], text.size(), &needed))
            return failure::last(code);
        if (needed <= text.size()) {
            text.resize(needed - 1);
            return text;
        }
    }
}

// ---- the log ------------------------------------------------------------------------------------

enum class log_level : std::uint32_t {
    error = FCAST_LOG_ERROR,
    warn = FCAST_LOG_WARN,
    info = FCAST_LOG_INFO,
    debug = FCAST_LOG_DEBUG,
    trace = FCAST_LOG_TRACE,
};

/// A line of the log: how bad it is, which part of the library says it, and its words, with their
/// numbers behind them. The texts are good during the call.
struct log_line {
    log_level level;
    std::string_view target, words;
};

namespace detail {
/// Whether there is a hook in this process.
inline std::atomic<bool> is_log_hooked{false};
} // namespace detail

/// Has a function called with the lines of the log for as long as it lives. There is one at a time.
///
/// The function is called on any thread, by several at once. It must be short, throw nothing (that
/// ends the program), and call nothing of the library, which refuses it with FCAST_BUSY; a hook
/// that is ended within its own function stays in place for good.
class [[nodiscard]] log_hook {
public:
    using callback = std::function<void(const log_line &)>;

    log_hook() noexcept = default;
    /// Lines up to a level. FCAST_BUSY: there is a hook, or the program has a collector of Rust's
    /// `tracing` in place.
    static result<log_hook> set(log_level most, callback function)
    {
        if (!function)
            return failure{FCAST_INVALID, "the function of a log hook is empty"};
        if (detail::is_log_hooked.exchange(true))
            return failure{FCAST_BUSY, "there is a log hook already: end that one first"};
        log_hook made(std::make_unique<callback>(std::move(function)));
        if (auto hooked = made.set_level(most); !hooked) {
            made.reset();
            return hooked.error();
        }
        return made;
    }
    log_hook(log_hook &&) noexcept = default;
    log_hook &operator=(log_hook &&other) noexcept
    {
        if (this != &other) {
            reset();
            function_ = std::move(other.function_);
        }
        return *this;
    }
    ~log_hook() { reset(); }

    explicit operator bool() const noexcept { return function_ != nullptr; }
    /// From now on it is lines up to this level.
    result<void> set_level(log_level most) const
    {
        if (!function_)
            return failure{FCAST_STALE, "this log hook was not set, or moved away"};
        return detail::done(fcast_log_set(&log_hook::trampoline, function_.get(),
                                          static_cast<std::uint32_t>(most)));
    }
    /// Takes it off now, and waits until nobody is in the function.
    void reset() noexcept
    {
        if (!function_)
            return;
        if (fcast_log_set(nullptr, nullptr, 0) == FCAST_OK) {
            function_.reset();
            detail::is_log_hooked.store(false);
        } else {
            // Called within the function: it is still in use.
            (void)function_.release();
        }
    }

private:
    explicit log_hook(std::unique_ptr<callback> function) noexcept : function_(std::move(function))
    {
    }
    static void trampoline(void *context, std::uint32_t level, const char *target,
                           const char *words) noexcept
    {
        (*static_cast<callback *>(context))({static_cast<log_level>(level), target, words});
    }

    std::unique_ptr<callback> function_;
};

} // namespace fabricast

#endif
