/*
 * The names of cuObjClient (NVIDIA's cuObject, 1.0), for programs that use it: another include and
 * `using namespace fabricast::cuobj;`, and the rest stays. docs/migrating-from-cuobject.md says of
 * each name what it is here.
 *
 * The class takes no network, so the network comes from the environment, or from set_network():
 *
 *   FABRICAST_CUOBJ_PROVIDER        a provider of libfabric's ("tcp", "verbs;ofi_rxm"); any
 *   FABRICAST_CUOBJ_NODE            the local address that servers reach; the provider's first
 *   FABRICAST_CUOBJ_CALLBACK_BYTES  bytes that a callback gets at most; 1 GiB
 *   FABRICAST_CUOBJ_TELEMETRY_MS    how often telemetry is written; at its end alone
 *
 * No function throws, but what a callback throws comes out of cuObjGet and cuObjPut. Why something
 * failed is in fcast_last_error().
 */
#ifndef FABRICAST_CUOBJ_HPP
#define FABRICAST_CUOBJ_HPP

#include <fabricast_device.hpp>
#include <fabricast_object.hpp>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ios>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>

#include <sys/types.h>

/// What cuObject registers at once at most. Here there is no such limit.
#define CUOBJ_MAX_MEMORY_REG_SIZE (4ULL * 1024 * 1024 * 1024)
/// What cuObject calls its protocol.
#define OBJ_RDMA_V1 "CUOBJ"

namespace fabricast::cuobj {

typedef enum cuObjErr_enum { CU_OBJ_SUCCESS = 0, CU_OBJ_FAIL = 1 } cuObjErr_t;

/// The one protocol that clients take. The bytes on the wire are not cuObject's: tokens are `ofi1`.
typedef enum cuObjProto_enum {
    CUOBJ_PROTO_RDMA_DC_V1 = 1001,
    CUOBJ_PROTO_MAX
} cuObjProto_t;

typedef enum cuObjOpType_enum { CUOBJ_GET = 0, CUOBJ_PUT = 1, CUOBJ_INVALID = 9999 } cuObjOpType_t;

typedef enum cuObjMemoryType_enum {
    CUOBJ_MEMORY_SYSTEM = 0,
    CUOBJ_MEMORY_CUDA_MANAGED = 1,
    CUOBJ_MEMORY_CUDA_DEVICE = 2,
    CUOBJ_MEMORY_UNKNOWN = 3,
    CUOBJ_MEMORY_INVALID = 4
} cuObjMemoryType_t;

/// What a callback gets: the text of the token of its part, good during the call. Programs read it
/// by a cast of the pointer to `const char *`, or by `desc_str`: so the text lies first.
typedef struct cufileRDMAInfo {
    char text[520];
    int version;
    /// Without the zero at the end.
    int desc_len;
    const char *desc_str;
} cufileRDMAInfo_t;

/// The program's control path: each tells a server what to do with the token, and answers the bytes
/// that it moved, or a negative number. Called on the thread of cuObjGet or cuObjPut, with nothing
/// locked.
typedef struct CUObjIOOps {
    ssize_t (*get)(const void *handle, char *ptr, size_t size, loff_t offset,
                   const cufileRDMAInfo_t *rdma_info);
    ssize_t (*put)(const void *handle, const char *ptr, size_t size, loff_t offset,
                   const cufileRDMAInfo_t *rdma_info);
} CUObjOps_t;

/// Which network clients that are made from now on use; what is empty or 0 is the default.
struct network {
    std::string provider, node;
    std::uint64_t callback_bytes = 0;
};

namespace detail {
inline std::string from_environment(const char *name)
{
    const char *value = std::getenv(name);
    return value ? value : "";
}

/// A number of the environment; 0 where it is not set, or is none.
inline std::uint64_t number_from_environment(const char *name)
{
    return std::strtoull(from_environment(name).c_str(), nullptr, 10);
}

/// What all clients of the process share. It is never freed: threads may be in it as the process
/// ends.
struct process {
    std::mutex lock;
    network on{from_environment("FABRICAST_CUOBJ_PROVIDER"),
               from_environment("FABRICAST_CUOBJ_NODE"),
               number_from_environment("FABRICAST_CUOBJ_CALLBACK_BYTES")};
    object_telemetry telemetry;
    unsigned flags = ~0U;

