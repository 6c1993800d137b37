// From a file into a GPU, and from there to a peer: chunks are read while others are sent. Where
// there is no GPU, memory of the host takes its place.
//
//     file_gpu_wire FILE PEER      such as 192.0.2.1:7000, which takes messages of 1 MiB and more:
//                                  a chunk of the file behind its offset, of 8 bytes

#include <fabricast_device.hpp>
#include <fabricast_file.hpp>

#include <algorithm>
#include <cstdio>

namespace fc = fabricast;

constexpr std::size_t chunk = 1 << 20, places = 8;

int main(int count, char **words)
try {
    if (count != 3)
        return std::fprintf(stderr, "file_gpu_wire FILE PEER\n"), 2;
    const fc::domain domain = fc::fabric::open().value().open_domain().value();
    const fc::file file = fc::file::open(words[1], "r").value();

    fc::settings settings;
    settings.depth = places;
    fc::staging ring;
    auto gpu = fc::device_region(chunk * places);
    if (gpu)
        settings.staging = (ring = fc::staging::create().value()).raw();
    const fc::region memory = gpu ? *std::move(gpu) : fc::region::allocate(chunk * places).value();
    settings.region = memory.raw();
    const fc::sender sender = fc::sender::open(domain, words[2], settings).value();

    // What lies in each place: nothing, a chunk to send, or one that is under way.
    enum { nothing, ready, sent } state[places] = {};
    std::uint64_t offset[places] = {}, len[places] = {}, read = 0, done = 0;
    const std::uint64_t size = file.size().value();
    while (done < size) {
        for (std::size_t at = 0; at < places; at++) {
            const auto place = memory.memory().subspan(at * chunk, chunk);
            if (state[at] == nothing && read < size) {
                // From the disk into the GPU: by cuFile, where the machine has it.
                offset[at] = read;
                len[at] = file.read(place, read, memory.raw()).value().bytes;
                read += len[at];
                state[at] = ready;
            }
            if (state[at] != ready)
                continue;
            const fc::bytes data = place.first(len[at]);
            const fc::status taken = sender.send(data, fc::bytes_of(offset[at]), at);
            if (taken)
                state[at] = sent;
            else if (!taken.again() && taken != FCAST_CLOSED)
                throw fc::thrown_error(fc::failure::last(taken));
        }
        fc::event room[32];
        for (const fc::event &event : sender.poll(room).value()) {
            if (event.is(fc::event_kind::completed))
                done += len[event.key], state[event.key] = nothing;
            if (event.is(fc::event_kind::failed) || event.is(fc::event_kind::disconnected))
                throw fc::thrown_error({event.status, std::string(event.words()), event.error});
        }
        (void)sender.wait(10);
    }
    sender.close(30000).value();
    std::printf("%llu bytes, from %s\n", (unsigned long long)size, ring ? "a GPU" : "the host");
} catch (const fc::error &error) {
    std::fprintf(stderr, "file_gpu_wire: %s\n", error.what());
    return 1;
}
