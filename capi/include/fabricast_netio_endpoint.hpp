/*
 * Send endpoints with netio3's functions: zero-copy ones, with header slots, and the buffers of
 * those that copy.
 */
#ifndef FABRICAST_NETIO_ENDPOINT_HPP
#define FABRICAST_NETIO_ENDPOINT_HPP

#include <fabricast_netio_types.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>

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

/// Sends from memory of the program's, each message behind a header that is copied into a slot. A
/// backend has one for each address; a program that polls endpoints itself may have it alone:
/// release_buffer() takes the key of each event `completed` and `failed` of endpoint().
class SendEndpointZeroCopy {
public:
    /// Starts to connect. Throws FailedOpenActiveEndpoint, and NoBuffersAllocated where there is no
    /// memory to send from.
    SendEndpointZeroCopy(const domain &in, const EndPointAddress &peer,
                         const ConnectionParametersSendZeroCopy &of,
                         ThreadSafetyModel model = ThreadSafetyModel::UNSAFE,
                         const settings &more = {})
        : mutex_(model), keys_(of.num_header_slots), used_(of.num_header_slots),
          low_water_(of.num_header_slots), slot_size_(of.header_slot_size)
    {
        if (!of.mr_start || of.mr_size == 0)
            FABRICAST_RAISE(NoBuffersAllocated, detail::invalid("no memory to send from is given"));
        memory_ = {of.mr_start, of.mr_size};
        for (std::uint32_t slot = of.num_header_slots; slot > 0; slot--)
            free_.push_back(slot - 1);
        auto made = region::external(of.mr_start, of.mr_size);
        if (!made)
            FABRICAST_RAISE(FailedOpenActiveEndpoint, made.error());
        region_ = *std::move(made);
        settings with = more;
        with.region = region_.raw();
        with.depth = of.num_header_slots;
        with.header_slots = of.num_header_slots;
        with.header_slot_size = of.header_slot_size;
        // The receiver gets header and data as one run, as netio3's does.
        with.header_mode = FCAST_HEADER_RAW;
        auto opened = sender::open(in, peer.to_string().c_str(), with);
        if (!opened)
            FABRICAST_RAISE(FailedOpenActiveEndpoint, opened.error());
        sender_ = *std::move(opened);
    }

    /// Sends data of the memory, behind a header. `addr` is not used: there is one peer.
    NetioStatus send_data(span<const std::uint8_t> data, span<const std::uint8_t> header,
                          std::uint64_t key, std::uint64_t addr = 0)
    {
        (void)addr;
        const piece one(data.data(), data.size());
        return detail::to_netio(try_send({&one, 1}, header, key));
    }
    NetioStatus send_data(span<const iovec> iov, span<const std::uint8_t> header,
                          std::uint64_t key, std::uint64_t addr = 0)
    {
        (void)addr;
        return detail::to_netio(try_send(detail::pieces_of(iov).get(), header, key));
    }
    /// As send_data, with the library's own status.
    status try_send(span<const piece> pieces, bytes header, std::uint64_t key)
    {
        detail::maybe_lock lock(mutex_);
        if (free_.empty()) {
            low_water_ = 0;
            return FCAST_AGAIN;
        }
        const std::uint32_t slot = free_.back();
        const status sent =
            pieces.size() == 1
                ? sender_.send({static_cast<const std::uint8_t *>(pieces[0].base), pieces[0].len},
                               header, slot)
                : sender_.send(pieces, header, slot);
        if (sent) {
            free_.pop_back();
            keys_[slot] = key;
            used_[slot] = true;
            low_water_ = std::min(low_water_, free_.size());
        }
        return sent;
    }

    /// The slot of a send that has its outcome is free again; its key. A backend has done this
    /// before it calls on_send_completed_cb.
    std::uint64_t release_buffer(std::uint64_t bufnum)
    {
        detail::maybe_lock lock(mutex_);
        if (bufnum >= used_.size() || !used_[bufnum])
            return 0;
        used_[bufnum] = false;
        free_.push_back(static_cast<std::uint32_t>(bufnum));
        return keys_[bufnum];
    }
    /// The fewest slots that were free since the last call.
    std::size_t get_num_available_buffers()
    {
        detail::maybe_lock lock(mutex_);
        return std::exchange(low_water_, free_.size());
    }
    /// Slots that are free now.
    std::size_t num_free() const
    {
        detail::maybe_lock lock(mutex_);
        return free_.size();
    }
    /// The keys of sends that have no outcome yet.
    std::vector<std::uint64_t> get_pending_sends() const
    {
        detail::maybe_lock lock(mutex_);
        std::vector<std::uint64_t> keys;
        for (std::size_t slot = 0; slot < used_.size(); slot++)
            if (used_[slot])
                keys.push_back(keys_[slot]);
        return keys;
    }

    /// Whether a send from there, with such a header, can be taken at all.
    bool fits(span<const piece> pieces, std::size_t header) const noexcept
    {
        const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
        const auto inside = [this, begin](const piece &of) {
            const auto at = reinterpret_cast<std::uintptr_t>(of.base);
            return of.len == 0 || (at >= begin && at - begin <= memory_.size() &&
                                   of.len <= memory_.size() - (at - begin));
        };
        return header <= slot_size_ && std::all_of(pieces.begin(), pieces.end(), inside);
    }
    const sender &endpoint() const noexcept { return sender_; }

private:
    mutable detail::maybe_mutex mutex_;
    std::vector<std::uint64_t> keys_;
    std::vector<bool> used_;
    std::vector<std::uint32_t> free_;
    std::size_t low_water_;
    std::uint32_t slot_size_;
    mutable_bytes memory_;
    region region_;
    // Last, so that it goes before the memory that it sends from.
    sender sender_;
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
