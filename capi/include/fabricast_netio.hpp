/*
 * The interface of netio3's backend over fabricast, so that a program that was written for that
 * changes its include and its namespace, and little else:
 *
 *     #include <fabricast_netio.hpp>
 *     namespace netio3 = fabricast::netio;
 *
 * docs/migrating-from-netio3.md says name by name what is the same and what is not. The bytes on
 * the wire are not netio3's: both ends of a connection must be fabricast's.
 *
 * Each send that is accepted (OK) has exactly one outcome: on_send_completed_cb, or its key is
 * among those of on_connection_closed_cb (or, where the program has set it, on_send_failed_cb). For
 * buffers that were sent, on_connection_closed_cb itself is it: it has no keys, they are free. A
 * backend that is destroyed before its connections are closed ends them at once and tells nothing.
 */
#ifndef FABRICAST_NETIO_HPP
#define FABRICAST_NETIO_HPP

#include <fabricast_netio_connection.hpp>
#include <fabricast_netio_loop.hpp>

#include <unordered_map>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace fabricast::netio {

namespace detail {
/// The address of this machine from which a peer is reached; empty where none is found.
inline std::string local_address_to(const EndPointAddress &peer)
{
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_DGRAM;
    const std::string port = std::to_string(peer.port());
    if (::getaddrinfo(peer.address().c_str(), port.c_str(), &hints, &found) != 0)
        return {};
    std::string local;
    const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
        sockaddr_storage own{};
        socklen_t len = sizeof own;
        char text[NI_MAXHOST];
        if (::getsockname(fd, reinterpret_cast<sockaddr *>(&own), &len) == 0 &&
            ::getnameinfo(reinterpret_cast<sockaddr *>(&own), len, text, sizeof text, nullptr, 0,
                          NI_NUMERICHOST) == 0)
            local = text;
    }
    if (fd >= 0)
        ::close(fd);
    ::freeaddrinfo(found);
    return local;
}
} // namespace detail

/// A network backend: endpoints that a loop drives, and callbacks.
class NetworkBackend : public Driver {
public:
    static std::unique_ptr<NetworkBackend> create(BackendType type, NetworkConfig config,
                                                  std::shared_ptr<BaseEventLoop> evloop)
    {
        if (type == BackendType::ASYNCMSG)
            config.mode = NetworkMode::TCP;
        return std::make_unique<NetworkBackend>(std::move(config), std::move(evloop));
    }

    /// Without a loop the program drives it: fds(), prepare() and drive().
    NetworkBackend(NetworkConfig config, std::shared_ptr<BaseEventLoop> evloop)
        : config_(std::move(config)), loop_(std::move(evloop)), mutex_(config_.thread_safety)
    {
        if (loop_)
            loop_->attach(*this);
    }
    NetworkBackend(const NetworkBackend &) = delete;
    NetworkBackend &operator=(const NetworkBackend &) = delete;
    /// While the loop does not run, or on its thread; not in a callback of this backend.
    ~NetworkBackend() override
    {
        if (loop_)
            loop_->detach(*this);
        for (auto &[address, link] : sends_)
            unwatch(link->fds);
        for (auto &link : listens_)
            unwatch(link->fds);
    }

    // ---- endpoints --------------------------------------------------------------------------

    /// Starts to connect; on_connection_established_cb or on_connection_refused_cb follows. Throws
    /// InvalidEndpointAddress, FailedOpenSendEndpoint, SendEndpointAlreadyExists,
    /// NoBuffersAllocated.
    void open_send_endpoint(const EndPointAddress &to, const ConnectionParameters &of)
    {
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        if (sends_.count(to) != 0)
            FABRICAST_RAISE(SendEndpointAlreadyExists,
                            detail::invalid("there is a send endpoint for " + to.to_string()));
        const std::string local = detail::local_address_to(to);
        if (local.empty())
            FABRICAST_RAISE(InvalidEndpointAddress,
                            detail::invalid(to.to_string() + " is no address of IP"));
        auto in = domain_of(local);
        if (!in)
            FABRICAST_RAISE(FailedOpenSendEndpoint, in.error());
        std::shared_ptr<detail::send_buffers> buffers;
        ConnectionParametersSendZeroCopy zero_copy = of.zero_copy;
        if (!zero_copy.mr_start) {
            buffers = buffers_of(of.buffered);
            zero_copy = {buffers->memory().data(), buffers->memory().size(),
                         static_cast<std::uint32_t>(buffers->size()), 1};
        }
        auto link = std::make_shared<detail::send_link>(to, **in, zero_copy, buffers, config_);
        auto fds = link->endpoint.get_active_endpoint().fds();
        if (!fds)
            FABRICAST_RAISE(FailedOpenSendEndpoint, fds.error());
        link->fds = *std::move(fds);
        watch(link->fds);
        sends_[to] = std::move(link);
        changed_ = true;
    }

