/*
 * What a backend knows of each of its endpoints: events that wait, sends of other threads, keys.
 */
#ifndef FABRICAST_NETIO_CONNECTION_HPP
#define FABRICAST_NETIO_CONNECTION_HPP

#include <fabricast_netio_endpoint.hpp>

#include <atomic>
#include <deque>

namespace fabricast::netio::detail {

/// Opens a domain of the interface with this address of the machine; of any where it is empty or
/// names none. `provider`: libfabric's, empty for that of the mode.
inline result<domain> open_domain(const std::string &provider, NetworkMode mode,
                                  const std::string &local)
{
    fabric_settings with;
    const char *usual = mode == NetworkMode::TCP ? "tcp" : "verbs";
    with.provider = provider.empty() ? usual : provider.c_str();
    const bool any = local.empty() || local == "0.0.0.0" || local == "::";
    with.node = any ? nullptr : local.c_str();
    auto opened = fabric::open(with);
    if (!opened)
        return opened.error();
    return opened->open_domain();
}

/// Right before a sleep: whether an endpoint lets it be, and `timeout_ms` made less where it must
/// end.
inline bool may_sleep(const endpoint &of, int &timeout_ms)
{
    sleep_advice now{};
    if (fcast_endpoint_prepare_wait(of.raw(), &now.may_sleep, &now.timeout_ms) != FCAST_OK)
        return false;
    if (now.timeout_ms >= 0 && (timeout_ms < 0 || now.timeout_ms < timeout_ms))
        timeout_ms = now.timeout_ms;
    return now.may_sleep;
}

/// The events of one poll, which are told one by one. One that throws when it is told is done; the
/// others are told later, and the endpoint is not polled before.
class event_batch {
public:
    bool is_empty() const noexcept { return at_ == count_; }
    bool is_told_now() const noexcept { return telling_; }

    /// Polls where nothing waits. The status is that of the poll.
    status refill(const endpoint &from)
    {
        if (!is_empty())
            return FCAST_OK;
        at_ = count_ = 0;
        return fcast_endpoint_poll(from.raw(), room_.data(), room_.size(), &count_);
    }
    /// Tells what waits. False: there was nothing.
    template <class Tell> bool tell(Tell &&one)
    {
        const bool any = !is_empty();
        struct guard {
            bool &telling;
            ~guard() { telling = false; }
        } done{telling_ = true};
        while (!is_empty())
            one(static_cast<const event &>(room_[at_++]));
        return any;
    }

private:
    std::array<event, 64> room_;
    std::size_t at_ = 0, count_ = 0;
    bool telling_ = false;
};

/// A send of another thread: its header is copied, its data is not.
struct queued_send {
    std::vector<piece> pieces;
    std::vector<std::uint8_t> header;
    std::uint64_t key = 0;
};

/// Sends of other threads, in the order that they were accepted in; at most so many.
class send_queue {
public:
    explicit send_queue(std::size_t bound) : room_(bound) {}
    bool is_empty() const noexcept { return len_ == 0; }
    bool is_full() const noexcept { return len_ == room_.size(); }
    std::size_t len() const noexcept { return len_; }

    void push(span<const piece> pieces, bytes header, std::uint64_t key)
    {
        queued_send &into = room_[(first_ + len_) % room_.size()];
        into.pieces.assign(pieces.begin(), pieces.end());
        into.header.assign(header.begin(), header.end());
        into.key = key;
        len_++;
    }
    const queued_send &front() const noexcept { return room_[first_]; }
    void pop() noexcept
    {
        first_ = (first_ + 1) % room_.size();
        len_--;
    }
    void keys(std::vector<std::uint64_t> &into) const
    {
        for (std::size_t at = 0; at < len_; at++)
            into.push_back(room_[(first_ + at) % room_.size()].key);
    }

private:
    std::vector<queued_send> room_;
    std::size_t first_ = 0, len_ = 0;
};

enum class link_state { opening, open, closing, closed };

/// A send endpoint of a backend.
class send_link {
public:
    send_link(EndPointAddress to, const domain &in, const ConnectionParametersSendZeroCopy &of,
              std::shared_ptr<send_buffers> from, const NetworkConfig &config)
        : address(std::move(to)), buffers(std::move(from)), is_safe(config.thread_safety ==
                                                                    ThreadSafetyModel::SAFE),
          endpoint(in, address, of, config.thread_safety, config.send_settings),
          mutex_(config.thread_safety), queue_(is_safe ? config.send_queue : 0)
    {
    }

    const EndPointAddress address;
    const std::shared_ptr<send_buffers> buffers;
    const bool is_safe;
    SendEndpointZeroCopy endpoint;
    event_batch batch;
    std::vector<int> fds;
    /// It stood once.
    bool was_open = false;
    /// Sends of the queue that could not be made, and why, which the program is to be told. Of the
    /// loop's thread.
    std::deque<std::pair<std::uint64_t, std::string>> failed;

