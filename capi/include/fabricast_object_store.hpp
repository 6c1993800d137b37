/*
 * Stores of the program's for C++17: what a service of objects asks instead of a directory.
 *
 * A program derives from `object_store`, and from what its functions give, `object_reader` and
 * `object_writer`. Threads of the service call them, several at once, with nothing locked. They
 * answer a status, as fcast_object_store_calls says, and may throw: that is a failure of the one
 * request that they were called for. The status of an `error` is its own, a std::bad_alloc is
 * FCAST_NO_RESOURCES, and all else FCAST_SYSTEM. With FABRICAST_NO_EXCEPTIONS nothing is caught.
 *
 * Texts that they get end with a zero behind their last byte, and are good during the call.
 */
#ifndef FABRICAST_OBJECT_STORE_HPP
#define FABRICAST_OBJECT_STORE_HPP

#include <fabricast_object.hpp>

namespace fabricast {

namespace detail {
inline fcast_status fail_piece(fcast_object_piece which)
{
    return fcast_object_piece_done(which, FCAST_SYSTEM, 0);
}
} // namespace detail

/// A piece of an object that is to be read or written, which is answered once, by any thread. One
/// that goes unanswered, as where its function throws, fails its request.
///
/// Its memory is the library's again with the answer. That of an object's last piece may end the
/// reader that it is of, or the writer, on the thread that answers.
class object_piece : public detail::owner<fcast_object_piece, detail::fail_piece> {
public:
    using owner::owner;
    /// Says how many bytes were moved; fewer than it has are a failure of the request, and more
    /// are FCAST_INVALID, and one. FCAST_STALE: it was answered before.
    status done(std::size_t moved) noexcept
    {
        return fcast_object_piece_done(detach(), FCAST_OK, moved);
    }
    /// Says why they were not.
    status fail(status why) noexcept
    {
        return fcast_object_piece_done(detach(), why ? FCAST_SYSTEM : why.code(), 0);
    }
    status fail(const failure &why) noexcept { return fail(why.code); }
};

/// An object that was opened: it is of one version, whatever is put meanwhile. It goes when no
/// piece of it is out and nothing more is read.
class object_reader {
public:
    object_reader() = default;
    object_reader(const object_reader &) = delete;
    object_reader &operator=(const object_reader &) = delete;
    virtual ~object_reader() = default;
    /// Reads what begins at a byte of the object, as much as the memory takes; that lies within
    /// its size. It must not wait: it answers the piece, or gives it to whoever does. Several at
    /// once.
    virtual void read(std::uint64_t at, mutable_bytes into, object_piece piece) = 0;
};

/// An object that is being put. One that goes without a commit was given up; no piece is out then.
class object_writer {
public:
    object_writer() = default;
    object_writer(const object_writer &) = delete;
    object_writer &operator=(const object_writer &) = delete;
    virtual ~object_writer() = default;
    /// Writes bytes to where they belong in the object, as object_reader::read reads them: they
    /// stay until the piece is answered. One call at a time, with several pieces under way.
    virtual void write(std::uint64_t at, bytes from, object_piece piece) = 0;
    /// Puts the object in its place, all at once, if its condition holds (else FCAST_REFUSED). All
    /// bytes were written, each once; `crc64` is their CRC-64/NVME. `info` is what the library
    /// would say of it, which may be written over. The writer goes afterwards; after a failure
    /// nothing has changed.
    virtual status commit(std::uint64_t crc64, object_info &info) = 0;
};

/// What a store's list() adds to.
class object_list {
public:
    explicit object_list(fcast_object_list raw) noexcept : raw_(raw) {}
    object_list(const object_list &) = delete;
    object_list &operator=(const object_list &) = delete;

    fcast_object_list raw() const noexcept { return raw_; }
    /// Adds an object: its name, and the size, the version and the time of what is said of it. One
    /// that does not belong to the list is left out. FCAST_NO_RESOURCES: the list is full, and says
    /// that there are more. FCAST_INVALID: the name, its order, or the version.
    status add(const char *name, const object_info &info) noexcept
    {
        return fcast_object_list_add(raw_, name, &info);
    }
    status add(const std::string &name, const object_info &info) noexcept
    {
        return add(name.c_str(), info);
    }

private:
    fcast_object_list raw_;
};

/// A store of the program's. It goes when the service is over and no piece is out, on whatever
/// thread that is, unless the program holds it, too.
class object_store {
public:
    object_store() = default;
    object_store(const object_store &) = delete;
    object_store &operator=(const object_store &) = delete;
    virtual ~object_store() = default;

    /// Says what there is under a name; FCAST_NOT_FOUND: nothing. One that does not override it
    /// opens the object for that.
    virtual status head(std::string_view name, object_info &info)
    {
        std::unique_ptr<object_reader> reader;
        return open(name, info, reader);
    }
    /// Opens an object, says what it is, and gives what reads it.
    virtual status open(std::string_view name, object_info &info,
                        std::unique_ptr<object_reader> &reader) = 0;
    /// Begins to put an object of so many bytes, which nobody sees before it is committed, and
    /// gives what writes it. The condition may be judged here, and is by the commit. Not
    /// overridden: nothing can be put.
    virtual status begin(std::string_view, std::uint64_t, const put_condition &,
                         std::unique_ptr<object_writer> &)
    {
        return FCAST_UNSUPPORTED;
    }
    /// Adds the objects whose names begin with a prefix and come behind `start_after`, in the
    /// order of the bytes of their names, until that answers FCAST_NO_RESOURCES, which this may
    /// answer, too: `limit` were taken. It may add all that it has. Not overridden: nothing can be
    /// listed.
    virtual status list(std::string_view, std::string_view, std::size_t, object_list &)
    {
        return FCAST_UNSUPPORTED;
    }
    /// Removes an object; `etag`, where it is not empty: only the version that has it, else
    /// FCAST_REFUSED. Who reads it goes on. Not overridden: nothing can be removed.
    virtual status remove(std::string_view, std::string_view) { return FCAST_UNSUPPORTED; }
    /// Whether no function ever waits, so that all are called on the threads that move bytes.
    virtual bool never_waits() const noexcept { return false; }
};

namespace detail {
/// The table of C over a store: its context holds the store.
struct object_store_calls : fcast_object_store_calls {
    using holder = std::shared_ptr<object_store>;