    /// Listens; port 0 lets the system choose, and the address that is returned has it. Throws
    /// InvalidEndpointAddress, FailedOpenListenEndpoint.
    EndPointAddress open_listen_endpoint(const EndPointAddress &at,
                                         const ConnectionParametersRecv &of)
    {
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        auto in = domain_of(at.address());
        if (!in)
            FABRICAST_RAISE(FailedOpenListenEndpoint, in.error());
        settings with = config_.listen_settings;
        const SharedReceiveBuffers &shared = config_.shared_receive_buffers;
        if (shared.use_shared_receive_buffers) {
            with.max_message = static_cast<std::uint32_t>(shared.buf_size);
            share_pool(with);
        } else {
            with.max_message = static_cast<std::uint32_t>(of.buf_size);
            with.slots = static_cast<std::uint32_t>(of.num_buf);
            limit_connections(with, of.num_buf / 3);
        }
        auto opened = receiver::open(**in, at.to_string().c_str(), with);
        if (!opened)
            raise_listen(opened.error());
        const EndPointAddress bound = EndPointAddress::parse(opened->address().value());
        auto link = std::make_shared<detail::listen_link>(bound, *std::move(opened));
        link->fds = link->endpoint.fds().value();
        watch(link->fds);
        listens_.push_back(std::move(link));
        changed_ = true;
        return bound;
    }

    /// Takes nothing new; what was accepted goes out, and on_connection_closed_cb is the end.
    void close_send_endpoint(const EndPointAddress &to)
    {
        if (auto link = find(to))
            link->close();
        wake();
    }
    /// Closes the connections of a listen endpoint, and then the endpoint.
    void close_listen_endpoint(const EndPointAddress &at)
    {
        {
            std::lock_guard<detail::maybe_mutex> lock(mutex_);
            for (auto &link : listens_)
                if (link->address == at)
                    link->closing = true;
        }
        wake();
    }

    // ---- sends ------------------------------------------------------------------------------

    /// Sends data of the endpoint's memory behind a header; neither is changed before the outcome
    /// of the key, but the header, which is copied.
    NetioStatus send_data(const EndPointAddress &to, span<const std::uint8_t> data,
                          span<const std::uint8_t> header, std::uint64_t key)
    {
        const piece one(data.data(), data.size());
        return send_pieces(to, {&one, 1}, header, key);
    }
    NetioStatus send_data(const EndPointAddress &to, span<const iovec> iov,
                          span<const std::uint8_t> header, std::uint64_t key)
    {
        return send_pieces(to, detail::pieces_of(iov).get(), header, key);
    }

    /// A buffer of a buffered endpoint; nullptr: none is free, or the endpoint is none.
    NetworkBuffer *get_buffer(const EndPointAddress &to)
    {
        const auto link = find(to);
        return link && link->buffers ? link->buffers->take() : nullptr;
    }
    /// Sends a buffer, which is the backend's again if this is OK; else it stays the program's.
    NetioStatus send_buffer(const EndPointAddress &to, NetworkBuffer *buffer)
    {
        const auto link = find(to);
        if (!link || !link->buffers || !link->buffers->has(buffer))
            return NetioStatus::FAILED;
        const piece one(buffer->data(), buffer->size());
        return send_by(*link, {&one, 1}, {}, buffer->id());
    }
    /// Gives a buffer back that is not sent; also one of an endpoint that is over.
    void release_buffer(const EndPointAddress &to, NetworkBuffer *buffer)
    {
        const auto link = find(to);
        if (link && link->buffers && link->buffers->has(buffer))
            return link->buffers->give_back(buffer->id());
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        if (buffers_ && buffers_->has(buffer))
            return buffers_->give_back(buffer->id());
        const auto is_its = [buffer](const auto &those) { return those->has(buffer); };
        const auto found = std::find_if(left_.begin(), left_.end(), is_its);
        if (found == left_.end())
            return;
        (*found)->give_back(buffer->id());
        if ((*found)->are_all_here())
            left_.erase(found);
    }

