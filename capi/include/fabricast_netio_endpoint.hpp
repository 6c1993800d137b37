/*
 * Send endpoints with netio3's functions: zero-copy ones, with header slots, and the buffers of
 * those that copy.
 */
#ifndef FABRICAST_NETIO_ENDPOINT_HPP
#define FABRICAST_NETIO_ENDPOINT_HPP

#include <fabricast_endpoints.hpp>
#include <fabricast_netio_types.hpp>

#include <algorithm>
#include <array>
#ifdef __cpp_impl_three_way_comparison
#include <compare>
#endif
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <sys/uio.h>

namespace fabricast::netio {

namespace detail {
/// A mutex of those who need one.
class maybe_mutex {
public:
    explicit maybe_mutex(ThreadSafetyModel model) noexcept
        : is_needed_(model == ThreadSafetyModel::SAFE)
    {
    }
    void lock()
    {
        if (is_needed_)
            mutex_.lock();
    }
    void unlock()
    {
        if (is_needed_)
            mutex_.unlock();
    }

private:
    bool is_needed_;
    std::mutex mutex_;
};
using maybe_lock = std::lock_guard<maybe_mutex>;

inline NetioStatus to_netio(status of) noexcept
{
    if (of.ok())
        return NetioStatus::OK;
    return of.again() || of == FCAST_NO_RESOURCES ? NetioStatus::NO_RESOURCES : NetioStatus::FAILED;
}

/// The pieces of a program's iovecs: on the stack where they are few.
class pieces_of {
public:
    explicit pieces_of(span<const iovec> iov) : size_(iov.size())
    {
        if (size_ > few_.size())
            many_.resize(size_);
        piece *into = many_.empty() ? few_.data() : many_.data();
        for (std::size_t at = 0; at < size_; at++)
            into[at] = piece(iov[at].iov_base, iov[at].iov_len);
    }
    span<const piece> get() const noexcept
    {
        return {many_.empty() ? few_.data() : many_.data(), size_};
    }

private:
    std::size_t size_;
    std::array<piece, 8> few_;
    std::vector<piece> many_;
};
} // namespace detail

namespace detail {
/// Header slots, each with the endpoint and the key of the send that has it: of one endpoint, or of
/// several.
class slot_table {
public:
    slot_table(const ConnectionParametersSendZeroCopy &of, ThreadSafetyModel model)
        : mutex_(model), entries_(of.num_header_slots), slot_size_(of.header_slot_size)
    {
        if (of.num_header_slots == 0)
            FABRICAST_RAISE(NoBuffersAllocated, invalid("there are 0 header slots"));
        for (std::uint32_t slot = of.num_header_slots; slot > 0; slot--)
            free_.push_back(slot - 1);
        low_water_ = free_.size();
    }
    std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(entries_.size()); }
    std::uint32_t slot_size() const noexcept { return slot_size_; }

    /// Has a send made by the number of a free slot, which stays taken where it is accepted.
    template <class Send> status take(const void *owner, std::uint64_t key, Send &&send)
    {
        const maybe_lock lock(mutex_);
        if (free_.empty()) {
            low_water_ = 0;
            return FCAST_AGAIN;
        }
        const std::uint32_t slot = free_.back();
        const status sent = send(slot);
        if (sent) {
            free_.pop_back();
            entries_[slot] = {owner, key};
            low_water_ = std::min(low_water_, free_.size());
        }
        return sent;
    }
    /// Frees a slot; its key, unless this endpoint does not have it.
    std::optional<std::uint64_t> release(const void *owner, std::uint64_t slot)
    {
        const maybe_lock lock(mutex_);
        if (slot >= entries_.size() || entries_[slot].owner != owner)
            return std::nullopt;
        entries_[slot].owner = nullptr;
        free_.push_back(static_cast<std::uint32_t>(slot));
        return entries_[slot].key;
    }
    /// The endpoint is gone: its slots are free.
    void release_all(const void *owner)
    {
        for (std::uint64_t slot = 0; slot < entries_.size(); slot++)
            (void)release(owner, slot);
    }
    std::vector<std::uint64_t> keys(const void *owner)
    {
        const maybe_lock lock(mutex_);
        std::vector<std::uint64_t> keys;
        for (const entry &of : entries_)
            if (of.owner == owner)
                keys.push_back(of.key);
        return keys;
    }
    std::size_t low_water()
    {
        const maybe_lock lock(mutex_);
        return std::exchange(low_water_, free_.size());
    }
    std::size_t num_free()
    {
        const maybe_lock lock(mutex_);
        return free_.size();
    }

private:
    struct entry {
        const void *owner = nullptr;
        std::uint64_t key = 0;
    };
    maybe_mutex mutex_;
    std::vector<entry> entries_;
    std::vector<std::uint32_t> free_;
    std::size_t low_water_ = 0;
    std::uint32_t slot_size_;
};
} // namespace detail

