/*
 * Objects for C++17: clients that lend memory, servers that move bytes into and out of it, and
 * services, which are asked by name.
 *
 * Times are in milliseconds, from the call on. What a callback of a client throws ends the request
 * that it is called for, and comes out of the call that made the request.
 */
#ifndef FABRICAST_OBJECT_HPP
#define FABRICAST_OBJECT_HPP

#include <fabricast.hpp>

#ifndef FABRICAST_NO_EXCEPTIONS
#include <exception>
#endif
#include <functional>
#include <memory>

namespace fabricast {

// ---- settings -----------------------------------------------------------------------------------

/// How a client is opened; as fcast_object_client_settings, with the defaults.
struct object_client_settings : fcast_object_client_settings {
    object_client_settings() noexcept : fcast_object_client_settings()
    {
        size = sizeof(fcast_object_client_settings);
    }
};

/// How a server is opened; as fcast_object_server_settings, with the defaults.
struct object_server_settings : fcast_object_server_settings {
    object_server_settings() noexcept : fcast_object_server_settings()
    {
        size = sizeof(fcast_object_server_settings);
    }
};

/// How a service is started; as fcast_object_service_settings, with the defaults.
struct object_service_settings : fcast_object_service_settings {
    object_service_settings() noexcept : fcast_object_service_settings()
    {
        size = sizeof(fcast_object_service_settings);
    }
};

/// How a service is connected to; as fcast_object_remote_settings, with the defaults.
struct object_remote_settings : fcast_object_remote_settings {
    object_remote_settings() noexcept : fcast_object_remote_settings()
    {
        size = sizeof(fcast_object_remote_settings);
    }
};

// ---- memory that is lent ------------------------------------------------------------------------

/// A part of memory that a client lends, as requests name it.
struct object_slice {
    fcast_object_memory memory{};
    std::uint64_t offset = 0, len = 0;
};

/// Memory that a client lends. Any thread.
class object_memory : public detail::owner<fcast_object_memory, fcast_object_memory_release> {
public:
    object_memory() noexcept = default;
    object_memory(fcast_object_memory raw, mutable_bytes memory) noexcept
        : owner(raw), memory_(memory)
    {
    }
    /// All of it. Of a GPU's memory the address is the device's.
    mutable_bytes memory() const noexcept { return memory_; }
    std::size_t size() const noexcept { return memory_.size(); }

    object_slice slice(std::uint64_t offset, std::uint64_t len) const noexcept
    {
        return {raw_, offset, len};
    }
    /// All of it.
    operator object_slice() const noexcept { return slice(0, size()); }

    /// Bytes that one call of a client's callback gets of it at most.
    result<std::uint64_t> max_callback() const
    {
        std::uint64_t most = 0;
        if (fcast_status code = fcast_object_memory_max_callback(raw_, &most))
            return failure::last(code);
        return most;
    }

    /// Takes it back, when nobody can reach it any more; where it was a buffer, that is what is
    /// given, else an empty one. FCAST_BUSY, where tokens stand, and FCAST_TIMED_OUT: it stays.
    result<buffer> reclaim(std::uint32_t timeout_ms)
    {
        fcast_buffer out{};
        if (fcast_status code = fcast_object_memory_reclaim(raw_, timeout_ms, &out))
            return failure::last(code);
        reset();
        return out.id == 0 ? buffer() : buffer(out, memory_);
    }

private:
    mutable_bytes memory_;
};

/// A token that stands: who knows its text may use the memory that it names. One that goes before
/// it is done is revoked. Any thread.
class object_token : public detail::owner<fcast_object_token, fcast_object_token_release> {
public:
    using owner::owner;
    /// `operation`: FCAST_OBJECT_GET or FCAST_OBJECT_PUT.
    static result<object_token> lend(const object_slice &what, std::uint32_t operation)
    {
        fcast_object_token out{};
        if (fcast_status code =
                fcast_object_token_lend(what.memory, what.offset, what.len, operation, &out))
            return failure::last(code);
        return object_token(out);
    }
    /// What a server has to be told.
    result<std::string> text() const
    {
        return detail::text([this](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_object_token_text(raw_, text, capacity, len);
        });
    }
    /// Servers have answered for all its transfers: the memory may be lent again at once.
    status done() noexcept
    {
        const status ended = fcast_object_token_done(raw_);
        if (ended)
            detach();
        return ended;
    }
};

// ---- clients ------------------------------------------------------------------------------------

/// A part of an object that a callback has a server move.
struct object_part {
    /// The text of its token, good during the call.
    const char *token;
    /// Where it begins in the object, and in the memory.
    std::uint64_t offset, memory_offset;
    std::uint64_t len;
};

/// Has a server move a part, and waits for its answer: the bytes that it moved, from the part's
/// begin on. A failure ends the request, and is what comes of it.
using object_callback = std::function<result<std::uint64_t>(const object_part &)>;

namespace detail {
/// A request whose control path is the program's, while C works on it.
struct object_request {
    const object_callback &callback;
    std::unique_ptr<failure> why;
#ifndef FABRICAST_NO_EXCEPTIONS
    std::exception_ptr thrown;
#endif

