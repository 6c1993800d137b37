// A builder: gets every fragment of its events, puts them together, checks them, and answers for
// each event.
#ifndef READOUT_BUILDER_HPP
#define READOUT_BUILDER_HPP

#include "readout_wire.hpp"

#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

namespace readout {

struct builder_args {
    std::string listen = "127.0.0.1:7480", provider = "tcp";
    unsigned detectors = 2, sources = 1;
    std::uint32_t max_fragment = 65536, credits = 0, patience_ms = 10000;
};

/// The way back to a source: what the builder has to tell it, in batches.
class answers {
public:
    answers(const fc::domain &in, const std::string &to, std::uint64_t token, const fc::pool &from,
            const builder_args &args)
        : args_(args), token_(token), pool_(from)
    {
        const fc::settings of = connection_settings(args.patience_ms, true);
        endpoint_ = fc::sender::open(in, to.c_str(), of).value();
    }

    bool may_start = false;
    std::vector<std::uint64_t> built, lost;
    std::optional<summary> counted;

    const fc::sender &endpoint() const { return endpoint_; }
    bool is_over() const { return is_over_; }

    /// True: something happened.
    bool drive()
    {
        if (is_over_)
            return false;
        fc::event room[32];
        const auto events = endpoint_.poll(room).value();
        for (const fc::event &of : events) {
            is_connected_ |= of.is(fc::event_kind::connected);
            is_over_ |= is_closed(of);
        }
        return flush() || !events.empty();
    }
    void close() { (void)endpoint_.begin_close(5000); }

private:
    bool flush()
    {
        if (!is_connected_ || is_over_)
            return false;
        bool sent = false;
        if (may_start && !is_ready_) {
            header ready;
            ready.event = args_.max_fragment;
            ready.serial = args_.credits;
            sent |= is_ready_ = send(READY, ready, nullptr, 0);
        }
        while (!built.empty() && numbers(BUILT, built))
            sent = true;
        while (!lost.empty() && numbers(LOST, lost))
            sent = true;
        if (built.empty() && lost.empty() && counted) {
            const auto words = counted->words();
            if (send(SUMMARY, {}, words.data(), words.size()))
                counted.reset(), sent = true;
        }
        return sent;
    }
    bool numbers(kind what, std::vector<std::uint64_t> &all)
    {
        const std::size_t count = std::min(all.size(), answer_events_max);
        if (!send(what, {}, all.data(), count))
            return false;
        all.erase(all.begin(), all.begin() + std::ptrdiff_t(count));
        return true;
    }
    bool send(kind what, header of, const std::uint64_t *words, std::size_t count)
    {
        auto buffer = pool_.acquire();
        if (!buffer)
            return false;
        if (count > 0)
            std::memcpy(buffer->data(), words, count * 8);
        fc::payload payload = std::move(*buffer).freeze(count * 8).value();
        of.kind = what;
        of.stamp = token_;
        of.payload_len = std::uint32_t(count * 8);
        return endpoint_.send(payload, fc::bytes_of(of), 0).ok();
    }

    const builder_args &args_;
    std::uint64_t token_;
    const fc::pool &pool_;
    fc::sender endpoint_;
    bool is_connected_ = false, is_ready_ = false, is_over_ = false;
};

/// One source, as the builder sees it.
struct upstream {
    std::uint64_t connection = 0;
    std::string address;
    std::optional<header> hello;
    std::unique_ptr<answers> back;
    summary counted;
    std::uint64_t last_event = 0, held = 0;
    std::optional<volume> sent;
    bool is_closed = false;
};

/// A fragment of an event that is not complete: the message as it came, or a copy of a short one,
/// which shares its buffer with others.
struct part {
    std::size_t source;
    unsigned detector;
    std::uint32_t crc;
    std::uint64_t committed;
    fc::message kept;
    std::vector<std::uint8_t> copy;
    fc::bytes data() const { return kept ? kept.data() : fc::bytes(copy); }
};

struct partial {
    std::vector<part> parts;
    std::uint64_t detectors = 0, sources = 0;
    std::size_t detectors_told = 0, parts_told = 0;
    steady::time_point since = steady::now();
};

class builder {
public:
    explicit builder(builder_args args) : args_(std::move(args))
    {
        // Fragments of up to 4 KiB come packed into frames.
        is_packed_ = args_.max_fragment <= 4096;
        const std::uint32_t most = is_packed_ ? 32768 : 512;
        const std::uint32_t fit = std::clamp((64u << 20) / args_.max_fragment, 16u, most);
        if (args_.credits == 0)
            args_.credits = std::max(fit, 2 * args_.detectors);
        domain_ = open_domain(args_.provider, host_of(args_.listen));
        fc::region memory = fc::region::allocate(64 * answer_len_max).value();
        memory.enroll(domain_).value();
        pool_ = fc::pool::create(memory, answer_len_max).value();

        fc::settings of = connection_settings(args_.patience_ms, false);
        of.max_connections = args_.sources + 1;
        of.credits = is_packed_ ? std::min(args_.credits, 32u) : args_.credits;
        of.max_message = is_packed_ ? 32768 : std::uint32_t(sizeof(header)) + args_.max_fragment;
        of.slots = of.max_connections * (of.credits + 2);
        // The request says who it is: answers go to that address.
        of.ask = 1;
        endpoint_ = fc::receiver::open(domain_, args_.listen.c_str(), of).value();
    }

