/*
 * fabricast: moves bytes from storage and GPU memory to network peers over libfabric, from where they
 * lie; what it copies is counted. This file is generated from capi/src; what is said here is said there.
 *
 * Handles are numbers: 0 is none, and one that was released is refused with FCAST_STALE, never used.
 * Whatever a function takes by pointer is read or written during the call alone, unless it says so.
 * Functions return a status; fcast_last_error() has the words of the last failure of this thread.
 */

#ifndef FABRICAST_H
#define FABRICAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * This library's format of small messages: with a magic number, a count and a length.
 */
#define FCAST_FORMAT_COMPACT 0

/**
 * netio3's format of small messages, as its documentation describes it.
 */
#define FCAST_FORMAT_NETIO3 1

/**
 * Memory of the host: the bytes go as they lie.
 */
#define FCAST_PATH_HOST 0

/**
 * Memory of a GPU, which the provider reaches by itself.
 */
#define FCAST_PATH_DIRECT 1

/**
 * Memory of a GPU, which is copied through memory of the host.
 */
#define FCAST_PATH_STAGED 2

/**
 * In place of a GPU's number: whichever it is.
 */
#define FCAST_ANY_DEVICE -1

/**
 * The connection stands. `data`: the peer's address as a text that ends with a zero, such as
 * "192.0.2.1:7000", of `data_len` bytes without it; NULL where the provider does not tell. `text`:
 * what was agreed, in words.
 */
#define FCAST_EVENT_CONNECTED 1

/**
 * Nothing was heard from the peer for as long as the setting says. Nothing is closed.
 */
#define FCAST_EVENT_UNRESPONSIVE 2

/**
 * Something was heard from the peer again.
 */
#define FCAST_EVENT_RESPONSIVE 3

/**
 * The peer closes: nothing new is taken, what is in flight completes.
 */
#define FCAST_EVENT_PEER_CLOSING 4

/**
 * The connection ended, and another one will be made. `value`: the attempt, from 1; `text`: why.
 */
#define FCAST_EVENT_RECONNECTING 5

/**
 * The connection is over; every outcome was told before. `status` FCAST_OK: both sides said
 * goodbye and everything arrived; FCAST_REFUSED: the peer refused it; else, and in `text`: why.
 */
#define FCAST_EVENT_DISCONNECTED 6

/**
 * A peer asks for a connection (setting `ask`): answer with fcast_endpoint_accept or _refuse.
 * `data`: its address, as for FCAST_EVENT_CONNECTED.
 */
#define FCAST_EVENT_REQUEST 7

/**
 * A send is done. `key`: the one that was given to it.
 */
#define FCAST_EVENT_COMPLETED 8

/**
 * A send failed, or will never complete. `key`, `status`, `text`, `error`. FCAST_TOO_LONG: longer
 * than the peer's `long_pool` takes, whose limit is in the words.
 */
#define FCAST_EVENT_FAILED 9

/**
 * An operation is not done within its deadline, and goes on. `key`.
 */
#define FCAST_EVENT_LATE 10

/**
 * What blocked a refused operation has passed.
 */
#define FCAST_EVENT_WRITABLE 11

/**
 * The provider is done with the memory of a send that had failed. `key`.
 */
#define FCAST_EVENT_RELEASED 12

/**
 * A message arrived: `header`, `data`, `sequence`, valid until the next poll of the endpoint.
 * fcast_message_keep keeps it for longer.
 */
#define FCAST_EVENT_MESSAGE 13

/**
 * A connection wants more buffers than the receive pool has: its peer will stall.
 */
#define FCAST_EVENT_STARVED 14

/**
 * A one-sided write is done. `key`.
 */
#define FCAST_EVENT_WRITTEN 15

/**
 * A one-sided write failed. `key`, `status`, `text`, `error`.
 */
#define FCAST_EVENT_WRITE_FAILED 16

/**
 * A one-sided read is done. `key`.
 */
#define FCAST_EVENT_READ 17

/**
 * A one-sided read failed. `key`, `status`, `text`, `error`.
 */
#define FCAST_EVENT_READ_FAILED 18

/**
 * Somebody wrote to a window and says so. `key`: the window's id; `value`: the 32 bits.
 */
#define FCAST_EVENT_PEER_WROTE 19

/**
 * The peer revoked a window of its own. `key`: the window's id.
 */
#define FCAST_EVENT_WINDOW_REVOKED 20

/**
 * The provider is done with the memory of a failed one-sided operation. `key`.
 */
#define FCAST_EVENT_RETURNED 21

/**
 * A window of this side is over; its memory comes back when endpoints are closed. `key`: its id.
 */
#define FCAST_EVENT_WINDOW_QUARANTINED 22

/**
 * Nobody reaches a window of this side any more. `key`: its id; `data`: the bytes of what was a
 * buffer (fcast_window_expose_buffer), until the next poll; fcast_buffer_keep takes it back.
 */
#define FCAST_EVENT_WINDOW_RELEASED 23

/**
 * Something that this version of the interface has no word for. `text` says what.
 */
#define FCAST_EVENT_OTHER 24

/**
 * Small messages of a buffered sender were sent. `key`: the number of the first; `value`: how
 * many.
 */
#define FCAST_EVENT_PUSHED 25

/**
 * Small messages of a buffered sender failed. `key`, `value` as FCAST_EVENT_PUSHED; `status`,
 * `text`, `error`; `data`: the buffer, for fcast_coalesced_next, where it came back. At a buffered
 * publisher: they could not be published to anybody; `tag`, too.
 */
#define FCAST_EVENT_PUSH_FAILED 26

/**
 * A peer of a connectionless endpoint was removed, or had come by itself and is gone.
 */
#define FCAST_EVENT_PEER_REMOVED 27

/**
 * At a publisher: a subscriber has subscribed. At a subscriber: the publisher has granted it.
 * `key`: the tag.
 */
#define FCAST_EVENT_SUBSCRIBED 28

/**
 * A subscription is over. `key`: the tag.
 */
#define FCAST_EVENT_UNSUBSCRIBED 29

/**
 * The publisher refused a subscription: it is not wanted any more. `key`: the tag; `text`.
 */
#define FCAST_EVENT_SUBSCRIPTION_REFUSED 30

/**
 * A subscriber's connection is closed, and with it go so many subscriptions (`value`) that it did
 * not give up. Its end comes next.
 */
#define FCAST_EVENT_SUBSCRIPTIONS_GONE 31

/**
 * A publication is over for everybody. `key`; `value`: who got it; `dropped`, `failed`: who did
 * not. At a buffered publisher `tag` and `count`, too, as in all events about a publication.
 */
#define FCAST_EVENT_PUBLISHED 32

/**
 * How a publication ended for one subscriber, mostly where it did not get it. `key`, `connection`;
 * `status` FCAST_OK: sent; FCAST_AGAIN: dropped, since it had no room; else it failed; `text`.
 */
#define FCAST_EVENT_PUBLISHED_TO 33

/**
 * A publication came: `header`, `data` as FCAST_EVENT_MESSAGE; `key`: the tag; `sequence`: its
 * number among the tag's publications; `value`: how many of them were missed before it.
 */
#define FCAST_EVENT_PUBLICATION 34

/**
 * As FCAST_EVENT_MESSAGE, and `data` is an address in a GPU's memory (setting `deliver_to`).
 */
#define FCAST_EVENT_DEVICE_MESSAGE 35

/**
 * As FCAST_EVENT_PUBLICATION, and `data` is an address in a GPU's memory (setting `deliver_to`).
 */
#define FCAST_EVENT_DEVICE_PUBLICATION 36

/**
 * A message or publication came and could not be copied to the GPU: as FCAST_EVENT_MESSAGE, or
 * FCAST_EVENT_PUBLICATION, in the host's memory; `text`: why.
 */
#define FCAST_EVENT_UNDELIVERED 37

/**
 * The loop sleeps in the kernel while nothing happens.
 */
#define FCAST_LOOP_BLOCK 0

/**
 * The loop never sleeps: each run hands out every endpoint. Lowest latency, one core for good.
 */
#define FCAST_LOOP_SPIN 1

/**
 * The loop spins until `window_us` after the last fcast_loop_mark_busy, then sleeps.
 */
#define FCAST_LOOP_ADAPTIVE 2

/**
 * Poll the endpoint. It may turn out to have nothing.
 */
#define FCAST_LOOP_ENDPOINT 1

/**
 * A descriptor is ready: `readiness`. It is told in each round until it is read or written.
 */
#define FCAST_LOOP_FD 2

/**
 * A timer is due.
 */
#define FCAST_LOOP_TIMER 3

/**
 * Somebody called fcast_loop_wake, once or several times.
 */
#define FCAST_LOOP_WOKEN 4

/**
 * Somebody called fcast_loop_stop, once or several times.
 */
#define FCAST_LOOP_STOPPED 5

/**
 * A signal was fired, once or several times.
 */
#define FCAST_LOOP_SIGNAL 6

/**
 * Poll the channel of objects. It may turn out to have nothing.
 */
#define FCAST_LOOP_CHANNEL 7

/**
 * There is something to read, or the end.
 */
#define FCAST_LOOP_READ 1

/**
 * There is room to write.
 */
#define FCAST_LOOP_WRITE 2

/**
 * The other side closed, wholly or for writing.
 */
#define FCAST_LOOP_HANGUP 4

/**
 * The descriptor has an error; told whatever it is watched for.
 */
#define FCAST_LOOP_ERROR 8

/**
 * Connections are made of what the provider has: connected endpoints before FI_EP_RDM.
 */
#define FCAST_KIND_ANY 0

/**
 * Connected endpoints (FI_EP_MSG).
 */
#define FCAST_KIND_MSG 1

/**
 * Reliable datagrams (FI_EP_RDM), over which connections are this library's own.
 */
#define FCAST_KIND_RDM 2

/**
 * The default: of a file, as the setting of the process; of a transfer, as the file was opened.
 */
#define FCAST_DIRECT_DEFAULT 0

/**
 * Around the page cache (O_DIRECT) wherever the file system allows it.
 */
#define FCAST_DIRECT_ON 1

/**
 * Through the page cache.
 */
#define FCAST_DIRECT_OFF 2

/**
 * In settings: the best that works. What moved the bytes is never this.
 */
#define FCAST_BACK_END_DEFAULT 0

/**
 * pread(2) and pwrite(2).
 */
#define FCAST_BACK_END_POSIX 1

/**
 * io_uring(7); in settings: where the kernel does not allow it, POSIX.
 */
#define FCAST_BACK_END_IO_URING 2

/**
 * cuFile, between the file and a GPU's memory; in settings: an error where it does not work.
 */
#define FCAST_BACK_END_CUFILE 3

/**
 * Through pinned memory of the host, to or from a GPU's; not for settings.
 */
#define FCAST_BACK_END_STAGED 4

/**
 * As the setting compat_mode of the process (the variables FABRICAST_COMPAT_MODE,
 * KVIKIO_COMPAT_MODE).
 */
#define FCAST_COMPAT_DEFAULT 0

/**
 * GPU memory by cuFile where that can be used, else staged.
 */
#define FCAST_COMPAT_AUTO 1

/**
 * GPU memory never by cuFile.
 */
#define FCAST_COMPAT_ON 2

/**
 * GPU memory by cuFile; where it can't be used, the file is not opened.
 */
#define FCAST_COMPAT_OFF 3

/**
 * In settings that may be left as they are: on.
 */
#define FCAST_SWITCH_ON 1

/**
 * In settings that may be left as they are: off.
 */
#define FCAST_SWITCH_OFF 2

/**
 * Something failed that nobody else is told.
 */
#define FCAST_LOG_ERROR 1

/**
 * Something is not as it should be, and it goes on.
 */
#define FCAST_LOG_WARN 2

/**
 * What happens seldom: what was opened, connected, closed.
 */
#define FCAST_LOG_INFO 3

/**
 * What helps to find a defect.
 */
#define FCAST_LOG_DEBUG 4

/**
 * Everything.
 */
#define FCAST_LOG_TRACE 5

/**
 * Memory of the host that CUDA knows nothing of.
 */
#define FCAST_MEMORY_HOST 0

/**
 * Managed memory of CUDA's.
 */
#define FCAST_MEMORY_MANAGED 1

/**
 * Memory of a GPU.
 */
#define FCAST_MEMORY_DEVICE 2

/**
 * The CUDA driver knows it as something else.
 */
#define FCAST_MEMORY_UNKNOWN 3

/**
 * No memory: NULL, or nothing is mapped there.
 */
#define FCAST_MEMORY_INVALID 4

/**
 * Memory of the host that is pinned for CUDA.
 */
#define FCAST_MEMORY_PINNED 5

/**
 * A GET: a server writes an object, or a part of one, into memory that was lent.
 */
#define FCAST_OBJECT_GET 1

/**
 * A PUT: a server reads an object, or a part of one, from memory that was lent.
 */
#define FCAST_OBJECT_PUT 2

/**
 * Both sides compute the CRC-64/NVME of what is moved, where the host can read the memory.
 */
#define FCAST_CHECKSUM_CRC64 0

/**
 * Both sides compute the CRC32C of it.
 */
#define FCAST_CHECKSUM_CRC32C 1

/**
 * Bytes of a text of an etag, the zero included.
 */
#define FCAST_OBJECT_ETAG_LEN 136

/**
 * An object is put whatever is there.
 */
#define FCAST_PUT_ANY 0

/**
 * An object is put if there is none of its name.
 */
#define FCAST_PUT_ABSENT 1

/**
 * An object is put if the one that is there has the etag that is given.
 */
#define FCAST_PUT_MATCHES 2

/**
 * The bytes are in the client's memory. `key`.
 */
#define FCAST_EVENT_OBJECT_WRITTEN 60

/**
 * The bytes of the client's memory are in the memory that was given. `key`.
 */
#define FCAST_EVENT_OBJECT_READ 61

/**
 * A transfer failed: `key`, `status`, `text`. `value` is the sum of 1: bytes may have gone out all
 * the same; 2: the provider still has the memory that was given, FCAST_EVENT_OBJECT_RETURNED says
 * when not any more (never, where the provider does not let go of it).
 */
#define FCAST_EVENT_OBJECT_FAILED 62

/**
 * The provider is done with the memory of a transfer that failed before. `key`.
 */
#define FCAST_EVENT_OBJECT_RETURNED 63

/**
 * How many transfers there were, and how many bytes they moved.
 */
#define FCAST_TELEMETRY_TRANSFERS 1

/**
 * How many failed, and why.
 */
#define FCAST_TELEMETRY_FAILURES 2

/**
 * How long they took.
 */
#define FCAST_TELEMETRY_LATENCY 4

/**
 * The program's functions that clients call.
 */
#define FCAST_TELEMETRY_CALLBACKS 8

/**
 * Memory that is lent: tokens, new keys, what is kept back.
 */
#define FCAST_TELEMETRY_LENDING 16

/**
 * A subscriber that has no room does not get this publication.
 */
#define FCAST_SLOW_DROP 0

/**
 * Publications wait for a subscriber that has no room; what comes to a full queue, or has waited
 * too long, is dropped.
 */
#define FCAST_SLOW_WAIT 1

/**
 * As FCAST_SLOW_WAIT, but then the subscriber's connection is ended.
 */
#define FCAST_SLOW_DISCONNECT 2

/**
 * Regions try to lie in huge pages.
 */
#define FCAST_REGION_HUGE_PAGES 1

/**
 * Regions are pinned for CUDA, so that copies from and to GPUs are asynchronous.
 */
#define FCAST_REGION_PINNED 2

/**
 * In place of a time: none, never.
 */
#define FCAST_NEVER UINT32_MAX

/**
 * In place of a number of bytes: none at all.
 */
#define FCAST_OFF UINT32_MAX

/**
 * What a message begins with: the header's length and the header.
 */
#define FCAST_HEADER_PREFIXED 0

/**
 * Every message begins with a header of `header_fixed` bytes.
 */
#define FCAST_HEADER_FIXED 1

/**
 * Nothing says where the header ends: the receiver gets header and payload as one run.
 */
#define FCAST_HEADER_RAW 2

/**
 * Header and payload become a message in the best way that the provider has.
 */
#define FCAST_SHAPE_AUTO 0

/**
 * One send of several segments.
 */
#define FCAST_SHAPE_IOV 1

/**
 * The header is written right in front of the payload, whose pool has headroom.
 */
#define FCAST_SHAPE_HEADROOM 2

/**
 * Header and payload are two messages of the provider's.
 */
#define FCAST_SHAPE_TWO_MESSAGES 3

/**
 * The version of this header: major * 1,000,000 + minor * 1,000 + patch.
 */
#define FCAST_VERSION 1000

/**
 * A stream was accepted.
 */
#define FCAST_STREAM_BEGAN 50

/**
 * A stream is complete: all of it is in the directory, or the sink has it, checked. `report` says
 * how it went.
 */
#define FCAST_STREAM_COMPLETE 51

/**
 * A stream was cut, cancelled or failed: `status`, `text`. What came is kept for a later one.
 */
#define FCAST_STREAM_CUT 52

/**
 * A connection or a stream was not taken: `text` says why.
 */
#define FCAST_STREAM_REFUSED 53

/**
 * Something that this version of the interface has no word for: `text`.
 */
#define FCAST_STREAM_OTHER 54

/**
 * Blocks carry no CRC32C.
 */
#define FCAST_STREAM_NO_CRC32C 1

/**
 * Both sides compute the BLAKE3 of the content, and compare.
 */
#define FCAST_STREAM_BLAKE3 2

/**
 * The content is on the receiver's device before it says that it is complete.
 */
#define FCAST_STREAM_SYNC 4

/**
 * The receiver reads what it wrote, and checks it.
 */
#define FCAST_STREAM_READ_BACK 8

/**
 * What the receiver has of an earlier stream that was cut is thrown away.
 */
#define FCAST_STREAM_RESTART 16

/**
 * Blocks go by what is better over the provider.
 */
#define FCAST_STREAM_AUTO 0

/**
 * Blocks go as messages.
 */
#define FCAST_STREAM_MESSAGES 1

/**
 * Blocks are written into the receiver's memory (RMA).
 */
#define FCAST_STREAM_WRITES 2

/**
 * Other peers wait for a slow one, but one that takes nothing for `slow_ms` is given up.
 */
#define FCAST_STREAM_SLOW_WAIT 0

/**
 * Other peers go on without a slow one, which gets later what it missed.
 */
#define FCAST_STREAM_SLOW_CATCH_UP 1

/**
 * Other peers go on, and one that has held them up for `slow_ms` is given up.
 */
#define FCAST_STREAM_SLOW_DROP 2

/**
 * The peer may read a window.
 */
#define FCAST_ACCESS_READ 1

/**
 * The peer may write to a window.
 */
#define FCAST_ACCESS_WRITE 2

/**
 * Bytes of a window's descriptor, which the peer is sent.
 */
#define FCAST_WINDOW_DESCRIPTOR_LEN 64

/**
 * What a call came to: FCAST_OK, or why not.
 */
typedef int32_t fcast_status;

/**
 * An endpoint: what sends or receives. One thread at a time uses it; another one that calls
 * meanwhile gets FCAST_BUSY.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_endpoint;

/**
 * A region: memory that can be registered with domains, sent and received. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_region;

/**
 * A message of a batch.
 */
typedef struct {
    /**
     * Where its payload begins: an address in the region.
     */
    const void *data;
    /**
     * Bytes of the payload.
     */
    size_t len;
    /**
     * The region that it lies in; {0}: the one of the endpoint's settings.
     */
    fcast_region region;
    /**
     * The header, which is copied; NULL where there is none.
     */
    const void *header;
    /**
     * Bytes of the header.
     */
    size_t header_len;
    /**
     * Comes back with the outcome.
     */
    uint64_t key;
} fcast_outgoing;

/**
 * A publication of a batch.
 */
typedef struct {
    /**
     * Whose subscribers get it.
     */
    uint64_t tag;
    /**
     * What they get.
     */
    fcast_outgoing message;
} fcast_outgoing_publication;

/**
 * What became of a publication at once. FCAST_EVENT_PUBLISHED follows when the rest is known.
 */
typedef struct {
    /**
     * Its number among the tag's publications, which the subscribers see.
     */
    uint64_t number;
    /**
     * Subscribers that it is on its way to.
     */
    uint32_t posted;
    /**
     * Subscribers that it waits for.
     */
    uint32_t waiting;
    /**
     * Subscribers that do not get it.
     */
    uint32_t dropped;
    /**
     * 0.
     */
    uint32_t reserved;
} fcast_publication;

/**
 * A domain: what memory is registered with, and endpoints are opened in. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_domain;

/**
 * A pool: a region in slots of one size. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_pool;

/**
 * Pinned memory of the host, through which a GPU's memory goes out where the provider can't reach
 * it. Any thread; endpoints may share one (setting `staging`).
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_staging;

/**
 * Buffers of one size in a GPU's memory, to which messages are delivered (setting `deliver_to`).
 * Any thread.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_device_pool;

/**
 * Header slots for endpoints of one domain, which share them: setting `headers`. Any thread may
 * use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_headers;

/**
 * How an endpoint is opened, of whatever kind it is. 0 in a field is the default of that kind; a
 * field that the kind does not have must be 0, else opening it fails with FCAST_INVALID and says
 * so. Ranges and defaults are those of fabricast's ConnectionSettings, OutgoingSettings and
 * IncomingSettings, and a value out of range is refused with words that name the field.
 */
