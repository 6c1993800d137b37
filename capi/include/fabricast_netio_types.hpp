/*
 * The words of the interface of netio3: addresses, parameters, callbacks, statuses, errors.
 */
#ifndef FABRICAST_NETIO_TYPES_HPP
#define FABRICAST_NETIO_TYPES_HPP

#include <fabricast.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fabricast::netio {

/// What netio3 has two implementations for. Here ASYNCMSG is the mode TCP.
enum class BackendType { LIBFABRIC, ASYNCMSG };
using NetworkType = BackendType;

/// RDMA: libfabric's verbs; TCP: libfabric's tcp, which is for production here.
enum class NetworkMode { RDMA, TCP };

/// UNSAFE: one thread uses backend and loop. SAFE: every function of the backend may be called from
/// any thread while another one runs the loop.
enum class ThreadSafetyModel { SAFE, UNSAFE };

/// What a send came to. NO_RESOURCES: not now, and on_writable_cb says when. FAILED: never; the
/// words are those of fabricast::last_error(), where it was found out on this thread.
enum class NetioStatus { OK, NO_RESOURCES, FAILED };

/// An address of IP and a port.
class EndPointAddress {
public:
    EndPointAddress() = default;
    EndPointAddress(std::string ip, std::uint16_t port) : ip_(std::move(ip)), port_(port) {}
    const std::string &address() const noexcept { return ip_; }
    std::uint16_t port() const noexcept { return port_; }
    /// As the library spells it: "192.0.2.1:7000", "[::1]:7000".
    std::string to_string() const
    {
        const bool six = ip_.find(':') != std::string::npos;
        return (six ? "[" + ip_ + "]" : ip_) + ":" + std::to_string(port_);
    }
    /// The reverse; an empty address where it is none.
    static EndPointAddress parse(const std::string &text)
    {
        const std::size_t colon = text.rfind(':');
        if (colon == std::string::npos)
            return {};
        std::string ip = text.substr(0, colon);
        if (ip.size() >= 2 && ip.front() == '[' && ip.back() == ']')
            ip = ip.substr(1, ip.size() - 2);
        const unsigned long port = std::strtoul(text.c_str() + colon + 1, nullptr, 10);
        return port > 65535 ? EndPointAddress() : EndPointAddress(ip, std::uint16_t(port));
    }
    friend bool operator==(const EndPointAddress &a, const EndPointAddress &b) noexcept
    {
        return a.port_ == b.port_ && a.ip_ == b.ip_;
    }
    friend bool operator!=(const EndPointAddress &a, const EndPointAddress &b) noexcept
    {
        return !(a == b);
    }
    friend bool operator<(const EndPointAddress &a, const EndPointAddress &b) noexcept
    {
        return a.port_ != b.port_ ? a.port_ < b.port_ : a.ip_ < b.ip_;
    }
    struct hash {
        std::size_t operator()(const EndPointAddress &of) const noexcept
        {
            return std::hash<std::string>()(of.ip_) * 31 + of.port_;
        }
    };

private:
    std::string ip_;
    std::uint16_t port_ = 0;
};

// ---- parameters ---------------------------------------------------------------------------------

/// Buffers of an endpoint that copies into them: see NetworkBackend::get_buffer.
struct ConnectionParametersSendBuffered {
    std::size_t buf_size = 64 * 1024;
    std::size_t num_buf = 0;
};

/// The memory that an endpoint sends from, and header slots in front of it.
struct ConnectionParametersSendZeroCopy {
    /// Where the memory begins, such as the DMA buffer of a card; it stays mapped until the
    /// endpoint is closed.
    std::uint8_t *mr_start = nullptr;
    std::size_t mr_size = 0;
    /// Sends in flight at once (netio3's NUM_HEADER_SLOTS), and bytes of the longest header.
    std::uint32_t num_header_slots = 256;
    std::uint32_t header_slot_size = 128;
};

/// What a send endpoint is opened with: a zero-copy one where there is memory to send from, else a
/// buffered one.
struct ConnectionParameters {
    ConnectionParametersSendZeroCopy zero_copy;
    ConnectionParametersSendBuffered buffered;

    ConnectionParameters() = default;
    ConnectionParameters(const ConnectionParametersSendZeroCopy &of) : zero_copy(of) {}
    ConnectionParameters(const ConnectionParametersSendBuffered &of) : buffered(of) {}
};

/// What a listen endpoint receives into; unused where receive buffers are shared.
struct ConnectionParametersRecv {
    /// Bytes of the largest message, header included.
    std::size_t buf_size = 64 * 1024;
    std::size_t num_buf = 256;
};

/// Receive buffers of all listen endpoints together. For each are kept a third of those that are
/// free as it is opened, or `listen_settings.pool_reserved` where `pool_most` is set; it takes the
/// others as they are free. It has a connection for each 4 that are kept for it, at most 64, unless
/// `listen_settings.max_connections` says otherwise: with more, fewer messages are sent ahead.
struct SharedReceiveBuffers {
    bool use_shared_receive_buffers = false;
    std::size_t buf_size = 64 * 1024;
    std::size_t num_buf = 256;
};

