// What sources and builders of the readout say to each other, as crates/fabricast-cli/src/readout/wire.rs has it: a
// header of 40 bytes, little-endian, and a payload behind it; and what both sides need besides.
#ifndef READOUT_WIRE_HPP
#define READOUT_WIRE_HPP

#include <fabricast.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <poll.h>

namespace readout {

namespace fc = fabricast;

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this example writes its numbers as they lie in memory, which is little-endian"
#endif

constexpr std::size_t answer_len_max = 16384;
constexpr std::size_t answer_events_max = answer_len_max / 8;
constexpr std::uint32_t depth = 512;

enum kind : std::uint8_t {
    HELLO = 1, FRAGMENT = 2, END = 3, READY = 4, BUILT = 5, LOST = 6, SUMMARY = 7
};
/// Flag of a hello: fragments carry a pattern and its CRC32C.
constexpr std::uint8_t CHECKED = 1;
/// Flag of a fragment: its event was another builder's, so it comes out of order.
constexpr std::uint8_t REASSIGNED = 1;

/// One layout for all kinds of message; what a kind does not use is 0.
struct header {
    char magic[2] = {'F', '3'};
    std::uint8_t kind = 0, flags = 0, detector = 0, count = 0;
    std::uint16_t port = 0;
    std::uint32_t payload_len = 0, crc = 0;
    /// The event; of a hello the clock, of an end the bytes, of a ready the longest fragment.
    std::uint64_t event = 0;
    /// The fragment's number on its connection; of an end and a ready the fragments.
    std::uint64_t serial = 0;
    /// When a fragment was committed; of a hello and of answers the token.
    std::uint64_t stamp = 0;

    /// Everything that must be true of any message.
    static bool parse(const fc::event &of, header &into)
    {
        if (of.header_len != sizeof into)
            return false;
        std::memcpy(&into, of.header, sizeof into);
        return into.magic[0] == 'F' && into.magic[1] == '3' && into.payload_len == of.data_len;
    }
};
static_assert(sizeof(header) == 40, "as on the wire");

struct volume {
    std::uint64_t fragments = 0, bytes = 0;
    bool operator!=(const volume &other) const
    {
        return fragments != other.fragments || bytes != other.bytes;
    }
};

// ---- the content of fragments -------------------------------------------------------------------

/// CRC32C, eight bytes at a time.
class crc32c {
public:
    static std::uint32_t of(fc::bytes data)
    {
        static const crc32c tables;
        std::uint32_t crc = ~0u;
        std::size_t at = 0;
        for (; at + 8 <= data.size(); at += 8) {
            std::uint64_t word;
            std::memcpy(&word, data.data() + at, 8);
            word ^= crc;
            crc = 0;
            for (int byte = 0; byte < 8; byte++)
                crc ^= tables.of_[7 - byte][word >> 8 * byte & 0xff];
        }
        for (; at < data.size(); at++)
            crc = crc >> 8 ^ tables.of_[0][(crc ^ data[at]) & 0xff];
        return ~crc;
    }

private:
    crc32c()
    {
        for (std::uint32_t byte = 0; byte < 256; byte++) {
            std::uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
            of_[0][byte] = crc;
        }
        for (std::uint32_t byte = 0; byte < 256; byte++)
            for (int table = 1; table < 8; table++)
                of_[table][byte] =
                    of_[table - 1][byte] >> 8 ^ of_[0][of_[table - 1][byte] & 0xff];
    }
    std::uint32_t of_[8][256];
};

constexpr std::uint64_t pattern_step = 0x9e3779b97f4a7c15;

inline std::uint64_t first_word(std::uint64_t event, unsigned detector)
{
    const std::uint64_t product = (event << 16 | detector) * pattern_step;
    return product ^ product >> 32;
}

/// What a detector writes; returns the CRC32C of it.
inline std::uint32_t fill(std::uint64_t event, unsigned detector, fc::mutable_bytes into)
{
    std::uint64_t word = first_word(event, detector);
    for (std::size_t at = 0; at < into.size(); at += 8, word += pattern_step)
        std::memcpy(into.data() + at, &word, std::min<std::size_t>(8, into.size() - at));
    return crc32c::of(into);
}

inline bool is_right(std::uint64_t event, unsigned detector, std::uint32_t crc, fc::bytes data)
{
    const std::uint64_t word = first_word(event, detector);
    return std::memcmp(data.data(), &word, std::min<std::size_t>(8, data.size())) == 0 &&
           crc32c::of(data) == crc;
}

// ---- what a builder counted ---------------------------------------------------------------------

struct summary {
    // Sixteen buckets for each power of two of nanoseconds, and one for 2^42 and more.
    static constexpr std::size_t counts = 11, buckets = 39 * 16 + 1;
    volume received;
    std::uint64_t built = 0, lost = 0, duplicates = 0, order_errors = 0, content_errors = 0;
    std::uint64_t max_ns = 0, total_ns = 0;
    std::array<std::uint64_t, buckets> latency{};