typedef struct {
    /**
     * sizeof(fcast_settings).
     */
    size_t size;
    /**
     * How long making a connection may take, in milliseconds. Default 5,000.
     */
    uint32_t connect_timeout_ms;
    /**
     * How long the goodbye may take when the peer begins it. Default 5,000.
     */
    uint32_t close_timeout_ms;
    /**
     * Silence of a peer that is told as FCAST_EVENT_UNRESPONSIVE. Default 5,000; FCAST_NEVER.
     */
    uint32_t unresponsive_after_ms;
    /**
     * Silence of a peer that ends its connection. Default 60,000; FCAST_NEVER.
     */
    uint32_t lost_after_ms;
    /**
     * Time from which the kernel ends a connection whose data is not acknowledged (TCP).
     */
    uint32_t tcp_user_timeout_ms;
    /**
     * Has the kernel probe connections that carry nothing for so many seconds, and end those where
     * nothing answers (TCP; not of connectionless endpoints). Default 10 where one of the next two
     * is set; all three 0: it does not.
     */
    uint32_t keepalive_idle_s;
    /**
     * Seconds between probes. Default 5.
     */
    uint32_t keepalive_interval_s;
    /**
     * Probes without an answer that end a connection, 1 to 127. Default 3.
     */
    uint32_t keepalive_probes;
    /**
     * First delay before a connection is made again; 0: it is not.
     */
    uint32_t reconnect_first_ms;
    /**
     * Largest delay, to which it doubles; 0: it stays as the first.
     */
    uint32_t reconnect_max_ms;
    /**
     * Attempts after which it is given up; 0: no limit.
     */
    uint32_t reconnect_attempts;
    /**
     * Connections at once, of those who listen and of subscribers.
     */
    uint32_t max_connections;
    /**
     * Windows that this side exposes at once.
     */
    uint32_t windows;
    /**
     * 1: each connection is asked for by FCAST_EVENT_REQUEST.
     */
    uint32_t ask;
    /**
     * Operations in flight at once.
     */
    uint32_t depth;
    /**
     * Header slots of the endpoint's own. Default 256.
     */
    uint32_t header_slots;
    /**
     * Bytes of a header slot, 1 to 4,096. Default 64.
     */
    uint32_t header_slot_size;
    /**
     * FCAST_HEADER_PREFIXED, FCAST_HEADER_FIXED or FCAST_HEADER_RAW, of who sends. A receiver and
     * a subscriber refuse it, and learn it from each peer as the connection is made.
     */
    uint32_t header_mode;
    /**
     * Bytes of each header in the mode FCAST_HEADER_FIXED.
     */
    uint32_t header_fixed;
    /**
     * FCAST_SHAPE_AUTO or another.
     */
    uint32_t shape;
    /**
     * Messages of up to so many bytes are copied by the provider as they are posted; FCAST_OFF.
     */
    uint32_t inject;
    /**
     * Messages of up to so many bytes are packed with others; FCAST_OFF.
     */
    uint32_t packing;
    /**
     * 1: the kernel does not gather small messages.
     */
    uint32_t no_gather;
    /**
     * 1: a send completes when the message is in the peer's memory.
     */
    uint32_t delivered;
    /**
     * How long an operation may take. Default 30,000; FCAST_NEVER.
     */
    uint32_t deadline_ms;
    /**
     * 1: an operation that is late is told by FCAST_EVENT_LATE; else its connection ends.
     */
    uint32_t tell_late;
    /**
     * Bytes of the largest message that comes in, header included. Default 65,536.
     */
    uint32_t max_message;
    /**
     * Buffers of the receive pool.
     */
    uint32_t slots;
    /**
     * Messages that each peer may send ahead. Default 32.
     */
    uint32_t credits;
    /**
     * Of a `pool` that several endpoints share: buffers that are kept for this one.
     */
    uint32_t pool_reserved;
    /**
     * The most buffers that it takes of such a `pool`, at least `pool_reserved`; 0: the pool is
     * this endpoint's alone.
     */
    uint32_t pool_most;
    /**
     * How long a sender may take from when its long message has a slot of `long_pool` until all of
     * it is there; a second for each MiB is added. Default 60,000; FCAST_NEVER.
     */
    uint32_t long_deadline_ms;
    /**
     * Buffered senders and publishers: FCAST_FORMAT_COMPACT or FCAST_FORMAT_NETIO3; who receives
     * must know it.
     */
    uint32_t format;
    /**
     * Buffered senders and publishers: how many buffers. Default 32; of publishers 64.
     */
    uint32_t buffers;
    /**
     * Buffered senders and publishers: bytes of a buffer. Default 65,536; of publishers 61,440: a
     * subscriber's `max_message` has to be 18 more.
     */
    uint32_t buffer_size;
    /**
     * Buffered senders and publishers: how long a message waits for others, in microseconds.
     * Default 1,000; FCAST_NEVER: until the buffer is full or is flushed.
     */
    uint32_t flush_interval_us;
    /**
     * Buffered senders: packed buffers that wait to be sent. Default 8.
     */
    uint32_t waiting;
    /**
     * Buffered publishers: tags whose messages are being packed at once; for one more, the buffer
     * that began first leaves before its time. Default 32.
     */
    uint32_t tags;
    /**
     * Connectionless endpoints: peers at once. Default 64.
     */
    uint32_t max_peers;
    /**
     * Connectionless endpoints: 1: peers that were not added are refused.
     */
    uint32_t refuse_unknown;
    /**
     * Connectionless endpoints: 1: a send to an address does not add a peer.
     */
    uint32_t no_add_on_send;
    /**
     * Connectionless endpoints: sends in flight to all peers together. Default 256.
     */
    uint32_t total_depth;
    /**
     * Publishers: publications that are not over for everybody. Default 256.
     */
    uint32_t publications;
    /**
     * Publishers: FCAST_SLOW_DROP or another; what becomes of what a subscriber has no room for.
     */
    uint32_t slow;
    /**
     * Publishers: publications that wait for one subscriber, where `slow` lets them.
     */
    uint32_t slow_queue;
    /**
     * Publishers: how long they wait, in milliseconds.
     */
    uint32_t slow_ms;
    /**
     * Publishers: subscriptions in all; subscribers: tags wanted of one publisher.
     */
    uint32_t subscriptions;
    /**
     * Publishers: subscriptions of one subscriber. Default 1,024.
     */
    uint32_t subscriptions_per_connection;
    /**
     * Publishers: 1: FCAST_EVENT_PUBLISHED_TO comes for those who got it, too.
     */
    uint32_t tell_sent;
    /**
     * A pool of the program's instead of one of the endpoint's own: that of what comes in, or of a
     * buffered sender's or publisher's buffers. Those that receive and share one say what they
     * take of it: `pool_most`.
     */
    fcast_pool pool;
    /**
     * The memory that is sent where a send names none. It need not be registered: the endpoint
     * does that, for as long as it lives.
     */
    fcast_region region;
    /**
     * What a GPU's memory goes out by where the provider can't reach it; {0}: it is refused.
     */
    fcast_staging staging;
    /**
     * The buffers in a GPU's memory to which payloads that come in are copied: they are told by
     * FCAST_EVENT_DEVICE_MESSAGE. {0}: they stay in the host's memory.
     */
    fcast_device_pool deliver_to;
    /**
     * Takes messages that are longer than `max_message`, up to the slot size of this pool: their
     * senders write them into it, without a copy. It must be used for nothing else, and needs no
     * registration. A message has its slot until it is released. Each connection takes two more of
     * `slots`. {0}: senders may not send them.
     */
    fcast_pool long_pool;
    /**
     * Beside `long_pool`: buffers in a GPU's memory that senders write into instead, where the
     * provider reaches it: such messages are told as with `deliver_to`, whose buffers must be
     * others.
     */
    fcast_device_pool long_device;
    /**
     * How long a peer may take to say that nothing is under way any more of what it began, where
     * memory that peers of the domain could reach is to come back; then its connection ends.
     * Default 2,000. Not of connectionless endpoints.
     */
    uint32_t fence_timeout_ms;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Header slots that other endpoints of the domain use, too, in place of the endpoint's own:
     * `header_slots` and `header_slot_size` must be 0 then.
     */
    fcast_headers headers;
} fcast_settings;

/**
 * A small message, as it lies in its buffer.
 */
typedef struct {
    /**
     * Whose it is.
     */
    uint64_t tag;
    /**
     * Its bytes, which are aligned to nothing.
     */
    const void *data;
    /**
     * How many.
     */
    size_t len;
    /**
     * 0: fine; all else is the program's.
     */
    uint32_t status;
    /**
     * 0.
     */
    uint32_t reserved;
} fcast_small_message;

/**
 * Bytes of the program's.
 */
typedef struct {
    /**
     * Where they begin.
     */
    const void *data;
    /**
     * How many.
     */
    size_t len;
} fcast_bytes;

/**
 * A payload: a frozen buffer, a fragment of a ring, the bytes of a message that was kept, or parts
 * of regions. Any thread may use it. A send uses it up.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_payload;

/**
 * A buffer of a pool that the program writes to. One thread at a time.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_buffer;

/**
 * How far a buffer of small messages was read. All zeros: from its start. What is in it is the
 * library's.
 */
typedef struct {
    /**
     * Bytes that were read.
     */
    uint64_t at;
    /**
     * The tag of the last message.
     */
    uint64_t tag;
    /**
     * Messages that were read.
     */
    uint32_t found;
    /**
     * 1: nothing comes any more.
     */
    uint32_t over;
} fcast_small_cursor;

/**
 * Called when the library needs external memory no more: behind the last send from it and the last
 * registration, on the thread that ended it. It must not throw, and may call this interface.
 */
typedef void (*fcast_release_fn)(void *context);

/**
 * Something that happened. Its layout does not change.
 */
typedef struct {
    /**
     * FCAST_EVENT_CONNECTED or another.
     */
    uint32_t kind;
    /**
     * Why, where something failed or ended; else FCAST_OK.
     */
    fcast_status status;
    /**
     * The connection that it is about; 0 where the endpoint has one only.
     */
    uint64_t connection;
    /**
     * The key of the operation; or see the kind.
     */
    uint64_t key;
    /**
     * The message's number on its connection, from 1.
     */
    uint64_t sequence;
    /**
     * The header as it was sent.
     */
    const void *header;
    /**
     * Bytes of the header.
     */
    size_t header_len;
    /**
     * The payload.
     */
    const void *data;
    /**
     * Bytes of the payload.
     */
    size_t data_len;
    /**
     * Words, valid until the next poll of the endpoint; NULL where there are none.
     */
    const char *text;
    /**
     * A number; see the kind.
     */
    uint64_t value;
    /**
     * libfabric's number (fi_errno.3), where something failed in it; else 0.
     */
    int32_t error;
    /**
     * For fcast_message_keep and fcast_buffer_keep.
     */
    uint32_t index;
    /**
     * For fcast_message_keep and fcast_buffer_keep.
     */
    uint64_t batch;
    /**
     * Of a publication: subscribers that did not get it.
     */
    uint32_t dropped;
    /**
     * Of a publication: subscribers whose connections ended with it under way.
     */
    uint32_t failed;
    /**
     * Of a buffered publisher's publication: its tag.
     */
    uint64_t tag;
    /**
     * Of a buffered publisher's publication: how many small messages are in it, and `key` is the
     * number that fcast_push gave them; 0: it is a payload, and `key` is its key.
     */
    uint32_t count;
    /**
     * 1: the library has copied this message on its way here, a long one whose fence was late or
     * where nothing fences. No peer can change it, as any other.
     */
    uint32_t copied;
} fcast_event;

/**
 * How a loop is made. All zeros but the size are the defaults.
 */
typedef struct {
    /**
     * sizeof(fcast_loop_settings).
     */
    size_t size;
    /**
     * FCAST_LOOP_BLOCK or another.
     */
    uint32_t mode;
    /**
     * FCAST_LOOP_ADAPTIVE: how long it spins after the last work, 1 to 1,000,000 microseconds.
     */
    uint32_t window_us;
    /**
     * How often endpoints without a descriptor are handed out, 10 to 1,000,000 microseconds.
     * Default 1,000.
     */
    uint32_t poll_interval_us;
    /**
     * Descriptors that a round looks at, 1 to 4,096. Default 64.
     */
    uint32_t events_max;
} fcast_loop_settings;

/**
 * An event loop. One thread at a time runs it, adds to it and takes from it; another one that
 * calls meanwhile gets FCAST_BUSY. fcast_loop_wake and fcast_loop_stop are for any thread, at any
 * time.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_loop;

/**
 * A channel of a server, which does the work. One thread at a time uses it; more threads take more
 * channels.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_channel;

/**
 * A signal of a loop: a wake-up that is told apart from others. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_signal;

/**
 * Something to do. Its layout does not change.
 */
typedef struct {
    /**
     * FCAST_LOOP_ENDPOINT or another.
     */
    uint32_t kind;
    /**
     * FCAST_LOOP_FD: the sum of some of FCAST_LOOP_READ, _WRITE, _HANGUP and _ERROR.
     */
    uint32_t readiness;
    /**
     * Which source, as it was told when it was added; 0: none.
     */
    uint64_t token;
    /**
     * What the program gave with the source.
     */
    uint64_t key;
    /**
     * 0.
     */
    uint64_t reserved;
} fcast_loop_event;

/**
 * How a fabric is opened. All zeros but the size are the defaults.
 */
typedef struct {
    /**
     * sizeof(fcast_fabric_settings).
     */
    size_t size;
    /**
     * The provider as libfabric spells it ("tcp", "verbs", ..); NULL: the first that can be used.
     */
    const char *provider;
    /**
     * The local address or host name, which chooses the interface; NULL: the first one.
     */
    const char *node;
    /**
     * The interface or device ("eth0", "mlx5_0"); NULL: any.
     */
    const char *interface;
    /**
     * FCAST_KIND_ANY, FCAST_KIND_MSG or FCAST_KIND_RDM. Both ends must have the same.
     */
    uint32_t kind;
    /**
     * 1: no descriptor is signalled for completions, which is faster for those who only spin.
     */
    uint32_t no_wait_object;
    /**
     * The most registrations of each domain, 1 to 1,048,576; 0: 1,024.
     */
    uint32_t max_registrations;
    /**
     * 1: GPU memory is always copied through memory of the host.
     */
    uint32_t stage_device_memory;
} fcast_fabric_settings;

/**
 * A fabric: a provider of libfabric's that was opened. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_fabric;

/**
 * How a file is opened. All zeros but the size are the defaults.
 */
typedef struct {
    /**
     * sizeof(fcast_file_settings).
     */
    size_t size;
    /**
     * The permissions of a file that is made, less the umask, to 07777; 0: 0664.
     */
    uint32_t mode;
    /**
     * FCAST_DIRECT_DEFAULT or another.
     */
    uint32_t direct;
    /**
     * FCAST_BACK_END_DEFAULT or another.
     */
    uint32_t back_end;
    /**
     * FCAST_COMPAT_DEFAULT or another.
     */
    uint32_t compat;
} fcast_file_settings;

/**
 * An open file, which is read and written at offsets. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_file;

/**
 * What was done with a file in one direction.
 */
typedef struct {
    /**
     * Operations that are over, failed ones too.
     */
    uint64_t operations;
    /**
     * Bytes that were moved, by failed operations too, as far as they got.
     */
    uint64_t bytes;
    /**
     * Operations that failed.
     */
    uint64_t errors;
    /**
     * Bytes that went around the page cache.
     */
    uint64_t direct_bytes;
    /**
     * Of those, bytes that were copied through a bounce buffer.
     */
    uint64_t bounced_bytes;
    /**
     * All latencies added up, in nanoseconds.
     */
    uint64_t latency_sum_ns;
    /**
     * A bound below which half of the operations stayed, in nanoseconds, up to twice too large.
     */
    uint64_t latency_p50_ns;
    /**
     * The same of 99 of 100 operations.
     */
    uint64_t latency_p99_ns;
} fcast_file_direction_stats;

/**
 * What was done with a file.
 */
typedef struct {
    /**
     * sizeof(fcast_file_stats), set by the caller.
     */
    size_t size;
    /**
     * What was read.
     */
    fcast_file_direction_stats read;
    /**
     * What was written.
     */
    fcast_file_direction_stats write;
} fcast_file_stats;

/**
 * How a batch works. All zeros but the size are the defaults.
 */
typedef struct {
    /**
     * sizeof(fcast_file_batch_settings).
     */
    size_t size;
    /**
     * Transfers under way at once, 1 to 4,096; 0: 64.
     */
    uint32_t depth;
    /**
     * FCAST_BACK_END_DEFAULT, _POSIX or _IO_URING.
     */
    uint32_t back_end;
    /**
     * FCAST_DIRECT_DEFAULT or another.
     */
    uint32_t direct;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} fcast_file_batch_settings;

/**
 * A batch: transfers of files in flight, by io_uring where the kernel allows it, else by threads.
 * For the host's memory. One thread at a time uses it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_file_batch;

/**
 * What a transfer moved, and which way. Its layout does not change.
 */
typedef struct {
    /**
     * Bytes that were moved, from the offset on. A read is short only at the end of the file.
     */
    uint64_t bytes;
    /**
     * Of those, bytes that went around the page cache.
     */
    uint64_t direct_bytes;
    /**
     * Of the direct ones, bytes that were copied, since the memory is not aligned.
     */
    uint64_t bounced_bytes;
    /**
     * What moved them: FCAST_BACK_END_POSIX or another.
     */
    uint32_t back_end;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * 0.
     */
    uint64_t more[2];
} fcast_file_moved;

/**
 * What came of one transfer of a batch. Its layout does not change.
 */
typedef struct {
    /**
     * As it was given.
     */
    uint64_t key;
    /**
     * FCAST_OK, or why not; the words of the last one that failed: fcast_last_error.
     */
    fcast_status status;
    /**
     * The system's number (errno.3), where a call of it failed; else 0.
     */
    int32_t error;
    /**
     * What was moved, also by one that failed.
     */
    fcast_file_moved moved;
} fcast_file_batch_event;

/**
 * What files and transfers of the process do where nothing else was asked for. The values at the
 * start are those of variables: FABRICAST_NUM_THREADS and so on, or those of KvikIO.
 */
typedef struct {
    /**
     * sizeof(fcast_file_defaults).
     */
    size_t size;
    /**
     * Threads of the pool, 1 to 1,024. Default 8.
     */
    size_t num_threads;
    /**
     * Bytes of one task. Default 4 MiB.
     */
    size_t task_size;
    /**
     * Transfers of GPU memory of fewer bytes are done by the calling thread. Default 16 KiB.
     */
    size_t gds_threshold;
    /**
     * Bytes of the longest bounce buffer. Default 16 MiB.
     */
    size_t bounce_buffer_size;
    /**
     * Bytes that all bounce buffers may take. Default 256 MiB.
     */
    size_t bounce_pool_size;
    /**
     * Transfers of fewer bytes go through the page cache. Default 64 KiB.
     */
    size_t auto_direct_io_threshold;
    /**
     * Operations that wait for a thread at most. Default 4,096.
     */
    size_t thread_pool_queue;
    /**
     * Pieces in flight on a ring of io_uring's. Default 32.
     */
    size_t io_uring_depth;
    /**
     * FCAST_COMPAT_AUTO, FCAST_COMPAT_ON or FCAST_COMPAT_OFF, for files that are opened later.
     */
    uint32_t compat;
    /**
     * Whether reads go around the page cache. Default off.
     */
    uint32_t auto_direct_io_read;
    /**
     * Whether writes go around the page cache. Default on.
     */
    uint32_t auto_direct_io_write;
    /**
     * Whether reads around the page cache read what lies around them, too. Default off.
     */
    uint32_t auto_direct_io_read_overread;
    /**
     * Whether each block device has a pool of its own. Default off.
     */
    uint32_t thread_pool_per_block_device;
    /**
     * Whether io_uring is used. Default on.
     */
    uint32_t io_uring;
} fcast_file_defaults;

/**
 * What one transfer asks for. All zeros but the size are the defaults.
 */
typedef struct {
    /**
     * sizeof(fcast_file_options).
     */
    size_t size;
    /**
     * Bytes of one task of a transfer that threads share; 0: the setting task_size.
     */
    size_t task_size;
    /**
     * GPU memory: transfers of fewer bytes are done by the calling thread; 0: the setting
     * gds_threshold.
     */
    size_t gds_threshold;
    /**
     * FCAST_DIRECT_DEFAULT or another.
     */
    uint32_t direct;
    /**
     * FCAST_BACK_END_DEFAULT or another.
     */
    uint32_t back_end;
    /**
     * GPU memory: 1: does not wait for CUDA's default stream first.
     */
    uint32_t no_stream_sync;
    /**
     * fcast_file_read and fcast_file_write: 1: the threads of the pool take part.
     */
    uint32_t parallel;
} fcast_file_options;

/**
 * A transfer of a file that goes on by itself. One thread at a time uses it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_file_transfer;

/**
 * Bytes to be written to.
 */
typedef struct {
    /**
     * Where they begin.
     */
    void *data;
    /**
     * How many; 0: none.
     */
    size_t len;
} fcast_span;

/**
 * Takes a line of the log: its level, which part of the library says it, and the words with their
 * numbers ("name=value"). The texts end with a zero and are valid during the call.
 *
 * It is called on the thread that has something to say, by several at once, within a call of this
 * interface or on a thread of the library's. It must be short and must not throw; what it calls of
 * this interface is refused with FCAST_BUSY.
 */
typedef void (*fcast_log_fn)(void *context, uint32_t level, const char *target, const char *message);

/**
 * A message that is kept. Any thread may use it; while it is held, its buffer is not received into
 * again.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_message;

/**
 * How a client of objects is opened. 0 in a field is the default.
 */
typedef struct {
    /**
     * sizeof(fcast_object_client_settings).
     */
    size_t size;
    /**
     * Bytes that one call of fcast_object_get and fcast_object_put gets at most. Default 2^30.
     */
    uint64_t callback_bytes;
    /**
     * Tokens that stand at once. Default 4,096.
     */
    uint32_t tokens;
    /**
     * How long a transfer waits at most for memory that is kept from being lent. Default 5,000.
     */
    uint32_t quarantine_ms;
    /**
     * 1: no thread serves the client: fcast_object_client_progress is called while tokens stand.
     */
    uint32_t no_progress_thread;
    /**
     * Buffers that GPU memory passes where the provider does not reach it. Default 4.
     */
    uint32_t staging_buffers;
    /**
     * Bytes of one of them. Default 8 MiB.
     */
    size_t staging_bytes;
    /**
     * What statistics call it; NULL: "client".
     */
    const char *name;
} fcast_object_client_settings;

/**
 * A client of objects: it lends memory to servers, which move the bytes by themselves. Any thread
 * may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_client;

/**
 * Memory that a client lends. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_memory;

/**
 * A token that stands: who knows its text may use the memory that it names. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_token;

/**
 * A list that the function `list` of a store adds to. It is gone when that returns.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_list;

/**
 * An object. Its layout does not change.
 */
typedef struct {
    /**
     * Its bytes.
     */
    uint64_t size;
    /**
     * Bytes that the call has moved.
     */
    uint64_t moved;
    /**
     * When it was put, in nanoseconds since 1970; 0: not known.
     */
    int64_t modified_ns;
    /**
     * Its checksum, or that of the bytes that were moved.
     */
    uint64_t checksum;
    /**
     * FCAST_CHECKSUM_CRC64, FCAST_CHECKSUM_CRC32C, or FCAST_OFF: not known.
     */
    uint32_t checksum_kind;
    /**
     * 1: both sides have computed a checksum of what was moved, and it is the same.
     */
    uint32_t is_checked;
    /**
     * The name of this version, as text that ends with a zero.
     */
    char etag[FCAST_OBJECT_ETAG_LEN];
    /**
     * 0.
     */
    uint64_t reserved[2];
} fcast_object_info;

/**
 * A piece that a store was asked to read or to write. Any thread answers it, once.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_piece;

/**
 * How a connection to a service is made. 0 in a field is the default.
 */
typedef struct {
    /**
     * sizeof(fcast_object_remote_settings).
     */
    size_t size;
    /**
     * FCAST_CHECKSUM_CRC64, FCAST_CHECKSUM_CRC32C, or FCAST_OFF: none.
     */
    uint32_t checksum;
    /**
     * How long making a connection may take. Default 10,000.
     */
    uint32_t connect_timeout_ms;
    /**
     * How long the service may be silent. Default 30,000.
     */
    uint32_t lost_after_ms;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} fcast_object_remote_settings;

