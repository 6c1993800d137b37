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
    /// A message that lies in several pieces, which are copied one behind the other.
    status push_pieces(std::uint64_t tag, span<const fcast_bytes> pieces, std::uint8_t state = 0,
                       std::uint64_t *number = nullptr) const noexcept
    {
        std::uint64_t unused = 0;
        return fcast_pushv(raw_, tag, state, pieces.data(), pieces.size(),
                           number ? number : &unused);
    }
    /// Several messages: `pushed` of them, from the first on. Where it stops early, the next call
    /// says why with its first message; where it fails, none was taken.
    status push(span<const fcast_small_message> messages, std::size_t &pushed) const noexcept
    {
        pushed = 0;
        return fcast_push_batch(raw_, messages.data(), messages.size(), &pushed);
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
    /// What was packed leaves now.
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

/// Where a peer is, and whether it has answered and is not lost.
struct peer_info {
    std::string address;
    bool is_up;
};

/// Sends to and receives from many peers, which have numbers.
class connectionless : public endpoint {
public:
    using endpoint::endpoint;
    static result<connectionless> open(const domain &in, const char *local, const settings &of = {})
    {
        return detail::open_endpoint<connectionless>(fcast_connectionless_open, in, local, of);
    }
    /// Where others find it.
    result<std::string> address() const { return detail::address_of(raw_); }
    /// Adds a peer, or finds it; its number.
    result<std::uint64_t> add(const char *peer) const
    {
        std::uint64_t number = 0;
        if (fcast_status code = fcast_peer_add(raw_, peer, &number))
            return failure::last(code);
        return number;
    }
    /// The number of the peer at an address; FCAST_NOT_FOUND: it is not known.
    result<std::uint64_t> find(const char *peer) const
    {
        std::uint64_t number = 0;
        if (fcast_status code = fcast_peer_at(raw_, peer, &number))
            return failure::last(code);
        return number;
    }
    result<peer_info> info(std::uint64_t peer) const
    {
        bool is_up = false;
        auto address = detail::text([&](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_peer_info(raw_, peer, text, capacity, len, &is_up);
        });
        if (!address)
            return address.error();
        return peer_info{*std::move(address), is_up};
    }
    /// Politely: what is in flight completes; `event_kind::peer_removed` is the last of it.
    status remove(std::uint64_t peer, std::uint32_t timeout_ms) const noexcept
    {
        return fcast_peer_remove(raw_, peer, timeout_ms);
    }
    /// Returns at once; the data stays as it is until its key comes back.
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
    /// To whoever is at an address. The first one adds the peer, and gets FCAST_AGAIN until it has
    /// answered; afterwards, by its number is faster.
    status send_to(const char *peer, bytes data, bytes header, std::uint64_t key,
                   fcast_region in = {}) const noexcept
    {
        return fcast_send_to_address(raw_, peer, in, data.data(), data.size(), header.data(),
                                     header.size(), key);
    }
    /// Posts what was packed and would wait for the next poll.
    status flush() const noexcept { return fcast_flush(raw_); }
    /// Sends several; how many were taken, from the first on.
    result<std::size_t> send_batch(std::uint64_t peer, span<const fcast_outgoing> messages) const
    {
        std::size_t sent = 0;
        if (fcast_status code =
                fcast_send_to_batch(raw_, peer, messages.data(), messages.size(), &sent))
            return failure::last(code);
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
    /// Where it listens.
    result<std::string> address() const { return detail::address_of(raw_); }
    /// Returns at once; the data stays as it is until `event_kind::published` has its key.
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
    /// What becomes of publications that one subscriber has no room for, instead of what the
    /// settings say: FCAST_SLOW_DROP or another, how many may wait, and for how long.
    status set_slow(std::uint64_t connection, std::uint32_t slow, std::uint32_t queue = 0,
                    std::uint32_t timeout_ms = 0) const noexcept
    {
        return fcast_publisher_set_slow(raw_, connection, slow, queue, timeout_ms);
    }
    /// Publishes several; how many were taken, from the first on. `told`: room for as many, or none.
    result<std::size_t> publish_batch(span<const fcast_outgoing_publication> messages,
                                      fcast_publication *told = nullptr) const
    {
        std::size_t published = 0;
        if (fcast_status code = fcast_publish_batch(raw_, messages.data(), messages.size(), told,
                                                    &published))
            return failure::last(code);
        return published;
    }
    /// How many have subscribed to a tag.
    std::size_t subscribers(std::uint64_t tag) const noexcept
    {
        std::size_t count = 0;
        (void)fcast_publisher_subscribers(raw_, tag, &count);
        return count;
    }
};

/// A publisher that copies: small messages, many of a tag into one publication; and single payloads.
/// What is published of one tag leaves in the order of the calls, those of publish() among them.
class buffered_publisher : public publisher {
public:
    using publisher::publisher;
    static result<buffered_publisher> open(const domain &in, const char *local,
                                           const settings &of = {})
    {
        return detail::open_endpoint<buffered_publisher>(fcast_buffered_publisher_open, in, local,
                                                         of);
    }
    /// Packs a message behind the others of its tag. FCAST_NOT_FOUND: nobody has subscribed.
    /// `number`: that of their buffer, which the outcome has as its key.
    status push(std::uint64_t tag, bytes data, std::uint8_t state = 0,
                std::uint64_t *number = nullptr) const noexcept
    {
        return fcast_push(raw_, tag, state, data.data(), data.size(), number);
    }
    /// Copies a payload and publishes it at once.
    status publish_copied(std::uint64_t tag, bytes data, bytes header, std::uint64_t key,
                          fcast_publication *out = nullptr) const noexcept
    {
        return fcast_publish_copied(raw_, tag, data.data(), data.size(), header.data(),
                                    header.size(), key, out);
    }
    /// Publishes what is packed; of one tag, or of all.
    status flush_tag(std::uint64_t tag) const noexcept { return fcast_flush_tag(raw_, tag); }
    status flush() const noexcept { return fcast_flush(raw_); }
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
    /// Asks for the publications of a tag; `event_kind::subscribed` or `subscription_refused`
    /// follows.
    status subscribe(std::uint64_t publisher, std::uint64_t tag) const noexcept
    {
        return fcast_subscribe(raw_, publisher, tag);
    }
    /// Asks for them no more; none come after `event_kind::unsubscribed`.
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

/// How a ring stands.
struct ring_status {
    /// Bytes handed out, and up to which everything came back, since it was made.
    std::uint64_t head, tail;
    /// Bytes that can be reserved now.
    std::size_t free;
    /// Pieces that are out, and for how long the oldest of them has been.
    std::size_t outstanding;
    std::uint64_t oldest_ms;
};

/// A region that a card or a reader fills in order.
class ring : public detail::owner<fcast_ring, fcast_ring_release> {
public:
    using owner::owner;
    /// `max_fragments`: pieces that are out at once, 0: 65,536. `headroom`: bytes in front of each,
    /// for its header, where the provider takes one segment a message.
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
    ring_status state() const noexcept
    {
        ring_status now{};
        (void)fcast_ring_status(raw_, &now.head, &now.tail, &now.free, &now.outstanding,
                                &now.oldest_ms);
        return now;
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
    /// What its events have as key.
    std::uint64_t id() const noexcept
    {
        std::uint64_t id = 0;
        (void)fcast_window_id(raw_, &id);
        return id;
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

/// What is known of a window of the peer.
struct remote_window_info {
    /// The id that the peer has it by, and its bytes.
    std::uint64_t id, len;
    /// FCAST_ACCESS_READ, FCAST_ACCESS_WRITE, or their sum.
    std::uint32_t access;
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
    remote_window_info info() const noexcept
    {
        remote_window_info now{};
        (void)fcast_remote_window_info(raw_, &now.id, &now.len, &now.access);
        return now;
    }
    /// Returns at once; `event_kind::written` says that the bytes are in the peer's memory.
    status write(const endpoint &at, std::uint64_t offset, bytes data, std::uint64_t key,
                 fcast_region in = {}) const noexcept
    {
        return fcast_window_write(at.raw(), raw_, offset, in, data.data(), data.size(), key);
    }
    /// A payload, which is used up unless this fails.
    status write(const endpoint &at, std::uint64_t offset, payload &what,
                 std::uint64_t key) const noexcept
    {
        const status taken = fcast_window_write_payload(at.raw(), raw_, offset, what.raw(), key);
        if (taken)
            what.detach();
        return taken;
    }
    /// Tells the peer, too: `event_kind::peer_wrote` comes there with `value` when all is in its
    /// memory. FCAST_UNSUPPORTED: the provider's immediate data are too short.
    status write_and_tell(const endpoint &at, std::uint64_t offset, bytes data, std::uint32_t value,
                          std::uint64_t key, fcast_region in = {}) const noexcept
    {
        return fcast_window_write_with_data(at.raw(), raw_, offset, in, data.data(), data.size(),
                                            value, key);
    }
    /// `event_kind::written` says only that the bytes may be changed: for those who hear of their
    /// arrival by other means.
    status write_unconfirmed(const endpoint &at, std::uint64_t offset, bytes data,
                             std::uint64_t key, fcast_region in = {}) const noexcept
    {
        return fcast_window_write_unconfirmed(at.raw(), raw_, offset, in, data.data(), data.size(),
                                              key);
    }
    /// Returns at once; `event_kind::read` says that the bytes are there.
    status read(const endpoint &at, std::uint64_t offset, mutable_bytes into, std::uint64_t key,
                fcast_region in = {}) const noexcept
    {
        return fcast_window_read(at.raw(), raw_, offset, in, into.data(), into.size(), key);
    }
};

} // namespace fabricast

#endif
