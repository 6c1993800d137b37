/*
 * fabricast for C++17: handles that release themselves, spans, and results in place of statuses.
 *
 * Header only, over fabricast.h, whose words on threads and lifetimes hold here too. A function
 * that may fail gives a `result`; `.value()` throws `fabricast::error` where there is none. With
 * FABRICAST_NO_EXCEPTIONS, or where the compiler has none, it ends the program instead, and says
 * why. What runs often (sends, polls) gives a `status` alone, which costs nothing.
 *
 * No exception passes through C: functions of the program's that the library calls end the program
 * if they throw.
 */
#ifndef FABRICAST_HPP
#define FABRICAST_HPP

#include <fabricast_result.hpp>

#include <functional>
#include <string_view>
#include <vector>

namespace fabricast {

namespace detail {
/// A handle that releases what it names. Move only; an empty one names nothing.
template <class H, fcast_status (*Release)(H)> class owner {
public:
    owner() noexcept = default;
    explicit owner(H raw) noexcept : raw_(raw) {}
    owner(owner &&other) noexcept : raw_(other.detach()) {}
    owner &operator=(owner &&other) noexcept
    {
        if (this != &other) {
            reset();
            raw_ = other.detach();
        }
        return *this;
    }
    ~owner() { reset(); }

    /// The handle for functions of fabricast.h; it stays with its owner.
    H raw() const noexcept { return raw_; }
    explicit operator bool() const noexcept { return raw_.id != 0; }
    /// Gives it up unreleased: whoever takes it releases it.
    H detach() noexcept { return std::exchange(raw_, H{}); }
    /// Releases it now.
    void reset() noexcept
    {
        if (raw_.id != 0)
            (void)Release(detach());
    }

protected:
    H raw_{};
};

/// A function of the program's that the library calls once, as C wants it. Whoever takes it calls
/// it, also where that fails.
struct release_call {
    fcast_release_fn call = nullptr;
    std::function<void()> *context = nullptr;