/// netio3's name of what an endpoint is opened in.
using DomainManager = domain;

/// Header slots that several SendEndpointZeroCopy of one domain share, and memory that those send
/// from which name none of their own. A copy is the same slots. Any thread.
class ZeroCopyBufferManager {
public:
    /// Throws NoBuffersAllocated where there are to be no slots, or none can be as large.
    explicit ZeroCopyBufferManager(const ConnectionParametersSendZeroCopy &of)
        : all_(std::make_shared<shared>(of))
    {
    }
    /// The memory; empty where it was given none.
    mutable_bytes memory() const noexcept { return all_->memory; }
    /// Slots that are free now.
    std::size_t num_free() const { return all_->slots.num_free(); }

private:
    friend class SendEndpointZeroCopy;
    struct shared {
        explicit shared(const ConnectionParametersSendZeroCopy &of)
            : slots(of, ThreadSafetyModel::SAFE)
        {
            auto made = header_slots::create(of.num_header_slots, of.header_slot_size);
            if (!made)
                FABRICAST_RAISE(NoBuffersAllocated, made.error());
            headers = *std::move(made);
            if (!of.mr_start || of.mr_size == 0)
                return;
            memory = {of.mr_start, of.mr_size};
            in = region::external(of.mr_start, of.mr_size).value();
        }
        detail::slot_table slots;
        header_slots headers;
        mutable_bytes memory;
        region in;
    };
    std::shared_ptr<shared> all_;
};

/// What a SendEndpointZeroCopy sends by: a connection to one peer, or an endpoint without
/// connections, whose peers have numbers. The SendEndpointZeroCopy that is made of it opens it;
/// then it is an endpoint like any other, to be polled, waited for and closed.
class ActiveEndpoint : public fabricast::endpoint {
public:
    ActiveEndpoint() = default;
    /// To one peer. `more`: everything else that can be set.
    explicit ActiveEndpoint(EndPointAddress peer, const settings &more = {})
        : address_(std::move(peer)), settings_(more)
    {
    }
    /// Without connections, at an address of this machine.
    static ActiveEndpoint connectionless(EndPointAddress local, const settings &more = {})
    {
        ActiveEndpoint made(std::move(local), more);
        made.is_connectionless_ = true;
        return made;
    }
    bool is_connectionless() const noexcept { return is_connectionless_; }
    /// The one peer, or where it listens: with the real port, once it is open.
    const EndPointAddress &address() const noexcept { return address_; }
    /// Of one without connections: adds a peer, or finds it. Its number is send_data's `addr`.
    result<std::uint64_t> add_peer(const EndPointAddress &peer) const
    {
        std::uint64_t number = 0;
        if (fcast_status code = fcast_peer_add(raw(), peer.to_string().c_str(), &number))
            return failure::last(code);
        return number;
    }
    /// Takes a peer out politely: `event_kind::peer_removed` is the last of it.
    status remove_peer(std::uint64_t number, std::uint32_t timeout_ms) const noexcept
    {
        return fcast_peer_remove(raw(), number, timeout_ms);
    }

private:
    friend class SendEndpointZeroCopy;