    /// Sends now, or leaves it to the loop's thread, which is `here`.
    NetioStatus send(span<const piece> pieces, bytes header, std::uint64_t key, bool here)
    {
        maybe_lock lock(mutex_);
        if (state_ == link_state::opening)
            return NetioStatus::NO_RESOURCES;
        if (state_ != link_state::open)
            return NetioStatus::FAILED;
        if (!is_safe || (here && queue_.is_empty())) {
            is_refused_ |= endpoint.num_free() == 0;
            return to_netio(endpoint.try_send(pieces, header, key));
        }
        if (!endpoint.fits(pieces, header.size()))
            return NetioStatus::FAILED;
        if (queue_.is_full()) {
            is_refused_ = true;
            return NetioStatus::NO_RESOURCES;
        }
        queue_.push(pieces, header, key);
        return NetioStatus::OK;
    }

    /// Posts what other threads left, on the loop's thread. True: something was done.
    bool flush()
    {
        maybe_lock lock(mutex_);
        bool done = false;
        while (!queue_.is_empty() && !is_blocked_ && state_ != link_state::closed) {
            const queued_send &next = queue_.front();
            const status sent = endpoint.try_send(next.pieces, next.header, next.key);
            // Of a connection that is over the end tells the keys.
            is_blocked_ = sent.again() || sent == FCAST_CLOSED;
            if (is_blocked_)
                break;
            if (!sent)
                failed.emplace_back(next.key, fcast_last_error());
            queue_.pop();
            done = true;
        }
        if (state_ == link_state::closing && queue_.is_empty() && !is_ending_) {
            is_ending_ = true;
            (void)endpoint.get_active_endpoint().begin_close(close_timeout_ms);
            done = true;
        }
        return done;
    }
    bool wants_flush() const
    {
        maybe_lock lock(mutex_);
        if (!failed.empty())
            return true;
        const bool sends = !queue_.is_empty() && !is_blocked_;
        return sends || (state_ == link_state::closing && queue_.is_empty() && !is_ending_);
    }

    void unblock()
    {
        maybe_lock lock(mutex_);
        is_blocked_ = false;
    }
    /// Whether a send was refused for want of a slot or of room in the queue, and there is some.
    bool take_refused()
    {
        maybe_lock lock(mutex_);
        const bool room = is_refused_ && state_ != link_state::closed &&
                          !(is_safe && queue_.is_full()) && endpoint.num_free() > 0;
        is_refused_ &= !room;
        return room;
    }
    void on_open()
    {
        maybe_lock lock(mutex_);
        was_open = true;
        is_blocked_ = false;
        if (state_ == link_state::opening)
            state_ = link_state::open;
    }
    void close()
    {
        maybe_lock lock(mutex_);
        if (state_ != link_state::closed)
            state_ = link_state::closing;
    }
    bool is_closing() const
    {
        maybe_lock lock(mutex_);
        return state_ == link_state::closing;
    }
    /// The connection is over, and nothing is accepted from here on. The keys that are the
    /// caller's to tell: of sends that failed, and `unsent` of those that were not made or whose
    /// failure was not told, because a callback threw.
    std::vector<std::uint64_t> on_over(std::vector<std::uint64_t> &unsent)
    {
        maybe_lock lock(mutex_);
        state_ = link_state::closed;
        unsent = endpoint.get_pending_sends();
        for (const auto &one : std::exchange(failed, {}))
            unsent.push_back(one.first);
        queue_.keys(unsent);
        while (!queue_.is_empty())
            queue_.pop();
        return std::exchange(untold_, {});
    }
    /// The connection is made again: what waits goes out then. The keys of sends that failed.
    std::vector<std::uint64_t> on_reconnecting()
    {
        maybe_lock lock(mutex_);
        if (state_ == link_state::open)
            state_ = link_state::opening;
        return std::exchange(untold_, {});
    }
    /// A send that failed: its key is told with the connection's end.
    void hold(std::uint64_t key)
    {
        maybe_lock lock(mutex_);
        untold_.push_back(key);
    }

    std::vector<std::uint64_t> pending() const
    {
        maybe_lock lock(mutex_);
        // All that were there have been told, or are right now.
        if (state_ == link_state::closed)
            return {};
        std::vector<std::uint64_t> keys = endpoint.get_pending_sends();
        keys.insert(keys.end(), untold_.begin(), untold_.end());
        queue_.keys(keys);
        return keys;
    }
    std::size_t available()
    {
        if (buffers)
            return buffers->low_water();
        maybe_lock lock(mutex_);
        const std::size_t free = endpoint.get_num_available_buffers();
        return free > queue_.len() ? free - queue_.len() : 0;
    }

private:
    static constexpr std::uint32_t close_timeout_ms = 5000;

    mutable maybe_mutex mutex_;
    link_state state_ = link_state::opening;
    send_queue queue_;
    bool is_blocked_ = false, is_refused_ = false, is_ending_ = false;
    std::vector<std::uint64_t> untold_;
};

/// A listen endpoint of a backend.
class listen_link {
public:
    listen_link(EndPointAddress at, receiver of) : address(std::move(at)), endpoint(std::move(of))
    {
    }
    const EndPointAddress address;
    const receiver endpoint;
    event_batch batch;
    std::vector<int> fds;
    std::atomic<bool> closing{false};
    bool is_ending = false;
    std::size_t connections = 0;
};

} // namespace fabricast::netio::detail

#endif