    static process &own()
    {
        static process *const one = new process;
        return *one;
    }
};

/// What a status is as an error number, negative.
inline ssize_t negative(status why) noexcept
{
    switch (why.code()) {
    case FCAST_AGAIN:
    case FCAST_BUSY: return -EAGAIN;
    case FCAST_NO_RESOURCES: return -ENOMEM;
    case FCAST_NOT_REGISTERED:
    case FCAST_INVALID: return -EINVAL;
    case FCAST_TIMED_OUT: return -ETIMEDOUT;
    case FCAST_UNSUPPORTED: return -EOPNOTSUPP;
    default: return -EIO;
    }
}

/// What a callback's handle points to.
struct request {
    void *context;
};
} // namespace detail

/// Has clients that are made from now on use a network.
inline void set_network(network on)
{
    auto &process = detail::process::own();
    const std::lock_guard<std::mutex> locked(process.lock);
    process.on = std::move(on);
}

/// A client of objects by cuObject's names. Any thread; the constructor does not throw, and
/// isConnected() says whether it came to something.
class cuObjClient {
public:
    cuObjClient(CUObjOps_t &ops, cuObjProto_t proto = CUOBJ_PROTO_RDMA_DC_V1) : ops_(ops)
    {
        // Another one is not taken in silence.
        if (proto != CUOBJ_PROTO_RDMA_DC_V1)
            return;
        network on;
        {
            auto &process = detail::process::own();
            const std::lock_guard<std::mutex> locked(process.lock);
            on = process.on;
        }
        fabric_settings settings;
        settings.kind = FCAST_KIND_RDM;
        settings.provider = on.provider.empty() ? nullptr : on.provider.c_str();
        settings.node = on.node.empty() ? nullptr : on.node.c_str();
        object_client_settings of;
        of.callback_bytes = on.callback_bytes;
        of.name = "cuObjClient";
        auto opened = fabric::open(settings);
        if (!opened)
            return;
        if (auto client = object_client::open(*opened, of))
            client_ = *std::move(client);
    }
    cuObjClient(const cuObjClient &) = delete;
    cuObjClient &operator=(const cuObjClient &) = delete;
    /// Revokes what tokens stand, and takes back what memory is registered: waits until no server
    /// can reach it, for at most a minute each.
    ~cuObjClient()
    {
        tokens_.clear();
        for (auto &registered : memories_)
            (void)registered.second->reclaim(patience_ms);
    }

    /// Takes memory of the host, of a GPU, or managed memory. It stays allocated until
    /// cuMemObjPutDescriptor() has succeeded.
    cuObjErr_t cuMemObjGetDescriptor(void *ptr, size_t size)
    {
        if (!client_ || ptr == nullptr || size == 0)
            return CU_OBJ_FAIL;
        const memory_kind kind = kind_of_memory(ptr);
        const bool is_cudas = kind == memory_kind::device || kind == memory_kind::managed;
        if (!is_cudas && kind != memory_kind::host && kind != memory_kind::pinned)
            return CU_OBJ_FAIL;
        const std::lock_guard<std::mutex> locked(lock_);
        if (overlaps(ptr, size))
            return CU_OBJ_FAIL;
        auto in = is_cudas
                            ? external_device_region(reinterpret_cast<std::uintptr_t>(ptr), size)
                            : region::external(ptr, size);
        if (!in)
            return CU_OBJ_FAIL;
        auto made = client_.enroll(*in, {static_cast<std::uint8_t *>(ptr), size},
                                   FCAST_OBJECT_GET | FCAST_OBJECT_PUT);
        if (!made)
            return CU_OBJ_FAIL;
        memories_.emplace(ptr, std::make_shared<object_memory>(*std::move(made)));
        return CU_OBJ_SUCCESS;
    }
    /// Takes it back: waits until no server can reach it, for at most a minute. CU_OBJ_FAIL: it was
    /// not registered from this address on; tokens of it stand, or a call uses it; or a server may
    /// still reach it: then it stays registered, and must stay allocated.
    cuObjErr_t cuMemObjPutDescriptor(void *ptr)
    {
        const auto memory = registered_at(ptr);
        if (!memory || !memory->reclaim(patience_ms))
            return CU_OBJ_FAIL;
        const std::lock_guard<std::mutex> locked(lock_);
        memories_.erase(ptr);
        return CU_OBJ_SUCCESS;
    }
    /// Bytes that a callback gets at most, of memory that is registered from this address on;
    /// negative: it is not.
    ssize_t cuMemObjGetMaxRequestCallbackSize(void *ptr)
    {
        const auto memory = registered_at(ptr);
        if (!memory)
            return -EINVAL;
        auto most = memory->max_callback();
        return most ? static_cast<ssize_t>(*most) : detail::negative(most.code());
    }
    /// Lends a part of registered memory for one operation; the text of the token is good until
    /// cuMemObjPutRDMAToken(), for any number of transfers.
    cuObjErr_t cuMemObjGetRDMAToken(void *ptr, size_t size, size_t buffer_offset,
                                    cuObjOpType_t operation, char **desc_str_out)
    {
        if (desc_str_out == nullptr || (operation != CUOBJ_GET && operation != CUOBJ_PUT))
            return CU_OBJ_FAIL;
        const auto memory = registered_at(ptr);
        if (!memory)
            return CU_OBJ_FAIL;
        auto token = object_token::lend(memory->slice(buffer_offset, size), number_of(operation));
        if (!token)
            return CU_OBJ_FAIL;
        auto text = token->text();
        if (!text)
            return CU_OBJ_FAIL;
        std::unique_ptr<char[]> copy(new char[text->size() + 1]);
        std::memcpy(copy.get(), text->c_str(), text->size() + 1);
        char *const name = copy.get();
        const std::lock_guard<std::mutex> locked(lock_);
        tokens_.emplace(name, lent{std::move(copy), *std::move(token)});
        *desc_str_out = name;
        return CU_OBJ_SUCCESS;
    }
    /// Revokes a token of this client's, and frees its text: who uses it from now on is refused.
    cuObjErr_t cuMemObjPutRDMAToken(char *desc_str)
    {
        const std::lock_guard<std::mutex> locked(lock_);
        return tokens_.erase(desc_str) != 0 ? CU_OBJ_SUCCESS : CU_OBJ_FAIL;
    }