/**
 * A connection to a service of objects: one request at a time. One thread at a time uses it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_remote;

/**
 * An object of a list. Its layout does not change.
 */
typedef struct {
    /**
     * Its name, valid until the next call of the connection.
     */
    const char *name;
    /**
     * The name of this version, valid as long.
     */
    const char *etag;
    /**
     * Its bytes.
     */
    uint64_t size;
    /**
     * When it was put, in nanoseconds since 1970; 0: not known.
     */
    int64_t modified_ns;
    /**
     * 0.
     */
    uint64_t reserved[2];
} fcast_object_entry;

/**
 * How a server of objects is opened. 0 in a field is the default.
 */
typedef struct {
    /**
     * sizeof(fcast_object_server_settings).
     */
    size_t size;
    /**
     * Transfers of a channel at once, 1 to 65,536. Default 256.
     */
    uint32_t depth;
    /**
     * Clients that a channel knows at once, 1 to 65,536. Default 1,024.
     */
    uint32_t peers;
    /**
     * A transfer with less time than this until its deadline is refused. Default 10.
     */
    uint32_t min_budget_ms;
    /**
     * A client that was idle for so long is forgotten. Default 60,000.
     */
    uint32_t idle_after_ms;
    /**
     * What statistics call it; NULL: "server".
     */
    const char *name;
    /**
     * The networks that clients may be in, of which tokens tell: "any", or "10.0.0.0/8,fd00::/8".
     * NULL: any; of a service, where those are who ask ("asker").
     */
    const char *clients;
} fcast_object_server_settings;

/**
 * A server of objects: it moves bytes into and out of memory that tokens name. Any thread.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_server;

/**
 * How a service is started. 0 in a field is the default. A value out of its range is refused with
 * words that name it.
 */
typedef struct {
    /**
     * sizeof(fcast_object_service_settings).
     */
    size_t size;
    /**
     * 1: nothing can be put or deleted.
     */
    uint32_t read_only;
    /**
     * Threads that move bytes, each with an address of its own. Default 1.
     */
    uint32_t workers;
    /**
     * Threads of a worker that wait for files, or for the program's store. Default 2.
     */
    uint32_t store_threads;
    /**
     * Bytes that are moved at once. Default 1,048,576.
     */
    uint32_t piece_bytes;
    /**
     * Pieces that a worker has memory for. Default 32.
     */
    uint32_t buffers;
    /**
     * Pieces of one request that are under way at once. Default 4.
     */
    uint32_t pieces;
    /**
     * Connections of a worker. Default 64.
     */
    uint32_t connections;
    /**
     * Requests of a worker at once. Default 256.
     */
    uint32_t requests;
    /**
     * How long a request may go without a piece being done. Default 10,000.
     */
    uint32_t stall_ms;
    /**
     * How long a request may take. Default 3,600,000.
     */
    uint32_t budget_ms;
    /**
     * How long a client may be silent. Default 30,000.
     */
    uint32_t lost_after_ms;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * Of the channels that move bytes; NULL: the defaults.
     */
    const fcast_object_server_settings *server;
} fcast_object_service_settings;

/**
 * A service: it serves the files of a directory as objects, or what a store of the program's has,
 * with threads of its own. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_service;

/**
 * A store of the program's own: what a service asks instead of a directory. Each function gets
 * `context` first, and answers a status:
 *
 * FCAST_OK: it is done. FCAST_NOT_FOUND: there is no such object. FCAST_REFUSED: the condition of
 * a put does not hold, or the etag of a removal is another; without one, it is not allowed.
 * FCAST_UNSUPPORTED: the store does not do that. FCAST_NO_RESOURCES: no space is left.
 * FCAST_AGAIN, FCAST_BUSY: not now. FCAST_DATA: the object was changed while it was read. All
 * others: the store failed; the log says which function answered what, the client does not hear
 * it.
 *
 * They are called by threads of the service, several at once, also for the same object, with
 * nothing locked; `close` and `abort` also by whatever thread answers a piece.
 * They may call this interface, but for fcast_object_service_address, _close and _release
 * (FCAST_BUSY), and must not throw. A service that ends waits for those that are at work until its
 * deadline; one that does not return by then goes on, and `release` is called when it has.
 *
 * Texts that they get end with a zero and are good during the call. What they write is looked at
 * when they have answered FCAST_OK, and is checked: what can't be is a failure of the store.
 */
typedef struct {
    /**
     * sizeof(fcast_object_store_calls).
     */
    size_t size;
    /**
     * What the functions get first.
     */
    void *context;
    /**
     * Called once, when the store is needed no more: nothing else is called afterwards. It is
     * called where the service could not be started, too. May be NULL.
     */
    fcast_release_fn release;
    /**
     * Says what there is under a name. May be NULL: then `open` and `close` are called for it.
     */
    fcast_status (*head)(void *context, const char *name, fcast_object_info *info);
    /**
     * Opens an object, and says what it is: what is read of it is of one version, whatever is put
     * meanwhile. `*object` is what the reads of it get. Must not be NULL.
     */
    fcast_status (*open)(void *context, const char *name, fcast_object_info *info, void **object);
    /**
     * Begins to read `len` bytes of an object, from `at` on, to `data`; they lie within its size.
     * It must not wait: FCAST_OK says that fcast_object_piece_done is called for the piece, before
     * this returns or later, by whatever thread, and `data` is the store's until then. Else there
     * is no piece. Several reads of an object are under way at once. Must not be NULL.
     */
    fcast_status (*read)(void *context,
                         void *object,
                         uint64_t at,
                         void *data,
                         size_t len,
                         fcast_object_piece piece);
    /**
     * An object that was opened is read no more: called once for each that was, when no piece of
     * it is out. May be NULL.
     */
    void (*close)(void *context, void *object);
    /**
     * Begins to put an object of `len` bytes, which nobody sees before `commit`. `condition`:
     * FCAST_PUT_ANY or another, with the etag of FCAST_PUT_MATCHES, else NULL; it is judged by
     * `commit`, and may be judged here, too. `*upload` is what the writes of it get. NULL, with
     * `write` and `commit`: nothing can be put.
     */
    fcast_status (*begin)(void *context,
                          const char *name,
                          uint64_t len,
                          uint32_t condition,
                          const char *etag,
                          void **upload);
    /**
     * Begins to write `len` bytes to byte `at` and what follows, which lie within the length that
     * was said. As `read`: the bytes at `data` stay until the piece is answered. One call at a
     * time for each upload, with several pieces under way.
     */
    fcast_status (*write)(void *context,
                          void *upload,
                          uint64_t at,
                          const void *data,
                          size_t len,
                          fcast_object_piece piece);
    /**
     * Puts an object in its place, all at once, if its condition holds. All bytes were written,
     * each once; `crc64` is their CRC-64/NVME. `info` has what the library would say of it, with
     * an etag that is made of the length and the checksum: it is left so, or is written over.
     * Whatever is answered, the upload is over, and after a failure nothing has changed.
     */
    fcast_status (*commit)(void *context, void *upload, uint64_t crc64, fcast_object_info *info);
    /**
     * An upload is given up: called once for each that was begun and not committed, when no piece
     * of it is out. May be NULL.
     */
    void (*abort)(void *context, void *upload);
    /**
     * Calls fcast_object_list_add for the objects whose names begin with `prefix` and come behind
     * `start_after`, in the order of the bytes of their names, until that answers
     * FCAST_NO_RESOURCES: `limit` were taken, and there are more. NULL: nothing can be listed.
     */
    fcast_status (*list)(void *context,
                         const char *prefix,
                         const char *start_after,
                         size_t limit,
                         fcast_object_list into);
    /**
     * Removes an object; where an etag is given, only the version that has it. Who reads it goes
     * on. NULL: nothing can be removed.
     */
    fcast_status (*remove)(void *context, const char *name, const char *etag);
    /**
     * 1: no function ever waits, so that all are called on the threads that move bytes. 0: those
     * that may wait, which are all but `read`, `write` and `close`, are called on threads of their
     * own (`store_threads`).
     */
    uint32_t never_waits;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} fcast_object_store_calls;

/**
 * Takes `len` bytes of text, which does not end with a zero; with `len` 0 all was written that
 * there is for now, and is to be flushed. A status but FCAST_OK ends the writer: nothing is
 * written any more. It is called on the writer's thread, by nobody else, and must not throw.
 */
typedef fcast_status (*fcast_write_fn)(void *context, const char *text, size_t len);

/**
 * What is written, and how often. 0 in a field is the default.
 */
typedef struct {
    /**
     * sizeof(fcast_object_telemetry_settings).
     */
    size_t size;
    /**
     * The sum of some of FCAST_TELEMETRY_TRANSFERS and the others; unknown bits mean nothing.
     * Default: all.
     */
    uint32_t groups;
    /**
     * 1: in Prometheus' text format, and not for people.
     */
    uint32_t prometheus;
    /**
     * How often, in milliseconds, at least 10. Default: once, at the end.
     */
    uint32_t every_ms;
    /**
     * 0.
     */
    uint32_t reserved;
} fcast_object_telemetry_settings;

/**
 * Writes statistics of all clients and servers of objects in the process. Any thread.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_object_telemetry;

/**
 * Has a server move one part of an object, and waits for its answer: how many bytes it moved, from
 * the part's begin on; or a negative number, which ends the request and is in the words of its
 * failure. `token` is the text of the part's token, good during the call; `offset` is where the
 * part begins in the object, `memory_offset` where in the memory, `len` its bytes.
 *
 * It is called on the thread that called, with nothing locked, may call this interface, and must
 * not throw.
 */
typedef int64_t (*fcast_object_fn)(void *context,
                                   const char *token,
                                   uint64_t offset,
                                   uint64_t memory_offset,
                                   uint64_t len);

/**
 * A piece of a message.
 */
typedef struct {
    /**
     * Where it begins: an address in the region.
     */
    const void *base;
    /**
     * Its bytes.
     */
    size_t len;
    /**
     * The region that it lies in; {0}: the one of the endpoint's settings.
     */
    fcast_region region;
} fcast_iov;

/**
 * A received message that is borrowed: valid until the next fcast_receive, poll, close or release
 * of its endpoint. What is to be kept for longer is copied, or polled for
 * (fcast_endpoint_poll, fcast_message_keep).
 */
typedef struct {
    /**
     * The connection that it came by.
     */
    uint64_t connection;
    /**
     * Its number on that connection, from 1.
     */
    uint64_t sequence;
    /**
     * The header as it was sent.
     */
    const void *header;
    /**
     * Bytes of the header.
     */
    size_t header_len;
    /**
     * The payload.
     */
    const void *data;
    /**
     * Bytes of the payload.
     */
    size_t data_len;
} fcast_received;

/**
 * A ring: a region that a card or a reader fills in order. One thread at a time; what was reserved
 * and committed is any thread's.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_ring;

/**
 * Bytes of a ring that are to be filled. Any thread.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_reservation;

/**
 * Messages that went out in frames (setting `packing`).
 */
typedef struct {
    /**
     * How many.
     */
    uint64_t messages;
    /**
     * Their bytes, headers included, which were copied.
     */
    uint64_t bytes;
    /**
     * Frames that they went out in.
     */
    uint64_t frames;
} fcast_packed_sends;

/**
 * Messages that were posted while the kernel gathered small ones (setting `no_gather`).
 */
typedef struct {
    /**
     * How many.
     */
    uint64_t messages;
    /**
     * Times that it began to: a stream of small messages came, or went on after a pause.
     */
    uint64_t streams;
    /**
     * Times that what it had gathered went although more came, so as to wait no longer.
     */
    uint64_t pushed;
    /**
     * Times that a poll ended a stream, since nothing had been sent after the poll
     * before.
     */
    uint64_t let_go;
} fcast_gathered_sends;

/**
 * Counters of one send endpoint, messages and one-sided operations together. `posted =
 * completed + failed + abandoned + in_flight`, always.
 */
typedef struct {
    /**
     * sizeof(fcast_send_stats), set by the caller.
     */
    size_t size;
    /**
     * Sends that were accepted.
     */
    uint64_t posted;
    /**
     * Sends reported as FCAST_EVENT_COMPLETED.
     */
    uint64_t completed;
    /**
     * Sends reported as FCAST_EVENT_FAILED.
     */
    uint64_t failed;
    /**
     * Sends whose outcome nobody heard, because the endpoint was dropped.
     */
    uint64_t abandoned;
    /**
     * Sends accepted and not yet reported.
     */
    uint64_t in_flight;
    /**
     * The most sends ever in flight at once.
     */
    uint64_t in_flight_max;
    /**
     * Bytes accepted, headers included.
     */
    uint64_t bytes;
    /**
     * Of these, messages that were packed into frames.
     */
    fcast_packed_sends packed;
    /**
     * Of these, messages that the kernel could gather.
     */
    fcast_gathered_sends gathered;
    /**
     * Sends refused with FCAST_AGAIN.
     */
    uint64_t would_block;
    /**
     * Posts that the provider answered with `-FI_EAGAIN`.
     */
    uint64_t eagain;
    /**
     * Sends refused for any other reason.
     */
    uint64_t refused;
    /**
     * Reads of the completion queue.
     */
    uint64_t cq_reads;
    /**
     * Of these, reads that found nothing.
     */
    uint64_t cq_reads_empty;
    /**
     * Writes with immediate data that named no window of ours: one that was just
     * released, or a peer's lie. With the 16th that names none that there was, the
     * connections that have windows are ended.
     */
    uint64_t stray_writes;
    /**
     * Completions that named no operation of ours.
     */
    uint64_t unknown_completions;
    /**
     * Operations leaked because the provider would not close its endpoint.
     */
    uint64_t leaked;
} fcast_send_stats;

/**
 * Messages that came in frames, which share the frame's buffer.
 */
typedef struct {
    /**
     * How many.
     */
    uint64_t messages;
    /**
     * Frames that they came in.
     */
    uint64_t frames;
    /**
     * Frames whose buffers can't be posted again now, because messages that came in them,
     * or payloads of those, were handed out and are held.
     */
    uint64_t frames_held;
    /**
     * The messages and payloads that share those buffers.
     */
    uint64_t messages_held;
} fcast_packed_receives;

/**
 * Counters of the one-sided operations of an endpoint that receives: `posted = completed +
 * failed + in_flight`, always. Those of an endpoint that sends are among its
 * fcast_send_stats.
 */
typedef struct {
    /**
     * Operations that were accepted.
     */
    uint64_t posted;
    /**
     * Of these, those that were done.
     */
    uint64_t completed;
    /**
     * Of these, those that failed.
     */
    uint64_t failed;
    /**
     * Operations accepted and not yet reported.
     */
    uint64_t in_flight;
} fcast_one_sided_stats;

/**
 * Counters of one receive endpoint.
 */
typedef struct {
    /**
     * sizeof(fcast_receive_stats), set by the caller.
     */
    size_t size;
    /**
     * Messages received.
     */
    uint64_t messages;
    /**
     * Their bytes, headers included.
     */
    uint64_t bytes;
    /**
     * Of these, messages that came in frames.
     */
    fcast_packed_receives packed;
    /**
     * Connections that stood.
     */
    uint64_t connections;
    /**
     * Of these, connections that are closed again.
     */
    uint64_t closed;
    /**
     * Connection requests refused, for whatever reason.
     */
    uint64_t refused;
    /**
     * Sockets that never said a valid hello and were cut off.
     */
    uint64_t reaped;
    /**
     * Connections that were lost or broke the protocol.
     */
    uint64_t lost;
    /**
     * Times that a connection found the pool empty.
     */
    uint64_t starved;
    /**
     * One-sided operations of this side.
     */
    fcast_one_sided_stats one_sided;
    /**
     * Bytes of long messages that were copied, since nothing ends what their senders may
     * write but the end of this endpoint (`FI_EP_RDM`, but for verbs).
     */
    uint64_t long_copied;
    /**
     * Writes of peers that came with immediate data.
     */
    uint64_t peer_writes;
    /**
     * Writes with immediate data that named no window of ours: one that was just
     * released, or a peer's lie. With the 16th that names none that there was, the
     * connections that have windows are ended.
     */
    uint64_t stray_writes;
    /**
     * Windows of connections that are over whose peers did not give them back: the
     * endpoint keeps their memory until it is closed (FI_EP_RDM only). They count against
     * the setting `windows`.
     */
    uint64_t quarantined;
    /**
     * Reads of the completion queue.
     */
    uint64_t cq_reads;
    /**
     * Of these, reads that found nothing.
     */
    uint64_t cq_reads_empty;
    /**
     * Messages that named no connection, and receives that failed: over FI_EP_RDM anybody
     * can send some, and what a peer sent to a connection that is over is among them.
     */
    uint64_t strays;
    /**
     * Completions that named no operation of ours.
     */
    uint64_t unknown_completions;
    /**
     * Operations leaked because the provider would not close its endpoint.
     */
    uint64_t leaked;
    /**
     * Bytes of long messages that were copied, since peers of the domain were late to say that
     * they write no more (setting `fence_timeout_ms`).
     */
    uint64_t late_copied;
} fcast_receive_stats;

/**
 * Counters of one buffered endpoint. Small messages: `accepted = confirmed + failed +
 * pending`, always; those that are pending when it is dropped are abandoned.
 */
typedef struct {
    /**
     * sizeof(fcast_buffered_stats), set by the caller.
     */
    size_t size;
    /**
     * Small messages that were accepted.
     */
    uint64_t accepted;
    /**
     * Small messages reported as completed.
     */
    uint64_t confirmed;
    /**
     * Small messages reported as failed.
     */
    uint64_t failed;
    /**
     * Small messages accepted and not yet reported: being packed, waiting, or in flight.
     */
    uint64_t pending;
    /**
     * Buffers that were given to the network, whole ones of the caller's among them.
     */
    uint64_t buffers;
    /**
     * Bytes of the packed ones, the format's own included.
     */
    uint64_t bytes;
    /**
     * Packed buffers that left because they were full.
     */
    uint64_t full;
    /**
     * Packed buffers that left because of `flush`, or a whole buffer behind them.
     */
    uint64_t flushed;
    /**
     * Packed buffers that left because the flush interval was over.
     */
    uint64_t timed;
    /**
     * Messages and buffers refused with FCAST_AGAIN.
     */
    uint64_t would_block;
} fcast_buffered_stats;

/**
 * Counters of one publisher. Publications: `published = over + open`, always. Outcomes for
 * subscribers: those posted end as sent or failed.
 */
typedef struct {
    /**
     * sizeof(fcast_publish_stats), set by the caller.
     */
    size_t size;
    /**
     * Publications that were accepted.
     */
    uint64_t published;
    /**
     * Publications reported as over.
     */
    uint64_t over;
    /**
     * Publications accepted and not yet reported.
     */
    uint64_t open;
    /**
     * Publications refused because nobody had subscribed.
     */
    uint64_t without_subscribers;
    /**
     * Publications refused with FCAST_AGAIN.
     */
    uint64_t would_block;
    /**
     * Sends to single subscribers.
     */
    uint64_t posted;
    /**
     * Of these, those that were done.
     */
    uint64_t sent;
    /**
     * Of these, those that failed.
     */
    uint64_t failed;
    /**
     * Publications that single subscribers did not get.
     */
    uint64_t dropped;
    /**
     * Subscribers that were cut off because they were too slow.
     */
    uint64_t cut_off;
    /**
     * Subscriptions that there are.
     */
    uint64_t subscriptions;
    /**
     * Subscriptions refused because there were too many.
     */
    uint64_t refused;
} fcast_publish_stats;

/**
 * Counters of one subscriber.
 */
typedef struct {
    /**
     * sizeof(fcast_subscribe_stats), set by the caller.
     */
    size_t size;
    /**
     * Publications received.
     */
    uint64_t received;
    /**
     * Their bytes: headers and payloads.
     */
    uint64_t bytes;
    /**
     * Publications that publishers dropped for this subscriber, as the gaps between the
     * others say.
     */
    uint64_t missed;
    /**
     * Publications of tags that were given up while they were on their way.
     */
    uint64_t strays;
    /**
     * Publishers that are connected.
     */
    uint64_t connected;
    /**
     * Connections made again.
     */
    uint64_t reconnects;
} fcast_subscribe_stats;

/**
 * Counters of a loop since it was made.
 */
typedef struct {
    /**
     * sizeof(fcast_loop_stats), set by the caller.
     */
    size_t size;
    /**
     * Rounds, those that spun included.
     */
    uint64_t rounds;
    /**
     * Rounds that slept in the kernel.
     */
    uint64_t sleeps;
    /**
     * Sleeps that a descriptor ended before their time was over.
     */
    uint64_t wakes;
    /**
     * Wakes after which there was nothing to deliver.
     */
    uint64_t spurious;
} fcast_loop_stats;

/**
 * Counters of the process, which outlive the endpoints that count them.
 */
typedef struct {
    /**
     * sizeof(fcast_process_stats), set by the caller.
     */
    size_t size;
    /**
     * Keys of sends whose endpoint was dropped with the send in flight.
     */
    uint64_t abandoned;
    /**
     * Operations leaked because a provider would not close its endpoint.
     */
    uint64_t leaked;
    /**
     * Handles that libfabric would not close.
     */
    uint64_t close_failures;
} fcast_process_stats;

/**
 * The files and directories of a stream. It is gone when the function `begin` returns.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_stream_manifest;

/**
 * A file or a directory of a stream. Its layout does not change.
 */
typedef struct {
    /**
     * Its name: parts with "/" between them, none of which is empty, "." or ".."; of whatever
     * bytes but zeros. Good until the function `begin` returns, at the same
     * address however often it is asked for.
     */
    const char *name;
    /**
     * Its bytes; 0 for a directory.
     */
    uint64_t size;
    /**
     * Where its bytes begin, where those of all files lie one behind the other.
     */
    uint64_t start;
    /**
     * When it was last changed: seconds since 1970.
     */
    int64_t modified_s;
    /**
     * And nanoseconds.
     */
    uint32_t modified_ns;
    /**
     * Its permissions: the nine bits of chmod(2).
     */
    uint32_t mode;
    /**
     * 1: it is a directory.
     */
    uint32_t is_directory;
    /**
     * 0.
     */
    uint32_t reserved;
} fcast_stream_entry;

/**
 * What a sink has of an earlier stream. It is gone when the function `resume` returns.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_stream_kept;

/**
 * How a sender or a receiver of streams is opened. 0 in a field is the default; a field that the
 * side does not have must be 0. A value out of its range is refused with words that name it.
 */
