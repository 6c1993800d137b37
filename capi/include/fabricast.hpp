/*
 * fabricast for C++17: handles that release themselves, spans, and results in place of statuses.
 *
 * Header only, over fabricast.h, whose words on threads and lifetimes hold here too. A function
 * that may fail gives a `result`; `.value()` throws `fabricast::error` where there is none. With
 * FABRICAST_NO_EXCEPTIONS, or where the compiler has none, it ends the program instead, and says
 * why. What runs often (sends, polls) gives a `status` alone, which costs nothing.
 *
 * No exception passes through C: functions of the program's that the library calls end the program
 * if they throw, but for those whose header says what becomes of that.
 */
#ifndef FABRICAST_HPP
#define FABRICAST_HPP

#include <fabricast_memory.hpp>

#include <string_view>
#include <vector>

namespace fabricast {

// ---- endpoints ----------------------------------------------------------------------------------

/// How an endpoint is opened; as fcast_settings, with the defaults.
struct settings : fcast_settings {
    settings() noexcept : fcast_settings() { size = sizeof(fcast_settings); }
};

enum class event_kind : std::uint32_t {
    connected = FCAST_EVENT_CONNECTED,
    unresponsive = FCAST_EVENT_UNRESPONSIVE,
    responsive = FCAST_EVENT_RESPONSIVE,
    peer_closing = FCAST_EVENT_PEER_CLOSING,
    reconnecting = FCAST_EVENT_RECONNECTING,
    disconnected = FCAST_EVENT_DISCONNECTED,
    request = FCAST_EVENT_REQUEST,
    completed = FCAST_EVENT_COMPLETED,
    failed = FCAST_EVENT_FAILED,
    late = FCAST_EVENT_LATE,
    writable = FCAST_EVENT_WRITABLE,
    released = FCAST_EVENT_RELEASED,
    message = FCAST_EVENT_MESSAGE,
    starved = FCAST_EVENT_STARVED,
    written = FCAST_EVENT_WRITTEN,
    write_failed = FCAST_EVENT_WRITE_FAILED,
    read = FCAST_EVENT_READ,
    read_failed = FCAST_EVENT_READ_FAILED,
    peer_wrote = FCAST_EVENT_PEER_WROTE,
    window_revoked = FCAST_EVENT_WINDOW_REVOKED,
    returned = FCAST_EVENT_RETURNED,
    window_quarantined = FCAST_EVENT_WINDOW_QUARANTINED,
    window_released = FCAST_EVENT_WINDOW_RELEASED,
    pushed = FCAST_EVENT_PUSHED,
    push_failed = FCAST_EVENT_PUSH_FAILED,
    peer_removed = FCAST_EVENT_PEER_REMOVED,
    subscribed = FCAST_EVENT_SUBSCRIBED,
    unsubscribed = FCAST_EVENT_UNSUBSCRIBED,
    subscription_refused = FCAST_EVENT_SUBSCRIPTION_REFUSED,
    subscriptions_gone = FCAST_EVENT_SUBSCRIPTIONS_GONE,
    published = FCAST_EVENT_PUBLISHED,
    published_to = FCAST_EVENT_PUBLISHED_TO,
    publication = FCAST_EVENT_PUBLICATION,
    device_message = FCAST_EVENT_DEVICE_MESSAGE,
    device_publication = FCAST_EVENT_DEVICE_PUBLICATION,
    undelivered = FCAST_EVENT_UNDELIVERED,
    other = FCAST_EVENT_OTHER,
    object_written = FCAST_EVENT_OBJECT_WRITTEN,
    object_read = FCAST_EVENT_OBJECT_READ,
    object_failed = FCAST_EVENT_OBJECT_FAILED,
    object_returned = FCAST_EVENT_OBJECT_RETURNED,
};

/// Something that happened; what it points to is there until the next poll of its endpoint. Kinds
/// that `event_kind` does not name are those of fabricast.h.
struct event : fcast_event {
    bool is(event_kind wanted) const noexcept { return kind == static_cast<std::uint32_t>(wanted); }
    event_kind what() const noexcept { return static_cast<event_kind>(kind); }
    bytes header_bytes() const noexcept
    {
        return {static_cast<const std::uint8_t *>(header), header_len};
    }
    bytes payload_bytes() const noexcept
    {
        return {static_cast<const std::uint8_t *>(data), data_len};
    }
    /// Never null, so that it can be printed; empty where there are none.
    std::string_view words() const noexcept { return text ? text : ""; }
    /// Of `connected` and `request`: the peer's address, where the provider tells.
    std::string_view peer() const noexcept
    {
        return {data ? static_cast<const char *>(data) : "", data_len};
    }
};
static_assert(sizeof(event) == sizeof(fcast_event), "arrays of them are passed to C");

/// A received message that is kept: header and payload stay where they are until it goes.
class message : public detail::owner<fcast_message, fcast_message_release> {
public:
    message() noexcept = default;
    message(fcast_message raw, const event &of) noexcept
        : owner(raw), header_(of.header_bytes()), payload_(of.payload_bytes())
    {
    }
    bytes header() const noexcept { return header_; }
    bytes data() const noexcept { return payload_; }
    /// Makes its data a payload, to be sent on without a copy; where that fails the message stays
    /// what it is. What it came into (`endpoint::buffers`, `pool::lies_in`) is registered with the
    /// domain that it goes out by.
    result<payload> forward() &&
    {
        fcast_payload out{};
        if (fcast_status code = fcast_message_payload(raw_, &out))
            return failure::last(code);
        detach();
        header_ = payload_ = {};
        return payload(out);
    }

private:
    bytes header_, payload_;
};

/// Whether a loop may sleep, and for how long at most (-1: for as long as it likes).
struct sleep_advice {
    bool may_sleep;
    std::int32_t timeout_ms;
};

/// What all kinds of endpoint do. One thread at a time.
class endpoint : public detail::owner<fcast_endpoint, fcast_endpoint_release> {
public:
    using owner::owner;
    /// Drives it; the events that happened, in the memory that is given for them.
    result<span<event>> poll(span<event> into) const
    {
        std::size_t count = 0;
        if (fcast_status code = fcast_endpoint_poll(raw_, into.data(), into.size(), &count))
            return failure::last(code);
        return into.first(count);
    }
    /// Keeps a message, or a publication, of the last poll for longer, without a copy.
    result<message> keep(const event &of) const
    {
        fcast_message out{};
        if (fcast_status code = fcast_message_keep(raw_, &of, &out))
            return failure::last(code);
        return message(out, of);
    }
    /// The buffer of a window that nobody reaches any more, of an event of the last poll.
    result<buffer> keep_buffer(const event &of) const
    {
        fcast_buffer out{};
        void *data = nullptr;
        std::size_t capacity = 0;
        if (fcast_status code = fcast_buffer_keep(raw_, &of, &out, &data, &capacity))
            return failure::last(code);
        return buffer(out, {static_cast<std::uint8_t *>(data), capacity});
    }
    /// Sleeps until there may be something to poll for.
    status wait(std::uint32_t timeout_ms) const noexcept
    {
        return fcast_endpoint_wait(raw_, timeout_ms);
    }
    /// The descriptors for a loop of the program's.
    result<std::vector<int>> fds() const
    {
        return detail::list<int>([this](int *fds, std::size_t capacity, std::size_t *count) {
            return fcast_endpoint_fds(raw_, fds, capacity, count);
        });
    }
    /// To be called right before a loop of the program's sleeps.
    result<sleep_advice> prepare_wait() const
    {
        sleep_advice advice{};
        const fcast_status code =
            fcast_endpoint_prepare_wait(raw_, &advice.may_sleep, &advice.timeout_ms);
        if (code != FCAST_OK)
            return failure::last(code);
        return advice;
    }
    /// Begins the polite close; `event_kind::disconnected` comes last, and in time.
    status begin_close(std::uint32_t timeout_ms) const noexcept
    {
        return fcast_endpoint_begin_close(raw_, timeout_ms);
    }
    /// Closes politely and waits for it.
    result<void> close(std::uint32_t timeout_ms) const
    {
        return detail::done(fcast_endpoint_close(raw_, timeout_ms));
    }
    /// Begins the polite close of one connection of several: a receiver's, a publisher's, a
    /// subscriber's or that to a peer; `event_kind::disconnected` follows, in time.
    status close_connection(std::uint64_t connection, std::uint32_t timeout_ms) const noexcept
    {
        return fcast_endpoint_close_connection(raw_, connection, timeout_ms);
    }
    /// Answers a connection of `event_kind::request`, of a receiver or a publisher that was opened
    /// with `settings::ask`.
    status accept(std::uint64_t connection) const noexcept
    {
        return fcast_endpoint_accept(raw_, connection);
    }
    /// The peer is told the two numbers, which are the program's own.
    status refuse(std::uint64_t connection, std::uint64_t detail = 0,
                  std::uint64_t more = 0) const noexcept
    {
        return fcast_endpoint_refuse(raw_, connection, detail, more);
    }
    /// How many connections stand; a sender takes sends while it is 1.
    std::size_t connected() const noexcept
    {
        std::size_t count = 0;
        (void)fcast_endpoint_connected(raw_, &count);
        return count;
    }
    /// The keys of the sends that have no outcome yet, of a sender or a connectionless endpoint.
    result<std::vector<std::uint64_t>> pending() const
    {
        return detail::list<std::uint64_t>(
            [this](std::uint64_t *keys, std::size_t capacity, std::size_t *count) {
                return fcast_endpoint_pending(raw_, keys, capacity, count);
            });
    }
    /// What it receives into, or packs into, as a handle of its own: for its state and its region.
    result<pool> buffers() const
    {
        fcast_pool out{};
        if (fcast_status code = fcast_endpoint_pool(raw_, &out))
            return failure::last(code);
        return pool(out);
    }
};

/// A message of a batch.
struct outgoing : fcast_outgoing {
    outgoing() noexcept : fcast_outgoing{} {}
    outgoing(bytes data, bytes header, std::uint64_t key, fcast_region in = {}) noexcept
        : fcast_outgoing{data.data(), data.size(), in, header.data(), header.size(), key}
    {
    }
};
static_assert(sizeof(outgoing) == sizeof(fcast_outgoing), "arrays of them are passed to C");

/// Sends to one peer, from where the bytes lie.
class sender : public endpoint {
public:
    using endpoint::endpoint;
    static result<sender> open(const domain &in, const char *peer, const settings &of = {})
    {
        fcast_endpoint out{};
        if (fcast_status code = fcast_sender_open(in.raw(), peer, &of, &out))
            return failure::last(code);
        return sender(out);
    }
    /// Returns at once; the data stays as it is until its key comes back.
    status send(bytes data, bytes header, std::uint64_t key, fcast_region in = {}) const noexcept
    {
        return fcast_send(raw_, in, data.data(), data.size(), header.data(), header.size(), key);
    }
    /// Several pieces that become one message.
    status send(span<const piece> pieces, bytes header, std::uint64_t key) const noexcept
    {
        return fcast_sendv(raw_, pieces.data(), pieces.size(), header.data(), header.size(), key);
    }
    /// A payload, which is used up unless this fails.
    status send(payload &what, bytes header, std::uint64_t key) const noexcept
    {
        const status sent =
            fcast_send_payload(raw_, what.raw(), header.data(), header.size(), key);
        if (sent)
            what.detach();
        return sent;
    }
    /// Several messages: `sent` of them, from the first on. Where it stops early, the next call
    /// says why with its first message; where it fails, none was taken.
    status send(span<const outgoing> messages, std::size_t &sent) const noexcept
    {
        sent = 0;
        return fcast_send_batch(raw_, messages.data(), messages.size(), &sent);
    }
    /// Drives it, and writes the keys of sends that are done: `count` of them. `has_events`: poll()
    /// has more to tell, which happened after those.
    status poll_completed(span<std::uint64_t> keys, std::size_t &count,
                          bool &has_events) const noexcept
    {
        count = 0;
        has_events = false;
        return fcast_poll_completed(raw_, keys.data(), keys.size(), &count, &has_events);
    }
    /// Posts what was packed and would wait for the next poll.
    status flush() const noexcept { return fcast_flush(raw_); }
};

/// A received message that is borrowed: until the next poll, receive or close of its endpoint.
struct received : fcast_received {
    bytes header_bytes() const noexcept
    {
        return {static_cast<const std::uint8_t *>(header), header_len};
    }
    bytes payload_bytes() const noexcept
    {
        return {static_cast<const std::uint8_t *>(data), data_len};
    }
};
static_assert(sizeof(received) == sizeof(fcast_received), "arrays of them are passed to C");

/// Listens, and receives from all who connect.
class receiver : public endpoint {
public:
    using endpoint::endpoint;
    static result<receiver> open(const domain &in, const char *local, const settings &of = {})
    {
        fcast_endpoint out{};
        if (fcast_status code = fcast_receiver_open(in.raw(), local, &of, &out))
            return failure::last(code);
        return receiver(out);
    }
    /// Where it listens.
    result<std::string> address() const
    {
        return detail::text([this](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_endpoint_address(raw_, text, capacity, len);
        });
    }
    /// Drives it; the messages that came, in the memory that is given for them. `has_events`: there
    /// is something to poll for, which happened before.
    result<span<received>> receive(span<received> into, bool *has_events = nullptr) const
    {
        std::size_t count = 0;
        bool unused = false;
        if (fcast_status code = fcast_receive(raw_, into.data(), into.size(), &count,
                                              has_events ? has_events : &unused))
            return failure::last(code);
        return into.first(count);
    }
};

/// The words of the last failure of this thread.
inline std::string_view last_error() noexcept { return fcast_last_error(); }

/// The version of the library that was loaded; FCAST_VERSION is the one compiled against.
inline std::uint32_t version() noexcept { return fcast_version(); }

} // namespace fabricast

#endif
