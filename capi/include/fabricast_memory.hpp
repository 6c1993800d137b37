/*
 * Handles that release themselves; fabrics, domains, and the memory that is sent from: what all
 * other headers of C++ stand on.
 */
#ifndef FABRICAST_MEMORY_HPP
#define FABRICAST_MEMORY_HPP

#include <fabricast_result.hpp>

#include <functional>
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

/// All values of a list that the library counts also where there is no room for them.
template <class T, class Read> result<std::vector<T>> list(Read &&read)
{
    std::vector<T> values(8);
    for (;;) {
        std::size_t count = 0;
        if (fcast_status code = read(values.data(), values.size(), &count))
            return failure::last(code);
        const bool is_all = count <= values.size();
        values.resize(count);
        if (is_all)
            return values;
    }
}
} // namespace detail

// ---- fabric, domain, memory ---------------------------------------------------------------------

/// How a fabric is opened; as fcast_fabric_settings, with the defaults.
struct fabric_settings : fcast_fabric_settings {
    fabric_settings() noexcept : fcast_fabric_settings() { size = sizeof(fcast_fabric_settings); }
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

/// Which way bytes go between a region and the network, and why.
struct region_way {
    /// FCAST_PATH_HOST, FCAST_PATH_DIRECT or FCAST_PATH_STAGED.
    std::uint32_t path;
    std::string why;
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
    /// Registers it with a domain, so that the domain's endpoints send from it.
    result<void> enroll(const domain &with) const
    {
        return detail::done(fcast_region_register(raw_, with.raw()));
    }
    /// Takes that back: nothing new is sent from it, and what is under way completes.
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
    /// FCAST_NOT_REGISTERED: it is not registered with the domain.
    result<region_way> way(const domain &with) const
    {
        std::uint32_t path = 0;
        auto why = detail::text([&](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_region_path(raw_, with.raw(), &path, text, capacity, len);
        });
        if (!why)
            return why.error();
        return region_way{path, *std::move(why)};
    }
};

/// What lies at an address.
enum class memory_kind : std::uint32_t {
    host = FCAST_MEMORY_HOST,
    managed = FCAST_MEMORY_MANAGED,
    device = FCAST_MEMORY_DEVICE,
    unknown = FCAST_MEMORY_UNKNOWN,
    invalid = FCAST_MEMORY_INVALID,
    pinned = FCAST_MEMORY_PINNED,
};

/// What lies at an address, which may be any number.
inline memory_kind kind_of_memory(const void *address) noexcept
{
    std::uint32_t kind = FCAST_MEMORY_UNKNOWN;
    (void)fcast_memory_kind(address, &kind);
    return static_cast<memory_kind>(kind);
}

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

/// How a pool stands, or header slots do.
struct pool_status {
    std::size_t slots, free, low_water;
};

/// Header slots that endpoints of one domain share: `settings::headers`. They keep them for as long
/// as they are open.
class header_slots : public detail::owner<fcast_headers, fcast_headers_release> {
public:
    using owner::owner;
    /// 0: the default, 256 slots of 64 bytes.
    static result<header_slots> create(std::uint32_t slots = 0, std::uint32_t slot_size = 0)
    {
        fcast_headers raw{};
        if (fcast_status code = fcast_headers_create(slots, slot_size, &raw))
            return failure::last(code);
        return header_slots(raw);
    }
    pool_status state() const noexcept
    {
        pool_status now{};
        (void)fcast_headers_status(raw_, &now.slots, &now.free, &now.low_water);
        return now;
    }
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
    /// The region that its slots lie in, as a handle of its own: to register it with the domains
    /// that send from it.
    result<region> lies_in() const
    {
        fcast_region out{};
        if (fcast_status code = fcast_pool_region(raw_, &out))
            return failure::last(code);
        return region(out);
    }
};

} // namespace fabricast

#endif