typedef struct {
    /**
     * sizeof(fcast_stream_settings).
     */
    size_t size;
    /**
     * Bytes of the largest block. Default 1,048,576.
     */
    uint32_t block_bytes;
    /**
     * Buffers of a block each. Default: 16 of a sender, 32 of a receiver, for each of
     * `rail_threads`.
     */
    uint32_t buffers;
    /**
     * Connections at once. Default: 64 of a sender, 8 of a receiver.
     */
    uint32_t connections;
    /**
     * Threads that read sources, or check and write blocks. Default: 3 for each 2 of
     * `rail_threads`, and 2 at least.
     */
    uint32_t threads;
    /**
     * How long making a connection may take, in milliseconds. Default 5,000.
     */
    uint32_t connect_timeout_ms;
    /**
     * How long a peer may be silent before its connection is given up. Default 10,000.
     */
    uint32_t lost_after_ms;
    /**
     * 1: the buffers are pinned for CUDA.
     */
    uint32_t pinned;
    /**
     * Of a sender: blocks on their way on one connection, 1 to 256. Default 8.
     */
    uint32_t depth;
    /**
     * Of a receiver: blocks granted to a stream at once. Default: 16 for each of `rail_threads`.
     */
    uint32_t credits;
    /**
     * Of a receiver: a stream of which nothing came for so long is cut. Default 60,000.
     */
    uint32_t stalled_after_ms;
    /**
     * Of a receiver: streams at a time. Default 16.
     */
    uint32_t streams;
    /**
     * Threads for connections, each with a libfabric domain of its own, 1 to 7. Default: 1, and
     * over providers that copy (tcp) a quarter of the processors.
     */
    uint32_t rail_threads;
    /**
     * Of a receiver: the most bytes of a stream. Default 2^60.
     */
    uint64_t max_bytes;
    /**
     * A key that both sides must have: 16 to 4,096 bytes that nobody can guess; NULL: none. It is
     * read during the call alone.
     */
    const void *key;
    /**
     * Bytes of the key.
     */
    size_t key_len;
} fcast_stream_settings;

/**
 * A receiver of streams, which checks and writes with threads of its own. One thread at a time
 * uses it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_stream_receiver;

/**
 * What a stream is, as its sender said and the receiver's limits allow. Its layout does not
 * change.
 */
typedef struct {
    /**
     * Its files and directories, for fcast_stream_manifest_entry.
     */
    fcast_stream_manifest manifest;
    /**
     * How many there are.
     */
    uint64_t entries;
    /**
     * Bytes of all files.
     */
    uint64_t bytes;
    /**
     * Blocks of all files.
     */
    uint64_t blocks;
    /**
     * Bytes of a block that is not the last one of its file.
     */
    uint32_t block_bytes;
    /**
     * What its sender asks for: the sum of some of FCAST_STREAM_NO_CRC32C, _BLAKE3, _SYNC,
     * _READ_BACK and _RESTART.
     */
    uint32_t flags;
    /**
     * Where it goes: the same for each attempt to send it.
     */
    uint8_t key[16];
    /**
     * What the content is: another when the source has changed.
     */
    uint8_t stamp[16];
    /**
     * 0.
     */
    uint64_t reserved[2];
} fcast_stream_offer;

/**
 * Memory that a stream goes into: all of its files, one behind the other. Its layout does not
 * change.
 */
typedef struct {
    /**
     * The region that it is in, of the host or of a GPU. {0}: none, blocks are written by the
     * function `write`.
     */
    fcast_region region;
    /**
     * Its first byte.
     */
    void *data;
    /**
     * Its bytes: at least those of the stream.
     */
    size_t len;
    /**
     * 0.
     */
    uint64_t reserved;
} fcast_stream_place;

/**
 * A part of a file. Its layout does not change.
 */
typedef struct {
    /**
     * Its number in the stream.
     */
    uint64_t index;
    /**
     * The number of its file in the manifest.
     */
    uint64_t entry;
    /**
     * Where in the file it begins.
     */
    uint64_t offset;
    /**
     * The same, where the bytes of all files lie one behind the other.
     */
    uint64_t start;
    /**
     * Its bytes.
     */
    uint32_t len;
    /**
     * Their CRC32C, where blocks carry one.
     */
    uint32_t crc32c;
} fcast_stream_block;

/**
 * Where streams go: functions of the program's. Each gets `context` first, and answers a status:
 *
 * FCAST_OK: it is done. FCAST_BUSY: another stream of the same names is under way. FCAST_DATA:
 * what is kept of an earlier stream is of another content. FCAST_NO_RESOURCES: no space is left.
 * All others: the sink failed. The sender is told which function answered what.
 *
 * They are called by threads of the receiver, several at once, with nothing locked; for one stream
 * `begin`, `resume`, `write` for each block that is missing (several at once, in any order, each
 * once), `finish`, `close`. They may call this interface, but for fcast_stream_receiver_close and
 * what ends a service of objects (FCAST_BUSY), and must not throw. What they get is good during
 * the call.
 */
typedef struct {
    /**
     * sizeof(fcast_stream_sink_calls).
     */
    size_t size;
    /**
     * What the functions get first.
     */
    void *context;
    /**
     * Called once, when the sink is needed no more: nothing else is called afterwards. It is
     * called where the receiver could not be opened, too. May be NULL.
     */
    fcast_release_fn release;
    /**
     * A stream is offered: FCAST_OK takes it. `*sink` is what the other functions get. `place`:
     * where memory is filled in, blocks are put there, and `write` is not called for them; nobody
     * else uses the memory until `close`. It should not take long: other streams wait. Must not be
     * NULL.
     */
    fcast_status (*begin)(void *context,
                          const fcast_stream_offer *offer,
                          void **sink,
                          fcast_stream_place *place);
    /**
     * Calls fcast_stream_kept_add for each block that is there from an earlier stream of the same
     * key and stamp. It is not called where blocks carry no CRC32C, or all is to begin anew. NULL:
     * there are none.
     */
    fcast_status (*resume)(void *context, void *sink, fcast_stream_kept kept);
    /**
     * Takes the bytes of a block, whose CRC32C was found right. May be NULL where each stream has
     * a place.
     */
    fcast_status (*write)(void *context,
                          void *sink,
                          const fcast_stream_block *block,
                          const void *data);
    /**
     * All blocks are there: the stream is complete when this answers FCAST_OK. May be NULL.
     */
    fcast_status (*finish)(void *context, void *sink);
    /**
     * The stream is over: called once for each that was taken, last. `is_complete`: all is there,
     * and `finish` has answered FCAST_OK; else it was cut or has failed. May be NULL.
     */
    void (*close)(void *context, void *sink, bool is_complete);
} fcast_stream_sink_calls;

/**
 * Something that happened at a receiver. Its layout does not change. Texts are valid until the
 * next poll of the receiver, and never NULL.
 */
typedef struct {
    /**
     * FCAST_STREAM_BEGAN or another.
     */
    uint32_t kind;
    /**
     * Why, where something failed; else FCAST_OK.
     */
    fcast_status status;
    /**
     * A number of the receiver's own: another one for each attempt.
     */
    uint64_t session;
    /**
     * Files and directories of the stream.
     */
    uint64_t entries;
    /**
     * Bytes of the stream; where it is over, those that are there.
     */
    uint64_t bytes;
    /**
     * Of those, bytes from an earlier stream that was cut.
     */
    uint64_t resumed_bytes;
    /**
     * From the beginning to the end, in nanoseconds.
     */
    uint64_t took_ns;
    /**
     * The peer's address, where the provider tells; else "".
     */
    const char *peer;
    /**
     * The name of the first file or directory; "" where it is not known any more.
     */
    const char *name;
    /**
     * Why, in words; else "".
     */
    const char *text;
    /**
     * How it went, as a JSON object, where it is over; else "".
     */
    const char *report;
    /**
     * 0.
     */
    uint64_t reserved[4];
} fcast_stream_event;

/**
 * A sender of streams, which reads and sends with threads of its own. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_stream_sender;

/**
 * What one transfer asks for. All zeros but the size are the defaults.
 */
typedef struct {
    /**
     * sizeof(fcast_stream_options).
     */
    size_t size;
    /**
     * The sum of some of FCAST_STREAM_NO_CRC32C, _BLAKE3, _SYNC, _READ_BACK and _RESTART.
     */
    uint32_t flags;
    /**
     * FCAST_STREAM_AUTO or another.
     */
    uint32_t transport;
    /**
     * FCAST_STREAM_SLOW_WAIT or another.
     */
    uint32_t slow;
    /**
     * Of FCAST_STREAM_SLOW_WAIT and _DROP. Default 30,000.
     */
    uint32_t slow_ms;
    /**
     * Attempts to connect to a peer again, in a row without progress. Default 8; FCAST_OFF: none.
     */
    uint32_t reconnects;
    /**
     * Time without progress that ends an attempt. Default 60,000.
     */
    uint32_t stalled_after_ms;
    /**
     * All of it must be done within this time. Default: no limit; FCAST_NEVER: none, too.
     */
    uint32_t deadline_ms;
    /**
     * Of two transfers that could send, the one with the higher number does, 0 to 255.
     */
    uint32_t priority;
    /**
     * Bytes a second, all peers together; 0: no limit.
     */
    uint64_t rate;
    /**
     * Connections to each address of a peer, 1 to 64. Default: one, and twice as many as long as
     * that makes it faster, up to one for each of both sides' `rail_threads`.
     */
    uint32_t rails;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * Of bytes that are sent: what tells them from others of the same name, so that a stream that
     * was cut is not gone on with by other bytes.
     */
    uint8_t stamp[16];
} fcast_stream_options;

/**
 * A transfer, which goes on whether the handle is held or not. Any thread may use it.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_stream_transfer;

/**
 * How far a transfer is at one peer. Its layout does not change.
 */
typedef struct {
    /**
     * Bytes that the peer has, those from an earlier stream that was cut included.
     */
    uint64_t written;
    /**
     * Bytes that were sent, those that were sent again included.
     */
    uint64_t sent;
    /**
     * Bytes in all.
     */
    uint64_t total;
    /**
     * 1: it is over, one way or the other.
     */
    uint32_t over;
    /**
     * 0.
     */
    uint32_t reserved;
} fcast_stream_progress;

/**
 * How a stream went, at one peer.
 */
typedef struct {
    /**
     * sizeof(fcast_stream_report), set by the caller.
     */
    size_t size;
    /**
     * Bytes that the receiver has.
     */
    uint64_t bytes;
    /**
     * Of those, bytes that it had before, from a stream that was cut.
     */
    uint64_t resumed_bytes;
    /**
     * Bytes that were sent, those that were sent again included. At a receiver 0.
     */
    uint64_t sent_bytes;
    /**
     * Blocks that were sent, or at a receiver: of the stream.
     */
    uint64_t blocks;
    /**
     * From the beginning to the end, in nanoseconds.
     */
    uint64_t took_ns;
    /**
     * Time in which the network was idle, since the source was being read.
     */
    uint64_t waited_disk_ns;
    /**
     * Time in which blocks were ready, and the network took no more.
     */
    uint64_t waited_wire_ns;
    /**
     * Time in which blocks were ready, and the peer had granted no more.
     */
    uint64_t waited_credits_ns;
    /**
     * Time in which all was sent that was granted, and the receiver was writing.
     */
    uint64_t waited_sink_ns;
    /**
     * Time of a limit of rate, a pause, or other peers that were waited for.
     */
    uint64_t waited_limit_ns;
    /**
     * Blocks that came damaged, and were sent again.
     */
    uint64_t damaged;
    /**
     * Attempts to connect again.
     */
    uint64_t reconnects;
    /**
     * At a receiver: files and directories that are under their names.
     */
    uint64_t placed;
    /**
     * 1: `blake3` is the hash of the content.
     */
    uint32_t has_blake3;
    /**
     * 1: both sides have computed it, and it is the same.
     */
    uint32_t blake3_compared;
    /**
     * Of one file its hash; of several the hash of their hashes, one behind the other.
     */
    uint8_t blake3[32];
} fcast_stream_report;

/**
 * A window: memory of this side that the peer of one connection may use. Any thread.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_window;

/**
 * A window of the peer, which this side reads and writes. Any thread.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_remote_window;

/**
 * It is done, or was accepted.
 */
#define FCAST_OK 0

/**
 * Not now: back-pressure. Nothing was taken; an event of the kind FCAST_EVENT_WRITABLE says when.
 */
#define FCAST_AGAIN 1

/**
 * An argument or a setting is wrong; the words say which, and its limits.
 */
#define FCAST_INVALID 2

/**
 * The handle names nothing: it was released, or never was.
 */
#define FCAST_STALE 3

/**
 * Another call uses the handle: of another thread, or of the one that this one was called from.
 */
#define FCAST_BUSY 4

/**
 * It was not done in time.
 */
#define FCAST_TIMED_OUT 5

/**
 * The connection is over, or could not be made.
 */
#define FCAST_CLOSED 6

/**
 * The peer refused the connection.
 */
#define FCAST_REFUSED 7

/**
 * The message, or its header, is longer than what may be sent.
 */
#define FCAST_TOO_LONG 8

/**
 * The memory is not registered with the domain of the endpoint.
 */
#define FCAST_NOT_REGISTERED 9

/**
 * No memory, no descriptor, or no place in a table of limited size.
 */
#define FCAST_NO_RESOURCES 10

/**
 * The provider, the machine or this handle can't do it.
 */
#define FCAST_UNSUPPORTED 11

/**
 * libfabric failed; fcast_last_errno() has its number.
 */
#define FCAST_FABRIC 12

/**
 * A call of the system failed; fcast_last_errno() has its number.
 */
#define FCAST_SYSTEM 13

/**
 * CUDA or cuFile failed.
 */
#define FCAST_DEVICE 14

/**
 * There is nothing, or nobody, by this name.
 */
#define FCAST_NOT_FOUND 15

/**
 * The process is a fork of the one that made the handle.
 */
#define FCAST_FORKED 16

/**
 * The file is not one, or its contents are not what was promised.
 */
#define FCAST_DATA 17

/**
 * The library has a defect: what it was doing was given up. Please report it.
 */
#define FCAST_PANIC 18

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Sends several messages by a sender, as fcast_send each: `*sent` of them, from the first on.
 * Where it stops early, the next call says why with its first message. FCAST_AGAIN and the other
 * failures of fcast_send: the first message was not taken, and no other one. One thread at a time.
 *
 * # Safety
 *
 * `messages`: NULL, or `count` of them, whose headers are readable; `sent`: NULL, or writable.
 */
fcast_status fcast_send_batch(fcast_endpoint endpoint,
                              const fcast_outgoing *messages,
                              size_t count,
                              size_t *sent);

/**
 * Sends several messages to a peer of a connectionless endpoint, as fcast_send_to each: `*sent` of
 * them, from the first on. Where it stops early, the next call says why with its first message.
 * FCAST_AGAIN and the other failures of fcast_send_to: the first message was not taken, and no
 * other one. One thread at a time.
 *
 * # Safety
 *
 * `messages`: NULL, or `count` of them, whose headers are readable; `sent`: NULL, or writable.
 */
fcast_status fcast_send_to_batch(fcast_endpoint endpoint,
                                 uint64_t peer,
                                 const fcast_outgoing *messages,
                                 size_t count,
                                 size_t *sent);

/**
 * Publishes several, as fcast_publish each: `*published` of them, from the first on. Where it
 * stops early, the next call says why with its first publication. FCAST_NOT_FOUND, FCAST_AGAIN and
 * the other failures of fcast_publish: the first one was not taken, and no other one. Of buffered
 * publishers: FCAST_UNSUPPORTED. One thread at a time.
 *
 * # Safety
 *
 * `messages`: NULL, or `count` of them, whose headers are readable; `publications`: NULL, or room
 * for `count`, of which the first `*published` are written; `published`: NULL, or writable.
 */
fcast_status fcast_publish_batch(fcast_endpoint endpoint,
                                 const fcast_outgoing_publication *messages,
                                 size_t count,
                                 fcast_publication *publications,
                                 size_t *published);

/**
 * Starts to connect a buffered sender to a receiver: it copies small messages into buffers, many
 * into one, and sends those. The receiver takes them apart with fcast_coalesced_next, in the same
 * format. Returns at once, as fcast_sender_open. Any thread.
 *
 * # Safety
 *
 * As fcast_sender_open.
 */
fcast_status fcast_buffered_open(fcast_domain domain,
                                 const char *peer,
                                 const fcast_settings *settings,
                                 fcast_endpoint *endpoint);

/**
 * Packs a small message behind the others: a tag (whose it is), a status (0: fine) and bytes,
 * which are copied. `*number`: the one that FCAST_EVENT_PUSHED or FCAST_EVENT_PUSH_FAILED has it
 * by; they count from 0. The buffer leaves when it is full, with fcast_flush, or when the flush
 * interval is over, which takes polls. One thread at a time.
 *
 * At a buffered publisher a buffer has messages of one tag, and `*number` is the buffer's, which
 * FCAST_EVENT_PUBLISHED or FCAST_EVENT_PUSH_FAILED has.
 *
 * FCAST_AGAIN: not now, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG; FCAST_NOT_FOUND: nobody
 * has subscribed to the tag; FCAST_CLOSED: nothing was taken.
 *
 * # Safety
 *
 * `data`: NULL, or `len` bytes; `number`: NULL, or writable.
 */
fcast_status fcast_push(fcast_endpoint endpoint,
                        uint64_t tag,
                        uint8_t status,
                        const void *data,
                        size_t len,
                        uint64_t *number);

/**
 * Packs several small messages, as fcast_push each: `*pushed` of them, from the first on. Where it
 * stops early, the next call says why with its first message. FCAST_AGAIN and the other failures
 * of fcast_push: the first message was not taken, and no other one. One thread at a time.
 *
 * # Safety
 *
 * `messages`: NULL, or `count` of them, whose bytes are readable; `pushed`: NULL, or writable.
 */
fcast_status fcast_push_batch(fcast_endpoint endpoint,
                              const fcast_small_message *messages,
                              size_t count,
                              size_t *pushed);

/**
 * As fcast_push, of a message that lies in several pieces, which are copied one behind the other.
 *
 * # Safety
 *
 * `pieces`: NULL, or `count` of them, whose bytes are readable; `number`: NULL, or writable.
 */
fcast_status fcast_pushv(fcast_endpoint endpoint,
                         uint64_t tag,
                         uint8_t status,
                         const fcast_bytes *pieces,
                         size_t count,
                         uint64_t *number);

/**
 * As fcast_push, of a payload, of which all or some may lie in a GPU's memory, and which may wait
 * for work there (fcast_payload_after_event). Its message has its place at once; its bytes are
 * copied there meanwhile, and the buffer is sent when they have come. Nothing needs a
 * registration. The payload's handle is used up, unless this fails; it is kept until it was
 * copied. Who keeps the memory otherwise may change it when FCAST_EVENT_PUSHED or
 * FCAST_EVENT_PUSH_FAILED comes; work of the GPU or a copy that fails, fails all messages of the
 * buffer. A setting `pool` of a region of FCAST_REGION_PINNED lets the copies be asynchronous. One
 * thread at a time.
 *
 * FCAST_INVALID, too: a part of a region of the host's memory: push it by its address.
 *
 * # Safety
 *
 * `number`: NULL, or writable.
 */
fcast_status fcast_push_payload(fcast_endpoint endpoint,
                                uint64_t tag,
                                uint8_t status,
                                fcast_payload payload,
                                uint64_t *number);

/**
 * Takes a whole buffer of a buffered sender, to fill and to send with fcast_buffered_send.
 * FCAST_AGAIN: all are in flight or held; FCAST_EVENT_WRITABLE says when there is one. One thread
 * at a time.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_buffered_acquire(fcast_endpoint endpoint,
                                    fcast_buffer *buffer,
                                    void **data,
                                    size_t *capacity);

/**
 * Sends the first `len` bytes of a buffer of fcast_buffered_acquire as one message, behind all
 * that was pushed before. Its outcome is FCAST_EVENT_COMPLETED or FCAST_EVENT_FAILED, with the
 * key. The buffer's handle is used up, unless this fails. One thread at a time.
 */
fcast_status fcast_buffered_send(fcast_endpoint endpoint,
                                 fcast_buffer buffer,
                                 size_t len,
                                 uint64_t key);

/**
 * Reads the next small messages of a buffer, such as the data of FCAST_EVENT_MESSAGE from a
 * buffered sender: at most `capacity`, `*count` of them, 0 when there are no more. They point into
 * the buffer. The cursor goes on from call to call. No byte is trusted. Any thread.
 *
 * FCAST_DATA: the buffer is malformed behind what was read; afterwards there are no more.
 *
 * # Safety
 *
 * `data`: NULL, or `len` bytes, the same in each call; `cursor`: NULL, or writable; `messages`:
 * NULL, or room for `capacity`; `count`: NULL, or writable.
 */
fcast_status fcast_coalesced_next(uint32_t format,
                                  const void *data,
                                  size_t len,
                                  fcast_small_cursor *cursor,
                                  fcast_small_message *messages,
                                  size_t capacity,
                                  size_t *count);

/**
 * Drives a sender, and writes the keys of the sends that are done (FCAST_EVENT_COMPLETED), in the
 * order of their outcomes: at most `capacity`, `*count` of them; the others come with the next
 * call. Other events are told by fcast_endpoint_poll: `*has_events` says that there are some,
 * which happened after the sends that are written; none that is behind them is written before they
 * are polled. One thread at a time.
 *
 * FCAST_UNSUPPORTED: the endpoint is no sender, or a buffered one.
 *
 * # Safety
 *
 * `keys`: NULL, or room for `capacity` of them; `count` and `has_events`: NULL, or writable.
 */
fcast_status fcast_poll_completed(fcast_endpoint endpoint,
                                  uint64_t *keys,
                                  size_t capacity,
                                  size_t *count,
                                  bool *has_events);

/**
 * Opens an endpoint that sends to and receives from many peers, at an address of this machine, of
 * a fabric that was opened with FCAST_KIND_RDM. Peers are named by numbers, which events have as
 * `connection`. Any thread.
 *
 * FCAST_UNSUPPORTED: the fabric has connected endpoints.
 *
 * # Safety
 *
 * As fcast_sender_open.
 */
fcast_status fcast_connectionless_open(fcast_domain domain,
                                       const char *local,
                                       const fcast_settings *settings,
                                       fcast_endpoint *endpoint);

/**
 * Adds a peer by its address, and says hello to it: FCAST_EVENT_CONNECTED or
 * FCAST_EVENT_DISCONNECTED follows, with the peer's number as `connection`. One that is known is
 * found. FCAST_NO_RESOURCES: as many as max_peers; FCAST_INVALID, FCAST_FABRIC: no address that
 * can be reached. One thread at a time.
 *
 * # Safety
 *
 * `peer_address`: NULL, or a text that ends with a zero; `peer`: NULL, or writable.
 */
fcast_status fcast_peer_add(fcast_endpoint endpoint, const char *peer_address, uint64_t *peer);

/**
 * Removes a peer politely: no send to it is taken any more, those in flight complete, both sides
 * say goodbye. FCAST_EVENT_PEER_REMOVED is the last of it, after `timeout_ms` in any case.
 * FCAST_NOT_FOUND: there is no such peer. One thread at a time.
 */
fcast_status fcast_peer_remove(fcast_endpoint endpoint, uint64_t peer, uint32_t timeout_ms);

/**
 * The peer at an address, if it is known; else FCAST_NOT_FOUND. One thread at a time.
 *
 * # Safety
 *
 * `peer_address`: NULL, or a text that ends with a zero; `peer`: NULL, or writable.
 */