    explicit object_store_calls(holder store) : fcast_object_store_calls()
    {
        size = sizeof(fcast_object_store_calls);
        never_waits = store->never_waits();
        context = new holder(std::move(store));
        release = [](void *held) noexcept { delete static_cast<holder *>(held); };
        head = &call_head;
        open = &call_open;
        read = &call_read;
        close = [](void *, void *object) noexcept { delete static_cast<object_reader *>(object); };
        begin = &call_begin;
        write = &call_write;
        commit = &call_commit;
        abort = [](void *, void *upload) noexcept { delete static_cast<object_writer *>(upload); };
        list = &call_list;
        remove = &call_remove;
    }

private:
    static object_store &of(void *context) noexcept { return **static_cast<holder *>(context); }
    static std::string_view text(const char *given) noexcept
    {
        return given ? given : std::string_view();
    }
    static put_condition condition_of(std::uint32_t kind, const char *etag)
    {
        if (kind == FCAST_PUT_MATCHES)
            return put_condition::matches(std::string(text(etag)));
        return kind == FCAST_PUT_ABSENT ? put_condition::absent() : put_condition();
    }
    /// Gives C what a function has made, which it must have.
    template <class T> static status given(status code, std::unique_ptr<T> &made, void **out)
    {
        if (!code)
            return code;
        *out = made.release();
        return *out ? FCAST_OK : FCAST_SYSTEM;
    }

    static fcast_status call_head(void *context, const char *name, fcast_object_info *info) noexcept
    {
        return guarded([&] {
            object_info told(*info);
            const status code = of(context).head(name, told);
            *info = told;
            return code;
        });
    }
    static fcast_status call_open(void *context, const char *name, fcast_object_info *info,
                                  void **object) noexcept
    {
        return guarded([&] {
            object_info told(*info);
            std::unique_ptr<object_reader> reader;
            const status code = of(context).open(name, told, reader);
            *info = told;
            return given(code, reader, object);
        });
    }
    // A piece may be with another thread when its function throws: it is answered by whoever has
    // it, by its end at the latest, so that C hears of it there alone.
    static fcast_status call_read(void *, void *object, std::uint64_t at, void *data,
                                  std::size_t len, fcast_object_piece raw) noexcept
    {
        object_piece piece(raw);
        (void)guarded([&] {
            const mutable_bytes into(static_cast<std::uint8_t *>(data), len);
            static_cast<object_reader *>(object)->read(at, into, std::move(piece));
            return FCAST_OK;
        });
        return FCAST_OK;
    }
    static fcast_status call_write(void *, void *upload, std::uint64_t at, const void *data,
                                   std::size_t len, fcast_object_piece raw) noexcept
    {
        object_piece piece(raw);
        (void)guarded([&] {
            const bytes from(static_cast<const std::uint8_t *>(data), len);
            static_cast<object_writer *>(upload)->write(at, from, std::move(piece));
            return FCAST_OK;
        });
        return FCAST_OK;
    }
    static fcast_status call_begin(void *context, const char *name, std::uint64_t len,
                                   std::uint32_t condition, const char *etag,
                                   void **upload) noexcept
    {
        return guarded([&] {
            std::unique_ptr<object_writer> writer;
            const status code =
                of(context).begin(name, len, condition_of(condition, etag), writer);
            return given(code, writer, upload);
        });
    }
    static fcast_status call_commit(void *, void *upload, std::uint64_t crc64,
                                    fcast_object_info *info) noexcept
    {
        // Whatever comes of it, the upload is over.
        const std::unique_ptr<object_writer> writer(static_cast<object_writer *>(upload));
        return guarded([&] {
            object_info told(*info);
            const status code = writer->commit(crc64, told);
            *info = told;
            return code;
        });
    }
    static fcast_status call_list(void *context, const char *prefix, const char *start_after,
                                  std::size_t limit, fcast_object_list raw) noexcept
    {
        return guarded([&] {
            object_list into(raw);
            return of(context).list(text(prefix), text(start_after), limit, into);
        });
    }
    static fcast_status call_remove(void *context, const char *name, const char *etag) noexcept
    {
        return guarded([&] { return of(context).remove(name, text(etag)); });
    }
};
} // namespace detail

inline result<object_service> object_service::start(std::shared_ptr<object_store> store,
                                                    const fabric &control, const char *listen,
                                                    const fabric &data,
                                                    const object_service_settings &of)
{
    if (!store)
        return failure{FCAST_INVALID, "the store of a service is null"};
    // C releases the store, also where this fails.
    const detail::object_store_calls calls(std::move(store));
    fcast_object_service out{};
    if (fcast_status code = fcast_object_service_start_store(&calls, control.raw(), listen,
                                                             data.raw(), &of, &out))
        return failure::last(code);
    return object_service(out);
}

} // namespace fabricast

#endif