    explicit object_request(const object_callback &with) : callback(with) {}

    /// As C calls it: a negative number ends the request.
    static std::int64_t trampoline(void *context, const char *token, std::uint64_t offset,
                                   std::uint64_t memory_offset, std::uint64_t len) noexcept
    {
        auto &self = *static_cast<object_request *>(context);
#ifdef FABRICAST_NO_EXCEPTIONS
        return self.ask({token, offset, memory_offset, len});
#else
        try {
            return self.ask({token, offset, memory_offset, len});
        } catch (...) {
            self.thrown = std::current_exception();
            return -1;
        }
#endif
    }
    /// What came of it: what the callback threw, or failed with, comes before C's word for it.
    result<std::uint64_t> outcome(fcast_status code, std::uint64_t moved)
    {
        if (code == FCAST_OK)
            return moved;
#ifndef FABRICAST_NO_EXCEPTIONS
        if (thrown)
            std::rethrow_exception(std::move(thrown));
#endif
        if (why)
            return std::move(*why);
        return failure::last(code);
    }

private:
    std::int64_t ask(const object_part &part)
    {
        auto moved = callback(part);
        if (moved)
            return static_cast<std::int64_t>(*moved);
        why = std::make_unique<failure>(moved.error());
        return -1;
    }
};
} // namespace detail

/// A client: it lends memory to servers, which move the bytes by themselves. Any thread.
class object_client : public detail::owner<fcast_object_client, fcast_object_client_release> {
public:
    using owner::owner;
    /// On a fabric of the kind FCAST_KIND_RDM.
    static result<object_client> open(const fabric &on, const object_client_settings &of = {})
    {
        fcast_object_client out{};
        if (fcast_status code = fcast_object_client_open(on.raw(), &of, &out))
            return failure::last(code);
        return object_client(out);
    }
    /// Does what there is to do for servers, where settings have no thread for that.
    status progress() const noexcept { return fcast_object_client_progress(raw_); }

    /// Whether memory can be lent: false of one that was closed or moved away, too, and while its
    /// endpoint can't be opened or is not served.
    bool connected() const noexcept
    {
        bool is_connected = false;
        return raw_.id != 0 && fcast_object_client_is_connected(raw_, &is_connected) == FCAST_OK &&
               is_connected;
    }

    /// Takes memory of a region, which need not be registered. `operations`: what tokens may
    /// allow, FCAST_OBJECT_GET, FCAST_OBJECT_PUT, or their sum.
    result<object_memory> enroll(const region &in, mutable_bytes memory,
                                 std::uint32_t operations) const
    {
        fcast_object_memory out{};
        if (fcast_status code = fcast_object_memory_register(raw_, in.raw(), memory.data(),
                                                             memory.size(), operations, &out))
            return failure::last(code);
        return object_memory(out, memory);
    }
    /// Takes a buffer, which is used up; object_memory::reclaim gives it back.
    result<object_memory> enroll(buffer what, std::uint32_t operations) const
    {
        fcast_object_memory out{};
        if (fcast_status code =
                fcast_object_memory_register_buffer(raw_, what.raw(), operations, &out))
            return failure::last(code);
        what.detach();
        return object_memory(out, what.memory());
    }

