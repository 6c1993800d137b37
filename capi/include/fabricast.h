/*
 * fabricast: moves bytes from storage and GPU memory to network peers over libfabric, without a copy
 * of its own. This file is generated from capi/src; what is said here is said there.
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
 * The connection stands. `text`: what was agreed.
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
 */
#define FCAST_EVENT_REQUEST 7

/**
 * A send is done. `key`: the one that was given to it.
 */
#define FCAST_EVENT_COMPLETED 8

/**
 * A send failed, or will never complete. `key`, `status`, `text`, `error`.
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
 * Nobody reaches a window of this side any more. `key`: its id.
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
 * `text`, `error`; `data`: the buffer, for fcast_coalesced_next, where it came back.
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
 * not.
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
     * FCAST_HEADER_PREFIXED, FCAST_HEADER_FIXED or FCAST_HEADER_RAW.
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
     * Buffered senders: FCAST_FORMAT_COMPACT or FCAST_FORMAT_NETIO3; the receiver must know it.
     */
    uint32_t format;
    /**
     * Buffered senders: how many buffers. Default 32.
     */
    uint32_t buffers;
    /**
     * Buffered senders: bytes of a buffer. Default 65,536.
     */
    uint32_t buffer_size;
    /**
     * Buffered senders: how long a message waits for others, in microseconds. Default 1,000;
     * FCAST_NEVER: until the buffer is full or is flushed.
     */
    uint32_t flush_interval_us;
    /**
     * Buffered senders: packed buffers that wait to be sent. Default 8.
     */
    uint32_t waiting;
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
     * buffered sender's buffers. Several receivers may share one.
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
} fcast_settings;

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
 * A payload: a frozen buffer, a fragment of a ring, or the bytes of a message that was kept. Any
 * thread may use it. A send uses it up.
 */
typedef struct {
    /**
     * Its number; 0: none.
     */
    uint64_t id;
} fcast_payload;

/**
 * Called when the library needs external memory no more: behind the last send from it and the last
 * registration, on the thread that ended it. It must not throw, and may call this interface.
 */
typedef void (*fcast_release_fn)(void *context);

/**
 * Something that happened. Its layout does not change; what later versions tell besides, they tell
 * in fields that are reserved now.
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
     * For fcast_message_keep.
     */
    uint32_t index;
    /**
     * For fcast_message_keep.
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
     * 0.
     */
    uint64_t reserved[2];
} fcast_event;

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
 * FCAST_AGAIN: not now, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG; FCAST_CLOSED: nothing was
 * taken.
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
 * The receive pool of an endpoint, or the pool of a buffered sender's buffers, as a handle of its
 * own: for fcast_pool_status, and for its region, so that what came in can be sent on without a
 * copy. Take no buffers from a receive pool. One thread at a time.
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
 * copy. Returns at once; the data must not change before FCAST_EVENT_PUBLISHED comes with the key.
 * `region`: as for fcast_send. One thread at a time.
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
 * Takes the next `len` bytes of a ring: they lie in spans[0] and, where they go over the end of
 * the region, spans[1]. In a ring with headroom spans[1] is always empty. Several reservations may
 * be out. FCAST_AGAIN: no room before the oldest come back; FCAST_TOO_LONG: the ring is smaller.
 * One thread at a time.
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