    explicit release_call(std::function<void()> release)
    {
        if (!release)
            return;
        context = new std::function<void()>(std::move(release));
        call = &release_call::trampoline;
    }

private:
    // What it throws ends the program: it can't pass through C.
    static void trampoline(void *context) noexcept
    {
        const std::unique_ptr<std::function<void()>> release(
            static_cast<std::function<void()> *>(context));
        (*release)();
    }
};

/// A text of a length that the library knows.
template <class Write> result<std::string> text(Write &&write)
{
    std::size_t len = 0;
    if (fcast_status code = write(static_cast<char *>(nullptr), std::size_t{0}, &len))
        return failure::last(code);
    std::string text(len, '\0');
    if (fcast_status code = write(&text[0], len, &len))
        return failure::last(code);
    text.resize(len == 0 ? 0 : len - 1);
    return text;
}
} // namespace detail

// ---- fabric, domain, memory ---------------------------------------------------------------------

/// How a fabric is opened; as fcast_fabric_settings, with the defaults.
struct fabric_settings : fcast_fabric_settings {
    fabric_settings() noexcept : fcast_fabric_settings() { size = sizeof(fcast_fabric_settings); }
};

/// How an endpoint is opened; as fcast_settings, with the defaults.
struct settings : fcast_settings {
    settings() noexcept : fcast_settings() { size = sizeof(fcast_settings); }
};

/// Where memory is registered and endpoints are opened.
class domain : public detail::owner<fcast_domain, fcast_domain_release> {
public:
    using owner::owner;
};

/// A provider of libfabric's that was opened.
class fabric : public detail::owner<fcast_fabric, fcast_fabric_release> {
public:
    using owner::owner;
    static result<fabric> open(const fabric_settings &of = {})
    {
        fcast_fabric raw{};
        if (fcast_status code = fcast_fabric_open(&of, &raw))
            return failure::last(code);
        return fabric(raw);
    }
    result<domain> open_domain() const
    {
        fcast_domain out{};
        if (fcast_status code = fcast_domain_open(raw_, &out))
            return failure::last(code);
        return domain(out);
    }
    /// What is known of it, for people.
    result<std::string> report() const
    {
        return detail::text([this](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_fabric_report(raw_, text, capacity, len);
        });
    }
};

/// Memory that can be registered, sent, and received into.
class region : public detail::owner<fcast_region, fcast_region_release> {
public:
    using owner::owner;
    /// `flags`: 0, or the sum of some of FCAST_REGION_HUGE_PAGES and FCAST_REGION_PINNED.
    static result<region> allocate(std::size_t len, std::uint32_t flags = 0,
                                   std::int32_t numa_node = -1)
    {
        fcast_region raw{};
        if (fcast_status code = fcast_region_allocate(len, flags, numa_node, &raw))
            return failure::last(code);
        return region(raw);
    }
    /// Memory of the program's, such as the DMA buffer of a card: it must stay mapped until
    /// `release` is called, on whatever thread ends the last use. `release` must not throw.
    static result<region> external(void *base, std::size_t len, std::function<void()> release = {})
    {
        const detail::release_call with(std::move(release));
        fcast_region raw{};
        if (fcast_status code = fcast_region_external(base, len, with.call, with.context, &raw))
            return failure::last(code);
        return region(raw);
    }
    result<void> enroll(const domain &with) const
    {
        return detail::done(fcast_region_register(raw_, with.raw()));
    }
    result<void> withdraw(const domain &from) const
    {
        return detail::done(fcast_region_deregister(raw_, from.raw()));
    }
    /// All of it. Of a GPU's memory the address is the device's.
    mutable_bytes memory() const noexcept
    {
        void *base = nullptr;
        std::size_t len = 0;
        (void)fcast_region_memory(raw_, &base, &len);
        return {static_cast<std::uint8_t *>(base), len};
    }
    /// Where in it an address is, whose next `len` bytes are in it, too.
    result<std::size_t> offset_of(const void *address, std::size_t len) const
    {
        std::size_t offset = 0;
        if (fcast_status code = fcast_region_slice_at(raw_, address, len, &offset))
            return failure::last(code);
        return offset;
    }
};

/// A piece of a message.
struct piece : fcast_iov {
    piece() noexcept : fcast_iov{} {}
    piece(const void *at, std::size_t bytes, fcast_region in = {}) noexcept
        : fcast_iov{at, bytes, in}
    {
    }
};
static_assert(sizeof(piece) == sizeof(fcast_iov), "arrays of them are passed to C");

/// What can be sent, once.
class payload : public detail::owner<fcast_payload, fcast_payload_release> {
public:
    using owner::owner;
    /// Of bytes that lie in a region, which may be a GPU's. They must not change before the outcome
    /// of the send is told.
    static result<payload> of(const region &in, bytes data)
    {
        fcast_payload out{};
        if (fcast_status code =
                fcast_payload_of_region(in.raw(), data.data(), data.size(), &out))
            return failure::last(code);
        return payload(out);
    }
    /// Of several pieces, each of which names its region.
    static result<payload> of(span<const piece> pieces)
    {
        fcast_payload out{};
        if (fcast_status code = fcast_payload_of_pieces(pieces.data(), pieces.size(), &out))
            return failure::last(code);
        return payload(out);
    }
    std::size_t size() const noexcept
    {
        std::size_t len = 0;
        (void)fcast_payload_len(raw_, &len);
        return len;
    }
};

/// A buffer of a pool, to be written to.
class buffer : public detail::owner<fcast_buffer, fcast_buffer_release> {
public:
    buffer() noexcept = default;
    buffer(fcast_buffer raw, mutable_bytes memory) noexcept : owner(raw), memory_(memory) {}
    mutable_bytes memory() const noexcept { return memory_; }
    std::uint8_t *data() const noexcept { return memory_.data(); }
    std::size_t size() const noexcept { return memory_.size(); }
    /// Makes its first `len` bytes a payload; where that fails the buffer stays what it is.
    result<payload> freeze(std::size_t len) &&
    {
        fcast_payload out{};
        if (fcast_status code = fcast_buffer_freeze(raw_, len, &out))
            return failure::last(code);
        detach();
        return payload(out);
    }

private:
    mutable_bytes memory_;
};

/// How a pool stands.
struct pool_status {
    std::size_t slots, free, low_water;
};

/// A region in slots of one size.
class pool : public detail::owner<fcast_pool, fcast_pool_release> {
public:
    using owner::owner;
    static result<pool> create(const region &of, std::size_t slot_size, std::size_t headroom = 0)
    {
        fcast_pool raw{};
        if (fcast_status code = fcast_pool_create(of.raw(), slot_size, headroom, &raw))
            return failure::last(code);
        return pool(raw);
    }
    /// FCAST_AGAIN where none is free, or FCAST_TIMED_OUT after the wait.
    result<buffer> acquire(std::uint32_t timeout_ms = 0) const
    {
        fcast_buffer out{};
        void *data = nullptr;
        std::size_t capacity = 0;
        if (fcast_status code = fcast_pool_acquire(raw_, timeout_ms, &out, &data, &capacity))
            return failure::last(code);
        return buffer(out, {static_cast<std::uint8_t *>(data), capacity});
    }
    pool_status state() const noexcept
    {
        pool_status now{};
        (void)fcast_pool_status(raw_, &now.slots, &now.free, &now.low_water);
        return now;
    }
};

// ---- endpoints ----------------------------------------------------------------------------------

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
    other = FCAST_EVENT_OTHER,
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
    std::string_view words() const noexcept { return text ? text : std::string_view(); }
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
        std::vector<int> fds(8);
        std::size_t count = 0;
        if (fcast_status code = fcast_endpoint_fds(raw_, fds.data(), fds.size(), &count))
            return failure::last(code);
        const bool all = count <= fds.size();
        fds.resize(count);
        if (!all)
            if (fcast_status code = fcast_endpoint_fds(raw_, fds.data(), fds.size(), &count))
                return failure::last(code);
        return fds;
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
};

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
    /// Posts what was packed and would wait for the next poll.
    status flush() const noexcept { return fcast_flush(raw_); }
};

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
    status accept(std::uint64_t connection) const noexcept
    {
        return fcast_endpoint_accept(raw_, connection);
    }
    status refuse(std::uint64_t connection, std::uint64_t detail = 0,
                  std::uint64_t more = 0) const noexcept
    {
        return fcast_endpoint_refuse(raw_, connection, detail, more);
    }
};

/// The words of the last failure of this thread.
inline std::string_view last_error() noexcept { return fcast_last_error(); }

} // namespace fabricast

#endif