    result<void> open(const domain &in, const std::function<void(settings &)> &set)
    {
        if (*this)
            return detail::invalid("the endpoint " + address_.to_string() + " is open already");
        settings with = settings_;
        set(with);
        fcast_endpoint out{};
        const std::string at = address_.to_string();
        const auto open_at = is_connectionless_ ? fcast_connectionless_open : fcast_sender_open;
        if (fcast_status code = open_at(in.raw(), at.c_str(), &with, &out))
            return failure::last(code);
        fabricast::endpoint::operator=(fabricast::endpoint(out));
        region_ = with.region;
        if (is_connectionless_)
            address_ = EndPointAddress::parse(fabricast::detail::address_of(out).value());
        return {};
    }
    status send(span<const piece> pieces, bytes header, std::uint32_t slot,
                std::uint64_t peer) const
    {
        const void *front = header.data();
        const std::size_t len = header.size();
        if (is_connectionless_)
            return send_to(peer, pieces, front, len, slot);
        if (pieces.size() == 1)
            return fcast_send(raw(), {}, pieces[0].base, pieces[0].len, front, len, slot);
        return fcast_sendv(raw(), pieces.data(), pieces.size(), front, len, slot);
    }
    status send_to(std::uint64_t peer, span<const piece> pieces, const void *front,
                   std::size_t len, std::uint32_t slot) const
    {
        if (pieces.size() == 1)
            return fcast_send_to(raw(), peer, {}, pieces[0].base, pieces[0].len, front, len, slot);
        std::vector<piece> in_region(pieces.begin(), pieces.end());
        for (piece &one : in_region)
            one.region = region_;
        fcast_payload made{};
        if (fcast_status code =
                fcast_payload_of_pieces(in_region.data(), in_region.size(), &made))
            return code;
        payload all(made);
        const status sent = fcast_send_payload_to(raw(), peer, made, front, len, slot);
        if (sent)
            all.detach();
        return sent;
    }

    EndPointAddress address_;
    settings settings_;
    /// What it sends from.
    fcast_region region_{};
    bool is_connectionless_ = false;
};

/// Sends from memory of the program's, each message behind a header that is copied into a slot. A
/// backend has one for each address; a program that polls endpoints itself may have it alone:
/// release_buffer() takes the key of each event `completed` and `failed` of get_active_endpoint().
class SendEndpointZeroCopy {
public:
    /// As netio3's: opens `endpoint`, which stays the caller's and is there for as long as this,
    /// with the header slots of `shared_buffer_manager`, if there is one, and else with its own.
    /// Throws FailedOpenActiveEndpoint, and NoBuffersAllocated where neither the parameters nor
    /// the manager have memory to send from.
    SendEndpointZeroCopy(ActiveEndpoint &endpoint, const ConnectionParametersSendZeroCopy &of,
                         std::optional<ZeroCopyBufferManager> &shared_buffer_manager,
                         const DomainManager &in,
                         ThreadSafetyModel model = ThreadSafetyModel::UNSAFE)
        : active_(&endpoint)
    {
        open(in, of, shared_buffer_manager, model);
    }
    /// With an endpoint and slots of its own, to one peer. Throws the same.
    SendEndpointZeroCopy(const domain &in, const EndPointAddress &peer,
                         const ConnectionParametersSendZeroCopy &of,
                         ThreadSafetyModel model = ThreadSafetyModel::UNSAFE,
                         const settings &more = {})
        : active_(&own_), own_(peer, more)
    {
        open(in, of, std::nullopt, model);
    }
    SendEndpointZeroCopy(const SendEndpointZeroCopy &) = delete;
    SendEndpointZeroCopy &operator=(const SendEndpointZeroCopy &) = delete;
    ~SendEndpointZeroCopy() { slots_->release_all(this); }

    /// Sends data of the memory, behind a header. `addr`: of an endpoint without connections, the
    /// peer's number; of another one it is not used.
    NetioStatus send_data(span<const std::uint8_t> data, span<const std::uint8_t> header,
                          std::uint64_t key, std::uint64_t addr = 0)
    {
        const piece one(data.data(), data.size());
        return detail::to_netio(try_send({&one, 1}, header, key, addr));
    }
    NetioStatus send_data(span<const iovec> iov, span<const std::uint8_t> header,
                          std::uint64_t key, std::uint64_t addr = 0)
    {
        return detail::to_netio(try_send(detail::pieces_of(iov).get(), header, key, addr));
    }
    /// As send_data, with the library's own status. FCAST_AGAIN where slots are shared: also when
    /// release_buffer() of another endpoint frees one, which no event says here.
    status try_send(span<const piece> pieces, bytes header, std::uint64_t key,
                    std::uint64_t addr = 0)
    {
        return slots_->take(this, key, [&](std::uint32_t slot) {
            return active_->send(pieces, header, slot, addr);
        });
    }

