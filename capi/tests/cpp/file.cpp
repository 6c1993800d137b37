// Files in C++: written and read with the calling thread, with the pool's and in batches, from
// plain memory and from a region; what they count, and what they do where nothing was asked for.
#include "check.hpp"

#include <fabricast_file.hpp>

#include <numeric>
#include <string>
#include <vector>

#include <unistd.h>

namespace fc = fabricast;

static constexpr std::size_t len = 1 << 20;
static constexpr std::uint32_t minute = 60000;

/// A file of the test's own that is gone with it, and what it is filled with.
struct scratch {
    std::string path;
    int fd = -1;
    std::vector<std::uint8_t> data = std::vector<std::uint8_t>(len);
    scratch()
    {
        const char *temporary = std::getenv("TMPDIR");
        path = std::string(temporary ? temporary : "/tmp") + "/fabricast-XXXXXX";
        fd = ::mkstemp(&path[0]);
        CHECK(fd >= 0);
        std::iota(data.begin(), data.end(), std::uint8_t(7));
        // No two blocks are the same.
        for (std::size_t at = 0; at < len; at += 4096)
            std::memcpy(&data[at], &at, sizeof at);
    }
    scratch(const scratch &) = delete;
    scratch &operator=(const scratch &) = delete;
    ~scratch()
    {
        ::close(fd);
        ::unlink(path.c_str());
    }
};

static void transfers(const scratch &on)
{
    std::vector<std::uint8_t> back(len);
    const fc::file file = fc::file::open(on.path.c_str(), "w+").value();
    const fc::file_transfer written = file.pwrite(on.data, 0).value();
    CHECK(written.wait().value().bytes == len);
    const fc::file_transfer read = file.pread(back, 0).value();
    CHECK(read.wait(minute).value().bytes == len && back == on.data);
    CHECK(read.wait(0).value().bytes == len);
    CHECK(file.size().value() == len);

    std::uint64_t offset = 0;
    const fc::file_transfer behind = file.append({on.data.data(), 100}, &offset).value();
    CHECK(offset == len && behind.wait(minute).value().bytes == 100);
    CHECK(file.append({on.data.data(), 1}).value().wait(minute).value().bytes == 1);
    CHECK(file.size().value() == len + 101);
    file.truncate(len).value();
    CHECK(file.size().value() == len);
    file.sync().value();
    file.sync(true).value();
    const fc::file_alignment aligned = file.alignment().value();
    CHECK(aligned.offset > 0 && aligned.memory > 0);
    CHECK(fc::file().sync().code() == FCAST_STALE && fc::file().stats().code() == FCAST_STALE);
    CHECK(read.wake(fcast_loop{}) == FCAST_STALE);

    const fc::file_stats stats = file.stats().value();
    CHECK(stats.write.operations == 3 && stats.write.bytes == len + 101);
    CHECK(stats.read.operations == 1 && stats.read.bytes == len && stats.read.errors == 0);
}

static void regions(const scratch &on)
{
    std::vector<std::uint8_t> back(len);
    const fc::file again = fc::file::from_fd(on.fd).value();
    const fc::region region = fc::region::allocate(len).value();
    fc::file_options parallel;
    parallel.parallel = 1;
    CHECK(again.read(region.memory(), 0, region.raw(), parallel).value().bytes == len);
    CHECK(std::memcmp(region.memory().data(), on.data.data(), len) == 0);
    CHECK(again.write(region.memory().first(10), 3, region.raw()).value().bytes == 10);
    CHECK(again.read(back, len - 5).value().bytes == 5);
    const fc::bytes parts[] = {fc::bytes(on.data).first(100),
                               fc::bytes(on.data).subspan(1000, 50)};
    CHECK(again.writev(parts, 10).value().bytes == 150);
    const fc::mutable_bytes places[] = {fc::mutable_bytes(back).first(30),
                                        fc::mutable_bytes(back).subspan(500, 120)};
    CHECK(again.readv(places, 10).value().bytes == 150);
    CHECK(std::memcmp(back.data() + 500 + 70, on.data.data() + 1000, 50) == 0);
    CHECK(again.write(on.data, 0).value().bytes == len);
    CHECK(fc::file().readv(places, 0).code() == FCAST_STALE);
    CHECK(fc::file::open("/no/such/file", "r").code() == FCAST_NOT_FOUND);
    CHECK(fc::file::open(on.path.c_str(), "q").code() == FCAST_INVALID);
}

static constexpr std::size_t block = 4096, blocks = 64, depth = 16;