    /// Gets as much of an object as the memory takes, from `offset` on: the callback is called on
    /// this thread for one part after the other, each with a token of its own. The bytes that came;
    /// a part of which fewer came than asked for is the last. What the callback throws comes out.
    result<std::uint64_t> get(const object_slice &into, std::uint64_t offset,
                              const object_callback &callback) const
    {
        return transfer(FCAST_OBJECT_GET, into, offset, callback);
    }
    /// Puts the memory as a part of an object, from `offset` on; else as get().
    result<std::uint64_t> put(const object_slice &from, std::uint64_t offset,
                              const object_callback &callback) const
    {
        return transfer(FCAST_OBJECT_PUT, from, offset, callback);
    }

private:
    result<std::uint64_t> transfer(std::uint32_t operation, const object_slice &what,
                                   std::uint64_t offset, const object_callback &callback) const
    {
        detail::object_request request(callback);
        std::uint64_t moved = 0;
        const fcast_status code = fcast_object_transfer(
            raw_, operation, what.memory, what.offset, what.len, offset,
            callback ? &detail::object_request::trampoline : nullptr, &request, &moved);
        return request.outcome(code, moved);
    }
};

// ---- telemetry -----------------------------------------------------------------------------------

/// What a telemetry writer writes; as fcast_object_telemetry_settings, with the defaults.
struct object_telemetry_settings : fcast_object_telemetry_settings {
    object_telemetry_settings() noexcept : fcast_object_telemetry_settings()
    {
        size = sizeof(fcast_object_telemetry_settings);
    }
};

/// Takes text; of none, all that there is was written, and is to be flushed. What it answers but
/// FCAST_OK, or throws, ends the writer.
using text_sink = std::function<status(std::string_view)>;

/// Writes statistics of all clients and servers of the process with a function, on a thread of its
/// own, until it goes: then once more. Any thread but its own.
class object_telemetry {
public:
    object_telemetry() noexcept = default;
    object_telemetry(object_telemetry &&) noexcept = default;
    object_telemetry &operator=(object_telemetry &&other) noexcept
    {
        if (this != &other) {
            writer_ = std::move(other.writer_);
            sink_ = std::move(other.sink_);
        }
        return *this;
    }
    static result<object_telemetry> start(text_sink sink, const object_telemetry_settings &of = {})
    {
        object_telemetry made;
        made.sink_ = std::make_unique<text_sink>(std::move(sink));
        fcast_object_telemetry out{};
        if (fcast_status code = fcast_object_telemetry_start(
                *made.sink_ ? &object_telemetry::trampoline : nullptr, made.sink_.get(), &of, &out))
            return failure::last(code);
        made.writer_ = handle(out);
        return made;
    }
    explicit operator bool() const noexcept { return static_cast<bool>(writer_); }
    /// The sum of some of FCAST_TELEMETRY_TRANSFERS and the others; 0: nothing is written.
    status set_groups(std::uint32_t groups) const noexcept
    {
        return fcast_object_telemetry_set_groups(writer_.raw(), groups);
    }
    /// Writes once more, and ends it; what the function answered, where it failed.
    result<void> finish()
    {
        const fcast_status code = fcast_object_telemetry_finish(writer_.raw());
        writer_.detach();
        return detail::done(code);
    }

private:
    using handle = detail::owner<fcast_object_telemetry, fcast_object_telemetry_release>;
    static fcast_status trampoline(void *sink, const char *text, std::size_t len) noexcept
    {
        return detail::guarded(
            [&] { return (*static_cast<text_sink *>(sink))(std::string_view(text, len)); });
    }

    /// Goes behind the handle, whose end is the end of the calls.
    std::unique_ptr<text_sink> sink_;
    handle writer_;
};

// ---- services, by name --------------------------------------------------------------------------

/// An object, as a service tells of it.
struct object_info : fcast_object_info {
    object_info() noexcept : fcast_object_info() {}
    explicit object_info(const fcast_object_info &of) noexcept : fcast_object_info(of) {}
    /// The name of this version.
    std::string_view version() const noexcept { return etag; }
    /// Sets it, of what a store of the program's says: visible characters of ASCII, but no quotes;
    /// at least one, and less than FCAST_OBJECT_ETAG_LEN. FCAST_INVALID: nothing is set.
    status set_version(std::string_view name) noexcept
    {
        const auto is_wrong = [](char it) { return it <= ' ' || it > '~' || it == '"'; };
        if (name.empty() || name.size() >= sizeof etag)
            return FCAST_INVALID;
        for (const char it : name)
            if (is_wrong(it))
                return FCAST_INVALID;
        etag[name.copy(etag, name.size())] = '\0';
        return {};
    }
    /// Whether both sides have computed the same checksum of what was moved.
    bool checked() const noexcept { return is_checked != 0; }
};

/// An object of a list.
struct object_entry {
    std::string name, etag;
    std::uint64_t size = 0;
    /// When it was put, in nanoseconds since 1970; 0: not known.
    std::int64_t modified_ns = 0;
};

/// A part of a list: where there is `more`, it is asked for with the last name.
struct object_page {
    std::vector<object_entry> entries;
    bool more = false;
};

/// What must be so for an object to be put.
class put_condition {
public:
    /// Nothing.
    put_condition() noexcept = default;
    /// There is none of its name.
    static put_condition absent() { return {FCAST_PUT_ABSENT, {}}; }
    /// The one that is there has this etag.
    static put_condition matches(std::string etag) { return {FCAST_PUT_MATCHES, std::move(etag)}; }

