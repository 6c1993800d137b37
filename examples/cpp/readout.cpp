// The readout with event building of `fabricast readout`, in C++: the same words on the wire, so that
// sources and builders of both go together.
//
//     readout builder --listen 127.0.0.1:0 --detectors 2
//     readout source --to 127.0.0.1:7480 --to 127.0.0.1:7481 --events 100000 --rate 10
//
// Cards, a thread each, write to memory that the library knows by its address only; the fragments
// go out from there, and the memory of an event is written to again when its builder has answered.
// What a lost builder had not answered for goes to others. Exit code: 0 when every event is
// accounted for and nothing was lost, 1 otherwise.

#include "readout_builder.hpp"
#include "readout_source.hpp"

#include <cstdlib>
#include <map>

namespace {

constexpr const char *usage =
    "readout builder [--listen ADDR] [--detectors N] [--sources N] [--max-fragment BYTES]\n"
    "                [--credits N] [--provider NAME] [--timeout SECONDS]\n"
    "readout source --to ADDR.. [--detectors N] [--first-detector N] [--events N] [--rate KHZ]\n"
    "               [--size BYTES] [--provider NAME] [--timeout SECONDS]\n";

/// The values of each flag.
using flags = std::multimap<std::string, std::string>;

[[noreturn]] void wrong(const std::string &what)
{
    std::fprintf(stderr, "readout: %s\n%s", what.c_str(), usage);
    std::exit(2);
}

flags parse(int count, char **words)
{
    flags all;
    for (int at = 2; at < count; at += 2) {
        if (std::strncmp(words[at], "--", 2) != 0 || at + 1 == count)
            wrong(std::string(words[at]) + ": want a flag and its value");
        all.emplace(words[at] + 2, words[at + 1]);
    }
    return all;
}

/// Takes a text out of the flags.
void take(flags &all, const char *name, std::string &into)
{
    if (const auto found = all.find(name); found != all.end()) {
        into = found->second;
        all.erase(found);
    }
}

/// Takes a number of a range out of the flags.
template <class T> void take(flags &all, const char *name, T &into, double least, double most)
{
    std::string text;
    take(all, name, text);
    if (text.empty())
        return;
    char *end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !(value >= least && value <= most))
        wrong("--" + std::string(name) + " " + text + ": out of range");
    into = static_cast<T>(value);
}

void take_common(flags &all, std::string &provider, std::uint32_t &patience_ms)
{
    std::uint32_t seconds = patience_ms / 1000;
    take(all, "timeout", seconds, 1, 3600);
    patience_ms = seconds * 1000;
    take(all, "provider", provider);
    if (!all.empty())
        wrong("--" + all.begin()->first + ": no such flag");
}

std::string build(flags all)
{
    readout::builder_args args;
    take(all, "listen", args.listen);
    take(all, "detectors", args.detectors, 1, 64);
    take(all, "sources", args.sources, 1, args.detectors);
    take(all, "max-fragment", args.max_fragment, 1, 16 << 20);
    take(all, "credits", args.credits, 2 * args.detectors, 32768);
    take_common(all, args.provider, args.patience_ms);
    return readout::builder(args).run();
}

std::string send(flags all)
{
    readout::source_args args;
    const auto [from, to] = all.equal_range("to");
    for (auto at = from; at != to; ++at)
        args.to.push_back(at->second);
    all.erase("to");
    take(all, "detectors", args.detectors, 1, 64);
    take(all, "first-detector", args.first_detector, 0, 64 - args.detectors);
    take(all, "events", args.events, 1, 1e12);
    take(all, "rate", args.rate_khz, 0, 1e6);
    take(all, "size", args.size, 1, 16 << 20);
    take_common(all, args.provider, args.patience_ms);
    if (args.to.empty())
        wrong("--to: where a builder listens is needed");
    return readout::source(args).run();
}

} // namespace

int main(int count, char **words)
try {
    const std::string command = count > 1 ? words[1] : "";
    if (command != "builder" && command != "source")
        wrong("want builder or source");
    const flags all = parse(count, words);
    const std::string problem = command == "builder" ? build(all) : send(all);
    if (problem.empty())
        return 0;
    std::fprintf(stderr, "readout: %s\n", problem.c_str());
    return 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "readout: %s\n", error.what());
    return 1;
}