fcast_status fcast_peer_at(fcast_endpoint endpoint, const char *peer_address, uint64_t *peer);

/**
 * Where a peer is, as a text that ends with a zero, and whether it has answered and is not lost.
 * `*len`: the bytes that the text needs, the zero included. One thread at a time.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len` and `is_up`: NULL, or writable.
 */
fcast_status fcast_peer_info(fcast_endpoint endpoint,
                             uint64_t peer,
                             char *text,
                             size_t capacity,
                             size_t *len,
                             bool *is_up);

/**
 * Sends to a peer, as fcast_send. FCAST_NOT_FOUND: there is no such peer, or the data are outside
 * of the region. One thread at a time.
 *
 * # Safety
 *
 * As fcast_send.
 */
fcast_status fcast_send_to(fcast_endpoint endpoint,
                           uint64_t peer,
                           fcast_region region,
                           const void *data,
                           size_t len,
                           const void *header,
                           size_t header_len,
                           uint64_t key);

/**
 * Sends to whoever is at an address, as fcast_send. The first send adds the peer, and gets
 * FCAST_AGAIN: FCAST_EVENT_WRITABLE says when it has answered, FCAST_EVENT_DISCONNECTED that it
 * will not. Faster, once the peer is known: fcast_send_to. One thread at a time.
 *
 * # Safety
 *
 * As fcast_send; `peer_address`: NULL, or a text that ends with a zero.
 */
fcast_status fcast_send_to_address(fcast_endpoint endpoint,
                                   const char *peer_address,
                                   fcast_region region,
                                   const void *data,
                                   size_t len,
                                   const void *header,
                                   size_t header_len,
                                   uint64_t key);

/**
 * Sends a payload to a peer, as fcast_send_to. Its handle is used up, unless this fails. One
 * thread at a time.
 *
 * # Safety
 *
 * `header`: NULL, or `header_len` bytes.
 */
fcast_status fcast_send_payload_to(fcast_endpoint endpoint,
                                   uint64_t peer,
                                   fcast_payload payload,
                                   const void *header,
                                   size_t header_len,
                                   uint64_t key);

/**
 * Allocates `len` bytes of the memory of a GPU, by its number. `virtual_memory`: by cuMemCreate,
 * and not by cuMemAlloc. FCAST_DEVICE: no CUDA driver, no such GPU, or no memory; the words say
 * which. Any thread.
 *
 * # Safety
 *
 * `region`: NULL, or writable.
 */
fcast_status fcast_region_device(size_t len,
                                 uint32_t device,
                                 bool virtual_memory,
                                 fcast_region *region);

/**
 * Makes a region of memory that the program allocated with CUDA: `len` bytes from a CUdeviceptr
 * on. It becomes what it is: memory of a GPU, managed memory, or pinned memory of the host.
 * `device`: the GPU that it must lie on, or FCAST_ANY_DEVICE. `release`, which may be NULL, is
 * called with `context` when the library needs it no more, also where this call fails. Any thread.
 *
 * FCAST_INVALID: CUDA knows nothing of the address, or it is another GPU's; FCAST_DEVICE.
 *
 * # Safety
 *
 * All of the bytes stay allocated until `release` is called; `region`: NULL, or writable.
 */
fcast_status fcast_region_external_device(uint64_t address,
                                          size_t len,
                                          int32_t device,
                                          fcast_release_fn release,
                                          void *context,
                                          fcast_region *region);

/**
 * Makes a region of a tensor of another library: a DLManagedTensor (DLPack before 1.0), which must
 * lie in one run, of a GPU, of managed or pinned memory, or of the host. The region owns it from
 * now on and calls its deleter, on any thread, when the library needs it no more, also where this
 * call fails. Any thread.
 *
 * FCAST_INVALID: not contiguous, of another kind of device, or not where it says; FCAST_DEVICE.
 *
 * # Safety
 *
 * `tensor`: NULL, or a valid DLManagedTensor that the caller owns; work that fills it is done.
 * `region`: NULL, or writable.
 */
fcast_status fcast_region_from_dlpack(void *tensor, fcast_region *region);

/**
 * The same of a DLManagedTensorVersioned (DLPack 1.0 and later). FCAST_INVALID, too: another major
 * version, or one that nobody may write to.
 *
 * # Safety
 *
 * As fcast_region_from_dlpack.
 */
fcast_status fcast_region_from_dlpack_versioned(void *tensor, fcast_region *region);

/**
 * Which way the bytes go between a region and the network of a domain: FCAST_PATH_HOST,
 * FCAST_PATH_DIRECT or FCAST_PATH_STAGED, and why, as a text that ends with a zero. `*len`: the
 * bytes that it needs. FCAST_NOT_REGISTERED: it is not registered with the domain. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `path` and `len`: NULL, or writable.
 */
fcast_status fcast_region_path(fcast_region region,
                               fcast_domain domain,
                               uint32_t *path,
                               char *text,
                               size_t capacity,
                               size_t *len);

/**
 * Makes a staging ring: `slots` slots (0 for 32) of `slot_bytes` bytes (0 for 1 MiB) of pinned
 * memory, of any node where `numa_node` is -1. FCAST_DEVICE: no CUDA driver. Any thread.
 *
 * # Safety
 *
 * `staging`: NULL, or writable.
 */
fcast_status fcast_staging_create(uint32_t slots,
                                  size_t slot_bytes,
                                  size_t headroom,
                                  int32_t numa_node,
                                  fcast_staging *staging);

/**
 * Gives a staging ring back. It goes when the last endpoint that uses it does. Any thread.
 */
fcast_status fcast_staging_release(fcast_staging staging);

/**
 * Makes a pool of buffers of `slot_size` bytes of a region of a GPU's memory. Any thread.
 *
 * # Safety
 *
 * `pool`: NULL, or writable.
 */
fcast_status fcast_device_pool_create(fcast_region region,
                                      size_t slot_size,
                                      fcast_device_pool *pool);

/**
 * Gives a device pool back. Its memory goes when its last buffer does. Any thread.
 */
fcast_status fcast_device_pool_release(fcast_device_pool pool);

/**
 * Has a payload wait for all that a CUDA stream was given up to now (a CUstream, or a
 * cudaStream_t; NULL for the default stream of the GPU of that number): whatever it is then given
 * to, sends, publishes or pushes it when that work is done, and reads none of it before. That is
 * accepted at once and keeps its place; sends behind it on the same connection wait for it. Work
 * that fails, fails this one send. May be said of several streams and events. One thread at a
 * time.
 *
 * FCAST_DEVICE: no CUDA driver, no such GPU, or the driver refused it; the payload is as it was.
 *
 * # Safety
 *
 * `stream`: NULL, or a stream of that GPU which is not being captured into a graph. It may be
 * destroyed as soon as this returns. A context of the program's own making that it belongs to
 * stays until the outcome is told, or the payload is released.
 */
fcast_status fcast_payload_after_stream(fcast_payload payload, void *stream, uint32_t device);

/**
 * As fcast_payload_after_stream, of what a CUDA event (a CUevent, or a cudaEvent_t) stands for;
 * one that was never recorded stands for nothing. `release`, which may be NULL, is called with
 * `context` when the library needs the event no more, on any thread, also where this call fails.
 * One thread at a time.
 *
 * FCAST_INVALID: the event is NULL. FCAST_DEVICE: no CUDA driver. The payload is as it was.
 *
 * # Safety
 *
 * `event`: NULL, or an event that is neither destroyed nor recorded again until `release` is
 * called; where that is NULL, until the outcome is told or the payload is released.
 */
fcast_status fcast_payload_after_event(fcast_payload payload,
                                       void *event,
                                       fcast_release_fn release,
                                       void *context);

/**
 * Writes where an endpoint listens, as a text that ends with a zero. `*len`: the bytes that it
 * needs, the zero included.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_endpoint_address(fcast_endpoint endpoint,
                                    char *text,
                                    size_t capacity,
                                    size_t *len);

/**
 * Drives an endpoint and writes what happened: at most `capacity` events, `*count` of them. What
 * the events of the last poll point to is gone from now on. One thread at a time.
 *
 * FCAST_CLOSED: the endpoint failed; FCAST_SYSTEM: a call of the system did.
 *
 * # Safety
 *
 * `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
 */
fcast_status fcast_endpoint_poll(fcast_endpoint endpoint,
                                 fcast_event *events,
                                 size_t capacity,
                                 size_t *count);

/**
 * Answers a connection that an endpoint with the setting `ask` was asked for.
 * FCAST_NOT_FOUND: the peer gave up, or it was answered. One thread at a time.
 */
fcast_status fcast_endpoint_accept(fcast_endpoint endpoint, uint64_t connection);

/**
 * Refuses a connection, with two numbers of the program's own that the peer is told.
 * FCAST_NOT_FOUND: the peer gave up, or it was answered. One thread at a time.
 */
fcast_status fcast_endpoint_refuse(fcast_endpoint endpoint,
                                   uint64_t connection,
                                   uint64_t detail,
                                   uint64_t more);

/**
 * Begins the polite close: nothing new is taken, what is in flight completes, both sides say
 * goodbye. Returns at once; FCAST_EVENT_DISCONNECTED is the last event of each connection, and
 * comes after `timeout_ms` in any case. One thread at a time.
 */
fcast_status fcast_endpoint_begin_close(fcast_endpoint endpoint, uint32_t timeout_ms);

/**
 * Closes an endpoint politely and waits for it, for at most `timeout_ms`: all that was sent
 * arrives, unless the time is up first. What happened meanwhile is told by the polls that follow.
 * The handle is to be released all the same. One thread at a time.
 */
fcast_status fcast_endpoint_close(fcast_endpoint endpoint, uint32_t timeout_ms);

/**
 * Gives an endpoint back. One that was not closed is closed at once, without a goodbye: what is in
 * flight has no outcome that is told. Any thread; where another one is in a call of it, it goes
 * when that call ends.
 */
fcast_status fcast_endpoint_release(fcast_endpoint endpoint);

/**
 * Begins the polite close of one connection of a receiver, a publisher or a subscriber; of a
 * connectionless endpoint, as fcast_peer_remove. Returns at once; FCAST_EVENT_DISCONNECTED
 * follows, after `timeout_ms` in any case. FCAST_NOT_FOUND: there is no such connection. One
 * thread at a time.
 */
fcast_status fcast_endpoint_close_connection(fcast_endpoint endpoint,
                                             uint64_t connection,
                                             uint32_t timeout_ms);

/**
 * How many connections stand: 0 or 1 of a sender, which takes sends while it is 1; of a receiver,
 * those whose end was not told yet, too; of a subscriber, publishers that are connected or will
 * be. One thread at a time.
 *
 * # Safety
 *
 * `count`: NULL, or writable.
 */
fcast_status fcast_endpoint_connected(fcast_endpoint endpoint, size_t *count);

/**
 * The keys of the sends that have no outcome yet, of a sender or a connectionless endpoint:
 * `*count` of them, of which at most `capacity` are written. Their outcomes are events all the
 * same. One thread at a time.
 *
 * # Safety
 *
 * `keys`: NULL, or room for `capacity`; `count`: NULL, or writable.
 */
fcast_status fcast_endpoint_pending(fcast_endpoint endpoint,
                                    uint64_t *keys,
                                    size_t capacity,
                                    size_t *count);

/**
 * Makes an event loop. FCAST_INVALID: a setting; FCAST_SYSTEM: no descriptors are left. Any
 * thread.
 *
 * # Safety
 *
 * `settings`: NULL, or a struct whose size field is right; `made`: NULL, or writable.
 */
fcast_status fcast_loop_create(const fcast_loop_settings *settings, fcast_loop *made);

/**
 * Has a loop say FCAST_LOOP_ENDPOINT whenever the endpoint should be polled, and once at the
 * start. The loop polls nothing itself. An endpoint that is released is forgotten by itself, and
 * may be removed before. `key` comes with each event. FCAST_SYSTEM with EEXIST: it is in the loop
 * already. One thread at a time.
 *
 * # Safety
 *
 * `token`: NULL, or writable.
 */
fcast_status fcast_loop_add_endpoint(fcast_loop in_loop,
                                     fcast_endpoint endpoint,
                                     uint64_t key,
                                     uint64_t *token);

/**
 * As fcast_loop_add_endpoint, of a channel of objects: the loop says FCAST_LOOP_CHANNEL. One
 * thread at a time.
 *
 * # Safety
 *
 * `token`: NULL, or writable.
 */
fcast_status fcast_loop_add_channel(fcast_loop in_loop,
                                    fcast_object_channel channel,
                                    uint64_t key,
                                    uint64_t *token);

/**
 * Has a loop say FCAST_LOOP_FD whenever the descriptor is ready for `interest`: FCAST_LOOP_READ,
 * FCAST_LOOP_WRITE or both. The descriptor stays the program's: remove it before you close it.
 * FCAST_SYSTEM with EEXIST: it is in the loop already; with EPERM: it can't be waited for (a
 * regular file). One thread at a time.
 *
 * # Safety
 *
 * `token`: NULL, or writable. `fd` is open during the call.
 */
fcast_status fcast_loop_add_fd(fcast_loop in_loop,
                               int32_t fd,
                               uint32_t interest,
                               uint64_t key,
                               uint64_t *token);

/**
 * Has a loop say FCAST_LOOP_TIMER after `after_us` microseconds, and every `every_us` from then
 * on; 0: once, and the source is gone with its event. Ticks that nobody had time for are skipped.
 * One thread at a time.
 *
 * # Safety
 *
 * `token`: NULL, or writable.
 */
fcast_status fcast_loop_add_timer(fcast_loop in_loop,
                                  uint64_t after_us,
                                  uint64_t every_us,
                                  uint64_t key,
                                  uint64_t *token);

/**
 * Adds a signal to a loop, which says FCAST_LOOP_SIGNAL when it is fired. It takes no descriptor.
 * It is in the loop until it is removed by its token, or released. One thread at a time.
 *
 * # Safety
 *
 * `signal` and `token`: NULL, or writable.
 */
fcast_status fcast_loop_add_signal(fcast_loop in_loop,
                                   uint64_t key,
                                   fcast_signal *signal,
                                   uint64_t *token);

/**
 * Has the loop say FCAST_LOOP_SIGNAL soon, with the token of the signal: once for all calls that
 * come before it is told. Different signals are told in the order in which they were fired. It has
 * no effect where the signal was removed, or the loop is gone. Any thread.
 */
fcast_status fcast_signal_fire(fcast_signal signal);

/**
 * Gives a signal back, which takes it out of its loop; one that was fired and not told may be told
 * or not. Any thread.
 */
fcast_status fcast_signal_release(fcast_signal signal);

/**
 * Changes what a descriptor is watched for. FCAST_NOT_FOUND: the token names no descriptor of this
 * loop. One thread at a time.
 */
fcast_status fcast_loop_set_interest(fcast_loop in_loop, uint64_t token, uint32_t interest);

/**
 * Takes a source out of a loop: nothing is told of it from now on. FCAST_NOT_FOUND: it was taken
 * out before, or was a timer that is over, or an endpoint or a channel that is gone. One thread at
 * a time.
 */
fcast_status fcast_loop_remove(fcast_loop in_loop, uint64_t token);

/**
 * Waits for something to do, for at most `timeout_ms` (-1: as long as it takes), and writes it:
 * at most `capacity` events, `*count` of them. What there was no room for comes with the next
 * call. 0 events: the time is over. One thread at a time.
 *
 * # Safety
 *
 * `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
 */
fcast_status fcast_loop_run_once(fcast_loop in_loop,
                                 int32_t timeout_ms,
                                 fcast_loop_event *events,
                                 size_t capacity,
                                 size_t *count);

/**
 * Tells a loop in the mode FCAST_LOOP_ADAPTIVE that there was work, so that it spins for its
 * window from now. One thread at a time.
 */
fcast_status fcast_loop_mark_busy(fcast_loop in_loop);

/**
 * Has a loop say FCAST_LOOP_WOKEN soon. Any thread, also while another one runs the loop.
 */
fcast_status fcast_loop_wake(fcast_loop in_loop);

/**
 * Has a loop say FCAST_LOOP_STOPPED soon, once: what it means is the program's own matter. Any
 * thread, also while another one runs the loop.
 */
fcast_status fcast_loop_stop(fcast_loop in_loop);

/**
 * Gives a loop back. Its endpoints and descriptors are as they were. Any thread; where another one
 * runs it, it goes when that call ends.
 */
fcast_status fcast_loop_release(fcast_loop released);

/**
 * Loads libfabric, finds a provider and opens it. The words of a failure say which providers there
 * are and what ruled each of them out.
 *
 * FCAST_UNSUPPORTED: no libfabric, or no provider that does it. FCAST_INVALID: a setting, or an
 * address that is not of this machine. Any thread.
 *
 * # Safety
 *
 * `settings`: NULL, or a struct whose size field is right and whose texts end with a zero;
 * `fabric`: NULL, or writable.
 */
fcast_status fcast_fabric_open(const fcast_fabric_settings *settings, fcast_fabric *fabric);

/**
 * Writes what is known of a fabric as text, which ends with a zero: libfabric's version, provider,
 * device, limits. `*len`: the bytes that it needs, the zero included; what does not go into
 * `capacity` is cut. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_fabric_report(fcast_fabric fabric, char *text, size_t capacity, size_t *len);

/**
 * Gives a fabric back. It is closed when the last domain that was opened in it is.
 */
fcast_status fcast_fabric_release(fcast_fabric fabric);

/**
 * Opens a domain in a fabric. Any thread.
 *
 * # Safety
 *
 * `domain`: NULL, or writable.
 */
fcast_status fcast_domain_open(fcast_fabric fabric, fcast_domain *domain);

/**
 * Gives a domain back. It is closed when the last endpoint and registration in it is gone.
 */
fcast_status fcast_domain_release(fcast_domain domain);

/**
 * Opens a file. `flags` as of fopen(3): "r" (read), "w" (write; made or emptied), "a" (write;
 * made, kept), "x" (write; made, must not exist), each with "+" for both directions. Any thread.
 *
 * FCAST_NOT_FOUND: there is none by this name. FCAST_INVALID: the flags, a setting, or no file
 * that has offsets. FCAST_SYSTEM: open(2); fcast_last_errno() says what.
 *
 * # Safety
 *
 * `path` and `flags`: NULL, or texts that end with a zero; `settings`: NULL, or a struct whose
 * size field is right; `file`: NULL, or writable.
 */
fcast_status fcast_file_open(const char *path,
                             const char *flags,
                             const fcast_file_settings *settings,
                             fcast_file *file);

/**
 * Makes a file of a descriptor, which is duplicated: the program keeps its own. What the
 * descriptor was opened for counts; its position is neither used nor moved. Any thread.
 *
 * # Safety
 *
 * `fd` is open during the call; `settings`: NULL, or a struct whose size field is right; `file`:
 * NULL, or writable.
 */
fcast_status fcast_file_from_fd(int32_t fd, const fcast_file_settings *settings, fcast_file *file);

/**
 * The size of a file in bytes, asked for now. Any thread.
 *
 * # Safety
 *
 * `bytes`: NULL, or writable.
 */
fcast_status fcast_file_size(fcast_file file, uint64_t *bytes);

/**
 * Makes a file as long as that: what is behind is gone, what is new reads as zeros. Any thread.
 */
fcast_status fcast_file_truncate(fcast_file file, uint64_t bytes);

/**
 * Waits until what was written is on the device: fsync(2), or fdatasync(2) where `data_only` is
 * set. Any thread.
 */
fcast_status fcast_file_sync(fcast_file file, bool data_only);

/**
 * What O_DIRECT asks for, in bytes: of offsets and lengths, and of addresses. What is not aligned
 * is moved all the same, partly through the page cache or a copy. Any thread.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_file_alignment(fcast_file file, uint32_t *offset, uint32_t *memory);

/**
 * What was done with a file. The field `size` is set by the caller. Any thread.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_file_read_stats(fcast_file file, fcast_file_stats *stats);

/**
 * Gives a file back. It is closed when the last transfer of it is over. Any thread.
 */
fcast_status fcast_file_release(fcast_file file);

/**
 * Makes a batch. FCAST_INVALID: a setting. Any thread.
 *
 * # Safety
 *
 * `settings`: NULL, or a struct whose size field is right; `batch`: NULL, or writable.
 */
fcast_status fcast_file_batch_create(const fcast_file_batch_settings *settings,
                                     fcast_file_batch *batch);

/**
 * Takes a read, which begins with the next fcast_file_batch_poll or _start: the memory belongs to
 * it until its event. `key` comes with the event. Memory: as of fcast_file_read, but the host's.
 * FCAST_AGAIN: as many are under way as the batch takes. One thread at a time.
 *
 * # Safety
 *
 * `data`: NULL, or `len` writable bytes that nobody else uses until the event, or until the batch
 * is released.
 */
fcast_status fcast_file_batch_read(fcast_file_batch batch,
                                   fcast_file file,
                                   fcast_region region,
                                   void *data,
                                   size_t len,
                                   uint64_t offset,
                                   uint64_t key);

/**
 * Takes a write, which begins with the next fcast_file_batch_poll or _start: nobody writes to the
 * memory until its event. Else as fcast_file_batch_read. One thread at a time.
 *
 * # Safety
 *
 * `data`: NULL, or `len` readable bytes that nobody writes to until the event, or until the batch
 * is released.
 */
fcast_status fcast_file_batch_write(fcast_file_batch batch,
                                    fcast_file file,
                                    fcast_region region,
                                    const void *data,
                                    size_t len,
                                    uint64_t offset,
                                    uint64_t key);

/**
 * Begins what was taken, many transfers by one call of the system. One thread at a time.
 */
fcast_status fcast_file_batch_start(fcast_file_batch batch);

/**
 * Waits until `least` transfers are over, or all, or `timeout_ms` is, and writes what came of
 * them: at most `capacity` events, `*count` of them, each transfer's once. What there was no room
 * for comes with the next call. One thread at a time.
 *
 * # Safety
 *
 * `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
 */
fcast_status fcast_file_batch_poll(fcast_file_batch batch,
                                   size_t least,
                                   uint32_t timeout_ms,
                                   fcast_file_batch_event *events,
                                   size_t capacity,
                                   size_t *count);

/**
 * Asks for the end of the transfers with this key. Each has its event in any case: FCAST_CLOSED,
 * or as if nobody had asked. One thread at a time.
 */
fcast_status fcast_file_batch_cancel(fcast_file_batch batch, uint64_t key);

/**
 * Gives a batch back. What is under way is cancelled where that can be, and waited for. Any
 * thread.
 */
fcast_status fcast_file_batch_release(fcast_file_batch batch);

/**
 * What files of the process do where nothing else was asked for. The field `size` is set by the
 * caller. Any thread.
 *
 * # Safety
 *
 * `defaults`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_file_defaults_get(fcast_file_defaults *defaults);

/**
 * Changes what files of the process do where nothing else was asked for: the fields that are not
 * 0. FCAST_INVALID: one is out of its range, and nothing was changed. Any thread.
 *
 * # Safety
 *
 * `defaults`: NULL, or a struct whose size field is right.
 */
