/*
 * Files for C++17: reads and writes of host memory, of regions and of GPU memory, now or by
 * themselves, and many at once in a batch, with results in place of statuses.
 */
#ifndef FABRICAST_FILE_HPP
#define FABRICAST_FILE_HPP

#include <fabricast.hpp>

namespace fabricast {

/// How a file is opened; as fcast_file_settings, with the defaults.
struct file_settings : fcast_file_settings {
    file_settings() noexcept : fcast_file_settings() { size = sizeof(fcast_file_settings); }
};

/// What one transfer asks for; as fcast_file_options, with the defaults.
struct file_options : fcast_file_options {
    file_options() noexcept : fcast_file_options() { size = sizeof(fcast_file_options); }
};

/// What was done with a file; as fcast_file_stats.
struct file_stats : fcast_file_stats {
    file_stats() noexcept : fcast_file_stats() { size = sizeof(fcast_file_stats); }
};

/// What files of the process do where nothing else was asked for; as fcast_file_defaults. One that
/// was not filled in changes nothing.
struct file_defaults : fcast_file_defaults {
    file_defaults() noexcept : fcast_file_defaults() { size = sizeof(fcast_file_defaults); }
    /// Those that hold now.
    static result<file_defaults> current()
    {
        file_defaults now;
        if (fcast_status code = fcast_file_defaults_get(&now))
            return failure::last(code);
        return now;
    }
    /// Has the fields that are not 0 hold from now on. Where one is out of its range, nothing was
    /// changed.
    result<void> apply() const { return detail::done(fcast_file_defaults_set(this)); }
};

/// What direct transfers ask for: multiples of so many bytes. What is not aligned is moved all the
/// same, partly through the page cache or a copy.
struct file_alignment {
    /// Of offsets and lengths, and of addresses.
    std::uint32_t offset, memory;
};

/// A transfer that goes on by itself. The memory is its own until wait() tells what came of it; one
/// that goes before that is waited for.
class file_transfer : public detail::owner<fcast_file_transfer, fcast_file_transfer_release> {
public:
    using owner::owner;
    /// What was moved. FCAST_AGAIN or FCAST_TIMED_OUT: it goes on.
    result<fcast_file_moved> wait(std::uint32_t timeout_ms = FCAST_NEVER) const
    {
        fcast_file_moved moved{};
        if (fcast_status code = fcast_file_transfer_wait(raw_, timeout_ms, &moved))
            return failure::last(code);
        return moved;
    }
    /// Has a loop say FCAST_LOOP_WOKEN when it is over: then wait() does not wait.
    status wake(fcast_loop woken) const noexcept { return fcast_file_transfer_wake(raw_, woken); }
};

/// A file. `in`, where a function has it: the region that the memory lies in, which may be a GPU's;
/// without it the memory is the host's.
class file : public detail::owner<fcast_file, fcast_file_release> {
public:
    using owner::owner;
    /// `flags`: "r", "w", "a" or "x", each with "+" for both directions.
    static result<file> open(const char *path, const char *flags, const file_settings &of = {})
    {
        fcast_file out{};
        if (fcast_status code = fcast_file_open(path, flags, &of, &out))
            return failure::last(code);
        return file(out);
    }
    /// Of a descriptor, which is duplicated.
    static result<file> from_fd(int fd, const file_settings &of = {})
    {
        fcast_file out{};
        if (fcast_status code = fcast_file_from_fd(fd, &of, &out))
            return failure::last(code);
        return file(out);
    }
    result<std::uint64_t> size() const
    {
        std::uint64_t bytes = 0;
        if (fcast_status code = fcast_file_size(raw_, &bytes))
            return failure::last(code);
        return bytes;
    }
    /// Makes it as long as that; what is new reads as zeros.
    result<void> truncate(std::uint64_t bytes) const
    {
        return detail::done(fcast_file_truncate(raw_, bytes));
    }
    /// Waits until what was written is on the device; `data_only`: as fdatasync(2).
    result<void> sync(bool data_only = false) const
    {
        return detail::done(fcast_file_sync(raw_, data_only));
    }
    result<file_alignment> alignment() const
    {
        file_alignment of{};
        if (fcast_status code = fcast_file_alignment(raw_, &of.offset, &of.memory))
            return failure::last(code);
        return of;
    }
    /// What was done with it until now.
    result<file_stats> stats() const
    {
        file_stats now;
        if (fcast_status code = fcast_file_read_stats(raw_, &now))
            return failure::last(code);
        return now;
    }