    /// The slot of a send that has its outcome is free again; its key. A backend has done this
    /// before it calls on_send_completed_cb. 0, which may be a key, where no send of this endpoint
    /// has the slot: try_release() tells that apart.
    std::uint64_t release_buffer(std::uint64_t bufnum)
    {
        return try_release(bufnum).value_or(0);
    }
    /// The same; nothing where no send of this endpoint has the slot.
    std::optional<std::uint64_t> try_release(std::uint64_t bufnum)
    {
        return slots_->release(this, bufnum);
    }
    /// The fewest slots that were free since the last call, of all who share them.
    std::size_t get_num_available_buffers() { return slots_->low_water(); }
    /// Slots that are free now.
    std::size_t num_free() const { return slots_->num_free(); }
    /// The keys of sends that have no outcome yet.
    std::vector<std::uint64_t> get_pending_sends() const { return slots_->keys(this); }

    /// Whether a send from there, with such a header, can be taken at all.
    bool fits(span<const piece> pieces, std::size_t header) const noexcept
    {
        const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
        const auto inside = [this, begin](const piece &of) {
            const auto at = reinterpret_cast<std::uintptr_t>(of.base);
            return of.len == 0 || (at >= begin && at - begin <= memory_.size() &&
                                   of.len <= memory_.size() - (at - begin));
        };
        return header <= slots_->slot_size() &&
               std::all_of(pieces.begin(), pieces.end(), inside);
    }
    const ActiveEndpoint &get_active_endpoint() const noexcept { return *active_; }
    ActiveEndpoint &get_active_endpoint() noexcept { return *active_; }

    /// In the order in which their endpoints were opened by the library, roughly: it is one order,
    /// and says nothing else. Equal is an endpoint to itself alone.
    friend bool operator==(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() == b.number();
    }
#ifdef __cpp_impl_three_way_comparison
    friend auto operator<=>(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() <=> b.number();
    }
#else
    friend bool operator!=(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() != b.number();
    }
    friend bool operator<(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() < b.number();
    }
    friend bool operator>(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() > b.number();
    }
    friend bool operator<=(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() <= b.number();
    }
    friend bool operator>=(const SendEndpointZeroCopy &a, const SendEndpointZeroCopy &b) noexcept
    {
        return a.number() >= b.number();
    }
#endif

private:
    std::uint64_t number() const noexcept { return active_->raw().id; }

    void open(const domain &in, const ConnectionParametersSendZeroCopy &of,
              const std::optional<ZeroCopyBufferManager> &manager, ThreadSafetyModel model)
    {
        const bool has_memory = of.mr_start && of.mr_size != 0;
        if (!has_memory && (!manager || manager->memory().empty()))
            FABRICAST_RAISE(NoBuffersAllocated, detail::invalid("no memory to send from is given"));
        if (manager)
            slots_ = {manager->all_, &manager->all_->slots};
        else
            slots_ = std::make_shared<detail::slot_table>(of, model);
        memory_ = has_memory ? mutable_bytes{of.mr_start, of.mr_size} : manager->memory();
        if (has_memory) {
            auto made = region::external(of.mr_start, of.mr_size);
            if (!made)
                FABRICAST_RAISE(FailedOpenActiveEndpoint, made.error());
            region_ = *std::move(made);
        }
        const auto opened = active_->open(in, [&](settings &with) {
            with.region = has_memory ? region_.raw() : manager->all_->in.raw();
            with.depth = slots_->count();
            if (active_->is_connectionless())
                with.total_depth = slots_->count();
            if (manager) {
                with.headers = manager->all_->headers.raw();
            } else {
                with.header_slots = slots_->count();
                with.header_slot_size = slots_->slot_size();
            }
            // The receiver gets header and data as one run, as netio3's does.
            with.header_mode = FCAST_HEADER_RAW;
        });
        if (!opened)
            FABRICAST_RAISE(FailedOpenActiveEndpoint, opened.error());
    }

