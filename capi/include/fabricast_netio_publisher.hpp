/*
 * The publisher of netio3's front end over fabricast: tags, three ways to publish, and netio3's
 * buffer format in all of them.
 *
 *     #include <fabricast_netio_publisher.hpp>
 *     namespace netio3 = fabricast::netio;
 *
 * Whoever subscribes is a `fabricast::subscriber`, which gets buffers of small messages:
 * `fabricast::small_messages` with FCAST_FORMAT_NETIO3 reads each of them, however it was published.
 * Subscriptions go over the same connection as the data.
 */
#ifndef FABRICAST_NETIO_PUBLISHER_HPP
#define FABRICAST_NETIO_PUBLISHER_HPP

#include <fabricast_endpoints.hpp>
#include <fabricast_netio_connection.hpp>
#include <fabricast_netio_loop.hpp>

#include <array>

namespace fabricast::netio {

/// How publish() publishes: BUFFERED: copied behind others of its tag into a buffer, which leaves
/// when it is full or the flush interval is over; SEND: copied, and the buffer leaves at once;
/// ZERO_COPY: from the memory of the configuration.
enum class SendMethod { BUFFERED, SEND, ZERO_COPY };

/// What publish() came to. NO_RESOURCES: nobody got it, and on_writable says when to try again.
/// PARTIALLY_FAILED: it is published, and some subscriber has no room for it: do not try again.
enum class NetioPublisherStatus { OK, NO_RESOURCES, FAILED, PARTIALLY_FAILED, NO_SUBSCRIPTIONS };

using OnPublishCompletedCb = std::function<void(std::uint64_t key)>;
using OnSubscriptionCb = std::function<void(std::uint64_t tag)>;

/// How a publisher is made.
struct NetioPublisherConfig {
    BackendType backend_type = BackendType::LIBFABRIC;
    NetworkMode backend_mode = NetworkMode::RDMA;
    /// Bytes of a buffer, and how many there are.
    std::size_t buffersize = 60 * 1024;
    std::size_t nbuffers = 64;
    SendMethod method = SendMethod::BUFFERED;
    ThreadSafetyModel thread_safety = ThreadSafetyModel::UNSAFE;
    /// How long a message waits for others of its tag; 0: until its buffer is full, or flush().
    std::chrono::microseconds flush_interval{1000};
    /// ZERO_COPY: the memory that is published from; it stays mapped until the publisher is gone.
    std::uint8_t *mr_start = nullptr;
    std::size_t mr_size = 0;

    // ---- what netio3 does not have ----
    /// libfabric's provider; empty: "verbs" or "tcp", as the mode says.
    std::string provider = {};
    /// Everything else that can be set: what becomes of slow subscribers, timeouts, limits.
    settings publisher_settings = {};
};

/// Sends what is published to all who have subscribed to its tag. Callbacks run on the loop's
/// thread, outside of any call of the library: they may publish, and throw.
class NetioPublisher : public Driver {
public:
    /// Listens for subscribers; port 0 lets the system choose. Throws InvalidEndpointAddress,
    /// FailedOpenListenEndpoint, and NoBuffersAllocated where ZERO_COPY has no memory. Without a
    /// loop the program drives it: fds(), prepare() and drive().
    NetioPublisher(NetioPublisherConfig config, std::shared_ptr<BaseEventLoop> evloop,
                   const EndPointAddress &local_ep)
        : config_(std::move(config)), loop_(std::move(evloop)), mutex_(config_.thread_safety)
    {
        if (config_.backend_type == BackendType::ASYNCMSG)
            config_.backend_mode = NetworkMode::TCP;
        open(local_ep);
        fds_ = publisher_.fds().value();
        address_ = EndPointAddress::parse(publisher_.address().value());
        if (!loop_)
            return;
        for (int fd : fds_)
            loop_->watch(fd);
        loop_->attach(*this);
    }
    NetioPublisher(const NetioPublisher &) = delete;
    NetioPublisher &operator=(const NetioPublisher &) = delete;
    /// While the loop does not run, or on its thread; not in a callback of this publisher.
    ~NetioPublisher() override
    {
        if (!loop_)
            return;
        loop_->detach(*this);
        for (int fd : fds_)
            loop_->unwatch(fd);
    }