    /// The fewest header slots, or buffers, that were free since the last call.
    std::size_t get_num_available_buffers(const EndPointAddress &to)
    {
        const auto link = find(to);
        return link ? link->available() : 0;
    }
    /// The keys of sends that were accepted and have no outcome.
    std::vector<std::uint64_t> get_pending_sends(const EndPointAddress &to)
    {
        const auto link = find(to);
        return link ? link->pending() : std::vector<std::uint64_t>();
    }

    // ---- for loops that are not this library's ------------------------------------------------

    /// The descriptors to wait for; others when endpoints are opened and closed.
    std::vector<int> fds()
    {
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        std::vector<int> all;
        for (auto &[address, link] : sends_)
            all.insert(all.end(), link->fds.begin(), link->fds.end());
        for (auto &link : listens_)
            all.insert(all.end(), link->fds.begin(), link->fds.end());
        return all;
    }
    /// Drives all endpoints and calls back. True: something happened.
    bool drive() override
    {
        const auto now = snapshot();
        bool worked = false;
        for (auto &link : now->listens)
            worked |= drive(*link);
        for (auto &link : now->sends)
            worked |= drive(*link);
        return worked;
    }
    /// Right before a sleep: whether it may be, and `timeout_ms` made less where it must end.
    bool prepare(int &timeout_ms) override
    {
        const auto now = snapshot();
        for (auto &link : now->listens)
            if (!link->batch.is_told_now() &&
                (!link->batch.is_empty() || (link->closing && !link->is_ending) ||
                 !detail::may_sleep(link->endpoint, timeout_ms)))
                return false;
        for (auto &link : now->sends)
            if (!link->batch.is_told_now() &&
                (!link->batch.is_empty() || link->wants_flush() ||
                 !detail::may_sleep(link->endpoint.get_active_endpoint(), timeout_ms)))
                return false;
        return true;
    }

private:
    /// Connections of a listen endpoint where nobody says how many.
    static constexpr std::size_t connections_usual = 64;

    /// The endpoints, as they are while they are driven: callbacks open and close others.
    struct links {
        std::vector<std::shared_ptr<detail::send_link>> sends;
        std::vector<std::shared_ptr<detail::listen_link>> listens;
    };

    std::shared_ptr<const links> snapshot()
    {
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        if (std::exchange(changed_, false)) {
            auto now = std::make_shared<links>();
            for (auto &[address, link] : sends_)
                now->sends.push_back(link);
            now->listens = listens_;
            current_ = std::move(now);
        }
        return current_;
    }
    std::shared_ptr<detail::send_link> find(const EndPointAddress &to)
    {
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        const auto found = sends_.find(to);
        return found == sends_.end() ? nullptr : found->second;
    }

    NetioStatus send_pieces(const EndPointAddress &to, span<const piece> pieces, bytes header,
                            std::uint64_t key)
    {
        const auto link = find(to);
        return link ? send_by(*link, pieces, header, key) : NetioStatus::FAILED;
    }
    NetioStatus send_by(detail::send_link &link, span<const piece> pieces, bytes header,
                        std::uint64_t key)
    {
        const bool here = !link.is_safe || !loop_ || loop_->is_own_thread();
        const NetioStatus sent = link.send(pieces, header, key, here);
        if (!here && sent == NetioStatus::OK)
            loop_->wake();
        return sent;
    }

    // ---- what happens on send endpoints -------------------------------------------------------