    /// Builds the events of one run; what was wrong with it, if anything was.
    std::string run()
    {
        std::printf("listening on %s\n", endpoint_.address().value().c_str());
        std::fflush(stdout);
        while (!is_over_) {
            bool worked = receive();
            for (upstream &source : sources_)
                worked |= source.back && source.back->drive();
            if (!worked)
                sleep();
            tick();
        }
        goodbye();
        report();
        return complaint();
    }

private:
    bool receive()
    {
        fc::event room[256];
        const auto events = endpoint_.poll(room).value();
        for (const fc::event &of : events) {
            if (of.is(fc::event_kind::message)) {
                on_message(of);
            } else if (of.is(fc::event_kind::request)) {
                upstream &source = sources_.emplace_back();
                source.connection = of.connection;
                source.address = of.words();
                (void)endpoint_.accept(of.connection);
            } else if (is_closed(of)) {
                on_gone(of.connection);
            }
        }
        return !events.empty();
    }

    void on_message(const fc::event &of)
    {
        const auto found =
            std::find_if(sources_.begin(), sources_.end(), [&of](const upstream &source) {
                return source.connection == of.connection;
            });
        header head;
        if (found == sources_.end())
            return;
        last_message_ = steady::now();
        const std::size_t index = std::size_t(found - sources_.begin());
        if (!header::parse(of, head))
            fail("a message that is none of this program's");
        else if (head.kind == FRAGMENT && found->hello)
            on_fragment(index, head, of);
        else if (head.kind == HELLO && !found->hello)
            on_hello(*found, head);
        else if (head.kind == END && found->hello)
            on_end(*found, head);
        else
            fail("messages in a wrong order");
    }

    void on_hello(upstream &source, const header &hello)
    {
        if (hello.count == 0 || hello.detector + hello.count > 64)
            return fail("a Hello with detectors that there can't be");
        source.hello = hello;
        const std::string host = host_of(source.address);
        const bool six = host.find(':') != std::string::npos;
        const std::string to =
            (six ? "[" + host + "]" : host) + ":" + std::to_string(hello.port);
        source.back = std::make_unique<answers>(domain_, to, hello.stamp, pool_, args_);
        if (there() == args_.detectors)
            for (upstream &each : sources_)
                if (each.back)
                    each.back->may_start = true;
    }
    unsigned there() const
    {
        unsigned all = 0;
        for (const upstream &source : sources_)
            all += source.hello ? source.hello->count : 0;
        return all;
    }

    void on_fragment(std::size_t index, const header &head, const fc::event &of)
    {
        upstream &source = sources_[index];
        const unsigned first = source.hello->detector, count = source.hello->count;
        if (head.detector < first || head.detector >= first + count || head.count == 0)
            return fail("a fragment of a detector that is not its own");
        if (of.data_len > args_.max_fragment || source.held >= args_.credits)
            return fail("more, or longer fragments than were granted");
        summary &counted = source.counted;
        const bool again = head.flags & REASSIGNED;
        if ((!again && head.event < source.last_event) || head.serial != counted.received.fragments)
            counted.order_errors++;
        if (!again)
            source.last_event = head.event;
        counted.received.fragments++;
        counted.received.bytes += of.data_len;

        partial &event = events_[head.event];
        const std::uint64_t detector = std::uint64_t(1) << head.detector;
        if (event.detectors & detector) {
            counted.duplicates++;
            return;
        }
        source.held++;
        event.detectors |= detector;
        if (!(event.sources >> index & 1)) {
            event.sources |= std::uint64_t(1) << index;
            event.detectors_told += count;
            event.parts_told += head.count;
        }
        part piece{index, head.detector, head.crc, head.stamp, {}, {}};
        if (is_packed_)
            piece.copy.assign(of.payload_bytes().begin(), of.payload_bytes().end());
        else
            piece.kept = endpoint_.keep(of).value();
        event.parts.push_back(std::move(piece));
        if (event.detectors_told == args_.detectors && event.parts.size() == event.parts_told)
            on_complete(head.event, event);
    }