    /// Where it listens, with the real port.
    const EndPointAddress &address() const noexcept { return address_; }

    // ---- publishing -------------------------------------------------------------------------

    /// Publishes data of a tag by the method of the configuration; with ZERO_COPY, `key` comes back
    /// in the callback of set_on_publish_completed, and the data must not change before. `retry` is
    /// not used: after NO_RESOURCES nobody has the data. `user_status`: 0 is fine.
    NetioPublisherStatus publish(std::uint64_t tag, span<const std::uint8_t> data,
                                 bool retry = false, std::uint8_t user_status = 0,
                                 std::uint64_t key = 0)
    {
        (void)retry;
        NetioPublisherStatus done;
        {
            const detail::maybe_lock lock(mutex_);
            done = config_.method == SendMethod::ZERO_COPY
                       ? publish_in_place(tag, data, user_status, key)
                       : push(tag, data, user_status);
        }
        wake();
        return done;
    }
    /// Publishes what is in buffers.
    void flush()
    {
        {
            const detail::maybe_lock lock(mutex_);
            (void)publisher_.flush();
        }
        wake();
    }

    /// Called with the key of a ZERO_COPY publication, when it is over for every subscriber. Before
    /// the loop runs, as the others.
    void set_on_publish_completed(OnPublishCompletedCb callback)
    {
        on_completed_ = std::move(callback);
    }
    void set_on_subscription(OnSubscriptionCb callback) { on_subscribed_ = std::move(callback); }
    /// Not for the subscriptions that go with their connection.
    void set_on_unsubscription(OnSubscriptionCb callback)
    {
        on_unsubscribed_ = std::move(callback);
    }
    /// What NO_RESOURCES was for has passed.
    void set_on_writable(std::function<void()> callback) { on_writable_ = std::move(callback); }
    /// How many have subscribed to a tag.
    std::size_t num_subscriptions(std::uint64_t tag)
    {
        const detail::maybe_lock lock(mutex_);
        return publisher_.subscribers(tag);
    }

    /// Takes nothing new, publishes what is in buffers, and ends all connections, while it is
    /// driven; is_closed() says when that is done, or that the publisher failed.
    void close(std::uint32_t timeout_ms = 5000)
    {
        {
            const detail::maybe_lock lock(mutex_);
            (void)publisher_.begin_close(timeout_ms);
            is_closing_ = true;
        }
        wake();
    }
    bool is_closed()
    {
        const detail::maybe_lock lock(mutex_);
        std::size_t count = 0;
        const status asked = fcast_endpoint_connected(publisher_.raw(), &count);
        return is_over_ || (is_closing_ && (!asked || count == 0));
    }

    // ---- for loops that are not this library's ------------------------------------------------

    const std::vector<int> &fds() const noexcept { return fds_; }
    bool drive() override
    {
        if (batch_.is_told_now())
            return false;
        {
            const detail::maybe_lock lock(mutex_);
            is_over_ = is_over_ || !batch_.refill(publisher_);
        }
        return batch_.tell([this](const event &of) { on_event(of); });
    }
    bool prepare(int &timeout_ms) override
    {
        const detail::maybe_lock lock(mutex_);
        if (batch_.is_told_now() || is_over_)
            return true;
        return batch_.is_empty() && detail::may_sleep(publisher_, timeout_ms);
    }

private:
    void open(const EndPointAddress &at)
    {
        auto in = detail::open_domain(config_.provider, config_.backend_mode, at.address());
        if (!in)
            FABRICAST_RAISE(FailedOpenListenEndpoint, in.error());
        settings with = config_.publisher_settings;
        with.format = FCAST_FORMAT_NETIO3;
        with.buffers = static_cast<std::uint32_t>(config_.nbuffers);
        with.buffer_size = static_cast<std::uint32_t>(config_.buffersize);
        const auto wait = config_.flush_interval.count();
        with.flush_interval_us = wait > 0 ? static_cast<std::uint32_t>(wait) : FCAST_NEVER;
        // What stands in front of data that is not copied is read as part of the message.
        with.header_mode = FCAST_HEADER_RAW;
        if (config_.method == SendMethod::ZERO_COPY) {
            if (!config_.mr_start || config_.mr_size == 0)
                FABRICAST_RAISE(NoBuffersAllocated,
                                detail::invalid("no memory to publish from is given"));
            region_ = region::external(config_.mr_start, config_.mr_size).value();
            with.region = region_.raw();
        }
        auto opened = buffered_publisher::open(*in, at.to_string().c_str(), with);
        if (!opened && opened.code() == FCAST_INVALID)
            FABRICAST_RAISE(InvalidEndpointAddress, opened.error());
        if (!opened)
            FABRICAST_RAISE(FailedOpenListenEndpoint, opened.error());
        publisher_ = *std::move(opened);
    }