    /// Gets `size` bytes of an object, from `offset` on, to `ptr + buf_offset`, which lies in
    /// registered memory. The bytes that came, or a negative number: a callback's own, or that of
    /// an error.
    ssize_t cuObjGet(void *ctx, void *ptr, size_t size, loff_t offset = 0, loff_t buf_offset = 0)
    {
        return transfer(CUOBJ_GET, ctx, ptr, size, offset, buf_offset);
    }
    /// Puts them; else as cuObjGet().
    ssize_t cuObjPut(void *ctx, void *ptr, size_t size, loff_t offset = 0, loff_t buf_offset = 0)
    {
        return transfer(CUOBJ_PUT, ctx, ptr, size, offset, buf_offset);
    }

    /// Whether memory can be lent: the network could be opened, and the client's endpoint is served
    /// by it.
    bool isConnected(void) { return client_.connected(); }

    /// What cuObjGet or cuObjPut was given as `ctx`, in a callback of it.
    static void *getCtx(const void *handle)
    {
        return handle ? static_cast<const detail::request *>(handle)->context : nullptr;
    }
    /// What lies at an address, which may be any.
    static cuObjMemoryType_t getMemoryType(const void *ptr)
    {
        switch (kind_of_memory(ptr)) {
        case memory_kind::host:
        case memory_kind::pinned: return CUOBJ_MEMORY_SYSTEM;
        case memory_kind::managed: return CUOBJ_MEMORY_CUDA_MANAGED;
        case memory_kind::device: return CUOBJ_MEMORY_CUDA_DEVICE;
        case memory_kind::invalid: return CUOBJ_MEMORY_INVALID;
        case memory_kind::unknown: break;
        }
        return CUOBJ_MEMORY_UNKNOWN;
    }