    void record(std::uint64_t ns)
    {
        max_ns = std::max(max_ns, ns);
        total_ns += ns;
        std::size_t bucket = ns;
        if (ns >= 16) {
            const unsigned power = 63 - static_cast<unsigned>(__builtin_clzll(ns));
            bucket = (power - 3) * 16 + (ns >> (power - 4) & 15);
        }
        latency[std::min(bucket, buckets - 1)]++;
    }
    std::vector<std::uint64_t> words() const
    {
        // The four 0: times of checks, and what the process used, which are not measured here.
        std::vector<std::uint64_t> all{received.fragments, received.bytes, built, lost, duplicates,
                                       order_errors, content_errors, 0, 0, 0, 0,
                                       max_ns, total_ns};
        all.insert(all.end(), latency.begin(), latency.end());
        return all;
    }
    static bool parse(fc::bytes data, summary &into)
    {
        if (data.size() != (counts + 2 + buckets) * 8)
            return false;
        std::array<std::uint64_t, counts> of;
        std::memcpy(of.data(), data.data(), sizeof of);
        into.received = {of[0], of[1]};
        into.built = of[2], into.lost = of[3], into.duplicates = of[4];
        into.order_errors = of[5], into.content_errors = of[6];
        return true;
    }
};

// ---- clocks, settings, sleeps -------------------------------------------------------------------

using steady = std::chrono::steady_clock;

/// The clock that all processes of a machine share, in nanoseconds.
inline std::uint64_t now_ns()
{
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::uint64_t(now.tv_sec) * 1'000'000'000 + std::uint64_t(now.tv_nsec);
}

/// Which clock that is: a hash of the boot (FNV-1a).
inline std::uint64_t clock_id()
{
    std::ifstream file("/proc/sys/kernel/random/boot_id", std::ios::binary);
    const std::string boot((std::istreambuf_iterator<char>(file)), {});
    std::uint64_t hash = boot.empty() ? 0 : 0xcbf29ce484222325;
    for (unsigned char byte : boot)
        hash = (hash ^ byte) * 0x100000001b3;
    return hash;
}

/// What all connections of both sides have in common. A receiver learns how long headers are when
/// a sender connects.
inline fc::settings connection_settings(std::uint32_t patience_ms, bool is_sender)
{
    fc::settings of;
    if (is_sender) {
        of.header_mode = FCAST_HEADER_FIXED;
        of.header_fixed = sizeof(header);
        of.deadline_ms = patience_ms;
    }
    of.connect_timeout_ms = patience_ms;
    of.unresponsive_after_ms = patience_ms / 2;
    of.lost_after_ms = patience_ms;
    return of;
}

inline fc::domain open_domain(const std::string &provider, const std::string &local)
{
    fc::fabric_settings over;
    over.provider = provider.c_str();
    over.node = local.c_str();
    return fc::fabric::open(over).value().open_domain().value();
}

/// The address of "192.0.2.1:7000" without its port.
inline std::string host_of(const std::string &address)
{
    std::string host = address.substr(0, address.rfind(':'));
    if (host.size() > 2 && host.front() == '[')
        host = host.substr(1, host.size() - 2);
    return host;
}

inline bool is_closed(const fc::event &of) { return of.is(fc::event_kind::disconnected); }

/// Sleeps until one of some endpoints has something, for at most so long.
class sleeper {
public:
    void add(const fc::endpoint &of)
    {
        fc::sleep_advice now{};
        // An endpoint that is over needs nothing.
        if (fcast_endpoint_prepare_wait(of.raw(), &now.may_sleep, &now.timeout_ms) != FCAST_OK)
            return;
        may_sleep_ &= now.may_sleep;
        if (now.timeout_ms >= 0)
            timeout_ms_ = std::min(timeout_ms_, now.timeout_ms);
        auto fds = of.fds();
        for (int fd : fds ? *std::move(fds) : std::vector<int>())
            fds_.push_back({fd, POLLIN, 0});
    }
    void sleep(int at_most_ms)
    {
        if (may_sleep_)
            (void)::poll(fds_.data(), fds_.size(), std::min(at_most_ms, timeout_ms_));
        *this = {};
    }

private:
    std::vector<pollfd> fds_;
    bool may_sleep_ = true;
    std::int32_t timeout_ms_ = 1'000'000;
};

} // namespace readout

#endif
