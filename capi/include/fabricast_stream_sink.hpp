/*
 * Sinks of the program's for C++17: where streams go instead of a directory, into memory of the
 * program's or to a function.
 *
 * A program derives from `stream_sink`, and from what its begin() gives, `incoming_stream`. Threads
 * of the receiver call them, several at once, with nothing locked. They answer a status, as
 * fcast_stream_sink_calls says, and may throw: that is a failure of the one stream that they were
 * called for. The status of an `error` is its own, a std::bad_alloc is FCAST_NO_RESOURCES, and all
 * else FCAST_SYSTEM. With FABRICAST_NO_EXCEPTIONS nothing is caught.
 */
#ifndef FABRICAST_STREAM_SINK_HPP
#define FABRICAST_STREAM_SINK_HPP

#include <fabricast_stream.hpp>

namespace fabricast {

/// What a stream is, as its sender said; as fcast_stream_offer.
struct stream_offer : fcast_stream_offer {
    explicit stream_offer(const fcast_stream_offer &of) noexcept : fcast_stream_offer(of) {}
    /// A file or a directory of it, from 0 on; its name is good until begin() returns.
    /// FCAST_NOT_FOUND: there are not so many. One thread at a time.
    result<fcast_stream_entry> entry(std::uint64_t index) const
    {
        fcast_stream_entry out{};
        if (fcast_status code = fcast_stream_manifest_entry(manifest, index, &out))
            return failure::last(code);
        return out;
    }
};

/// Memory that a stream goes into, all of its files one behind the other, and the region that it
/// is in, of the host or of a GPU. An empty one: blocks are written by incoming_stream::write.
struct stream_memory {
    fcast_region region{};
    mutable_bytes memory;
};

/// What is there of an earlier stream, which resume() adds to.
class stream_kept {
public:
    explicit stream_kept(fcast_stream_kept raw) noexcept : raw_(raw) {}
    stream_kept(const stream_kept &) = delete;
    stream_kept &operator=(const stream_kept &) = delete;

    fcast_stream_kept raw() const noexcept { return raw_; }
    /// Says that a block is there, which then is not sent: these are its bytes, which were just
    /// read and found right. FCAST_NOT_FOUND: there is no such block. FCAST_INVALID: it has another
    /// length.
    status add(std::uint64_t block, bytes data) noexcept
    {
        return fcast_stream_kept_add(raw_, block, data.data(), data.size());
    }

private:
    fcast_stream_kept raw_;
};

/// One stream that comes in. It goes right after close().
class incoming_stream {
public:
    incoming_stream() = default;
    incoming_stream(const incoming_stream &) = delete;
    incoming_stream &operator=(const incoming_stream &) = delete;
    virtual ~incoming_stream() = default;

    /// Adds the blocks that are there from an earlier stream of the same key and stamp. It is not
    /// called where blocks carry no CRC32C, or all is to begin anew. Not overridden: there are none.
    virtual status resume(stream_kept &) { return {}; }
    /// Takes a block, whose CRC32C was found right: several at once, in any order, each once. It is
    /// not called where the stream has memory.
    virtual status write(const fcast_stream_block &, bytes) { return FCAST_UNSUPPORTED; }
    /// All blocks are there: the stream is complete when this answers FCAST_OK.
    virtual status finish() { return {}; }
    /// The stream is over. `is_complete`: all is there, and finish() has answered FCAST_OK; else it
    /// was cut or has failed. What this throws is dropped: nothing is left that it could fail.
    virtual void close(bool is_complete) { (void)is_complete; }
};

/// Where streams go. It goes when the receiver is over, on whatever thread that is, unless the
/// program holds it, too.
class stream_sink {
public:
    stream_sink() = default;
    stream_sink(const stream_sink &) = delete;
    stream_sink &operator=(const stream_sink &) = delete;
    virtual ~stream_sink() = default;

    /// A stream is offered: FCAST_OK takes it, and gives what takes its blocks. Where `into` is
    /// filled in they are put there, and nobody else uses that memory until the stream's close().
    /// It should not take long: other streams wait.
    virtual status begin(const stream_offer &offer, std::unique_ptr<incoming_stream> &stream,
                         stream_memory &into) = 0;
};

namespace detail {
/// The table of C over a sink: its context holds the sink.
struct stream_sink_calls : fcast_stream_sink_calls {
    using holder = std::shared_ptr<stream_sink>;

    explicit stream_sink_calls(holder sink) : fcast_stream_sink_calls()
    {
        size = sizeof(fcast_stream_sink_calls);
        context = new holder(std::move(sink));
        release = [](void *held) noexcept { delete static_cast<holder *>(held); };
        begin = &call_begin;
        resume = &call_resume;
        write = &call_write;
        finish = &call_finish;
        close = &call_close;
    }

private:
    static incoming_stream &of(void *stream) noexcept
    {
        return *static_cast<incoming_stream *>(stream);
    }
    static fcast_status call_begin(void *context, const fcast_stream_offer *offer, void **sink,
                                   fcast_stream_place *place) noexcept
    {
        return guarded([&]() -> status {
            std::unique_ptr<incoming_stream> stream;
            stream_memory into;
            const status code =
                (*static_cast<holder *>(context))->begin(stream_offer(*offer), stream, into);
            if (!code)
                return code;
            if (!stream)
                return FCAST_SYSTEM;
            place->region = into.region;
            place->data = into.memory.data();
            place->len = into.memory.size();
            *sink = stream.release();
            return {};
        });
    }
    static fcast_status call_resume(void *, void *sink, fcast_stream_kept raw) noexcept
    {
        return guarded([&] {
            stream_kept kept(raw);
            return of(sink).resume(kept);
        });
    }
    static fcast_status call_write(void *, void *sink, const fcast_stream_block *block,
                                   const void *data) noexcept
    {
        return guarded([&] {
            const bytes from(static_cast<const std::uint8_t *>(data), block->len);
            return of(sink).write(*block, from);
        });
    }
    static fcast_status call_finish(void *, void *sink) noexcept
    {
        return guarded([&] { return of(sink).finish(); });
    }
    static void call_close(void *, void *sink, bool is_complete) noexcept
    {
        const std::unique_ptr<incoming_stream> stream(&of(sink));
        (void)guarded([&] {
            stream->close(is_complete);
            return FCAST_OK;
        });
    }
};
} // namespace detail

inline result<stream_receiver> stream_receiver::open(const domain &at, const char *address,
                                                     std::shared_ptr<stream_sink> into,
                                                     const stream_settings &of)
{
    const stream_place one{at.raw(), address};
    return open(span<const stream_place>(&one, 1), std::move(into), of);
}

inline result<stream_receiver> stream_receiver::open(span<const stream_place> at,
                                                     std::shared_ptr<stream_sink> into,
                                                     const stream_settings &of)
{
    if (!into)
        return failure{FCAST_INVALID, "the sink of a receiver is null"};
    return listen(at, [&](const fcast_domain *domains, const char *const *addresses,
                          fcast_stream_receiver *out) {
        // C releases the sink, also where this fails.
        const detail::stream_sink_calls calls(std::move(into));
        return fcast_stream_receiver_open_sink(domains, addresses, at.size(), &calls, &of, out);
    });
}

} // namespace fabricast

#endif