/// Send buffers of all buffered endpoints together.
struct SharedSendBuffers {
    bool use_shared_send_buffers = false;
    std::size_t buf_size = 64 * 1024;
    std::size_t num_buf = 256;
};

// ---- callbacks ----------------------------------------------------------------------------------

/// A message that came, in on_message_cb: valid until that returns, unless it is kept.
class ReceivedMessage {
public:
    ReceivedMessage(const receiver &from, const event &of) noexcept : from_(&from), event_(&of) {}
    bytes data() const noexcept { return event_->payload_bytes(); }
    /// Which connection of the listen endpoint it came by.
    std::uint64_t connection() const noexcept { return event_->connection; }
    /// Keeps it, where it lies, for as long as the program likes. Any thread may let it go.
    result<message> keep() const { return from_->keep(*event_); }

private:
    const receiver *from_;
    const event *event_;
};

using OnDataCb = std::function<void(span<const std::uint8_t>)>;
using OnConnectionEstablishedCb = std::function<void(const EndPointAddress &)>;
using OnConnectionClosedKeysCb =
    std::function<void(const EndPointAddress &, const std::vector<std::uint64_t> &)>;
using OnConnectionRefusedCb = std::function<void(const EndPointAddress &)>;
using OnSendCompleted = std::function<void(const EndPointAddress &, std::uint64_t)>;
using OnMessageCb = std::function<void(const ReceivedMessage &)>;
using OnWritableCb = std::function<void(const EndPointAddress &)>;
using OnSendFailedCb =
    std::function<void(const EndPointAddress &, std::uint64_t key, std::string_view words)>;

/// How a backend is made. Callbacks run on the loop's thread, outside of any call of the library:
/// they may call the backend, and throw.
struct NetworkConfig {
    NetworkMode mode = NetworkMode::RDMA;
    ThreadSafetyModel thread_safety = ThreadSafetyModel::UNSAFE;
    SharedReceiveBuffers shared_receive_buffers = {};
    SharedSendBuffers shared_send_buffers = {};
    /// Header and data of a message, in one run.
    OnDataCb on_data_cb = nullptr;
    OnConnectionEstablishedCb on_connection_established_cb = nullptr;
    /// With the keys of zero-copy sends that were accepted and have no other outcome.
    OnConnectionClosedKeysCb on_connection_closed_cb = nullptr;
    OnConnectionRefusedCb on_connection_refused_cb = nullptr;
    OnSendCompleted on_send_completed_cb = nullptr;

    // ---- what netio3 does not have ----
    /// In place of on_data_cb: a message that can be kept.
    OnMessageCb on_message_cb = nullptr;
    /// What NO_RESOURCES was for has passed.
    OnWritableCb on_writable_cb = nullptr;
    /// A send failed on a connection that stands. Without it, its key comes with those of the
    /// connection's end.
    OnSendFailedCb on_send_failed_cb = nullptr;
    /// libfabric's provider; empty: "verbs" or "tcp", as the mode says.
    std::string provider = {};
    /// With SAFE: sends of other threads that wait for the loop's, for each endpoint.
    std::size_t send_queue = 1024;
    /// Everything else that can be set: timeouts, keepalive, packing, reconnection.
    settings send_settings = {};
    settings listen_settings = {};
};

// ---- errors -------------------------------------------------------------------------------------

#ifndef FABRICAST_NO_EXCEPTIONS
struct InvalidEndpointAddress : thrown_error {
    using thrown_error::thrown_error;
};
struct FailedOpenSendEndpoint : thrown_error {
    using thrown_error::thrown_error;
};
struct FailedOpenActiveEndpoint : FailedOpenSendEndpoint {
    using FailedOpenSendEndpoint::FailedOpenSendEndpoint;
};
struct FailedOpenListenEndpoint : thrown_error {
    using thrown_error::thrown_error;
};
struct SendEndpointAlreadyExists : thrown_error {
    using thrown_error::thrown_error;
};
/// netio3 throws a std::logic_error here; this is one, and a fabricast::error as the others are.
struct NoBuffersAllocated : error_as<std::logic_error> {
    using error_as<std::logic_error>::error_as;
};
#endif

namespace detail {
#ifdef FABRICAST_NO_EXCEPTIONS
#define FABRICAST_RAISE(Kind, ...) ::fabricast::detail::raise(__VA_ARGS__)
#else
#define FABRICAST_RAISE(Kind, ...) throw Kind(__VA_ARGS__)
#endif

inline failure invalid(std::string words) { return {FCAST_INVALID, std::move(words), 0}; }
} // namespace detail

} // namespace fabricast::netio

#endif