    /// This is where an experiment's code would begin.
    void on_complete(std::uint64_t number, partial &event)
    {
        std::uint64_t oldest = ~std::uint64_t(0);
        for (const part &piece : event.parts) {
            upstream &source = sources_[piece.source];
            source.held--;
            if (source.hello->flags & CHECKED &&
                !is_right(number, piece.detector, piece.crc, piece.data()))
                source.counted.content_errors++;
            oldest = std::min(oldest, piece.committed);
        }
        built_++;
        for (std::size_t index = 0; index < sources_.size(); index++)
            if (event.sources >> index & 1) {
                sources_[index].counted.built++;
                sources_[index].counted.record(now_ns() - oldest);
                sources_[index].back->built.push_back(number);
            }
        events_.erase(number);
    }

    /// Events that can't be complete any more.
    void give_up(std::uint64_t sources, steady::duration age)
    {
        for (auto at = events_.begin(); at != events_.end();) {
            const auto &[number, event] = *at;
            if (!(event.sources & sources) && steady::now() - event.since < age) {
                ++at;
                continue;
            }
            for (const part &piece : event.parts)
                sources_[piece.source].held--;
            for (std::size_t index = 0; index < sources_.size(); index++)
                if (event.sources >> index & 1) {
                    sources_[index].counted.lost++;
                    sources_[index].back->lost.push_back(number);
                }
            at = events_.erase(at);
        }
    }

    void on_end(upstream &source, const header &end)
    {
        source.sent = volume{end.serial, end.event};
        source.back->counted = source.counted;
    }
    void on_gone(std::uint64_t connection)
    {
        bool all = there() == args_.detectors;
        for (std::size_t index = 0; index < sources_.size(); index++) {
            upstream &source = sources_[index];
            if (source.connection == connection) {
                source.is_closed = true;
                if (!source.sent)
                    give_up(std::uint64_t(1) << index, steady::duration::max());
            }
            all &= source.is_closed || !source.hello;
        }
        is_over_ |= all;
    }

    void tick()
    {
        const auto now = steady::now();
        if (now < next_look_)
            return;
        next_look_ = now + std::chrono::milliseconds(50);
        const std::chrono::milliseconds patience(args_.patience_ms);
        give_up(0, patience / 2);
        if (there() < args_.detectors && now - last_message_ > patience)
            fail("no source came, or not all of them");
    }
    void sleep()
    {
        sleeper_.add(endpoint_);
        for (const upstream &source : sources_)
            if (source.back && !source.back->is_over())
                sleeper_.add(source.back->endpoint());
        sleeper_.sleep(50);
    }
    void fail(const char *why)
    {
        failure_ = why;
        is_over_ = true;
    }

    /// What is told arrives before the process ends.
    void goodbye()
    {
        const auto end = steady::now() + std::chrono::seconds(5);
        for (upstream &source : sources_)
            if (source.back)
                source.back->close();
        for (bool open = true; open && steady::now() < end;) {
            open = false;
            for (upstream &source : sources_)
                if (source.back) {
                    (void)source.back->drive();
                    open |= !source.back->is_over();
                }
            if (open)
                sleep();
        }
    }
    void report() const
    {
        volume all;
        std::uint64_t lost = 0, errors = 0;
        for (const upstream &source : sources_) {
            const summary &of = source.counted;
            all.fragments += of.received.fragments;
            all.bytes += of.received.bytes;
            lost += of.lost;
            errors += of.order_errors + of.content_errors + of.duplicates;
        }
        std::printf("{\"events_built\":%llu,\"fragments\":%llu,\"bytes\":%llu,"
                    "\"events_given_up\":%llu,\"errors\":%llu}\n",
                    (unsigned long long)built_, (unsigned long long)all.fragments,
                    (unsigned long long)all.bytes, (unsigned long long)lost,
                    (unsigned long long)errors);
    }
    std::string complaint() const
    {
        if (!failure_.empty())
            return failure_;
        for (const upstream &source : sources_) {
            if (!source.hello)
                continue;
            const summary &of = source.counted;
            if (!source.sent)
                return "source " + source.address + " was lost";
            if (*source.sent != of.received)
                return "source " + source.address + " sent other fragments than came";
            if (of.order_errors + of.content_errors + of.duplicates > 0)
                return "fragments were wrong, out of order or came twice";
        }
        return {};
    }

    builder_args args_;
    bool is_packed_;
    fc::domain domain_;
    fc::pool pool_;
    fc::receiver endpoint_;
    std::deque<upstream> sources_;
    std::unordered_map<std::uint64_t, partial> events_;
    std::uint64_t built_ = 0;
    steady::time_point last_message_ = steady::now(), next_look_ = last_message_;
    sleeper sleeper_;
    std::string failure_;
    bool is_over_ = false;
};

} // namespace readout

#endif