    std::uint32_t kind() const noexcept { return kind_; }
    const char *etag() const noexcept
    {
        return kind_ == FCAST_PUT_MATCHES ? etag_.c_str() : nullptr;
    }

private:
    put_condition(std::uint32_t kind, std::string etag) : kind_(kind), etag_(std::move(etag)) {}
    std::uint32_t kind_ = FCAST_PUT_ANY;
    std::string etag_;
};

/// A connection to a service: one request at a time. One thread at a time.
class object_remote : public detail::owner<fcast_object_remote, fcast_object_remote_release> {
public:
    using owner::owner;
    /// Connects over the fabric `control`, and waits for it; bytes are moved by the client's.
    static result<object_remote> connect(const object_client &client, const fabric &control,
                                         const char *service, const object_remote_settings &of = {})
    {
        fcast_object_remote out{};
        if (fcast_status code =
                fcast_object_remote_connect(client.raw(), control.raw(), service, &of, &out))
            return failure::last(code);
        return object_remote(out);
    }
    /// Connects anew: after FCAST_CLOSED.
    result<void> reconnect() const { return detail::done(fcast_object_remote_reconnect(raw_)); }

    /// What there is under a name.
    result<object_info> head(const char *name, std::uint32_t timeout_ms) const
    {
        object_info info;
        if (fcast_status code = fcast_object_remote_head(raw_, name, timeout_ms, &info))
            return failure::last(code);
        return info;
    }
    /// Gets as much of an object as the memory takes, from `offset` on: `moved`.
    result<object_info> get(const char *name, const object_slice &into, std::uint32_t timeout_ms,
                            std::uint64_t offset = 0) const
    {
        object_info info;
        if (fcast_status code = fcast_object_remote_get(raw_, name, into.memory, into.offset,
                                                        into.len, offset, timeout_ms, &info))
            return failure::last(code);
        return info;
    }
    /// Puts the memory as an object, all at once. FCAST_REFUSED: the condition does not hold.
    result<object_info> put(const char *name, const object_slice &from, std::uint32_t timeout_ms,
                            const put_condition &only = {}) const
    {
        object_info info;
        if (fcast_status code =
                fcast_object_remote_put(raw_, name, from.memory, from.offset, from.len, only.kind(),
                                        only.etag(), timeout_ms, &info))
            return failure::last(code);
        return info;
    }
    /// Removes an object. `etag`: only the version that has it.
    result<void> remove(const char *name, std::uint32_t timeout_ms,
                        const char *etag = nullptr) const
    {
        return detail::done(fcast_object_remote_delete(raw_, name, etag, timeout_ms));
    }
    /// Lists at most `most` objects whose names begin with a prefix and come behind `start_after`,
    /// in the order of their bytes.
    result<object_page> list(const char *prefix, std::size_t most, std::uint32_t timeout_ms,
                             const char *start_after = nullptr) const
    {
        std::vector<fcast_object_entry> told(most);
        std::size_t count = 0;
        object_page page;
        if (fcast_status code = fcast_object_remote_list(raw_, prefix, start_after, timeout_ms,
                                                         told.data(), most, &count, &page.more))
            return failure::last(code);
        page.entries.reserve(count);
        for (const fcast_object_entry &of : span<const fcast_object_entry>(told).first(count))
            page.entries.push_back({of.name, of.etag, of.size, of.modified_ns});
        return page;
    }
};

class object_store;

/// A service: it serves the files of a directory as objects, or a store of the program's, with
/// threads of its own. One that goes without being closed cuts what it serves. Any thread.
class object_service : public detail::owner<fcast_object_service, fcast_object_service_release> {
public:
    using owner::owner;
    /// Requests come over the fabric `control`, at an address such as "127.0.0.1:0"; bytes are
    /// moved over `data`, of the kind FCAST_KIND_RDM, which may be the same.
    static result<object_service> start(const char *directory, const fabric &control,
                                        const char *listen, const fabric &data,
                                        const object_service_settings &of = {})
    {
        fcast_object_service out{};
        if (fcast_status code = fcast_object_service_start(directory, control.raw(), listen,
                                                           data.raw(), &of, &out))
            return failure::last(code);
        return object_service(out);
    }
    /// The same of a store of the program's, which is held until it is needed no more: see
    /// fabricast_object_store.hpp, which has this function.
    static result<object_service> start(std::shared_ptr<object_store> store, const fabric &control,
                                        const char *listen, const fabric &data,
                                        const object_service_settings &of = {});
    /// Where it listens: the address of each worker, with commas between them.
    result<std::string> address() const
    {
        return detail::text([this](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_object_service_address(raw_, text, capacity, len);
        });
    }
    /// Ends it: what it serves goes on for at most so long.
    result<void> close(std::uint32_t timeout_ms)
    {
        const fcast_status code = fcast_object_service_close(raw_, timeout_ms);
        if (code == FCAST_OK)
            detach();
        return detail::done(code);
    }
};

// ---- servers, by token --------------------------------------------------------------------------

/// A channel of a server, which does the work. One thread at a time.
///
/// Each transfer that was accepted has one event with its key, at the latest after its time:
/// `event_kind::object_written`, `object_read` or `object_failed`.
class object_channel : public detail::owner<fcast_object_channel, fcast_object_channel_release> {
public:
    using owner::owner;
    /// Serves a GET: writes data of a region into the client's memory, from `at` on in what the
    /// token names. The data stays as it is until its key comes back.
    status write(const char *token, std::uint64_t at, bytes data, const region &in,
                 std::uint64_t key, std::uint32_t timeout_ms) const noexcept
    {
        return fcast_object_channel_write(raw_, token, at, in.raw(), data.data(), data.size(), key,
                                          timeout_ms);
    }
    /// The same of a payload, which is used up unless this fails.
    status write(const char *token, std::uint64_t at, payload &what, std::uint64_t key,
                 std::uint32_t timeout_ms) const noexcept
    {
        const status begun =
            fcast_object_channel_write_payload(raw_, token, at, what.raw(), key, timeout_ms);
        if (begun)
            what.detach();
        return begun;
    }
    /// Serves a PUT: reads the client's memory into that of a region, which nobody else uses until
    /// its key comes back.
    status read(const char *token, std::uint64_t at, mutable_bytes into, const region &in,
                std::uint64_t key, std::uint32_t timeout_ms) const noexcept
    {
        return fcast_object_channel_read(raw_, token, at, in.raw(), into.data(), into.size(), key,
                                         timeout_ms);
    }
    /// Drives it; what became of transfers, in the memory that is given for it.
    result<span<event>> poll(span<event> into) const
    {
        std::size_t count = 0;
        if (fcast_status code =
                fcast_object_channel_poll(raw_, into.data(), into.size(), &count))
            return failure::last(code);
        return into.first(count);
    }
    /// Sleeps until there may be something to poll for.
    status wait(std::uint32_t timeout_ms) const noexcept
    {
        return fcast_object_channel_wait(raw_, timeout_ms);
    }
    /// The descriptors for a loop of the program's.
    result<std::vector<int>> fds() const
    {
        return detail::list<int>([this](int *fds, std::size_t capacity, std::size_t *count) {
            return fcast_object_channel_fds(raw_, fds, capacity, count);
        });
    }
    /// To be called right before a loop of the program's sleeps.
    result<sleep_advice> prepare_wait() const
    {
        sleep_advice advice{};
        const fcast_status code =
            fcast_object_channel_prepare_wait(raw_, &advice.may_sleep, &advice.timeout_ms);
        if (code != FCAST_OK)
            return failure::last(code);
        return advice;
    }
    /// Waits for what is under way, and closes it; polls tell what became of transfers.
    result<void> close(std::uint32_t timeout_ms) const
    {
        return detail::done(fcast_object_channel_close(raw_, timeout_ms));
    }
};

/// A server: it moves bytes into and out of memory that tokens name. Any thread.
class object_server : public detail::owner<fcast_object_server, fcast_object_server_release> {
public:
    using owner::owner;
    /// On a fabric of the kind FCAST_KIND_RDM.
    static result<object_server> open(const fabric &on, const object_server_settings &of = {})
    {
        fcast_object_server out{};
        if (fcast_status code = fcast_object_server_open(on.raw(), &of, &out))
            return failure::last(code);
        return object_server(out);
    }
    /// Regions that channels move bytes from and to are enrolled with it.
    result<domain> own_domain() const
    {
        fcast_domain out{};
        if (fcast_status code = fcast_object_server_domain(raw_, &out))
            return failure::last(code);
        return domain(out);
    }
    result<object_channel> open_channel() const
    {
        fcast_object_channel out{};
        if (fcast_status code = fcast_object_channel_open(raw_, &out))
            return failure::last(code);
        return object_channel(out);
    }
};

} // namespace fabricast

#endif
