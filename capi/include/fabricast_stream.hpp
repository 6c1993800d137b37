/*
 * Streams for C++17: files, directories and bytes of the program's, to a directory of one peer or
 * of many, or to where the peer's program says (fabricast_stream_sink.hpp). What is sent is read, sent, checked and written by threads of the library's.
 */
#ifndef FABRICAST_STREAM_HPP
#define FABRICAST_STREAM_HPP

#include <fabricast.hpp>

#include <initializer_list>

namespace fabricast {

/// How either side is opened; as fcast_stream_settings, with the defaults. A field that the side
/// does not have stays 0.
struct stream_settings : fcast_stream_settings {
    stream_settings() noexcept : fcast_stream_settings() { size = sizeof(fcast_stream_settings); }
    /// Sets the key, 16 to 4,096 bytes, which stay where they are until the side was opened.
    stream_settings &with_key(bytes secret) noexcept
    {
        key = secret.data();
        key_len = secret.size();
        return *this;
    }
};

/// What one transfer asks for; as fcast_stream_options, with the defaults.
struct stream_options : fcast_stream_options {
    stream_options() noexcept : fcast_stream_options() { size = sizeof(fcast_stream_options); }
};

/// How a stream went, at one peer; as fcast_stream_report.
struct stream_report : fcast_stream_report {
    stream_report() noexcept : fcast_stream_report() { size = sizeof(fcast_stream_report); }
};

/// What came of a transfer at one peer.
struct stream_outcome {
    /// FCAST_OK: the peer has the content, checked. Else why not.
    status code;
    /// Why not, in words.
    std::string words;
    /// How it went, one way or the other.
    stream_report report;
};

/// Texts of the program's, of which none is copied: one, or several.
class texts {
public:
    texts(const char *one) : all_{one} {}
    texts(const std::string &one) : all_{one.c_str()} {}
    texts(std::initializer_list<const char *> all) : all_(all) {}
    texts(span<const char *const> all) : all_(all.begin(), all.end()) {}
    texts(const std::vector<std::string> &all)
    {
        all_.reserve(all.size());
        for (const std::string &one : all)
            all_.push_back(one.c_str());
    }
    const char *const *data() const noexcept { return all_.data(); }
    std::size_t size() const noexcept { return all_.size(); }

private:
    std::vector<const char *> all_;
};

// ---- sending ------------------------------------------------------------------------------------

/// Something that is being sent, which goes on whether this is held or not. Any thread.
class stream_transfer : public detail::owner<fcast_stream_transfer, fcast_stream_transfer_release> {
public:
    using owner::owner;
    /// Waits until it is over at every peer. Fails with why the first peer that does not have the
    /// content does not have it; FCAST_TIMED_OUT, or FCAST_AGAIN with a timeout of 0: it goes on.
    result<void> wait(std::uint32_t timeout_ms = FCAST_NEVER) const
    {
        return detail::done(fcast_stream_transfer_wait(raw_, timeout_ms));
    }
    /// As wait(0), for those who ask often: FCAST_AGAIN as long as it goes on.
    status poll() const noexcept { return fcast_stream_transfer_wait(raw_, 0); }
    /// How far each peer is, in the order in which they were given.
    result<std::vector<fcast_stream_progress>> progress() const
    {
        return detail::list<fcast_stream_progress>(
            [this](fcast_stream_progress *peers, std::size_t capacity, std::size_t *count) {
                return fcast_stream_transfer_progress(raw_, peers, capacity, count);
            });
    }
    /// What came of it at one peer, by its place among those that were given. Fails with
    /// FCAST_AGAIN as long as it goes on, and with FCAST_NOT_FOUND where there is no such peer.
    result<stream_outcome> outcome(std::size_t peer = 0) const
    {
        // No report has this: what is there afterwards was written.
        constexpr std::uint32_t untold = UINT32_MAX;
        stream_outcome out;
        out.report.has_blake3 = untold;
        out.code = fcast_stream_transfer_outcome(raw_, peer, &out.report);
        if (out.report.has_blake3 == untold)
            return failure::last(out.code);
        if (!out.code)
            out.words = fcast_last_error();
        return out;
    }
    /// All that is known of it at one peer, as a JSON object. FCAST_AGAIN: it goes on.
    result<std::string> report_text(std::size_t peer = 0) const
    {
        return detail::text([&](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_stream_transfer_report_text(raw_, peer, text, capacity, len);
        });
    }
    /// Sends no further block until resume().
    status pause() const noexcept { return fcast_stream_transfer_pause(raw_); }
    status resume() const noexcept { return fcast_stream_transfer_resume(raw_); }
    /// Ends it soon. What peers have they keep, for a later one of the same.
    status cancel() const noexcept { return fcast_stream_transfer_cancel(raw_); }
    /// The most bytes a second from now on, all peers together; 0: no limit.
    status set_rate(std::uint64_t bytes_per_second) const noexcept
    {
        return fcast_stream_transfer_set_rate(raw_, bytes_per_second);
    }
};

namespace detail {
/// Fails what is not over, and waits for the threads, which soon read nothing of the program's any
/// more. Only one that another thread is using is given back without waiting.
inline fcast_status end_stream_sender(fcast_stream_sender which)
{
    const fcast_status code = fcast_stream_sender_close(which, 0);
    return code == FCAST_BUSY ? fcast_stream_sender_release(which) : code;
}
} // namespace detail

/// Sends streams. Any thread. One that goes without close() fails what is not over.
///
/// A peer is a text: an address of a receiver, or several of the same one, with commas between.
class stream_sender : public detail::owner<fcast_stream_sender, detail::end_stream_sender> {
public:
    using owner::owner;
    static result<stream_sender> open(const domain &over, const stream_settings &of = {})
    {
        const fcast_domain one = over.raw();
        return open(span<const fcast_domain>(&one, 1), of);
    }
    /// Over several domains: a peer's n-th address is reached by the n-th of them.
    static result<stream_sender> open(span<const fcast_domain> over, const stream_settings &of = {})
    {
        fcast_stream_sender out{};
        if (fcast_status code = fcast_stream_sender_open(over.data(), over.size(), &of, &out))
            return failure::last(code);
        return stream_sender(out);
    }
    /// Begins to send files, and directories with all that is in them. FCAST_NOT_FOUND: there is
    /// no such file.
    result<stream_transfer> send_files(const texts &paths, const texts &peers,
                                       const stream_options &of = {}) const
    {
        fcast_stream_transfer out{};
        if (fcast_status code =
                fcast_stream_send_files(raw_, paths.data(), paths.size(), peers.data(),
                                        peers.size(), &of, &out))
            return failure::last(code);
        return stream_transfer(out);
    }
    /// Begins to send bytes under a name. They stay as they are until `release` is called, on
    /// whatever thread ends their last use, also where this fails; without one, until the sender
    /// is closed or gone. `release` must not throw.
    result<stream_transfer> send_bytes(const char *name, bytes data, const texts &peers,
                                       const stream_options &of = {},
                                       std::function<void()> release = {}) const
    {
        const detail::release_call with(std::move(release));
        fcast_stream_transfer out{};
        if (fcast_status code = fcast_stream_send_bytes(raw_, name, data.data(), data.size(),
                                                        with.call, with.context, peers.data(),
                                                        peers.size(), &of, &out))
            return failure::last(code);
        return stream_transfer(out);
    }
    /// The same of bytes that are kept for as long as they are needed.
    result<stream_transfer> send_owned(const char *name, std::vector<std::uint8_t> data,
                                       const texts &peers, const stream_options &of = {}) const
    {
        const auto held = std::make_shared<const std::vector<std::uint8_t>>(std::move(data));
        return send_bytes(name, *held, peers, of, [held] {});
    }
    /// Begins to send a frozen buffer of a pool under a name, without a copy. It is used up, also
    /// where this fails. The pool's region is registered with the sender's domains.
    result<stream_transfer> send_payload(const char *name, payload what, const texts &peers,
                                         const stream_options &of = {}) const
    {
        fcast_stream_transfer out{};
        if (fcast_status code = fcast_stream_send_payload(raw_, name, what.raw(), peers.data(),
                                                          peers.size(), &of, &out))
            return failure::last(code);
        what.detach();
        return stream_transfer(out);
    }
    /// Ends it: transfers go on for so long, what is left then fails. It is empty afterwards,
    /// unless another thread is using it (FCAST_BUSY).
    result<void> close(std::uint32_t timeout_ms)
    {
        const fcast_status code = fcast_stream_sender_close(raw_, timeout_ms);
        if (code != FCAST_BUSY)
            detach();
        return detail::done(code);
    }
};

// ---- receiving ----------------------------------------------------------------------------------

enum class stream_event_kind : std::uint32_t {
    began = FCAST_STREAM_BEGAN,
    complete = FCAST_STREAM_COMPLETE,
    cut = FCAST_STREAM_CUT,
    refused = FCAST_STREAM_REFUSED,
    other = FCAST_STREAM_OTHER,
};

/// Something that happened at a receiver; its texts are there until the next poll, and never null.
struct stream_event : fcast_stream_event {
    bool is(stream_event_kind wanted) const noexcept
    {
        return kind == static_cast<std::uint32_t>(wanted);
    }
    stream_event_kind what() const noexcept { return static_cast<stream_event_kind>(kind); }
    /// Why, in words.
    std::string_view words() const noexcept { return text; }
};
static_assert(sizeof(stream_event) == sizeof(fcast_stream_event), "arrays of them are passed to C");

/// An address to listen at, and the domain that it is of.
struct stream_place {
    fcast_domain domain;
    const char *address;
};

class stream_sink;

/// Receives streams into a directory, or a sink of the program's. One thread at a time. One that
/// goes without close() cuts what is not over.
class stream_receiver : public detail::owner<fcast_stream_receiver, fcast_stream_receiver_release> {
public:
    using owner::owner;
    /// Listens at an address of this machine, such as "127.0.0.1:0". The directory exists; what is
    /// in it under its own name is whole and checked. FCAST_SYSTEM: there is no such directory.
    static result<stream_receiver> open(const domain &at, const char *address,
                                        const char *directory, const stream_settings &of = {})
    {
        const stream_place one{at.raw(), address};
        return open(span<const stream_place>(&one, 1), directory, of);
    }
    /// Listens at several addresses, each of a domain of its own.
    static result<stream_receiver> open(span<const stream_place> at, const char *directory,
                                        const stream_settings &of = {})
    {
        return listen(at, [&](const fcast_domain *domains, const char *const *addresses,
                              fcast_stream_receiver *out) {
            return fcast_stream_receiver_open(domains, addresses, at.size(), directory, &of, out);
        });
    }
    /// Listens for a sink of the program's, which is held until it is needed no more: see
    /// fabricast_stream_sink.hpp, which has these functions.
    static result<stream_receiver> open(const domain &at, const char *address,
                                        std::shared_ptr<stream_sink> into,
                                        const stream_settings &of = {});
    static result<stream_receiver> open(span<const stream_place> at,
                                        std::shared_ptr<stream_sink> into,
                                        const stream_settings &of = {});
    /// Where it listens, with real ports: what a sender takes as a peer.
    result<std::string> address() const
    {
        return detail::text([this](char *text, std::size_t capacity, std::size_t *len) {
            return fcast_stream_receiver_address(raw_, text, capacity, len);
        });
    }
    /// Waits for something to happen; the events that did, in the memory that is given for them.
    result<span<stream_event>> poll(span<stream_event> into, std::uint32_t timeout_ms) const
    {
        std::size_t count = 0;
        if (fcast_status code = fcast_stream_receiver_poll(raw_, timeout_ms, into.data(),
                                                           into.size(), &count))
            return failure::last(code);
        return into.first(count);
    }
    /// Ends it: streams go on for so long, what is left then is cut. Polls that follow tell what
    /// happened meanwhile.
    result<void> close(std::uint32_t timeout_ms) const
    {
        return detail::done(fcast_stream_receiver_close(raw_, timeout_ms));
    }

private:
    template <class Open> static result<stream_receiver> listen(span<const stream_place> at, Open how)
    {
        std::vector<fcast_domain> domains;
        std::vector<const char *> addresses;
        for (const stream_place &place : at) {
            domains.push_back(place.domain);
            addresses.push_back(place.address);
        }
        fcast_stream_receiver out{};
        if (fcast_status code = how(domains.data(), addresses.data(), &out))
            return failure::last(code);
        return stream_receiver(out);
    }
};

} // namespace fabricast

#endif