    /// Has statistics of all clients and servers of the process written to a stream, to std::cerr
    /// where it is null: in Prometheus' text format with `use_OTEL`, which a collector of
    /// OpenTelemetry's reads, else for people. It is written by a thread of the library's, which
    /// alone may use the stream until shutdownTelemetry().
    static void setupTelemetry(bool use_OTEL, std::ostream *os)
    {
        std::ostream *const to = os ? os : &std::cerr;
        object_telemetry_settings settings;
        settings.prometheus = use_OTEL;
        settings.every_ms = static_cast<std::uint32_t>(
            detail::number_from_environment("FABRICAST_CUOBJ_TELEMETRY_MS"));
        auto &process = detail::process::own();
        const std::lock_guard<std::mutex> locked(process.lock);
        // The one before writes its last to its own stream.
        process.telemetry = object_telemetry();
        auto started = object_telemetry::start(
            [to](std::string_view text) -> status {
                if (text.empty())
                    to->flush();
                else
                    to->write(text.data(), static_cast<std::streamsize>(text.size()));
                return *to ? FCAST_OK : FCAST_SYSTEM;
            },
            settings);
        if (!started)
            return;
        process.telemetry = *std::move(started);
        (void)process.telemetry.set_groups(process.flags);
    }
    /// Writes the last, and flushes: the stream is not used any more. Nothing is written from then
    /// on, until setupTelemetry().
    static void shutdownTelemetry()
    {
        auto &process = detail::process::own();
        const std::lock_guard<std::mutex> locked(process.lock);
        process.telemetry = object_telemetry();
    }
    /// Which numbers are written: the sum of some of FCAST_TELEMETRY_TRANSFERS and the others;
    /// other bits mean nothing. 0: none.
    static void setTelemFlags(unsigned flags)
    {
        auto &process = detail::process::own();
        const std::lock_guard<std::mutex> locked(process.lock);
        process.flags = flags;
        if (process.telemetry)
            (void)process.telemetry.set_groups(flags);
    }

private:
    using memory = std::shared_ptr<object_memory>;
    /// A token, and its text, which the program has.
    struct lent {
        std::unique_ptr<char[]> text;
        object_token token;
    };

    static constexpr std::uint32_t patience_ms = 60000;

    static std::uint32_t number_of(cuObjOpType_t operation) noexcept
    {
        return operation == CUOBJ_GET ? FCAST_OBJECT_GET : FCAST_OBJECT_PUT;
    }
    memory registered_at(const void *ptr) const
    {
        const std::lock_guard<std::mutex> locked(lock_);
        const auto found = memories_.find(ptr);
        return found == memories_.end() ? memory() : found->second;
    }
    /// The registered memory that an address lies in.
    memory around(const void *ptr) const
    {
        const std::lock_guard<std::mutex> locked(lock_);
        auto behind = memories_.upper_bound(ptr);
        return behind == memories_.begin() ? memory() : (--behind)->second;
    }
    bool overlaps(const void *ptr, size_t size) const
    {
        const auto start = reinterpret_cast<std::uintptr_t>(ptr);
        const auto next = memories_.lower_bound(ptr);
        if (next != memories_.end() &&
            reinterpret_cast<std::uintptr_t>(next->first) - start < size)
            return true;
        if (next == memories_.begin())
            return false;
        const auto before = std::prev(next);
        return start - reinterpret_cast<std::uintptr_t>(before->first) < before->second->size();
    }

    ssize_t transfer(cuObjOpType_t operation, void *ctx, void *ptr, size_t size, loff_t offset,
                     loff_t buf_offset)
    {
        const bool is_get = operation == CUOBJ_GET;
        if (!client_)
            return -ENOTCONN;
        if (ptr == nullptr || offset < 0 || buf_offset < 0 || !(is_get ? !!ops_.get : !!ops_.put))
            return -EINVAL;
        const auto in = around(ptr);
        if (!in)
            return -EINVAL;
        const auto base = in->memory().data();
        const auto at = static_cast<std::uint64_t>(static_cast<std::uint8_t *>(ptr) - base);
        const auto from = at + static_cast<std::uint64_t>(buf_offset);
        const detail::request handle{ctx};
        ssize_t refused = 0;
        const auto call = [&](const object_part &part) -> result<std::uint64_t> {
            cufileRDMAInfo_t info;
            info.version = 1;
            info.desc_len = std::snprintf(info.text, sizeof info.text, "%s", part.token);
            info.desc_str = info.text;
            char *const data = reinterpret_cast<char *>(base) + part.memory_offset;
            const auto begin = static_cast<loff_t>(part.offset);
            const ssize_t moved = is_get ? ops_.get(&handle, data, part.len, begin, &info)
                                         : ops_.put(&handle, data, part.len, begin, &info);
            if (moved >= 0)
                return static_cast<std::uint64_t>(moved);
            refused = moved;
            return failure{FCAST_CLOSED, "the callback answered " + std::to_string(moved)};
        };
        const auto begin = static_cast<std::uint64_t>(offset);
        const object_slice part = in->slice(from, size);
        auto moved = is_get ? client_.get(part, begin, call) : client_.put(part, begin, call);
        if (moved)
            return static_cast<ssize_t>(*moved);
        return refused < 0 ? refused : detail::negative(moved.code());
    }

    const CUObjOps_t ops_;
    object_client client_;
    mutable std::mutex lock_;
    std::map<const void *, memory> memories_;
    std::map<const char *, lent> tokens_;
};

} // namespace fabricast::cuobj

#endif