    NetioPublisherStatus push(std::uint64_t tag, span<const std::uint8_t> data, std::uint8_t state)
    {
        const status pushed = publisher_.push(tag, data, state);
        if (pushed && config_.method == SendMethod::SEND)
            (void)publisher_.flush_tag(tag);
        return to_netio(pushed);
    }

    /// The data behind what netio3's format has in front of a message.
    NetioPublisherStatus publish_in_place(std::uint64_t tag, span<const std::uint8_t> data,
                                          std::uint8_t state, std::uint64_t key)
    {
        const auto begin = reinterpret_cast<std::uintptr_t>(config_.mr_start);
        const auto at = reinterpret_cast<std::uintptr_t>(data.data());
        const bool inside = at >= begin && at - begin <= config_.mr_size &&
                            data.size() <= config_.mr_size - (at - begin);
        if (!inside || data.size() >= std::size_t(1) << 30)
            return NetioPublisherStatus::FAILED;
        std::array<std::uint8_t, 13> head{};
        std::size_t len = 0;
        const auto append = [&head, &len](std::uint64_t value, int bytes) {
            for (int byte = 0; byte < bytes; byte++)
                head[len++] = static_cast<std::uint8_t>(value >> (8 * byte));
        };
        const std::uint64_t has_status = state != 0 ? std::uint64_t(1) << 30 : 0;
        append(data.size() | has_status | std::uint64_t(1) << 31, 4);
        if (state != 0)
            append(state, 1);
        append(tag, 8);
        fcast_publication told{};
        const status published =
            publisher_.publish(tag, data, {head.data(), len}, key, {}, &told);
        if (published && told.dropped != 0)
            return NetioPublisherStatus::PARTIALLY_FAILED;
        return to_netio(published);
    }

    static NetioPublisherStatus to_netio(status of) noexcept
    {
        if (of.ok())
            return NetioPublisherStatus::OK;
        if (of == FCAST_NOT_FOUND)
            return NetioPublisherStatus::NO_SUBSCRIPTIONS;
        return of.again() ? NetioPublisherStatus::NO_RESOURCES : NetioPublisherStatus::FAILED;
    }

    void on_event(const event &of)
    {
        if (of.kind == FCAST_EVENT_PUBLISHED && of.count == 0 && on_completed_)
            on_completed_(of.key);
        else if (of.kind == FCAST_EVENT_SUBSCRIBED && on_subscribed_)
            on_subscribed_(of.key);
        else if (of.kind == FCAST_EVENT_UNSUBSCRIBED && on_unsubscribed_)
            on_unsubscribed_(of.key);
        else if (of.is(event_kind::writable) && on_writable_)
            on_writable_();
    }
    /// The loop may sleep past what was published by another thread.
    void wake()
    {
        if (loop_ && !loop_->is_own_thread())
            loop_->wake();
    }

    NetioPublisherConfig config_;
    std::shared_ptr<BaseEventLoop> loop_;
    detail::maybe_mutex mutex_;
    OnPublishCompletedCb on_completed_;
    OnSubscriptionCb on_subscribed_, on_unsubscribed_;
    std::function<void()> on_writable_;
    EndPointAddress address_;
    std::vector<int> fds_;
    detail::event_batch batch_;
    bool is_closing_ = false, is_over_ = false;
    region region_;
    // Last, so that it goes before the memory that it publishes from.
    buffered_publisher publisher_;
};

} // namespace fabricast::netio

#endif
