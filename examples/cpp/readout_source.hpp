// A source: cards that write to memory of their own, and the sender that gives each event's
// fragments, from where they lie, to the builder whose event it is.
#ifndef READOUT_SOURCE_HPP
#define READOUT_SOURCE_HPP

#include "readout_wire.hpp"

#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace readout {

struct source_args {
    std::vector<std::string> to;
    std::string provider = "tcp";
    unsigned detectors = 2, first_detector = 0;
    std::uint64_t events = 10000;
    double rate_khz = 0;
    std::uint32_t size = 4096, patience_ms = 10000;
};

/// What a card tells of a fragment that it has written.
struct descriptor {
    const std::uint8_t *address;
    std::uint32_t len, crc;
    std::uint64_t committed;
};

/// A card: its memory, which is foreign to the library, and a thread that writes there as a DMA
/// engine would. Event n lies at place n modulo `places`, when nobody needs what lay there before.
class card {
public:
    static constexpr std::uint64_t places = 2048;

    card(unsigned number, const source_args &args)
        : number_(number), args_(args), stride_((args.size + 63) / 64 * 64),
          len_(stride_ * places), filled_(places), is_free_(new std::atomic<bool>[places])
    {
        memory_ = static_cast<std::uint8_t *>(::mmap(nullptr, len_, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (memory_ == MAP_FAILED)
            throw std::runtime_error("mmap of a card's memory");
        for (std::uint64_t place = 0; place < places; place++)
            is_free_[place].store(true, std::memory_order_relaxed);
        region_ = fc::region::external(memory_, len_, [memory = memory_, len = len_] {
                      ::munmap(memory, len);
                  }).value();
    }
    ~card() { stop(); }

    const fc::region &region() const { return region_; }
    void start()
    {
        started_ = steady::now();
        thread_ = std::thread([this] { run(); });
    }
    void stop()
    {
        is_over_ = true;
        if (thread_.joinable())
            thread_.join();
    }
    /// How many events it has written; what they are is there.
    std::uint64_t head() const { return head_.load(std::memory_order_acquire); }
    const descriptor &of(std::uint64_t event) const { return filled_[event % places]; }
    /// The memory of an event is the card's again.
    void give_back(std::uint64_t event)
    {
        is_free_[event % places].store(true, std::memory_order_release);
    }

private:
    void run()
    {
        for (std::uint64_t event = 0; event < args_.events && !is_over_;) {
            const std::uint64_t place = event % places;
            if (!is_due(event) || !is_free_[place].load(std::memory_order_acquire)) {
                std::this_thread::sleep_for(std::chrono::microseconds(200));
                continue;
            }
            is_free_[place].store(false, std::memory_order_relaxed);
            std::uint8_t *into = memory_ + place * stride_;
            const std::uint32_t crc = fill(event, number_, {into, args_.size});
            filled_[place] = {into, args_.size, crc, now_ns()};
            head_.store(++event, std::memory_order_release);
        }
    }
    bool is_due(std::uint64_t event) const
    {
        const std::chrono::duration<double, std::milli> running = steady::now() - started_;
        return args_.rate_khz <= 0 || double(event) < running.count() * args_.rate_khz;
    }

    unsigned number_;
    const source_args &args_;
    std::size_t stride_, len_;
    std::vector<descriptor> filled_;
    std::unique_ptr<std::atomic<bool>[]> is_free_;
    std::uint8_t *memory_ = nullptr;
    fc::region region_;
    std::atomic<std::uint64_t> head_{0};
    std::atomic<bool> is_over_{false};
    steady::time_point started_;
    std::thread thread_;
};

/// An event that no builder has answered for. Its place is that of its memory.
struct out_event {
    std::uint64_t number = 0;
    std::size_t builder = 0;
    unsigned sent = 0, in_flight = 0;
    bool is_out = false, reassigned = false, answered = false;
};

enum class stage { opening, ready, ended, closing, closed, lost };

/// One builder, as the source sees it.
struct link {
    std::string to;
    std::uint64_t token = 0;
    fc::sender endpoint;
    readout::stage stage = readout::stage::opening;
    std::deque<std::size_t> queue, urgent;
    std::uint64_t granted = 0, in_turn = 0, held = 0, unanswered = 0, built = 0, given_up = 0;
    bool is_blocked = false, has_summary = false;
    volume sent;
    summary counted;
    steady::time_point last_progress = steady::now();

    bool is_ready() const { return stage == readout::stage::ready; }
    bool is_lost() const { return stage == readout::stage::lost; }
};

class source {
public:
    explicit source(source_args args)
        : args_(std::move(args)), local_(local_address()),
          domain_(open_domain(args_.provider, local_)), events_(card::places)
    {
        for (unsigned index = 0; index < args_.detectors; index++) {
            cards_.push_back(std::make_unique<card>(args_.first_detector + index, args_));
            cards_.back()->region().enroll(domain_).value();
        }
        listen();
        std::random_device random;
        const std::uint64_t secret = std::uint64_t(random()) << 32 | random();
        for (const std::string &to : args_.to) {
            link &one = links_.emplace_back();
            one.to = to;
            one.token = secret + links_.size() - 1;
            fc::settings of = connection_settings(args_.patience_ms, true);
            of.depth = of.header_slots = depth;
            of.header_slot_size = sizeof(header);
            one.endpoint = fc::sender::open(domain_, to.c_str(), of).value();
        }
    }

    /// From the first connection to the last goodbye; what was wrong, if anything was.
    std::string run()
    {
        while (phase_ != phase::over && failure_.empty()) {
            bool worked = poll_answers();
            for (std::size_t index = 0; index < links_.size(); index++)
                worked |= poll_link(index);
            worked |= take_events();
            for (link &each : links_)
                pump(each);
            advance();
            tick();
            if (!worked)
                sleep();
        }
        for (auto &each : cards_)
            each->stop();
        if (failure_.empty())
            failure_ = problems();
        report();
        return failure_;
    }

private:
    enum class phase { opening, running, ending, closing, over };
    static constexpr std::uint64_t control = ~std::uint64_t(0);

    std::string local_address() const
    {
        const std::string &to = args_.to.front();
        const std::string port = to.substr(to.rfind(':') + 1);
        addrinfo hints{}, *found = nullptr;
        hints.ai_socktype = SOCK_DGRAM;
        if (::getaddrinfo(host_of(to).c_str(), port.c_str(), &hints, &found) != 0)
            throw std::runtime_error(to + ": want an address and a port");
        char text[NI_MAXHOST] = "";
        sockaddr_storage own{};
        socklen_t len = sizeof own;
        const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
            ::getsockname(fd, reinterpret_cast<sockaddr *>(&own), &len) == 0)
            (void)::getnameinfo(reinterpret_cast<sockaddr *>(&own), len, text, sizeof text, nullptr,
                                0, NI_NUMERICHOST);
        ::close(fd);
        ::freeaddrinfo(found);
        return text;
    }
    void listen()
    {
        fc::settings of = connection_settings(args_.patience_ms, false);
        of.max_connections = std::uint32_t(args_.to.size()) + 2;
        of.credits = 16;
        of.slots = of.max_connections * (of.credits + 2);
        of.max_message = sizeof(header) + answer_len_max;
        const bool six = local_.find(':') != std::string::npos;
        const std::string any_port = (six ? "[" + local_ + "]" : local_) + ":0";
        answers_ = fc::receiver::open(domain_, any_port.c_str(), of).value();
    }

    // ---- events of the cards, and whose they are ----------------------------------------------

    bool take_events()
    {
        if (phase_ != phase::running || !any_ready())
            return false;
        std::uint64_t head = args_.events;
        for (const auto &each : cards_)
            head = std::min(head, each->head());
        const bool any = taken_ < head;
        for (; taken_ < head; taken_++) {
            out_event &event = events_[taken_ % card::places];
            event = {};
            event.number = taken_;
            event.is_out = true;
            event.builder = assign(taken_);
            link &to = links_[event.builder];
            if (to.unanswered++ == 0)
                to.last_progress = steady::now();
            to.queue.push_back(taken_ % card::places);
            out_++;
        }
        return any;
    }
    bool any_ready() const
    {
        const auto is_ready = [](const link &of) { return of.is_ready(); };
        return std::any_of(links_.begin(), links_.end(), is_ready);
    }
    /// The same answer in every source that knows of the same losses.
    std::size_t assign(std::uint64_t nth) const
    {
        const std::size_t first = nth % links_.size();
        if (links_[first].is_ready())
            return first;
        std::vector<std::size_t> ready;
        for (std::size_t index = 0; index < links_.size(); index++)
            if (links_[index].is_ready())
                ready.push_back(index);
        return ready.empty() ? first : ready[nth / links_.size() % ready.size()];
    }
    void vacate(out_event &event)
    {
        event.is_out = false;
        out_--;
        for (auto &each : cards_)
            each->give_back(event.number);
    }

    // ---- sends --------------------------------------------------------------------------------

    void pump(link &of)
    {
        while (!of.is_blocked && !(of.queue.empty() && of.urgent.empty())) {
            std::deque<std::size_t> &from = of.urgent.empty() ? of.queue : of.urgent;
            out_event &event = events_[from.front()];
            // A quarter of what a builder takes is for events of lost ones.
            const std::uint64_t limit = event.reassigned ? of.granted : of.in_turn;
            if (event.sent == 0 && of.held + args_.detectors > limit)
                return;
            while (event.sent < args_.detectors && send_part(of, event, from.front())) {
            }
            if (event.sent == args_.detectors)
                from.pop_front();
        }
    }
    bool send_part(link &to, out_event &event, std::size_t place)
    {
        const card &from = *cards_[event.sent];
        const descriptor &what = from.of(event.number);
        header head;
        head.kind = FRAGMENT;
        head.flags = event.reassigned ? REASSIGNED : 0;
        head.event = event.number;
        head.detector = std::uint8_t(args_.first_detector + event.sent);
        head.count = std::uint8_t(args_.detectors);
        head.serial = to.sent.fragments;
        head.stamp = what.committed;
        head.crc = what.crc;
        head.payload_len = what.len;
        // An address in the card's memory: nothing is copied.
        if (!send(to, {what.address, what.len}, head, place, from.region().raw()))
            return false;
        event.sent++;
        event.in_flight++;
        to.held++;
        to.sent.fragments++;
        to.sent.bytes += what.len;
        return true;
    }
    bool send(link &to, fc::bytes data, const header &head, std::uint64_t key, fcast_region in)
    {
        const fc::status sent = data.empty()
                                    ? to.endpoint.send(fc::span<const fc::piece>(),
                                                       fc::bytes_of(head), key)
                                    : to.endpoint.send(data, fc::bytes_of(head), key, in);
        to.is_blocked = !sent;
        // That the connection is over its own event says.
        if (!sent && !sent.again() && sent != FCAST_CLOSED)
            failure_ = "builder " + to.to + ": " + std::string(fc::last_error());
        return sent.ok();
    }

    bool poll_link(std::size_t index)
    {
        link &of = links_[index];
        if (of.stage == stage::closed || of.is_lost())
            return false;
        fc::event room[256];
        const auto events = of.endpoint.poll(room).value();
        for (const fc::event &each : events) {
            if (each.is(fc::event_kind::connected))
                say_hello(of);
            else if (each.is(fc::event_kind::writable))
                of.is_blocked = false;
            else if (is_closed(each))
                on_disconnected(index, each);
            else if ((each.is(fc::event_kind::completed) || each.is(fc::event_kind::failed)) &&
                     each.key != control)
                on_back(of, each);
        }
        return !events.empty();
    }
    void say_hello(link &to)
    {
        header hello;
        hello.kind = HELLO;
        hello.flags = CHECKED;
        hello.detector = std::uint8_t(args_.first_detector);
        hello.count = std::uint8_t(args_.detectors);
        const std::string own = answers_.address().value();
        hello.port = std::uint16_t(std::stoi(own.substr(own.rfind(':') + 1)));
        hello.stamp = to.token;
        hello.event = clock_id();
        if (!send(to, {}, hello, control, {}))
            failure_ = "builder " + to.to + ": does not take a Hello";
    }
    /// A fragment is back from the network. It is kept until its event is built.
    void on_back(link &of, const fc::event &done)
    {
        if (done.is(fc::event_kind::completed))
            of.last_progress = steady::now();
        out_event &event = events_[done.key];
        event.in_flight--;
        if (event.answered && event.in_flight == 0)
            vacate(event);
    }

    /// Every send has had its outcome before the connection's end, so nothing is in flight.
    void on_disconnected(std::size_t index, const fc::event &why)
    {
        link &gone = links_[index];
        if (gone.stage == stage::closing) {
            gone.stage = stage::closed;
            return;
        }
        if (gone.stage == stage::opening) {
            failure_ = "builder " + gone.to + ": " + std::string(why.words());
            return;
        }
        std::fprintf(stderr, "readout: builder %s is lost: %s\n", gone.to.c_str(), why.text);
        gone.stage = stage::lost;
        // Its last answers may lie in their own connection.
        while (poll_answers()) {
        }
        gone.queue.clear();
        gone.urgent.clear();
        gone.unanswered = 0;
        if (!any_ready()) {
            failure_ = "no builder is left";
            return;
        }
        std::vector<std::size_t> orphans;
        for (std::size_t place = 0; place < events_.size(); place++)
            if (events_[place].is_out && events_[place].builder == index)
                orphans.push_back(place);
        std::sort(orphans.begin(), orphans.end(), [this](std::size_t a, std::size_t b) {
            return events_[a].number < events_[b].number;
        });
        for (std::size_t place : orphans)
            reassign(place);
    }
    void reassign(std::size_t place)
    {
        out_event &event = events_[place];
        reassigned_++;
        resent_ += event.sent;
        event.builder = assign(event.number);
        event.reassigned = true;
        event.sent = 0;
        link &to = links_[event.builder];
        if (to.unanswered++ == 0)
            to.last_progress = steady::now();
        to.urgent.push_back(place);
    }

    // ---- answers ------------------------------------------------------------------------------

    bool poll_answers()
    {
        fc::event room[64];
        const auto events = answers_.poll(room).value();
        for (const fc::event &each : events) {
            header head;
            if (!each.is(fc::event_kind::message) || !header::parse(each, head))
                continue;
            // Anybody can connect to the port: what is not from our builders is not heard.
            for (std::size_t index = 0; index < links_.size(); index++)
                if (links_[index].token == head.stamp)
                    on_answer(index, head, each.payload_bytes());
        }
        return !events.empty();
    }
    void on_answer(std::size_t index, const header &head, fc::bytes data)
    {
        link &of = links_[index];
        of.last_progress = steady::now();
        if (head.kind == READY && of.stage == stage::opening) {
            on_ready(of, head);
        } else if (head.kind == BUILT || head.kind == LOST) {
            for (std::size_t at = 0; at + 8 <= data.size(); at += 8) {
                std::uint64_t number;
                std::memcpy(&number, data.data() + at, 8);
                on_answered(index, number, head.kind == BUILT);
            }
        } else if (head.kind == SUMMARY) {
            of.has_summary = summary::parse(data, of.counted);
        }
    }
    void on_ready(link &of, const header &grant)
    {
        if (grant.event < args_.size || grant.serial < 2 * args_.detectors) {
            failure_ = "builder " + of.to + ": takes too short fragments, or too few";
            return;
        }
        of.granted = grant.serial;
        of.in_turn = std::min(of.granted * 3 / 4, of.granted - args_.detectors);
        of.stage = stage::ready;
    }
    void on_answered(std::size_t index, std::uint64_t number, bool built)
    {
        out_event &event = events_[number % card::places];
        // Somebody else's by now.
        if (event.number != number || !event.is_out || event.builder != index || event.answered)
            return;
        link &of = links_[index];
        event.answered = true;
        of.unanswered--;
        of.held -= event.sent;
        (built ? of.built : of.given_up)++;
        if (event.sent < args_.detectors)
            forget(of, number % card::places);
        if (event.in_flight == 0)
            vacate(event);
    }
    /// Given up before all of it was sent.
    static void forget(link &of, std::size_t place)
    {
        for (auto *from : {&of.queue, &of.urgent})
            from->erase(std::remove(from->begin(), from->end(), place), from->end());
    }

    // ---- time and phases ----------------------------------------------------------------------

    void advance()
    {
        const auto all = [this](auto is_so) {
            return std::all_of(links_.begin(), links_.end(), is_so);
        };
        if (phase_ == phase::opening && all([](const link &of) { return of.is_ready(); })) {
            for (auto &each : cards_)
                each->start();
            std::fprintf(stderr, "readout: running\n");
            phase_ = phase::running;
        } else if (phase_ == phase::running && taken_ == args_.events && out_ == 0) {
            phase_ = phase::ending;
        }
        if (phase_ == phase::ending)
            end_links();
        else if (phase_ == phase::closing &&
                 all([](const link &of) { return of.stage != stage::closing; }))
            phase_ = phase::over;
    }
    /// Says End to each builder, and goodbye when its summary is there.
    void end_links()
    {
        bool done = true;
        for (link &of : links_) {
            header end;
            end.kind = END;
            end.serial = of.sent.fragments;
            end.event = of.sent.bytes;
            if (of.is_ready() && send(of, {}, end, control, {}))
                of.stage = stage::ended;
            done &= of.is_lost() || of.has_summary;
        }
        if (!done)
            return;
        for (link &of : links_)
            if (!of.is_lost()) {
                of.stage = stage::closing;
                (void)of.endpoint.begin_close(5000);
            }
        phase_ = phase::closing;
    }
    void tick()
    {
        const auto now = steady::now();
        if (now < next_look_)
            return;
        next_look_ = now + std::chrono::milliseconds(50);
        const std::chrono::milliseconds patience(args_.patience_ms);
        if (phase_ == phase::opening && now - started_ > patience)
            failure_ = "not every builder was ready in time";
        for (link &of : links_) {
            const bool expected = of.unanswered > 0 || of.stage == stage::ended;
            if (expected && !of.is_lost() && now - of.last_progress > 2 * patience) {
                std::fprintf(stderr, "readout: builder %s answers nothing\n", of.to.c_str());
                (void)of.endpoint.begin_close(0);
                of.last_progress = now;
            }
        }
    }
    void sleep()
    {
        sleeper_.add(answers_);
        for (const link &of : links_)
            if (of.stage != stage::closed && !of.is_lost())
                sleeper_.add(of.endpoint);
        // The cards raise no interrupt: they are looked at.
        sleeper_.sleep(phase_ == phase::running ? 1 : 20);
    }

    std::string problems() const
    {
        std::uint64_t built = 0;
        for (const link &of : links_) {
            built += of.built;
            if (of.given_up > 0)
                return "builder " + of.to + " gave up events";
            if (!of.has_summary)
                continue;
            const summary &counted = of.counted;
            if (of.sent != counted.received || of.built != counted.built)
                return "builder " + of.to + " counted otherwise";
            if (counted.order_errors + counted.content_errors + counted.duplicates > 0)
                return "builder " + of.to + " found errors";
        }
        return built == args_.events ? "" : "not every event was built";
    }
    void report() const
    {
        std::uint64_t built = 0, lost = 0, sent = 0;
        for (const link &of : links_) {
            built += of.built;
            sent += of.sent.fragments;
            lost += of.is_lost();
        }
        std::printf("{\"events_triggered\":%llu,\"events_built\":%llu,\"fragments_sent\":%llu,"
                    "\"events_reassigned\":%llu,\"fragments_resent\":%llu,\"builders_lost\":%llu,"
                    "\"agree\":%s}\n",
                    (unsigned long long)args_.events, (unsigned long long)built,
                    (unsigned long long)sent, (unsigned long long)reassigned_,
                    (unsigned long long)resent_, (unsigned long long)lost,
                    failure_.empty() ? "true" : "false");
    }

    source_args args_;
    std::string local_;
    fc::domain domain_;
    std::vector<std::unique_ptr<card>> cards_;
    fc::receiver answers_;
    std::deque<link> links_;
    std::vector<out_event> events_;
    std::uint64_t taken_ = 0, out_ = 0, reassigned_ = 0, resent_ = 0;
    phase phase_ = phase::opening;
    steady::time_point started_ = steady::now(), next_look_ = started_;
    sleeper sleeper_;
    std::string failure_;
};

} // namespace readout

#endif