    /// Reads, and waits for it. Short at the end of the file only.
    result<fcast_file_moved> read(mutable_bytes into, std::uint64_t offset, fcast_region in = {},
                                  const file_options &of = {}) const
    {
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_read(raw_, in, into.data(), into.size(), offset, &of, &moved))
            return failure::last(code);
        return moved;
    }
    /// Writes all of it, and waits for it.
    result<fcast_file_moved> write(bytes from, std::uint64_t offset, fcast_region in = {},
                                   const file_options &of = {}) const
    {
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_write(raw_, in, from.data(), from.size(), offset, &of, &moved))
            return failure::last(code);
        return moved;
    }
    /// Reads one run of the file into several pieces of the host's memory, and waits for it.
    result<fcast_file_moved> readv(span<const mutable_bytes> into, std::uint64_t offset) const
    {
        std::vector<fcast_span> pieces;
        pieces.reserve(into.size());
        for (const mutable_bytes &piece : into)
            pieces.push_back({piece.data(), piece.size()});
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_readv(raw_, pieces.data(), pieces.size(), offset, &moved))
            return failure::last(code);
        return moved;
    }
    /// Writes several pieces of the host's memory to one run of the file, and waits for it.
    result<fcast_file_moved> writev(span<const bytes> from, std::uint64_t offset) const
    {
        std::vector<fcast_bytes> pieces;
        pieces.reserve(from.size());
        for (const bytes &piece : from)
            pieces.push_back({piece.data(), piece.size()});
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_writev(raw_, pieces.data(), pieces.size(), offset, &moved))
            return failure::last(code);
        return moved;
    }
    /// Reads with the threads of the pool, and returns at once.
    result<file_transfer> pread(mutable_bytes into, std::uint64_t offset, fcast_region in = {},
                                const file_options &of = {}) const
    {
        fcast_file_transfer out{};
        if (fcast_status code =
                fcast_file_begin_read(raw_, in, into.data(), into.size(), offset, &of, &out))
            return failure::last(code);
        return file_transfer(out);
    }
    /// Writes with the threads of the pool, and returns at once.
    result<file_transfer> pwrite(bytes from, std::uint64_t offset, fcast_region in = {},
                                 const file_options &of = {}) const
    {
        fcast_file_transfer out{};
        if (fcast_status code =
                fcast_file_begin_write(raw_, in, from.data(), from.size(), offset, &of, &out))
            return failure::last(code);
        return file_transfer(out);
    }
    /// Writes behind the end, with the threads of the pool, and returns at once. `offset`: where.
    /// Places that one handle gives out never overlap, whichever threads ask.
    result<file_transfer> append(bytes from, std::uint64_t *offset = nullptr, fcast_region in = {},
                                 const file_options &of = {}) const
    {
        fcast_file_transfer out{};
        std::uint64_t unused = 0;
        if (fcast_status code = fcast_file_begin_append(raw_, in, from.data(), from.size(), &of,
                                                        offset ? offset : &unused, &out))
            return failure::last(code);
        return file_transfer(out);
    }
};

/// How a batch works; as fcast_file_batch_settings, with the defaults.
struct file_batch_settings : fcast_file_batch_settings {
    file_batch_settings() noexcept : fcast_file_batch_settings()
    {
        size = sizeof(fcast_file_batch_settings);
    }
};

/// Transfers of files in flight, of the host's memory. The memory of each is its own until its
/// event. One thread at a time. A batch that goes cancels what it can, and waits for the rest.
class file_batch : public detail::owner<fcast_file_batch, fcast_file_batch_release> {
public:
    using owner::owner;
    static result<file_batch> create(const file_batch_settings &of = {})
    {
        fcast_file_batch out{};
        if (fcast_status code = fcast_file_batch_create(&of, &out))
            return failure::last(code);
        return file_batch(out);
    }
    /// Takes a read, which begins with the next start() or poll(); its event has the key. The file
    /// may go before. FCAST_AGAIN: as many are under way as the batch takes.
    status read(const file &of, mutable_bytes into, std::uint64_t offset, std::uint64_t key,
                fcast_region in = {}) const noexcept
    {
        return fcast_file_batch_read(raw_, of.raw(), in, into.data(), into.size(), offset, key);
    }
    /// Takes a write, as read() does.
    status write(const file &of, bytes from, std::uint64_t offset, std::uint64_t key,
                 fcast_region in = {}) const noexcept
    {
        return fcast_file_batch_write(raw_, of.raw(), in, from.data(), from.size(), offset, key);
    }
    /// Begins what was taken.
    status start() const noexcept { return fcast_file_batch_start(raw_); }
    /// Waits until `least` transfers are over, or all, or the time is up; what came of those that
    /// are over, each once, in the memory that is given for it.
    result<span<fcast_file_batch_event>> poll(span<fcast_file_batch_event> into,
                                              std::size_t least = 1,
                                              std::uint32_t timeout_ms = FCAST_NEVER) const
    {
        std::size_t count = 0;
        if (fcast_status code = fcast_file_batch_poll(raw_, least, timeout_ms, into.data(),
                                                      into.size(), &count))
            return failure::last(code);
        return into.first(count);
    }
    /// Asks for the end of the transfers with a key; each has its event in any case.
    status cancel(std::uint64_t key) const noexcept { return fcast_file_batch_cancel(raw_, key); }
};

} // namespace fabricast

#endif