fcast_status fcast_file_defaults_set(const fcast_file_defaults *defaults);

/**
 * Reads a file into memory, on this thread, and waits for it; `options->parallel`: with the
 * threads of the pool. Any thread.
 *
 * `region`: {0}: `data` is an address of the host's memory. Else `data` is an address in the
 * region, which may be a GPU's, and which need not be registered.
 *
 * FCAST_INVALID: an argument, or the file was not opened for it. FCAST_SYSTEM: a call of the
 * system; the words say how many bytes were moved before. FCAST_DEVICE: CUDA or cuFile.
 *
 * # Safety
 *
 * `data`: NULL, or `len` writable bytes that nobody else uses meanwhile; `options`: NULL, or a
 * struct whose size field is right; `moved`: NULL, or writable.
 */
fcast_status fcast_file_read(fcast_file file,
                             fcast_region region,
                             void *data,
                             size_t len,
                             uint64_t offset,
                             const fcast_file_options *options,
                             fcast_file_moved *moved);

/**
 * Writes memory to a file, on this thread, and waits for it; `options->parallel`: with the threads
 * of the pool. All of it is written, or it fails. Any thread. Memory and statuses: as of
 * fcast_file_read.
 *
 * # Safety
 *
 * `data`: NULL, or `len` readable bytes that nobody writes to meanwhile; else as of
 * fcast_file_read.
 */
fcast_status fcast_file_write(fcast_file file,
                              fcast_region region,
                              const void *data,
                              size_t len,
                              uint64_t offset,
                              const fcast_file_options *options,
                              fcast_file_moved *moved);

/**
 * Begins to read a file into memory, with the threads of the pool, and returns at once: the memory
 * belongs to the transfer until fcast_file_transfer_wait tells what came of it, or until it is
 * released. Any thread. Memory: as of fcast_file_read. FCAST_AGAIN: the pool has as many to do as
 * it takes.
 *
 * # Safety
 *
 * `data`: NULL, or `len` writable bytes that nobody else uses until then; `options`: NULL, or a
 * struct whose size field is right; `transfer`: NULL, or writable.
 */
fcast_status fcast_file_begin_read(fcast_file file,
                                   fcast_region region,
                                   void *data,
                                   size_t len,
                                   uint64_t offset,
                                   const fcast_file_options *options,
                                   fcast_file_transfer *transfer);

/**
 * Begins to write memory to a file, with the threads of the pool, and returns at once: nobody
 * writes to the memory until fcast_file_transfer_wait tells what came of it, or until it is
 * released. Any thread. Memory: as of fcast_file_read. FCAST_AGAIN: the pool has as many to do as
 * it takes.
 *
 * # Safety
 *
 * `data`: NULL, or `len` readable bytes that nobody writes to until then; `options`: NULL, or a
 * struct whose size field is right; `transfer`: NULL, or writable.
 */
fcast_status fcast_file_begin_write(fcast_file file,
                                    fcast_region region,
                                    const void *data,
                                    size_t len,
                                    uint64_t offset,
                                    const fcast_file_options *options,
                                    fcast_file_transfer *transfer);

/**
 * Begins to write memory behind the end of a file, as fcast_file_begin_write; `*offset`: where.
 * Places that one handle gives out never overlap, whichever threads ask. Any thread.
 *
 * # Safety
 *
 * As fcast_file_begin_write; `offset`: NULL, or writable.
 */
fcast_status fcast_file_begin_append(fcast_file file,
                                     fcast_region region,
                                     const void *data,
                                     size_t len,
                                     const fcast_file_options *options,
                                     uint64_t *offset,
                                     fcast_file_transfer *transfer);

/**
 * Waits for what came of a transfer, for at most `timeout_ms`; the calling thread takes part in
 * the work. It may be asked again: the answer stays. The handle is to be released all the same.
 * One thread at a time.
 *
 * FCAST_AGAIN: it is not over, with a timeout of 0; FCAST_TIMED_OUT with another one. Else as of
 * fcast_file_read.
 *
 * # Safety
 *
 * `moved`: NULL, or writable.
 */
fcast_status fcast_file_transfer_wait(fcast_file_transfer transfer,
                                      uint32_t timeout_ms,
                                      fcast_file_moved *moved);

/**
 * Has a loop say FCAST_LOOP_WOKEN when a transfer is over, or at once if it is: then
 * fcast_file_transfer_wait does not wait. The loop that was named last counts. One thread at a
 * time.
 */
fcast_status fcast_file_transfer_wake(fcast_file_transfer transfer, fcast_loop woken);

/**
 * Gives a transfer back. One that is not over is waited for where its memory is in no region;
 * where it is, the region is kept until then, and parts of a read that have not begun are left
 * out. Any thread.
 */
fcast_status fcast_file_transfer_release(fcast_file_transfer transfer);

/**
 * Reads a run of a file into several pieces of the host's memory, one after the other, such as the
 * spans of fcast_ring_reserve; on this thread, and waits for it. It is short at the end of the
 * file alone. It goes around the page cache where the file says so and all is aligned: the offset,
 * and each piece's address and length; else through it. Any thread. Statuses: as of
 * fcast_file_read.
 *
 * # Safety
 *
 * `pieces`: NULL, or `count` of them, whose bytes are writable; no two of them overlap, and nobody
 * else uses them meanwhile. `moved`: NULL, or writable.
 */
fcast_status fcast_file_readv(fcast_file file,
                              const fcast_span *pieces,
                              size_t count,
                              uint64_t offset,
                              fcast_file_moved *moved);

/**
 * Writes several pieces of the host's memory to a run of a file, one after the other: all of them,
 * on this thread, and waits for it. It goes around the page cache as fcast_file_readv, where all
 * is in whole pages. Any thread. Statuses: as of fcast_file_read.
 *
 * # Safety
 *
 * `pieces`: NULL, or `count` of them, whose bytes are readable and nobody writes to meanwhile;
 * `moved`: NULL, or writable.
 */
fcast_status fcast_file_writev(fcast_file file,
                               const fcast_bytes *pieces,
                               size_t count,
                               uint64_t offset,
                               fcast_file_moved *moved);

/**
 * Makes header slots. `slots`: how many headers are in flight at once, of all endpoints together,
 * 1 to 65,536; 0: 256. `slot_size`: bytes of the longest header, 1 to 4,096; 0: 64, of which a
 * publisher needs more. Endpoints that have them keep them after the handle is released. A send
 * that finds none free is answered FCAST_AGAIN, and FCAST_EVENT_WRITABLE follows when any of the
 * endpoints gave one back. Any thread.
 *
 * # Safety
 *
 * `headers`: NULL, or writable.
 */
fcast_status fcast_headers_create(uint32_t slots, uint32_t slot_size, fcast_headers *headers);

/**
 * How header slots stand: all, those that are free, and the fewest that ever were. Any thread.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_headers_status(fcast_headers headers,
                                  size_t *slots,
                                  size_t *free,
                                  size_t *low_water);

/**
 * Gives header slots back. They go when the last endpoint does that has them. Any thread.
 */
fcast_status fcast_headers_release(fcast_headers headers);

/**
 * Has a function called with each line of the log up to a level: FCAST_LOG_ERROR to
 * FCAST_LOG_TRACE. NULL: nobody is told. When this returns, the function that was set before is
 * not called any more; what it is at is waited for. Any thread.
 *
 * FCAST_INVALID: the level. FCAST_BUSY: the program has a collector of Rust's `tracing` in place,
 * which gets the log.
 *
 * # Safety
 *
 * `function` may be called with `context`, by any thread, until another call of this one returns.
 */
fcast_status fcast_log_set(fcast_log_fn function, void *context, uint32_t level);

/**
 * What lies at an address: `*kind` is FCAST_MEMORY_HOST or another. Any number may be asked about.
 * Without a CUDA driver there are FCAST_MEMORY_HOST and FCAST_MEMORY_INVALID; a driver that fails
 * is FCAST_MEMORY_UNKNOWN. Any thread.
 *
 * # Safety
 *
 * `kind`: NULL, or writable. `address` is a number here, and need not be valid.
 */
fcast_status fcast_memory_kind(const void *address, uint32_t *kind);

/**
 * Keeps the message of an event of the endpoint's last poll: header and data stay where they are
 * until it is released. FCAST_STALE: the event is of an earlier poll, or no message, or was kept.
 *
 * # Safety
 *
 * `event`: NULL, or readable; `message`: NULL, or writable.
 */
fcast_status fcast_message_keep(fcast_endpoint endpoint,
                                const fcast_event *event,
                                fcast_message *message);

/**
 * Makes the payload of a kept message one that can be sent: forwarded without a copy, where the
 * region of the receive pool (fcast_endpoint_pool, fcast_pool_region) is registered with the
 * domain that it goes out by. The message's handle is used up, unless this fails; its header is
 * gone. Any thread.
 *
 * # Safety
 *
 * `payload`: NULL, or writable.
 */
fcast_status fcast_message_payload(fcast_message message, fcast_payload *payload);

/**
 * Gives a kept message back, and its buffer to the endpoint. Any thread.
 */
fcast_status fcast_message_release(fcast_message message);

/**
 * Opens a client on a fabric of the kind FCAST_KIND_RDM. FCAST_UNSUPPORTED: it is of another kind,
 * or its provider has no one-sided operations. Any thread.
 *
 * # Safety
 *
 * `settings`: NULL, or a struct whose size field is right and whose name ends with a zero;
 * `client`: NULL, or writable.
 */
fcast_status fcast_object_client_open(fcast_fabric fabric,
                                      const fcast_object_client_settings *settings,
                                      fcast_object_client *client);

/**
 * Has the provider do what there is to do for servers, and returns at once. Any thread.
 */
fcast_status fcast_object_client_progress(fcast_object_client client);

/**
 * Whether memory can be lent: `*connected` is false after the client's endpoint was closed behind
 * an abandoned transfer and the next one could not be opened, until one can; while the provider
 * fails to serve an endpoint; and in a forked child. Any thread.
 *
 * # Safety
 *
 * `connected`: NULL, or writable.
 */
fcast_status fcast_object_client_is_connected(fcast_object_client client, bool *connected);

/**
 * Gives a client back. It goes when the last memory of it does. Any thread.
 */
fcast_status fcast_object_client_release(fcast_object_client client);

/**
 * Takes `len` bytes at an address in a region, of the host or of a GPU; the region need not be
 * registered. Nobody reaches them before they are lent. `operations`: FCAST_OBJECT_GET,
 * FCAST_OBJECT_PUT or both: what tokens may allow. The region is kept until nobody can reach the
 * bytes any more. Any thread.
 *
 * # Safety
 *
 * `memory`: NULL, or writable. `data` is looked up in the region, not read.
 */
fcast_status fcast_object_memory_register(fcast_object_client client,
                                          fcast_region region,
                                          void *data,
                                          size_t len,
                                          uint32_t operations,
                                          fcast_object_memory *memory);

/**
 * As fcast_object_memory_register, of a buffer of a pool, all of it. Its handle is used up;
 * fcast_object_memory_reclaim gives another one. The host can read such memory, so checksums of
 * what came can be computed. Any thread.
 *
 * # Safety
 *
 * `memory`: NULL, or writable.
 */
fcast_status fcast_object_memory_register_buffer(fcast_object_client client,
                                                 fcast_buffer buffer,
                                                 uint32_t operations,
                                                 fcast_object_memory *memory);

/**
 * Bytes that one call of the function of fcast_object_transfer gets at most: the least of the
 * setting `callback_bytes`, of what the provider moves at once, and of the memory's length; of a
 * GPU's memory that the provider does not reach, of `staging_bytes`, too. Any thread.
 *
 * # Safety
 *
 * `bytes`: NULL, or writable.
 */
fcast_status fcast_object_memory_max_callback(fcast_object_memory memory, uint64_t *bytes);

/**
 * Takes memory back: waits until nobody can reach it any more, for at most `timeout_ms`. From then
 * on the handle is good for fcast_object_memory_release alone. `buffer`: where it was a buffer,
 * that; else {0}; may be NULL, then the buffer goes back to its pool. FCAST_BUSY: tokens of it
 * stand, or a call uses it; FCAST_TIMED_OUT: somebody may still reach it. Any thread.
 *
 * # Safety
 *
 * `buffer`: NULL, or writable.
 */
fcast_status fcast_object_memory_reclaim(fcast_object_memory memory,
                                         uint32_t timeout_ms,
                                         fcast_buffer *buffer);

/**
 * Gives memory back: it is freed when nobody can reach it any more. Any thread.
 */
fcast_status fcast_object_memory_release(fcast_object_memory memory);

/**
 * Lends a part of memory for one operation, FCAST_OBJECT_GET or FCAST_OBJECT_PUT: a server is told
 * what fcast_object_token_text says. It is good for any number of transfers until it is done or
 * released. FCAST_AGAIN: a transfer into the memory was given up, and may still land;
 * FCAST_NO_RESOURCES: as many tokens stand as may; FCAST_UNSUPPORTED: a GPU's memory that the
 * provider does not reach. Any thread.
 *
 * # Safety
 *
 * `token`: NULL, or writable.
 */
fcast_status fcast_object_token_lend(fcast_object_memory memory,
                                     uint64_t offset,
                                     uint64_t len,
                                     uint32_t operation,
                                     fcast_object_token *token);

/**
 * Writes the text of a token, which ends with a zero. `*len`: the bytes that it needs, the zero
 * included; what does not go into `capacity` is cut. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_object_token_text(fcast_object_token token,
                                     char *text,
                                     size_t capacity,
                                     size_t *len);

/**
 * Ends a token whose transfers servers have answered for: the memory may be lent again at once.
 * Its handle is used up. Any thread.
 */
fcast_status fcast_object_token_done(fcast_object_token token);

/**
 * Revokes a token, and gives its handle back: a server that uses it is refused. What it began may
 * still land: memory that was lent for a GET is kept from being lent until it can't. Any thread.
 */
fcast_status fcast_object_token_release(fcast_object_token token);

/**
 * Adds an object to a list: its name, and of `info` the size, the etag and the time. One that the
 * list does not take, for its prefix or where it begins, is left out, which is FCAST_OK, so that a
 * store may just add all that it has. One thread at a time, within the function `list`.
 *
 * FCAST_NO_RESOURCES: the list is full, and says that there are more. FCAST_INVALID: the name, its
 * order or the etag.
 *
 * # Safety
 *
 * `name`: NULL, or a text that ends with a zero; `info`: NULL, or a struct that is there.
 */
fcast_status fcast_object_list_add(fcast_object_list list,
                                   const char *name,
                                   const fcast_object_info *info);

/**
 * Answers a piece: FCAST_OK and how many bytes of it were read or written, or why they were not,
 * as fcast_object_store_calls says. Fewer bytes than were asked for are a failure, too. The memory
 * of the piece is the library's again. FCAST_INVALID: more bytes than it has; it has failed then.
 * FCAST_STALE: it was answered before, or its function has answered a failure. Any thread.
 */
fcast_status fcast_object_piece_done(fcast_object_piece piece, fcast_status status, size_t moved);

/**
 * Connects to a service at an address, over the fabric `control`; bytes are moved by the client's.
 * Waits for the connection. FCAST_TIMED_OUT, FCAST_CLOSED, FCAST_REFUSED: it could not be made.
 * Any thread.
 *
 * # Safety
 *
 * `service`: NULL, or a text that ends with a zero; `settings`: NULL, or a struct whose size field
 * is right; `remote`: NULL, or writable.
 */
fcast_status fcast_object_remote_connect(fcast_object_client client,
                                         fcast_fabric control,
                                         const char *service,
                                         const fcast_object_remote_settings *settings,
                                         fcast_object_remote *remote);

/**
 * Connects anew where the connection is lost: after FCAST_CLOSED. One thread at a time.
 */
fcast_status fcast_object_remote_reconnect(fcast_object_remote remote);

/**
 * Says what there is under a name. FCAST_NOT_FOUND: nothing. FCAST_TIMED_OUT: no answer within
 * `timeout_ms`. One thread at a time.
 *
 * # Safety
 *
 * `name`: NULL, or a text that ends with a zero; `info`: NULL, or writable.
 */
fcast_status fcast_object_remote_head(fcast_object_remote remote,
                                      const char *name,
                                      uint32_t timeout_ms,
                                      fcast_object_info *info);

/**
 * Gets `len` bytes of an object, from `offset` on, into memory from `memory_offset` on, and fewer
 * where the object ends: `info->moved`. FCAST_NOT_FOUND: there is none. FCAST_DATA: what came is
 * not what was sent. After a failure anything may be in the memory. One thread at a time.
 *
 * # Safety
 *
 * `name`: NULL, or a text that ends with a zero; `info`: NULL, or writable.
 */
fcast_status fcast_object_remote_get(fcast_object_remote remote,
                                     const char *name,
                                     fcast_object_memory memory,
                                     uint64_t memory_offset,
                                     uint64_t len,
                                     uint64_t offset,
                                     uint32_t timeout_ms,
                                     fcast_object_info *info);

/**
 * Puts `len` bytes of memory, from `memory_offset` on, as an object, all at once. `condition`:
 * FCAST_PUT_ANY or another; `etag`: of FCAST_PUT_MATCHES, else NULL. FCAST_REFUSED: the condition
 * does not hold, or it is not allowed; nothing has changed. After FCAST_TIMED_OUT and FCAST_CLOSED
 * it is not known whether it is there. One thread at a time.
 *
 * # Safety
 *
 * `name` and `etag`: NULL, or texts that end with a zero; `info`: NULL, or writable.
 */
fcast_status fcast_object_remote_put(fcast_object_remote remote,
                                     const char *name,
                                     fcast_object_memory memory,
                                     uint64_t memory_offset,
                                     uint64_t len,
                                     uint32_t condition,
                                     const char *etag,
                                     uint32_t timeout_ms,
                                     fcast_object_info *info);

/**
 * Removes an object. `etag`: only the version that has it; NULL: any. FCAST_NOT_FOUND: there is
 * none. FCAST_REFUSED: another version is there, or it is not allowed. One thread at a time.
 *
 * # Safety
 *
 * `name` and `etag`: NULL, or texts that end with a zero.
 */
fcast_status fcast_object_remote_delete(fcast_object_remote remote,
                                        const char *name,
                                        const char *etag,
                                        uint32_t timeout_ms);

/**
 * Lists objects whose names begin with a prefix and come behind `start_after`, in the order of
 * their bytes: at most `capacity`, `*count` of them. `*more`: there are more; ask again with the
 * last name. `prefix` and `start_after` may be NULL. One thread at a time.
 *
 * # Safety
 *
 * `prefix` and `start_after`: NULL, or texts that end with a zero; `entries`: NULL, or room for
 * `capacity` of them; `count` and `more`: NULL, or writable.
 */
fcast_status fcast_object_remote_list(fcast_object_remote remote,
                                      const char *prefix,
                                      const char *start_after,
                                      uint32_t timeout_ms,
                                      fcast_object_entry *entries,
                                      size_t capacity,
                                      size_t *count,
                                      bool *more);

/**
 * Gives a connection back. Any thread.
 */
fcast_status fcast_object_remote_release(fcast_object_remote remote);

/**
 * Opens a server on a fabric of the kind FCAST_KIND_RDM, with a domain of its own.
 * FCAST_UNSUPPORTED: the fabric is of another kind, or its provider has no one-sided operations.
 * Any thread.
 *
 * # Safety
 *
 * `settings`: NULL, or a struct whose size field is right and whose texts end with a zero;
 * `server`: NULL, or writable.
 */
fcast_status fcast_object_server_open(fcast_fabric fabric,
                                      const fcast_object_server_settings *settings,
                                      fcast_object_server *server);

/**
 * The domain of a server, as a handle of its own: regions that channels move bytes from and to are
 * registered with it. Any thread.
 *
 * # Safety
 *
 * `domain`: NULL, or writable.
 */
fcast_status fcast_object_server_domain(fcast_object_server server, fcast_domain *domain);

/**
 * Opens a channel of a server. Any thread.
 *
 * # Safety
 *
 * `channel`: NULL, or writable.
 */
fcast_status fcast_object_channel_open(fcast_object_server server, fcast_object_channel *channel);

/**
 * Gives a server back. It goes when its last channel does. Any thread.
 */
fcast_status fcast_object_server_release(fcast_object_server server);

/**
 * Serves a GET: writes `len` bytes at an address in a region into the client's memory, from `at`
 * on in what the token names. FCAST_EVENT_OBJECT_WRITTEN or _FAILED comes with the key, at the
 * latest after `timeout_ms`; the bytes must not change before. The region is registered with the
 * server's domain. One thread at a time.
 *
 * FCAST_AGAIN: poll first. FCAST_INVALID: the token, or bytes that are not in what it names.
 * FCAST_UNSUPPORTED: the token is of another provider. FCAST_NOT_REGISTERED: the region.
 *
 * # Safety
 *
 * `token`: NULL, or a text that ends with a zero. `data` is looked up in the region, not read.
 */
fcast_status fcast_object_channel_write(fcast_object_channel channel,
                                        const char *token,
                                        uint64_t at,
                                        fcast_region region,
                                        const void *data,
                                        size_t len,
                                        uint64_t key,
                                        uint32_t timeout_ms);

/**
 * As fcast_object_channel_write, of a payload, whose handle is used up. One thread at a time.
 *
 * # Safety
 *
 * `token`: NULL, or a text that ends with a zero.
 */
fcast_status fcast_object_channel_write_payload(fcast_object_channel channel,
                                                const char *token,
                                                uint64_t at,
                                                fcast_payload payload,
                                                uint64_t key,
                                                uint32_t timeout_ms);

/**
 * Serves a PUT: reads `len` bytes of the client's memory, from `at` on in what the token names,
 * into an address in a region. FCAST_EVENT_OBJECT_READ or _FAILED comes with the key, at the
 * latest after `timeout_ms`; nobody else uses the bytes before. Else as
 * fcast_object_channel_write. One thread at a time.
 *
 * # Safety
 *
 * `token`: NULL, or a text that ends with a zero. `data` is an address in the region, and its
 * bytes may be written by any thread until the event.
 */
fcast_status fcast_object_channel_read(fcast_object_channel channel,
                                       const char *token,
                                       uint64_t at,
                                       fcast_region region,
                                       void *data,
                                       size_t len,
                                       uint64_t key,
                                       uint32_t timeout_ms);

/**
 * Drives a channel and writes what became of transfers: at most `capacity` events, `*count` of
 * them. What the events of the last poll point to is gone from now on. One thread at a time.
 *
 * # Safety
 *
 * `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
 */
fcast_status fcast_object_channel_poll(fcast_object_channel channel,
                                       fcast_event *events,
                                       size_t capacity,
                                       size_t *count);

/**
 * Sleeps until there may be something to poll for, for at most `timeout_ms`. One thread at a time.
 */
fcast_status fcast_object_channel_wait(fcast_object_channel channel, uint32_t timeout_ms);