    bool drive(detail::send_link &link)
    {
        if (link.batch.is_told_now())
            return false;
        const status polled = link.batch.refill(link.endpoint.get_active_endpoint());
        if (!polled) {
            on_over(link, polled);
            return true;
        }
        bool worked = link.batch.tell([&](const event &of) { on_event(link, of); });
        worked |= link.flush();
        while (!link.failed.empty()) {
            const std::pair<std::uint64_t, std::string> one = std::move(link.failed.front());
            link.failed.pop_front();
            if (link.buffers)
                link.buffers->give_back(one.first);
            on_failed(link, one.first, one.second);
        }
        if (worked && link.take_refused())
            call(config_.on_writable_cb, link.address);
        return worked;
    }

    void on_event(detail::send_link &link, const event &of)
    {
        switch (of.what()) {
        case event_kind::connected:
            link.on_open();
            call(config_.on_connection_established_cb, link.address);
            break;
        case event_kind::completed: {
            link.unblock();
            const std::uint64_t key = outcome(link, of.key);
            call(config_.on_send_completed_cb, link.address, key);
            break;
        }
        case event_kind::failed: {
            const std::uint64_t key = outcome(link, of.key);
            if (of.status == FCAST_CLOSED)
                link.hold(key);
            else
                on_failed(link, key, of.words());
            break;
        }
        case event_kind::writable:
            link.unblock();
            call(config_.on_writable_cb, link.address);
            break;
        case event_kind::reconnecting: {
            auto keys = link.on_reconnecting();
            // As netio3: none where the sends were of buffers.
            if (link.buffers)
                keys.clear();
            call(config_.on_connection_closed_cb, link.address, keys);
            break;
        }
        case event_kind::disconnected:
            on_over(link, of.status);
            break;
        default:
            break;
        }
    }

    /// The user's key of a send that has its outcome; its slot, and its buffer, are free again.
    std::uint64_t outcome(detail::send_link &link, std::uint64_t slot)
    {
        const std::uint64_t key = link.endpoint.release_buffer(slot);
        if (link.buffers)
            link.buffers->give_back(key);
        return key;
    }
    void on_failed(detail::send_link &link, std::uint64_t key, std::string_view words)
    {
        if (config_.on_send_failed_cb)
            config_.on_send_failed_cb(link.address, key, words);
        else
            link.hold(key);
    }
    void on_over(detail::send_link &link, status why)
    {
        // Held by the snapshot that is driven, so it is there until this is done.
        const bool asked = link.is_closing();
        std::vector<std::uint64_t> unsent;
        auto keys = link.on_over(unsent);
        keys.insert(keys.end(), unsent.begin(), unsent.end());
        if (link.buffers) {
            for (std::uint64_t buffer : unsent)
                link.buffers->give_back(buffer);
            keys.clear();
        }
        {
            std::lock_guard<detail::maybe_mutex> lock(mutex_);
            if (link.buffers && link.buffers != buffers_) {
                link.buffers->end();
                // The program may write to what it has, until it gives it back.
                if (!link.buffers->are_all_here())
                    left_.push_back(link.buffers);
            }
            sends_.erase(link.address);
            changed_ = true;
        }
        unwatch(link.fds);
        link.fds.clear();
        if (!link.was_open && (why == FCAST_REFUSED || !asked))
            call(config_.on_connection_refused_cb, link.address);
        else
            call(config_.on_connection_closed_cb, link.address, keys);
    }

    // ---- what happens on listen endpoints -----------------------------------------------------

    bool drive(detail::listen_link &link)
    {
        if (link.batch.is_told_now())
            return false;
        const status polled = link.batch.refill(link.endpoint);
        bool worked = link.batch.tell([&](const event &of) { on_event(link, of); });
        if (link.closing && !std::exchange(link.is_ending, true)) {
            (void)link.endpoint.begin_close(5000);
            worked = true;
        }
        if (!polled || (link.is_ending && link.connections == 0))
            on_over(link);
        return worked;
    }

    void on_event(detail::listen_link &link, const event &of)
    {
        if (of.is(event_kind::connected))
            link.connections++;
        else if (of.is(event_kind::disconnected))
            link.connections -= link.connections > 0;
        else if (of.is(event_kind::message) && config_.on_message_cb)
            config_.on_message_cb(ReceivedMessage(link.endpoint, of));
        else if (of.is(event_kind::message))
            call(config_.on_data_cb, of.payload_bytes());
    }
    void on_over(detail::listen_link &link)
    {
        std::lock_guard<detail::maybe_mutex> lock(mutex_);
        unwatch(link.fds);
        link.fds.clear();
        const auto is_it = [&link](const auto &other) { return other.get() == &link; };
        listens_.erase(std::remove_if(listens_.begin(), listens_.end(), is_it), listens_.end());
        changed_ = true;
    }