/// Has a batch move 64 blocks by `take`, 16 at a time; each one's event comes once.
template <class Take> static void move_blocks(const fc::file_batch &batch, Take take)
{
    std::vector<int> told(blocks);
    std::size_t begun = 0, over = 0;
    while (over < blocks) {
        for (; begun < blocks; begun++) {
            const fc::status taken = take(begun * block, begun);
            if (taken.again())
                break;
            CHECK(taken);
        }
        CHECK(begun - over == depth || begun == blocks);
        CHECK(batch.start());
        fcast_file_batch_event room[depth];
        const auto events = batch.poll(room, 1, minute).value();
        CHECK(!events.empty());
        for (const fcast_file_batch_event &event : events) {
            CHECK(event.status == FCAST_OK && event.moved.bytes == block);
            CHECK(event.key < blocks && told[event.key]++ == 0);
            over++;
        }
    }
    fcast_file_batch_event none[1];
    CHECK(batch.poll(none).value().empty());
}

// Written in blocks out of a region, and read in blocks into plain memory, or the other way.
static void batches(const scratch &on, std::uint32_t back_end)
{
    fc::file_batch_settings settings;
    settings.depth = depth;
    settings.back_end = back_end;
    const fc::file_batch batch = fc::file_batch::create(settings).value();
    const fc::file file = fc::file::open(on.path.c_str(), "w+").value();
    const std::size_t all = block * blocks;
    const fc::region region = fc::region::allocate(all).value();
    const fc::mutable_bytes memory = region.memory();
    std::memcpy(memory.data(), on.data.data(), all);
    move_blocks(batch, [&](std::size_t at, std::uint64_t key) {
        return batch.write(file, memory.subspan(at, block), at, key, region.raw());
    });
    CHECK(file.size().value() == all);
    std::vector<std::uint8_t> back(all);
    move_blocks(batch, [&](std::size_t at, std::uint64_t key) {
        return batch.read(file, fc::mutable_bytes(back).subspan(at, block), at, key);
    });
    CHECK(std::memcmp(back.data(), on.data.data(), all) == 0);
    // A block may be written anywhere: the file is what the last writes made of it.
    move_blocks(batch, [&](std::size_t at, std::uint64_t key) {
        return batch.write(file, {on.data.data() + at, block}, all - block - at, key);
    });
    CHECK(file.read(back, 0).value().bytes == all);
    for (std::size_t at = 0; at < all; at += block)
        CHECK(std::memcmp(&back[all - block - at], &on.data[at], block) == 0);
}

static void batch_errors(const scratch &on)
{
    fc::file_batch_settings settings;
    settings.depth = 5000;
    CHECK(fc::file_batch::create(settings).code() == FCAST_INVALID);
    fc::file_batch batch = fc::file_batch::create().value();
    std::vector<std::uint8_t> back(len);
    const fc::region region = fc::region::allocate(block).value();
    fc::file reads = fc::file::open(on.path.c_str(), "r").value();
    CHECK(batch.write(reads, on.data, 0, 1) == FCAST_INVALID);
    CHECK(batch.read(reads, back, 0, 1, region.raw()) == FCAST_NOT_FOUND);
    const fc::file writes = fc::file::open(on.path.c_str(), "r+").value();
    CHECK(batch.write(writes, on.data, 0, 1, region.raw()) == FCAST_NOT_FOUND);
    CHECK(batch.read(fc::file(), back, 0, 1) == FCAST_STALE);

    // The file's handle may go before; what is cancelled has its event, too.
    CHECK(batch.read(reads, back, 0, 7));
    reads.reset();
    CHECK(batch.start() && batch.cancel(7) && batch.cancel(8));
    fcast_file_batch_event room[4];
    const auto events = batch.poll(room, 1, minute).value();
    CHECK(events.size() == 1 && events[0].key == 7);
    CHECK(events[0].status == FCAST_OK || events[0].status == FCAST_CLOSED);
    CHECK(fc::file_batch().start() == FCAST_STALE);
    batch.reset();
    CHECK(batch.poll(room).code() == FCAST_STALE);
}

static void defaults()
{
    const fc::file_defaults before = fc::file_defaults::current().value();
    CHECK(before.num_threads > 0 && before.task_size > 0);
    fc::file_defaults change;
    change.num_threads = before.num_threads + 1;
    change.auto_direct_io_read = FCAST_SWITCH_ON;
    change.apply().value();
    const fc::file_defaults now = fc::file_defaults::current().value();
    CHECK(now.num_threads == before.num_threads + 1 && now.task_size == before.task_size);
    CHECK(now.auto_direct_io_read == FCAST_SWITCH_ON);
    change.num_threads = 100000;
    CHECK(change.apply().code() == FCAST_INVALID);
    before.apply().value();
    CHECK(fc::file_defaults::current().value().num_threads == before.num_threads);
}

int main()
{
    const scratch on;
    defaults();
    transfers(on);
    regions(on);
    batches(on, FCAST_BACK_END_DEFAULT);
    batches(on, FCAST_BACK_END_POSIX);
    batch_errors(on);
    std::printf("file: ok\n");
}