/**
 * Waits for what is under way, for at most `timeout_ms`, and closes a channel; what is not over
 * then fails. What became of transfers is told by the polls that follow. The handle is to be
 * released all the same. One thread at a time.
 */
fcast_status fcast_object_channel_close(fcast_object_channel channel, uint32_t timeout_ms);

/**
 * Gives a channel back. One that was not closed ends what is under way, and tells nobody. Any
 * thread.
 */
fcast_status fcast_object_channel_release(fcast_object_channel channel);

/**
 * Starts to serve a directory: requests come over the fabric `control`, at an address of this
 * machine such as "127.0.0.1:0"; bytes are moved over `data`, which is of the kind FCAST_KIND_RDM
 * and may be the same. Any thread.
 *
 * FCAST_NOT_FOUND, FCAST_SYSTEM, FCAST_INVALID: the directory, or a setting. FCAST_UNSUPPORTED:
 * `data` has no one-sided operations.
 *
 * # Safety
 *
 * `directory` and `listen`: NULL, or texts that end with a zero; `settings`: NULL, or a struct
 * whose size field is right, with one of the server's that is right, too; `service`: NULL, or
 * writable.
 */
fcast_status fcast_object_service_start(const char *directory,
                                        fcast_fabric control,
                                        const char *listen,
                                        fcast_fabric data,
                                        const fcast_object_service_settings *settings,
                                        fcast_object_service *service);

/**
 * As fcast_object_service_start, of a store of the program's: `store` is copied. With the setting
 * `read_only`, its `begin` and `remove` are not called. Any thread.
 *
 * FCAST_INVALID: the table, too. Its `release` is called after a failure as well, unless the
 * table's field size is wrong.
 *
 * # Safety
 *
 * `store`: NULL, or a struct whose size field is right, and whose functions may be called, as it
 * says, until `release` is; else as fcast_object_service_start.
 */
fcast_status fcast_object_service_start_store(const fcast_object_store_calls *store,
                                              fcast_fabric control,
                                              const char *listen,
                                              fcast_fabric data,
                                              const fcast_object_service_settings *settings,
                                              fcast_object_service *service);

/**
 * Writes where a service listens: the address of each worker, with commas between them, and a
 * zero. `*len`: the bytes that it needs, the zero included. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_object_service_address(fcast_object_service service,
                                          char *text,
                                          size_t capacity,
                                          size_t *len);

/**
 * Ends a service: new requests are refused, those that are served go on for at most `timeout_ms`.
 * Its handle is used up. Any thread.
 */
fcast_status fcast_object_service_close(fcast_object_service service, uint32_t timeout_ms);

/**
 * Gives a service back that was not closed: what it serves is cut. Any thread.
 */
fcast_status fcast_object_service_release(fcast_object_service service);

/**
 * Starts to write statistics of all clients and servers of the process, those that are closed
 * too, with a function of the program's: as often as `settings` say, and once more at the end.
 * Any thread.
 *
 * # Safety
 *
 * `function` may be called with `context` until the writer was finished or released; `settings`:
 * NULL, or a struct whose size field is right; `telemetry`: NULL, or writable.
 */
fcast_status fcast_object_telemetry_start(fcast_write_fn function,
                                          void *context,
                                          const fcast_object_telemetry_settings *settings,
                                          fcast_object_telemetry *telemetry);

/**
 * Writes these groups from now on: the sum of some of FCAST_TELEMETRY_TRANSFERS and the others;
 * unknown bits mean nothing. 0: nothing is written. Any thread.
 */
fcast_status fcast_object_telemetry_set_groups(fcast_object_telemetry telemetry, uint32_t groups);

/**
 * Has a writer write once more and flush, and ends it: its function is not called any more. The
 * handle is used up, also where this says that the function had failed (FCAST_SYSTEM). Any thread
 * but the writer's.
 */
fcast_status fcast_object_telemetry_finish(fcast_object_telemetry telemetry);

/**
 * As fcast_object_telemetry_finish; what the function answers is in the log. Any thread but the
 * writer's.
 */
fcast_status fcast_object_telemetry_release(fcast_object_telemetry telemetry);

/**
 * Gets or puts `len` bytes of an object, from `offset` on, into or from memory from
 * `memory_offset` on: `function` is called for one part after the other, each with a token of its
 * own, which is revoked when it returns. `*moved`: the bytes that it answered for; a part of which
 * it moved fewer than asked for ends the request. `operation`: FCAST_OBJECT_GET or
 * FCAST_OBJECT_PUT. Any thread.
 *
 * FCAST_CLOSED: the function answered a negative number. FCAST_AGAIN: a transfer into the memory
 * was given up, and may still land.
 *
 * # Safety
 *
 * `function` may be called with `context` during the call; `moved`: NULL, or writable.
 */
fcast_status fcast_object_transfer(fcast_object_client client,
                                   uint32_t operation,
                                   fcast_object_memory memory,
                                   uint64_t memory_offset,
                                   uint64_t len,
                                   uint64_t offset,
                                   fcast_object_fn function,
                                   void *context,
                                   uint64_t *moved);

/**
 * Starts to connect a sender to a receiver at an address such as "192.0.2.1:7000". Returns at
 * once: FCAST_EVENT_CONNECTED or FCAST_EVENT_DISCONNECTED follows. Any thread.
 *
 * FCAST_INVALID: a setting, or the address. FCAST_NO_RESOURCES: memory, descriptors, or
 * registrations.
 *
 * # Safety
 *
 * `peer`: NULL, or a text that ends with a zero; `settings`: NULL, or a struct whose size field is
 * right; `endpoint`: NULL, or writable.
 */
fcast_status fcast_sender_open(fcast_domain domain,
                               const char *peer,
                               const fcast_settings *settings,
                               fcast_endpoint *endpoint);

/**
 * Listens at an address of this machine, such as "127.0.0.1:0"; port 0 lets the system choose, and
 * fcast_endpoint_address says which one it is. Any thread.
 *
 * # Safety
 *
 * As fcast_sender_open.
 */
fcast_status fcast_receiver_open(fcast_domain domain,
                                 const char *local,
                                 const fcast_settings *settings,
                                 fcast_endpoint *endpoint);

/**
 * Makes a payload of `len` bytes at `data` in a region, which may be a GPU's memory: for what a
 * payload can do and an address can't, such as fcast_payload_after_event and fcast_push_payload.
 * The region stays while the payload does. Any thread.
 *
 * FCAST_NOT_FOUND: the data are outside of the region. FCAST_INVALID: the region is a pool's, or a
 * ring's.
 *
 * # Safety
 *
 * `payload`: NULL, or writable. `data` is looked up in the region, not read; from the send on the
 * bytes must not change before its outcome is told.
 */
fcast_status fcast_payload_of_region(fcast_region region,
                                     const void *data,
                                     size_t len,
                                     fcast_payload *payload);

/**
 * As fcast_payload_of_region, of several pieces that become one message. Each names its region.
 *
 * # Safety
 *
 * `iov`: NULL, or `count` pieces; `payload`: NULL, or writable.
 */
fcast_status fcast_payload_of_pieces(const fcast_iov *iov, size_t count, fcast_payload *payload);

/**
 * How many bytes a payload has.
 *
 * # Safety
 *
 * `len`: NULL, or writable.
 */
fcast_status fcast_payload_len(fcast_payload payload, size_t *len);

/**
 * Gives a payload back, unsent.
 */
fcast_status fcast_payload_release(fcast_payload payload);

/**
 * Makes a pool of a region that nothing else was done with but registering it. `headroom`: bytes
 * in front of each slot for headers, for providers of one segment a message; else 0. Any thread.
 *
 * # Safety
 *
 * `pool`: NULL, or writable.
 */
fcast_status fcast_pool_create(fcast_region region,
                               size_t slot_size,
                               size_t headroom,
                               fcast_pool *pool);

/**
 * The receive pool of an endpoint, or the pool of a buffered sender's or publisher's buffers, as a
 * handle of its own: for fcast_pool_status, and for its region, so that what came in can be sent
 * on without a copy. Take no buffers from a receive pool; those of a buffered publisher may be
 * taken, filled and published (fcast_buffer_freeze, fcast_publish_payload). One thread at a time.
 *
 * # Safety
 *
 * `pool`: NULL, or writable.
 */
fcast_status fcast_endpoint_pool(fcast_endpoint endpoint, fcast_pool *pool);

/**
 * The region of a pool, as a handle of its own: register it with the domains that send from it.
 * Any thread.
 *
 * # Safety
 *
 * `region`: NULL, or writable.
 */
fcast_status fcast_pool_region(fcast_pool pool, fcast_region *region);

/**
 * How a pool stands: slots, those that are free, and the fewest that ever were. Any thread.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_pool_status(fcast_pool pool, size_t *slots, size_t *free, size_t *low_water);

/**
 * Takes a buffer out of a pool, and waits for one for at most `timeout_ms`. FCAST_AGAIN: none is
 * free, with a timeout of 0; FCAST_TIMED_OUT with another one. Any thread.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_pool_acquire(fcast_pool pool,
                                uint32_t timeout_ms,
                                fcast_buffer *buffer,
                                void **data,
                                size_t *capacity);

/**
 * Makes the first `len` bytes of a buffer a payload, which can be sent. The buffer's handle is
 * used up, unless this fails.
 *
 * # Safety
 *
 * `payload`: NULL, or writable. Nothing is written to the buffer from now on.
 */
fcast_status fcast_buffer_freeze(fcast_buffer buffer, size_t len, fcast_payload *payload);

/**
 * Gives a buffer back to its pool, unsent.
 */
fcast_status fcast_buffer_release(fcast_buffer buffer);

/**
 * Gives a pool back. Its memory goes when its last buffer does.
 */
fcast_status fcast_pool_release(fcast_pool pool);

/**
 * Listens for subscribers at an address of this machine. Any thread.
 *
 * # Safety
 *
 * As fcast_sender_open.
 */
fcast_status fcast_publisher_open(fcast_domain domain,
                                  const char *local,
                                  const fcast_settings *settings,
                                  fcast_endpoint *endpoint);

/**
 * Sends `len` bytes at `data` with a header to everybody who has subscribed to the tag, without a
 * copy, by a publisher or a buffered one. Returns at once; the data must not change before
 * FCAST_EVENT_PUBLISHED comes with the key. `region`: as for fcast_send. One thread at a time.
 *
 * FCAST_NOT_FOUND: nobody has subscribed to the tag, or the data are outside of the region;
 * FCAST_AGAIN: as many publications are under way as may; nothing was taken.
 *
 * # Safety
 *
 * `header`: NULL, or `header_len` bytes; `publication`: NULL, or writable. `data` is looked up in
 * the region, not read.
 */
fcast_status fcast_publish(fcast_endpoint endpoint,
                           uint64_t tag,
                           fcast_region region,
                           const void *data,
                           size_t len,
                           const void *header,
                           size_t header_len,
                           uint64_t key,
                           fcast_publication *publication);

/**
 * As fcast_publish, of a payload, whose handle is used up, unless this fails. One thread at a
 * time.
 *
 * # Safety
 *
 * `header`: NULL, or `header_len` bytes; `publication`: NULL, or writable.
 */
fcast_status fcast_publish_payload(fcast_endpoint endpoint,
                                   uint64_t tag,
                                   fcast_payload payload,
                                   const void *header,
                                   size_t header_len,
                                   uint64_t key,
                                   fcast_publication *publication);

/**
 * What becomes of publications for one subscriber when it has no room, instead of what the
 * settings say: FCAST_SLOW_DROP or another, how many may wait, and for how long. FCAST_NOT_FOUND:
 * there is no such subscriber. One thread at a time.
 */
fcast_status fcast_publisher_set_slow(fcast_endpoint endpoint,
                                      uint64_t connection,
                                      uint32_t slow,
                                      uint32_t queue,
                                      uint32_t timeout_ms);

/**
 * How many have subscribed to a tag. One thread at a time.
 *
 * # Safety
 *
 * `count`: NULL, or writable.
 */
fcast_status fcast_publisher_subscribers(fcast_endpoint endpoint, uint64_t tag, size_t *count);

/**
 * Listens for subscribers, as fcast_publisher_open, as a publisher that copies: fcast_push packs
 * small messages, many of a tag into one buffer, which is one publication; fcast_publish_copied
 * copies one payload; fcast_publish copies nothing. What is published of one tag leaves in the
 * order of the calls, whichever they are. Subscribers take packed messages apart with
 * fcast_coalesced_next, in the same format; these have an empty header. Any thread.
 *
 * # Safety
 *
 * As fcast_sender_open.
 */
fcast_status fcast_buffered_publisher_open(fcast_domain domain,
                                           const char *local,
                                           const fcast_settings *settings,
                                           fcast_endpoint *endpoint);

/**
 * Copies `len` bytes and a header into a buffer of a buffered publisher, and publishes them at
 * once, behind what was pushed of the tag. The data may change as soon as this returns;
 * FCAST_EVENT_PUBLISHED comes with the key all the same. One thread at a time.
 *
 * FCAST_NOT_FOUND: nobody has subscribed to the tag; FCAST_AGAIN: no buffer is free, or as many
 * publications are under way as may, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG: it is longer
 * than a buffer; FCAST_CLOSED: nothing was taken.
 *
 * # Safety
 *
 * `data`: NULL, or `len` bytes; `header`: NULL, or `header_len` bytes; `publication`: NULL, or
 * writable.
 */
fcast_status fcast_publish_copied(fcast_endpoint endpoint,
                                  uint64_t tag,
                                  const void *data,
                                  size_t len,
                                  const void *header,
                                  size_t header_len,
                                  uint64_t key,
                                  fcast_publication *publication);

/**
 * Publishes what a buffered publisher has packed of one tag; fcast_flush does that for all tags.
 * What can't leave now leaves at a later poll, as soon as it can. One thread at a time.
 */
fcast_status fcast_flush_tag(fcast_endpoint endpoint, uint64_t tag);

/**
 * Drives a receiver, and writes the messages that came: at most `capacity`, `*count` of them; the
 * others come with the next call. Other events are told by fcast_endpoint_poll: `*has_events` says
 * that there are some, which happened before the messages that are written; none are written where
 * polled messages or events wait that were not taken. One thread at a time.
 *
 * FCAST_UNSUPPORTED: the endpoint is no receiver.
 *
 * # Safety
 *
 * `messages`: NULL, or room for `capacity` of them; `count` and `has_events`: NULL, or writable.
 */
fcast_status fcast_receive(fcast_endpoint endpoint,
                           fcast_received *messages,
                           size_t capacity,
                           size_t *count,
                           bool *has_events);

/**
 * Allocates `len` bytes of the host's memory, zeroed and page-aligned. `flags`: 0, or the sum of
 * some of FCAST_REGION_HUGE_PAGES and FCAST_REGION_PINNED. `numa_node`: -1 for any. Any thread.
 *
 * # Safety
 *
 * `region`: NULL, or writable.
 */
fcast_status fcast_region_allocate(size_t len,
                                   uint32_t flags,
                                   int32_t numa_node,
                                   fcast_region *region);

/**
 * Makes a region of memory of the program's, such as the DMA buffer of a card. The library neither
 * moves nor frees it; `release`, which may be NULL, is called with `context` when the library
 * needs it no more, also where this call fails. Any thread.
 *
 * # Safety
 *
 * All of `base .. base + len` is mapped, readable, and writable where something is received into
 * it, until `release` is called; and to the same pages.
 */
fcast_status fcast_region_external(void *base,
                                   size_t len,
                                   fcast_release_fn release,
                                   void *context,
                                   fcast_region *region);

/**
 * Registers a region with a domain, so that endpoints of the domain send from it. Any thread.
 *
 * FCAST_NO_RESOURCES: the provider refused it, or the domain has as many registrations as it may.
 */
fcast_status fcast_region_register(fcast_region region, fcast_domain domain);

/**
 * Takes the registration with a domain back: nothing new is sent from the region; what is under
 * way completes, and who ends the last of it ends the registration. Any thread.
 */
fcast_status fcast_region_deregister(fcast_region region, fcast_domain domain);

/**
 * Where a region begins, and how many bytes it has. Of a GPU's memory the address is the device's.
 * Any thread.
 *
 * # Safety
 *
 * `base` and `len`: NULL, or writable.
 */
fcast_status fcast_region_memory(fcast_region region, void **base, size_t *len);

/**
 * The offset of an address in a region, whose next `len` bytes are in it, too.
 *
 * FCAST_NOT_FOUND: they are not. Any thread.
 *
 * # Safety
 *
 * `offset`: NULL, or writable. `address` is a number here, and need not be valid.
 */
fcast_status fcast_region_slice_at(fcast_region region,
                                   const void *address,
                                   size_t len,
                                   size_t *offset);

/**
 * Gives a region back. It is gone, and `release` was called, when nothing is under way any more
 * and no pool, buffer or message of it is left.
 */
fcast_status fcast_region_release(fcast_region region);

/**
 * Makes a ring of all of a region: of this library's, or of memory of the program's, such as the
 * DMA buffer of a card. `max_fragments`: reservations and payloads that are out at once; 0 for
 * 65,536. `headroom`: bytes in front of each piece for headers, for providers of one segment a
 * message; else 0. Any thread.
 *
 * # Safety
 *
 * `ring`: NULL, or writable.
 */
fcast_status fcast_ring_create(fcast_region region,
                               uint32_t max_fragments,
                               size_t headroom,
                               fcast_ring *ring);

/**
 * Takes the next `len` bytes of a ring: they lie in `spans[0]` and, where they go over the end of
 * the region, `spans[1]`. In a ring with headroom the second is always empty. Several reservations
 * may be out. FCAST_AGAIN: no room before the oldest come back; FCAST_TOO_LONG: the ring is
 * smaller. One thread at a time.
 *
 * # Safety
 *
 * `reservation`: NULL, or writable; `spans`: NULL, or room for two.
 */
fcast_status fcast_ring_reserve(fcast_ring ring,
                                size_t len,
                                fcast_reservation *reservation,
                                fcast_span *spans);

/**
 * Makes the first `len` bytes of a reservation a payload; where it is the newest one, the rest is
 * free again at once. The reservation's handle is used up, unless this fails. The bytes must not
 * change any more, and are free again when the payload was sent or released. One thread at a time.
 *
 * # Safety
 *
 * `payload`: NULL, or writable.
 */
fcast_status fcast_ring_commit(fcast_ring ring,
                               fcast_reservation reservation,
                               size_t len,
                               fcast_payload *payload);

/**
 * How a ring stands: the bytes handed out and those up to which everything came back, both counted
 * since it was made (a card may write up to `*tail` + the region's length), the bytes that can be
 * reserved now, the pieces that are out, and for how many milliseconds the oldest of them has
 * been. One thread at a time.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_ring_status(fcast_ring ring,
                               uint64_t *head,
                               uint64_t *tail,
                               size_t *free_bytes,
                               size_t *outstanding,
                               uint64_t *oldest_ms);

/**
 * Gives a reservation back, unfilled. Any thread.
 */
fcast_status fcast_reservation_release(fcast_reservation reservation);

/**
 * Gives a ring back. Its memory goes when the last piece does. Any thread.
 */
fcast_status fcast_ring_release(fcast_ring ring);

/**
 * Sends `len` bytes at `data` with a header in front of them. Returns at once; no byte of the data
 * is copied, and none may change before FCAST_EVENT_COMPLETED or FCAST_EVENT_FAILED comes with the
 * key, which need not be unique. `region`: the one that the data lies in; {0}: that of the
 * endpoint's settings. One thread at a time.
 *
 * FCAST_AGAIN: not now, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG, FCAST_NOT_REGISTERED,
 * FCAST_NOT_FOUND (data outside of the region), FCAST_CLOSED: nothing was taken.
 *
 * # Safety
 *
 * `header`: NULL, or `header_len` bytes. `data` is looked up in the region, not read.
 */
fcast_status fcast_send(fcast_endpoint endpoint,
                        fcast_region region,
                        const void *data,
                        size_t len,
                        const void *header,
                        size_t header_len,
                        uint64_t key);

/**
 * As fcast_send, of several pieces that become one message.
 *
 * # Safety
 *
 * `iov`: NULL, or `count` pieces; `header`: NULL, or `header_len` bytes.
 */
fcast_status fcast_sendv(fcast_endpoint endpoint,
                         const fcast_iov *iov,
                         size_t count,
                         const void *header,
                         size_t header_len,
                         uint64_t key);

/**
 * Sends a payload with a header in front of it, as fcast_send. Its handle is used up, unless this
 * fails. One thread at a time.
 *
 * # Safety
 *
 * `header`: NULL, or `header_len` bytes.
 */
fcast_status fcast_send_payload(fcast_endpoint endpoint,
                                fcast_payload payload,
                                const void *header,
                                size_t header_len,
                                uint64_t key);

/**
 * Posts what was packed and would wait for the next poll, or for the flush interval; what the peer
 * or the provider takes no more of now leaves as soon as it can. One thread at a time.
 */
fcast_status fcast_flush(fcast_endpoint endpoint);

/**
 * The counters of an endpoint that sends: a sender of either kind, or a connectionless one. The
 * field `size` is set by the caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it
 * was closed. One thread at a time.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_endpoint_send_stats(fcast_endpoint endpoint, fcast_send_stats *stats);

/**
 * The counters of an endpoint that receives: a receiver, or a connectionless one. The field `size`
 * is set by the caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One
 * thread at a time.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_endpoint_receive_stats(fcast_endpoint endpoint, fcast_receive_stats *stats);

/**
 * The counters of an endpoint that buffers small messages. The field `size` is set by the
 * caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a
 * time.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_endpoint_buffered_stats(fcast_endpoint endpoint, fcast_buffered_stats *stats);

/**
 * The counters of an endpoint that publishes. The field `size` is set by the
 * caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a
 * time.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_endpoint_publish_stats(fcast_endpoint endpoint, fcast_publish_stats *stats);

/**
 * The counters of an endpoint that subscribes. The field `size` is set by the
 * caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a
 * time.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_endpoint_subscribe_stats(fcast_endpoint endpoint, fcast_subscribe_stats *stats);

/**
 * The counters of a loop. Its field `size` is set by the caller. One thread at a time.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_loop_read_stats(fcast_loop in_loop, fcast_loop_stats *stats);

/**
 * The counters of the process. Its field `size` is set by the caller. Any thread.
 *
 * # Safety
 *
 * `stats`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_process_read_stats(fcast_process_stats *stats);

/**
 * All counters of an endpoint as text, a line each, as Prometheus reads it: "name{endpoint="7"}
 * value". `*len`: the bytes that it needs, the zero included; what does not go into `capacity` is
 * cut. FCAST_CLOSED: it was closed. One thread at a time.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_endpoint_stats_text(fcast_endpoint endpoint,
                                       char *text,
                                       size_t capacity,
                                       size_t *len);

/**
 * The counters of the process, of its files, and of all clients and servers of objects, as text
 * that Prometheus reads. `*len`: the bytes that it needs, the zero included; what does not go into
 * `capacity` is cut. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_process_stats_text(char *text, size_t capacity, size_t *len);

/**
 * All that the process counts, by kind and name, as text of OpenMetrics 1.0, which ends with
 * "# EOF" and a line's end: what Prometheus is to be answered, as the type
 * "application/openmetrics-text; version=1.0.0; charset=utf-8". `*len`: the bytes that it needs,
 * the zero included; what does not go into `capacity` is cut. It grows with what lives: ask with a
 * capacity of 0 first, and again if it has grown meanwhile. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_metrics_text(char *text, size_t capacity, size_t *len);

/**
 * The words of the last failure of this thread, with what to do about it; "" if there was none.
 * Valid until the next failure of this thread is asked for. Any thread.
 */
