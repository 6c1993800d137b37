/*
 * The other kinds of endpoint for C++17: buffered senders and small messages, connectionless
 * endpoints, publishers and subscribers; and rings and windows.
 */
#ifndef FABRICAST_ENDPOINTS_HPP
#define FABRICAST_ENDPOINTS_HPP

#include <fabricast.hpp>

#include <array>

namespace fabricast {

namespace detail {
/// An endpoint that a function of C opens at an address.
template <class Kind, class Open>
result<Kind> open_endpoint(Open open, const domain &in, const char *address, const settings &of)
{
    fcast_endpoint out{};
    if (fcast_status code = open(in.raw(), address, &of, &out))
        return failure::last(code);
    return Kind(out);
}

/// Where an endpoint listens.
inline result<std::string> address_of(fcast_endpoint of)
{
    return text([of](char *into, std::size_t capacity, std::size_t *len) {
        return fcast_endpoint_address(of, into, capacity, len);
    });
}
} // namespace detail

// ---- small messages -----------------------------------------------------------------------------

/// Copies small messages into buffers, many into one, and sends those to one peer.
class buffered_sender : public endpoint {
public:
    using endpoint::endpoint;
    static result<buffered_sender> open(const domain &in, const char *peer, const settings &of = {})
    {
        return detail::open_endpoint<buffered_sender>(fcast_buffered_open, in, peer, of);
    }
    /// Packs a message behind the others. `number`: the one that its outcome has it by.
    status push(std::uint64_t tag, bytes data, std::uint8_t state = 0,
                std::uint64_t *number = nullptr) const noexcept
    {
        std::uint64_t unused = 0;
        return fcast_push(raw_, tag, state, data.data(), data.size(), number ? number : &unused);
    }
    /// Packs a payload, of a GPU's memory, too, which is used up unless this fails.
    status push(std::uint64_t tag, payload &what, std::uint8_t state = 0,
                std::uint64_t *number = nullptr) const noexcept
    {
        std::uint64_t unused = 0;
        const status pushed =
            fcast_push_payload(raw_, tag, state, what.raw(), number ? number : &unused);
        if (pushed)
            what.detach();
        return pushed;
    }
    /// A whole buffer, to fill and to send.
    result<buffer> acquire() const
    {
        fcast_buffer out{};
        void *data = nullptr;
        std::size_t capacity = 0;
        if (fcast_status code = fcast_buffered_acquire(raw_, &out, &data, &capacity))
            return failure::last(code);
        return buffer(out, {static_cast<std::uint8_t *>(data), capacity});
    }
    /// Sends the first `len` bytes of a buffer, which is used up unless this fails.
    status send(buffer &what, std::size_t len, std::uint64_t key) const noexcept
    {
        const status sent = fcast_buffered_send(raw_, what.raw(), len, key);
        if (sent)
            what.detach();
        return sent;
    }
    status flush() const noexcept { return fcast_flush(raw_); }
};

/// A small message, as it lies in its buffer.
struct small_message : fcast_small_message {
    bytes data_bytes() const noexcept { return {static_cast<const std::uint8_t *>(data), len}; }
};
static_assert(sizeof(small_message) == sizeof(fcast_small_message), "arrays are passed to C");

/// Reads the small messages of a buffer one after the other.
class small_messages {
public:
    explicit small_messages(bytes buffer, std::uint32_t format = FCAST_FORMAT_COMPACT) noexcept
        : buffer_(buffer), format_(format)
    {
    }
    /// The next ones, in the memory that is given for them; none: that was all. FCAST_DATA: what
    /// follows is malformed.
    result<span<small_message>> next(span<small_message> into)
    {
        std::size_t count = 0;
        if (fcast_status code =
                fcast_coalesced_next(format_, buffer_.data(), buffer_.size(), &cursor_, into.data(),
                                     into.size(), &count))
            return failure::last(code);
        return into.first(count);
    }

private:
    bytes buffer_;
    std::uint32_t format_;
    fcast_small_cursor cursor_{};
};

// ---- many peers ---------------------------------------------------------------------------------

/// Sends to and receives from many peers, which have numbers.
class connectionless : public endpoint {
public:
    using endpoint::endpoint;
    static result<connectionless> open(const domain &in, const char *local, const settings &of = {})
    {
        return detail::open_endpoint<connectionless>(fcast_connectionless_open, in, local, of);
    }
    result<std::string> address() const { return detail::address_of(raw_); }
    /// Adds a peer, or finds it; its number.
    result<std::uint64_t> add(const char *peer) const
    {
        std::uint64_t number = 0;
        if (fcast_status code = fcast_peer_add(raw_, peer, &number))
            return failure::last(code);
        return number;
    }
    status remove(std::uint64_t peer, std::uint32_t timeout_ms) const noexcept
    {
        return fcast_peer_remove(raw_, peer, timeout_ms);
    }
    status send(std::uint64_t peer, bytes data, bytes header, std::uint64_t key,
                fcast_region in = {}) const noexcept
    {
        return fcast_send_to(raw_, peer, in, data.data(), data.size(), header.data(), header.size(),
                             key);
    }
    /// A payload, which is used up unless this fails.
    status send(std::uint64_t peer, payload &what, bytes header, std::uint64_t key) const noexcept
    {
        const status sent =
            fcast_send_payload_to(raw_, peer, what.raw(), header.data(), header.size(), key);
        if (sent)
            what.detach();
        return sent;
    }
};

/// Sends each publication to all who have subscribed to its tag.
class publisher : public endpoint {
public:
    using endpoint::endpoint;
    static result<publisher> open(const domain &in, const char *local, const settings &of = {})
    {
        return detail::open_endpoint<publisher>(fcast_publisher_open, in, local, of);
    }
    result<std::string> address() const { return detail::address_of(raw_); }
    /// FCAST_NOT_FOUND: nobody has subscribed. `out`: how it stands with whom.
    status publish(std::uint64_t tag, bytes data, bytes header, std::uint64_t key,
                   fcast_region in = {}, fcast_publication *out = nullptr) const noexcept
    {
        fcast_publication unused{};
        return fcast_publish(raw_, tag, in, data.data(), data.size(), header.data(), header.size(),
                             key, out ? out : &unused);
    }
    /// A payload, which is used up unless this fails.
    status publish(std::uint64_t tag, payload &what, bytes header, std::uint64_t key,
                   fcast_publication *out = nullptr) const noexcept
    {
        fcast_publication unused{};
        const status published = fcast_publish_payload(
            raw_, tag, what.raw(), header.data(), header.size(), key, out ? out : &unused);
        if (published)
            what.detach();
        return published;
    }
    std::size_t subscribers(std::uint64_t tag) const noexcept
    {
        std::size_t count = 0;
        (void)fcast_publisher_subscribers(raw_, tag, &count);
        return count;
    }
};

/// Gets the publications of the tags that it asks for.
class subscriber : public endpoint {
public:
    using endpoint::endpoint;
    static result<subscriber> open(const domain &in, const settings &of = {})
    {
        fcast_endpoint out{};
        if (fcast_status code = fcast_subscriber_open(in.raw(), &of, &out))
            return failure::last(code);
        return subscriber(out);
    }
    /// Starts to connect; the publisher's number.
    result<std::uint64_t> connect(const char *peer) const
    {
        std::uint64_t number = 0;
        if (fcast_status code = fcast_subscriber_connect(raw_, peer, &number))
            return failure::last(code);
        return number;
    }
    status subscribe(std::uint64_t publisher, std::uint64_t tag) const noexcept
    {
        return fcast_subscribe(raw_, publisher, tag);
    }
    status unsubscribe(std::uint64_t publisher, std::uint64_t tag) const noexcept
    {
        return fcast_unsubscribe(raw_, publisher, tag);
    }
};

// ---- rings --------------------------------------------------------------------------------------

/// Bytes of a ring that are to be filled; in two parts where they go over the end of the region.
class reservation : public detail::owner<fcast_reservation, fcast_reservation_release> {
public:
    reservation() noexcept = default;
    reservation(fcast_reservation raw, mutable_bytes first, mutable_bytes second) noexcept
        : owner(raw), first_(first), second_(second)
    {
    }
    mutable_bytes first() const noexcept { return first_; }
    mutable_bytes second() const noexcept { return second_; }

private:
    mutable_bytes first_, second_;
};

/// A region that a card or a reader fills in order.
class ring : public detail::owner<fcast_ring, fcast_ring_release> {
public:
    using owner::owner;
    static result<ring> create(const region &of, std::uint32_t max_fragments = 0,
                               std::size_t headroom = 0)
    {
        fcast_ring raw{};
        if (fcast_status code = fcast_ring_create(of.raw(), max_fragments, headroom, &raw))
            return failure::last(code);
        return ring(raw);
    }
    /// FCAST_AGAIN: no room before the oldest come back.
    result<reservation> reserve(std::size_t len) const
    {
        fcast_reservation out{};
        std::array<fcast_span, 2> parts{};
        if (fcast_status code = fcast_ring_reserve(raw_, len, &out, parts.data()))
            return failure::last(code);
        const auto part = [](const fcast_span &of) {
            return mutable_bytes(static_cast<std::uint8_t *>(of.data), of.len);
        };
        return reservation(out, part(parts[0]), part(parts[1]));
    }
    /// Makes the first `len` bytes of a reservation, which is used up, a payload.
    result<payload> commit(reservation what, std::size_t len) const
    {
        fcast_payload out{};
        if (fcast_status code = fcast_ring_commit(raw_, what.raw(), len, &out))
            return failure::last(code);
        what.detach();
        return payload(out);
    }
};

// ---- windows ------------------------------------------------------------------------------------

/// Memory of this side that the peer of one connection may use.
class window : public detail::owner<fcast_window, fcast_window_release> {
public:
    using owner::owner;
    using descriptor = std::array<std::uint8_t, FCAST_WINDOW_DESCRIPTOR_LEN>;
    /// `connection`: that of a receiver's events; 0 at a sender. `access`: FCAST_ACCESS_READ,
    /// FCAST_ACCESS_WRITE, or their sum.
    static result<window> expose(const endpoint &at, std::uint64_t connection, mutable_bytes memory,
                                 std::uint32_t access, fcast_region in = {})
    {
        fcast_window out{};
        if (fcast_status code = fcast_window_expose(at.raw(), connection, in, memory.data(),
                                                    memory.size(), access, &out))
            return failure::last(code);
        return window(out);
    }
    /// All of a buffer, which is used up unless this fails; endpoint::keep_buffer takes it back.
    static result<window> expose(const endpoint &at, std::uint64_t connection, buffer &what,
                                 std::uint32_t access)
    {
        fcast_window out{};
        if (fcast_status code = fcast_window_expose_buffer(at.raw(), connection, what.raw(), access,
                                                           &out))
            return failure::last(code);
        what.detach();
        return window(out);
    }
    /// A payload of one piece, which is used up unless this fails.
    static result<window> expose(const endpoint &at, std::uint64_t connection, payload &what,
                                 std::uint32_t access)
    {
        fcast_window out{};
        if (fcast_status code = fcast_window_expose_payload(at.raw(), connection, what.raw(),
                                                            access, &out))
            return failure::last(code);
        what.detach();
        return window(out);
    }
    /// What the peer has to know, to be sent in a message.
    result<descriptor> describe() const
    {
        descriptor out{};
        if (fcast_status code = fcast_window_descriptor(raw_, out.data()))
            return failure::last(code);
        return out;
    }
    /// Takes it back; FCAST_EVENT_WINDOW_RELEASED follows.
    status revoke(const endpoint &at, std::uint32_t timeout_ms) noexcept
    {
        const status revoked = fcast_window_revoke(at.raw(), raw_, timeout_ms);
        if (revoked || revoked == FCAST_NOT_FOUND)
            detach();
        return revoked;
    }
};

/// A window of the peer.
class remote_window : public detail::owner<fcast_remote_window, fcast_remote_window_release> {
public:
    using owner::owner;
    static result<remote_window> open(const endpoint &at, std::uint64_t connection,
                                      bytes descriptor)
    {
        fcast_remote_window out{};
        if (fcast_status code = fcast_remote_window_open(at.raw(), connection, descriptor.data(),
                                                         descriptor.size(), &out))
            return failure::last(code);
        return remote_window(out);
    }
    status write(const endpoint &at, std::uint64_t offset, bytes data, std::uint64_t key,
                 fcast_region in = {}) const noexcept
    {
        return fcast_window_write(at.raw(), raw_, offset, in, data.data(), data.size(), key);
    }
    /// A payload, which is used up unless this fails.
    status write(const endpoint &at, std::uint64_t offset, payload &what,
                 std::uint64_t key) const noexcept
    {
        const status written =
            fcast_window_write_payload(at.raw(), raw_, offset, what.raw(), key);
        if (written)
            what.detach();
        return written;
    }
    status read(const endpoint &at, std::uint64_t offset, mutable_bytes into, std::uint64_t key,
                fcast_region in = {}) const noexcept
    {
        return fcast_window_read(at.raw(), raw_, offset, in, into.data(), into.size(), key);
    }
};

} // namespace fabricast

#endif