    // ---- what endpoints share -----------------------------------------------------------------

    /// The domain of the interface with this address of the machine.
    result<const domain *> domain_of(const std::string &local)
    {
        const auto found = domains_.find(local);
        if (found != domains_.end())
            return &found->second;
        auto in = detail::open_domain(config_.provider, config_.mode, local);
        if (!in)
            return in.error();
        return &domains_.emplace(local, *std::move(in)).first->second;
    }

    std::shared_ptr<detail::send_buffers> buffers_of(const ConnectionParametersSendBuffered &of)
    {
        const SharedSendBuffers &shared = config_.shared_send_buffers;
        const ThreadSafetyModel model = config_.thread_safety;
        if (!shared.use_shared_send_buffers)
            return std::make_shared<detail::send_buffers>(of.buf_size, of.num_buf, model);
        if (!buffers_)
            buffers_ =
                std::make_shared<detail::send_buffers>(shared.buf_size, shared.num_buf, model);
        return buffers_;
    }
    /// Each connection has 3 buffers of its own: few buffers are for few connections.
    static void limit_connections(settings &with, std::size_t most)
    {
        if (with.max_connections == 0 && most < connections_usual)
            with.max_connections = std::max(static_cast<std::uint32_t>(most), 1u);
    }
    /// A listen endpoint takes of the pool what others leave. Some of it is kept for this one, for
    /// whatever the others hold, unless `listen_settings` say how much: a third of what is free, so
    /// that there is some for those that are opened later. Messages are granted ahead as far as that
    /// goes beyond 3 for each connection, so there are fewer connections than a third of it.
    void share_pool(settings &with)
    {
        const pool &all = shared_pool();
        with.pool = all.raw();
        if (with.pool_most == 0) {
            const pool_status now = all.state();
            with.pool_most = static_cast<std::uint32_t>(now.slots);
            with.pool_reserved = static_cast<std::uint32_t>(now.free / 3);
        }
        limit_connections(with, with.pool_reserved / 4);
    }
    const pool &shared_pool()
    {
        if (!pool_) {
            const SharedReceiveBuffers &of = config_.shared_receive_buffers;
            const std::size_t slot = (of.buf_size + 63) / 64 * 64;
            pool_ = pool::create(region::allocate(slot * of.num_buf).value(), slot).value();
        }
        return pool_;
    }

    [[noreturn]] static void raise_listen(const failure &why)
    {
        if (why.code == FCAST_INVALID)
            FABRICAST_RAISE(InvalidEndpointAddress, why);
        FABRICAST_RAISE(FailedOpenListenEndpoint, why);
    }
    template <class Callback, class... Of> static void call(const Callback &callback, Of &&...of)
    {
        if (callback)
            callback(std::forward<Of>(of)...);
    }
    void watch(const std::vector<int> &fds)
    {
        for (int fd : fds)
            if (loop_)
                loop_->watch(fd);
    }
    void unwatch(const std::vector<int> &fds)
    {
        for (int fd : fds)
            if (loop_)
                loop_->unwatch(fd);
    }
    void wake()
    {
        if (loop_)
            loop_->wake();
    }

    NetworkConfig config_;
    std::shared_ptr<BaseEventLoop> loop_;
    detail::maybe_mutex mutex_;
    std::map<std::string, domain> domains_;
    std::shared_ptr<detail::send_buffers> buffers_;
    /// Of endpoints that are over, while the program has some.
    std::vector<std::shared_ptr<detail::send_buffers>> left_;
    pool pool_;
    std::unordered_map<EndPointAddress, std::shared_ptr<detail::send_link>, EndPointAddress::hash>
        sends_;
    std::vector<std::shared_ptr<detail::listen_link>> listens_;
    bool changed_ = false;
    std::shared_ptr<const links> current_ = std::make_shared<links>();
};

using Netio3Backend = NetworkBackend;

} // namespace fabricast::netio

#endif