const char *fcast_last_error(void);

/**
 * The number of libfabric (fi_errno.3) or of the system (errno.3) that belongs to the last failure
 * of this thread; 0 where there is none. Any thread.
 */
int32_t fcast_last_errno(void);

/**
 * The name of a status, such as "FCAST_AGAIN"; "unknown" for a number that is none. Any thread.
 */
const char *fcast_status_name(fcast_status status);

/**
 * The version of the library that was loaded: major * 1,000,000 + minor * 1,000 + patch. A program
 * compares it with FCAST_VERSION, which it was built with. Any thread.
 */
uint32_t fcast_version(void);

/**
 * Says what the entry of this number is, from 0 on. FCAST_NOT_FOUND: there are not so many. One
 * thread at a time, within the function `begin` of a sink.
 *
 * # Safety
 *
 * `entry`: NULL, or writable.
 */
fcast_status fcast_stream_manifest_entry(fcast_stream_manifest manifest,
                                         uint64_t index,
                                         fcast_stream_entry *entry);

/**
 * Says that a sink has a block of the stream already, which then is not sent: these are its bytes,
 * which were just read and found right. FCAST_NOT_FOUND: there is no block of this number;
 * FCAST_INVALID: it has another length. One thread at a time, within the function `resume`.
 *
 * # Safety
 *
 * `data`: NULL, or `len` readable bytes.
 */
fcast_status fcast_stream_kept_add(fcast_stream_kept kept,
                                   uint64_t block,
                                   const void *data,
                                   size_t len);

/**
 * Listens for streams at one address of each of some domains, such as "127.0.0.1:0"; what comes is
 * written into a directory, which exists: into a hidden one below it, and renamed to its name when
 * all of a stream is there and checked. FCAST_INVALID: a setting or an address. FCAST_SYSTEM: the
 * directory; fcast_last_errno() says why. Any thread.
 *
 * # Safety
 *
 * `domains` and `addresses`: NULL, or `count` each, texts that end with a zero; `directory`: NULL,
 * or such a text; `settings`: NULL, or a struct whose size field is right and whose key has its
 * length; `receiver`: NULL, or writable.
 */
fcast_status fcast_stream_receiver_open(const fcast_domain *domains,
                                        const char *const *addresses,
                                        size_t count,
                                        const char *directory,
                                        const fcast_stream_settings *settings,
                                        fcast_stream_receiver *receiver);

/**
 * As fcast_stream_receiver_open, with a sink of the program's in place of a directory: `sink` is
 * copied. FCAST_INVALID: the table, too. Its `release` is called after a failure as well, unless
 * the table's field size is wrong. Any thread.
 *
 * # Safety
 *
 * `sink`: NULL, or a struct whose size field is right, and whose functions may be called, as it
 * says, until `release` is; memory that `begin` gives is used by nobody else until `close`; else
 * as fcast_stream_receiver_open.
 */
fcast_status fcast_stream_receiver_open_sink(const fcast_domain *domains,
                                             const char *const *addresses,
                                             size_t count,
                                             const fcast_stream_sink_calls *sink,
                                             const fcast_stream_settings *settings,
                                             fcast_stream_receiver *receiver);

/**
 * Writes where a receiver listens, with real ports: an address for each domain, with commas
 * between them, and a zero. `*len`: the bytes that it needs, the zero included. One thread at a
 * time.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_stream_receiver_address(fcast_stream_receiver receiver,
                                           char *text,
                                           size_t capacity,
                                           size_t *len);

/**
 * Waits for something to happen, for at most `timeout_ms`, and writes what did: at most `capacity`
 * events, `*count` of them. The texts of the last poll are gone from now on. One thread at a time.
 *
 * # Safety
 *
 * `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
 */
fcast_status fcast_stream_receiver_poll(fcast_stream_receiver receiver,
                                        uint32_t timeout_ms,
                                        fcast_stream_event *events,
                                        size_t capacity,
                                        size_t *count);

/**
 * Ends a receiver: streams go on for at most `timeout_ms`, what is left then is cut. What happened
 * meanwhile is told by the polls that follow. The handle is to be released all the same. One
 * thread at a time.
 */
fcast_status fcast_stream_receiver_close(fcast_stream_receiver receiver, uint32_t timeout_ms);

/**
 * Gives a receiver back. One that was not closed cuts what is not over. Any thread.
 */
fcast_status fcast_stream_receiver_release(fcast_stream_receiver receiver);

/**
 * Opens a sender of streams over one domain, or over several: then a peer's n-th address is
 * reached by the n-th of them. FCAST_INVALID: a setting. Any thread.
 *
 * # Safety
 *
 * `domains`: NULL, or `count` of them; `settings`: NULL, or a struct whose size field is right and
 * whose key has its length; `sender`: NULL, or writable.
 */
fcast_status fcast_stream_sender_open(const fcast_domain *domains,
                                      size_t count,
                                      const fcast_stream_settings *settings,
                                      fcast_stream_sender *sender);

/**
 * Begins to send files, and directories with all that is in them, to some peers. Returns at once;
 * the transfer goes on by itself. Each peer is a text of one address of a receiver, or of several
 * of the same one, with commas between them. Any thread.
 *
 * FCAST_NOT_FOUND: there is no such file. FCAST_INVALID: an option, an address, or a name that
 * can't be sent.
 *
 * # Safety
 *
 * `paths` and `peers`: NULL, or as many texts that end with a zero; `options`: NULL, or a struct
 * whose size field is right; `transfer`: NULL, or writable.
 */
fcast_status fcast_stream_send_files(fcast_stream_sender sender,
                                     const char *const *paths,
                                     size_t path_count,
                                     const char *const *peers,
                                     size_t peer_count,
                                     const fcast_stream_options *options,
                                     fcast_stream_transfer *transfer);

/**
 * Begins to send bytes under a name, as fcast_stream_send_files. They are copied as they are sent,
 * and are the library's until `release` is called with `context`, which is done also where this
 * fails; NULL: until the sender was closed. Any thread.
 *
 * # Safety
 *
 * `data`: NULL, or `len` bytes that stay mapped and that nobody writes to until then; `name`:
 * NULL, or a text that ends with a zero; else as fcast_stream_send_files.
 */
fcast_status fcast_stream_send_bytes(fcast_stream_sender sender,
                                     const char *name,
                                     const void *data,
                                     size_t len,
                                     fcast_release_fn release,
                                     void *context,
                                     const char *const *peers,
                                     size_t peer_count,
                                     const fcast_stream_options *options,
                                     fcast_stream_transfer *transfer);

/**
 * Begins to send a payload under a name: a frozen buffer of a pool, from where it lies, without a
 * copy, whose pool's region is registered with the sender's domains (fcast_region_register); or a
 * part of a region of a GPU's memory (fcast_payload_of_region), which must not change before the
 * transfer is over, each block of which is copied once. The payload's handle is used up, unless
 * this fails. FCAST_UNSUPPORTED: it is neither, or waits for work of a GPU. Any thread.
 *
 * # Safety
 *
 * As fcast_stream_send_bytes.
 */
fcast_status fcast_stream_send_payload(fcast_stream_sender sender,
                                       const char *name,
                                       fcast_payload payload,
                                       const char *const *peers,
                                       size_t peer_count,
                                       const fcast_stream_options *options,
                                       fcast_stream_transfer *transfer);

/**
 * Ends a sender: transfers go on for at most `timeout_ms`, what is left then fails. Its handle is
 * used up. FCAST_BUSY: another call uses it. Any thread.
 */
fcast_status fcast_stream_sender_close(fcast_stream_sender sender, uint32_t timeout_ms);

/**
 * Gives a sender back that was not closed: transfers that are not over fail. Any thread.
 */
fcast_status fcast_stream_sender_release(fcast_stream_sender sender);

/**
 * How far each peer is, in the order in which they were given: `*count` of them, of which
 * `capacity` are written. Any thread.
 *
 * # Safety
 *
 * `peers`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
 */
fcast_status fcast_stream_transfer_progress(fcast_stream_transfer transfer,
                                            fcast_stream_progress *peers,
                                            size_t capacity,
                                            size_t *count);

/**
 * Waits until a transfer is over at every peer, for at most `timeout_ms`. FCAST_OK: every peer has
 * the content, checked. FCAST_AGAIN: not yet, with a timeout of 0; FCAST_TIMED_OUT with another
 * one. Else why the first peer that has not does not have it; fcast_stream_transfer_outcome tells
 * of the others. Any thread.
 */
fcast_status fcast_stream_transfer_wait(fcast_stream_transfer transfer, uint32_t timeout_ms);

/**
 * What came of a transfer that is over at one peer, by its place among those that were given.
 * `*report` is written also where the peer does not have the content, which the status and the
 * words say. The field `size` of the report is set by the caller. FCAST_AGAIN: it is not over.
 * Any thread.
 *
 * # Safety
 *
 * `report`: NULL, or a writable struct whose size field is right.
 */
fcast_status fcast_stream_transfer_outcome(fcast_stream_transfer transfer,
                                           size_t peer,
                                           fcast_stream_report *report);

/**
 * All that is known of a transfer that is over at one peer, as a JSON object: times in seconds.
 * `*len`: the bytes that it needs, the zero included; what does not go into `capacity` is cut.
 * FCAST_AGAIN: it is not over. Any thread.
 *
 * # Safety
 *
 * `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
 */
fcast_status fcast_stream_transfer_report_text(fcast_stream_transfer transfer,
                                               size_t peer,
                                               char *text,
                                               size_t capacity,
                                               size_t *len);

/**
 * Sends no further block until fcast_stream_transfer_resume. Any thread.
 */
fcast_status fcast_stream_transfer_pause(fcast_stream_transfer transfer);

/**
 * Goes on after fcast_stream_transfer_pause. Any thread.
 */
fcast_status fcast_stream_transfer_resume(fcast_stream_transfer transfer);

/**
 * Ends a transfer soon. What peers have they keep, for a later one of the same. Any thread.
 */
fcast_status fcast_stream_transfer_cancel(fcast_stream_transfer transfer);

/**
 * Changes the most bytes a second, all peers together; 0: no limit. Any thread.
 */
fcast_status fcast_stream_transfer_set_rate(fcast_stream_transfer transfer,
                                            uint64_t bytes_per_second);

/**
 * Gives the handle of a transfer back; the transfer goes on. Any thread.
 */
fcast_status fcast_stream_transfer_release(fcast_stream_transfer transfer);

/**
 * Opens a subscriber, without a publisher yet. Any thread.
 *
 * # Safety
 *
 * `settings`: NULL, or a struct whose size field is right; `endpoint`: NULL, or writable.
 */
fcast_status fcast_subscriber_open(fcast_domain domain,
                                   const fcast_settings *settings,
                                   fcast_endpoint *endpoint);

/**
 * Starts to connect to a publisher. `*publisher`: its number, which events have as `connection`.
 * Returns at once: FCAST_EVENT_CONNECTED, FCAST_EVENT_RECONNECTING or FCAST_EVENT_DISCONNECTED
 * follows. One thread at a time.
 *
 * # Safety
 *
 * `peer`: NULL, or a text that ends with a zero; `publisher`: NULL, or writable.
 */
fcast_status fcast_subscriber_connect(fcast_endpoint endpoint,
                                      const char *peer,
                                      uint64_t *publisher);

/**
 * Asks a publisher for the publications of a tag, also before it is connected, and again after
 * each new connection. FCAST_EVENT_SUBSCRIBED or FCAST_EVENT_SUBSCRIPTION_REFUSED follows.
 *
 * FCAST_NOT_FOUND: no such publisher; FCAST_INVALID: it was asked for; FCAST_AGAIN: its end is
 * under way; FCAST_NO_RESOURCES: as many tags are wanted as may. One thread at a time.
 */
fcast_status fcast_subscribe(fcast_endpoint endpoint, uint64_t publisher, uint64_t tag);

/**
 * Asks for them no more. FCAST_EVENT_UNSUBSCRIBED follows; until then publications of the tag may
 * come, afterwards none. FCAST_NOT_FOUND: it was not asked for. One thread at a time.
 */
fcast_status fcast_unsubscribe(fcast_endpoint endpoint, uint64_t publisher, uint64_t tag);

/**
 * Sleeps until there may be something to poll for, for at most `timeout_ms`. FCAST_OK in either
 * case. One thread at a time.
 */
fcast_status fcast_endpoint_wait(fcast_endpoint endpoint, uint32_t timeout_ms);

/**
 * The descriptors that become readable when there is something to poll for, for a loop of the
 * program's: `*count` of them, of which `capacity` are written. They stay the same while the
 * endpoint is open, and are not to be read, written or closed. One thread at a time.
 *
 * # Safety
 *
 * `fds`: NULL, or room for `capacity`; `count`: NULL, or writable.
 */
fcast_status fcast_endpoint_fds(fcast_endpoint endpoint,
                                int32_t *fds,
                                size_t capacity,
                                size_t *count);

/**
 * To be called right before a loop of the program's sleeps: `*may_sleep` says whether it may, and
 * `*timeout_ms` for how long at most (-1: for as long as it likes). Where it may not, the endpoint
 * is to be polled first. One thread at a time.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_endpoint_prepare_wait(fcast_endpoint endpoint,
                                         bool *may_sleep,
                                         int32_t *timeout_ms);

/**
 * As fcast_endpoint_fds, of a channel of objects. FCAST_CLOSED: it was closed. One thread at a
 * time.
 *
 * # Safety
 *
 * `fds`: NULL, or room for `capacity`; `count`: NULL, or writable.
 */
fcast_status fcast_object_channel_fds(fcast_object_channel channel,
                                      int32_t *fds,
                                      size_t capacity,
                                      size_t *count);

/**
 * As fcast_endpoint_prepare_wait, of a channel of objects. FCAST_CLOSED: it was closed. One thread
 * at a time.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_object_channel_prepare_wait(fcast_object_channel channel,
                                               bool *may_sleep,
                                               int32_t *timeout_ms);

/**
 * Lets the peer of a connection use `len` bytes at `base` in a region, which need not be
 * registered. Send it the descriptor in a message. `connection`: the one of the events of a
 * receiver, which needs the setting `windows`; 0 at a sender. `region`: {0} for that of the
 * endpoint's settings. `access`: FCAST_ACCESS_READ, FCAST_ACCESS_WRITE, or their sum. The memory
 * is the endpoint's, and the region stays, until FCAST_EVENT_WINDOW_RELEASED comes with the
 * window's id. One thread at a time.
 *
 * FCAST_UNSUPPORTED: provider or peer has no windows; FCAST_CLOSED: not connected;
 * FCAST_NO_RESOURCES: as many are exposed as the setting `windows` allows.
 *
 * # Safety
 *
 * `window`: NULL, or writable. While the window is exposed for writing, its bytes change at any
 * time.
 */
fcast_status fcast_window_expose(fcast_endpoint endpoint,
                                 uint64_t connection,
                                 fcast_region region,
                                 const void *base,
                                 size_t len,
                                 uint32_t access,
                                 fcast_window *window);

/**
 * Writes what the peer has to know of a window: FCAST_WINDOW_DESCRIPTOR_LEN bytes, to be sent in a
 * message. Whoever has them and a connection to this process's domain can use the window. Any
 * thread.
 *
 * # Safety
 *
 * `bytes`: NULL, or room for FCAST_WINDOW_DESCRIPTOR_LEN bytes.
 */
fcast_status fcast_window_descriptor(fcast_window window, void *bytes);

/**
 * The id of a window, which its events have as key. Any thread.
 *
 * # Safety
 *
 * `id`: NULL, or writable.
 */
fcast_status fcast_window_id(fcast_window window, uint64_t *id);

/**
 * Takes a window back: the peer is told, ends what it has in flight and confirms;
 * FCAST_EVENT_WINDOW_RELEASED follows. A peer that has not confirmed after `timeout_ms` loses the
 * connection. The handle is used up, unless this fails. FCAST_NOT_FOUND: there was nothing to take
 * back any more, and the handle is used up. One thread at a time.
 */
fcast_status fcast_window_revoke(fcast_endpoint endpoint, fcast_window window, uint32_t timeout_ms);

/**
 * Gives a window back without a deadline: the peer is asked to use it no more, and the endpoint
 * has the memory until it has confirmed, or until the connection is over. No event says when: who
 * needs the memory again revokes the window. Any thread.
 */
fcast_status fcast_window_release(fcast_window window);

/**
 * Opens a window of the peer by the descriptor that it sent. `connection`: the one that it came
 * by; 0 at a sender. FCAST_INVALID: no descriptor, or of another connection; FCAST_CLOSED: it was
 * revoked, or there is no connection. One thread at a time.
 *
 * # Safety
 *
 * `descriptor`: NULL, or `len` bytes; `window`: NULL, or writable.
 */
fcast_status fcast_remote_window_open(fcast_endpoint endpoint,
                                      uint64_t connection,
                                      const void *descriptor,
                                      size_t len,
                                      fcast_remote_window *window);

/**
 * What is known of a window of the peer: its id, its length in bytes, and what this side may do,
 * as FCAST_ACCESS_READ and FCAST_ACCESS_WRITE. Any thread.
 *
 * # Safety
 *
 * Each pointer: NULL, or writable.
 */
fcast_status fcast_remote_window_info(fcast_remote_window window,
                                      uint64_t *id,
                                      uint64_t *len,
                                      uint32_t *access);

/**
 * Gives the handle of a peer's window back; operations under way go on. Any thread.
 */
fcast_status fcast_remote_window_release(fcast_remote_window window);

/**
 * Lets the peer of a connection use all of a buffer of a pool, as fcast_window_expose. The
 * buffer's handle is used up, unless this fails; FCAST_EVENT_WINDOW_RELEASED gives the buffer
 * back, with what the peer wrote (fcast_buffer_keep). One thread at a time.
 *
 * # Safety
 *
 * `window`: NULL, or writable. Where the peer may write, the buffer's bytes change at any time;
 * this side does not write to them while they are exposed.
 */
fcast_status fcast_window_expose_buffer(fcast_endpoint endpoint,
                                        uint64_t connection,
                                        fcast_buffer buffer,
                                        uint32_t access,
                                        fcast_window *window);

/**
 * As fcast_window_expose_buffer, of a payload that lies in one piece: a frozen buffer or the bytes
 * of a message that was kept, which the peer may read alone, a part of a region, or a buffer in a
 * GPU's memory. Its handle is used up, unless this fails; what it is of goes back to where it came
 * from when nobody reaches it any more. One thread at a time.
 *
 * FCAST_UNSUPPORTED, too: a fragment of a ring, several pieces, or a payload that waits for work
 * of a GPU; or a GPU's memory that the provider can't reach.
 *
 * # Safety
 *
 * `window`: NULL, or writable. Where the peer may write, the bytes change at any time.
 */
fcast_status fcast_window_expose_payload(fcast_endpoint endpoint,
                                         uint64_t connection,
                                         fcast_payload payload,
                                         uint32_t access,
                                         fcast_window *window);

/**
 * Takes the buffer back that FCAST_EVENT_WINDOW_RELEASED of the endpoint's last poll is about, as
 * fcast_pool_acquire gives one, with what the peer wrote. One that nobody takes goes to its pool
 * with the next poll. FCAST_STALE: the event is of an earlier poll, or of no buffer, or it was
 * taken. One thread at a time.
 *
 * # Safety
 *
 * `event`: NULL, or readable; each other pointer: NULL, or writable.
 */
fcast_status fcast_buffer_keep(fcast_endpoint endpoint,
                               const fcast_event *event,
                               fcast_buffer *buffer,
                               void **data,
                               size_t *capacity);

/**
 * Writes `len` bytes at `data` into a window of the peer, `offset` bytes behind its start. Returns
 * at once; FCAST_EVENT_WRITTEN says that they are in the peer's memory, FCAST_EVENT_WRITE_FAILED
 * that they may not be, and until then they must not change. `region`: as for fcast_send. One
 * thread at a time.
 *
 * FCAST_AGAIN: not now; FCAST_INVALID: beyond the window, or without the right to; FCAST_CLOSED:
 * the window was revoked, or the connection is over: nothing was taken.
 */
fcast_status fcast_window_write(fcast_endpoint endpoint,
                                fcast_remote_window window,
                                uint64_t offset,
                                fcast_region region,
                                const void *data,
                                size_t len,
                                uint64_t key);

/**
 * As fcast_window_write, and tells the peer: FCAST_EVENT_PEER_WROTE comes there with `value`, when
 * all of the bytes are in its memory. It takes a credit, as a message does. FCAST_UNSUPPORTED: the
 * provider's immediate data are too short. One thread at a time.
 */
fcast_status fcast_window_write_with_data(fcast_endpoint endpoint,
                                          fcast_remote_window window,
                                          uint64_t offset,
                                          fcast_region region,
                                          const void *data,
                                          size_t len,
                                          uint32_t value,
                                          uint64_t key);

/**
 * As fcast_window_write, but FCAST_EVENT_WRITTEN says only that the bytes may be changed, also for
 * writes that never reach the peer's memory: for those who hear of arrival by other means. One
 * thread at a time.
 */
fcast_status fcast_window_write_unconfirmed(fcast_endpoint endpoint,
                                            fcast_remote_window window,
                                            uint64_t offset,
                                            fcast_region region,
                                            const void *data,
                                            size_t len,
                                            uint64_t key);

/**
 * As fcast_window_write, of a payload, whose handle is used up, unless this fails. One thread at a
 * time.
 */
fcast_status fcast_window_write_payload(fcast_endpoint endpoint,
                                        fcast_remote_window window,
                                        uint64_t offset,
                                        fcast_payload payload,
                                        uint64_t key);

/**
 * Reads `len` bytes from a window of the peer, `offset` bytes behind its start, to `into`, which
 * lies in `region`: {0} for that of the endpoint's settings. Returns at once; FCAST_EVENT_READ
 * says that they are there, FCAST_EVENT_READ_FAILED that they may not be. As fcast_window_write in
 * all else. One thread at a time.
 *
 * # Safety
 *
 * Nobody uses the memory at `into` until the outcome is told.
 */
fcast_status fcast_window_read(fcast_endpoint endpoint,
                               fcast_remote_window window,
                               uint64_t offset,
                               fcast_region region,
                               void *into,
                               size_t len,
                               uint64_t key);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FABRICAST_H */