    /// Its own, or those of a manager, which it keeps.
    std::shared_ptr<detail::slot_table> slots_;
    mutable_bytes memory_;
    region region_;
    ActiveEndpoint *active_;
    // Last, so that it goes before the memory that it sends from.
    ActiveEndpoint own_;
};

/// A buffer of a buffered endpoint: written to, then given to NetworkBackend::send_buffer. Where
/// the endpoint is over before, the buffer stays the program's until release_buffer.
class NetworkBuffer {
public:
    NetworkBuffer(std::uint64_t id, mutable_bytes memory) noexcept : id_(id), memory_(memory) {}
    /// What on_send_completed_cb has as key.
    std::uint64_t id() const noexcept { return id_; }
    std::uint8_t *data() const noexcept { return memory_.data(); }
    std::size_t capacity() const noexcept { return memory_.size(); }
    /// Bytes that are sent.
    std::size_t size() const noexcept { return size_; }
    void resize(std::size_t size) noexcept { size_ = std::min(size, memory_.size()); }
    /// Writes behind what was written. False: there is no room.
    bool append(span<const std::uint8_t> more) noexcept
    {
        if (more.size() > memory_.size() - size_)
            return false;
        std::copy(more.begin(), more.end(), memory_.begin() + static_cast<std::ptrdiff_t>(size_));
        size_ += more.size();
        return true;
    }

private:
    std::uint64_t id_;
    mutable_bytes memory_;
    std::size_t size_ = 0;
};

namespace detail {
/// The buffers of one endpoint, or of several.
class send_buffers {
public:
    send_buffers(std::size_t size, std::size_t count, ThreadSafetyModel model) : mutex_(model)
    {
        if (size == 0 || count == 0)
            FABRICAST_RAISE(NoBuffersAllocated, invalid("neither memory nor buffers are given"));
        // Each on lines of the processor's cache of its own.
        const std::size_t stride = (size + 63) / 64 * 64;
        region_ = region::allocate(stride * count).value();
        const mutable_bytes all = region_.memory();
        for (std::size_t at = 0; at < count; at++)
            buffers_.emplace_back(at, all.subspan(at * stride, size));
        for (std::size_t at = count; at > 0; at--)
            free_.push_back(at - 1);
        low_water_ = count;
    }
    mutable_bytes memory() const noexcept { return region_.memory(); }
    std::size_t size() const noexcept { return buffers_.size(); }

    NetworkBuffer *take()
    {
        maybe_lock lock(mutex_);
        if (free_.empty() || is_over_) {
            low_water_ = 0;
            return nullptr;
        }
        NetworkBuffer *buffer = &buffers_[free_.back()];
        free_.pop_back();
        low_water_ = std::min(low_water_, free_.size());
        buffer->resize(0);
        return buffer;
    }
    void give_back(std::uint64_t id)
    {
        maybe_lock lock(mutex_);
        if (id < buffers_.size())
            free_.push_back(id);
    }
    /// Whether it is one of these; it may be one that is gone.
    bool has(const NetworkBuffer *buffer) const noexcept
    {
        const auto before = std::less<const NetworkBuffer *>();
        const NetworkBuffer *first = buffers_.data();
        return !before(buffer, first) && before(buffer, first + buffers_.size());
    }
    bool are_all_here()
    {
        maybe_lock lock(mutex_);
        return free_.size() == buffers_.size();
    }
    /// The endpoint is over: no further one is handed out.
    void end()
    {
        maybe_lock lock(mutex_);
        is_over_ = true;
    }
    std::size_t low_water()
    {
        maybe_lock lock(mutex_);
        return std::exchange(low_water_, free_.size());
    }

private:
    maybe_mutex mutex_;
    region region_;
    std::vector<NetworkBuffer> buffers_;
    std::vector<std::size_t> free_;
    std::size_t low_water_ = 0;
    bool is_over_ = false;
};
} // namespace detail

} // namespace fabricast::netio

#endif
