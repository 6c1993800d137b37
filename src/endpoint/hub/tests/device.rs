//! A device's memory on the direct path: how it is registered, and how it is sent, over the fake
//! link and the fake driver, in which whoever touches such memory with the processor dies.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::buffer::{DeviceBufferManager, Payload, RegionSlice, Segment, SharedBufferManager};
use crate::cuda::{Device, Stream};
use crate::endpoint::event::{ConnectionEvent, Inject, Level, ReceiveEvent, SendEvent};
use crate::endpoint::link::LinkConn;
use crate::endpoint::link::fake::{DeviceSupport, Net, NetConfig, Offer, is_open};
use crate::endpoint::testing::rig::{Rig, Setup};
use crate::endpoint::windows::window::WindowEvent;
use crate::fabric::{AccessEnds, PROVIDERS, Shape, Terms};
use crate::fake_gpu::{Fake, over_the_fake};
use crate::memory::{Access, DirectBy, Path, Region, RegisterError, Registrar};
use crate::protocol::connection::Form;
use crate::protocol::wire::HeaderMode;

const PAGE: u64 = 4096;

fn test(name: &str, body: impl FnOnce()) {
    over_the_fake(&format!("endpoint::hub::tests::device::{name}"), &[], body);
}

fn stream() -> Stream {
    Stream::new(Device::new(0).unwrap()).unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

fn net(device: DeviceSupport) -> NetConfig {
    NetConfig {
        device: Some(device),
        ..NetConfig::default()
    }
}

/// A device's memory with a pattern.
fn region(len: usize) -> Arc<Region> {
    let region = Region::device(len).build().unwrap();
    fill(&region.slice(0..len).unwrap(), 0);
    region
}

fn fill(slice: &RegionSlice, seed: usize) {
    let bytes = pattern(slice.len(), seed);
    slice.copy_from_host(&bytes, &stream()).unwrap();
}

fn bytes_of(slice: &RegionSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    slice.copy_to_host(&mut bytes, &stream()).unwrap();
    bytes
}

/// A part of another region, as another library would give it: an allocation cut out of a larger
/// one.
fn part(of: &Arc<Region>, start: usize, len: usize) -> Arc<Region> {
    let keep = Box::new(Arc::clone(of));
    // SAFETY: the larger region stays as long as the part.
    unsafe { Region::external_device(of.address() + start as u64, len, keep) }.unwrap()
}

fn offered(net: &Net) -> Offer {
    *net.offers().last().expect("something was offered")
}

// ---- registration -------------------------------------------------------------------------------

#[test]
fn a_dmabuf_is_offered_by_whole_pages_and_an_offset() {
    test("a_dmabuf_is_offered_by_whole_pages_and_an_offset", || {
        let net = Net::new(net(DeviceSupport::default()));
        let whole = region(10 * PAGE as usize);
        for (start, len) in [
            (0, 10 * PAGE as usize),
            (1, 1),
            (1234, 5678),
            (4095, 2),
            (4096, 4096),
            (3 * 4096 + 7, 4096),
        ] {
            let part = part(&whole, start, len);
            part.register_with(net.far()).unwrap();
            let address = whole.address() + start as u64;
            let expected = Offer {
                by: DirectBy::DmaBuf,
                fd: offered(&net).fd,
                base: address / PAGE * PAGE,
                offset: address % PAGE,
                len,
                flags: libfabric_sys::FI_MR_DMABUF,
                device: 0,
                rights: None,
                taken: true,
            };
            // What lies at the offset of the descriptor, the net has compared.
            assert_eq!(offered(&net), expected);
            assert_eq!(
                part.path_with(net.far()),
                Some(Path::Direct(DirectBy::DmaBuf))
            );
        }
    });
}

/// What a region knows of a domain is by the number of its scope, which may be another domain's
/// when the first one is gone.
#[test]
fn what_is_staged_with_a_domain_that_is_gone_is_not_staged_with_the_next_one() {
    let name = "what_is_staged_with_a_domain_that_is_gone_is_not_staged_with_the_next_one";
    test(name, || {
        let region = region(8192);
        let nothing = DeviceSupport {
            dma_buf: false,
            interface: false,
            ..DeviceSupport::default()
        };
        let first = Net::new(net(nothing));
        region.register_with(first.far()).unwrap();
        let scope = first.far().scope();
        assert!(matches!(
            region.path_with(first.far()),
            Some(Path::Staged(_))
        ));
        drop(first);
        // This one has access, whatever its scope is.
        let second = Net::new(net(DeviceSupport::default()));
        for domain in [second.near(), second.far()] {
            assert_ne!(domain.scope(), scope, "the region still has it");
            region.register_with(domain).unwrap();
            let path = region.path_with(domain);
            assert_eq!(path, Some(Path::Direct(DirectBy::DmaBuf)));
        }
        // And when the region has let go of it, it is free.
        region.deregister_from(scope);
        let third = Net::new(net(DeviceSupport::default()));
        let scopes = [third.near().scope(), third.far().scope()];
        assert!(scopes.contains(&scope), "{scopes:?}");
    });
}

#[test]
fn a_descriptor_is_open_as_long_as_its_registration() {
    test("a_descriptor_is_open_as_long_as_its_registration", || {
        let net = Net::new(net(DeviceSupport::default()));
        let region = region(8192);
        region.register_with(net.far()).unwrap();
        let fd = offered(&net).fd;
        assert!(is_open(fd));
        let scope = net.far().scope();
        region.lease(scope).expect("registered");
        region.deregister_from(scope);
        assert!(is_open(fd), "an operation is under way");
        // SAFETY: the lease from above, once.
        unsafe { region.release(scope) };
        assert!(!is_open(fd), "nobody uses it any more");

        let refusing = DeviceSupport {
            dma_buf: false,
            ..DeviceSupport::default()
        };
        let net = Net::new(self::net(refusing));
        region.register_with(net.far()).unwrap();
        let [refused, taken] = net.offers()[..] else {
            panic!("{:?}", net.offers());
        };
        assert_eq!((refused.by, refused.taken), (DirectBy::DmaBuf, false));
        assert!(!is_open(refused.fd), "of a registration that was refused");
        assert_eq!(
            (taken.by, taken.base, taken.len),
            (DirectBy::Interface, region.address(), 8192)
        );
    });
}

#[test]
fn what_is_not_taken_is_staged_and_says_why() {
    test("what_is_not_taken_is_staged_and_says_why", || {
        let whole = DeviceSupport::default();
        let old = Terms {
            negotiated: libfabric_sys::fi_version_make(1, 17),
            ..whole.terms
        };
        let cases: [(DeviceSupport, &[DirectBy], &[&str]); 4] = [
            (
                DeviceSupport {
                    terms: old,
                    ..whole
                },
                &[DirectBy::Interface],
                &["by the provider's CUDA interface"],
            ),
            (
                DeviceSupport {
                    terms: old,
                    interface: false,
                    ..whole
                },
                &[DirectBy::Interface],
                &["1.17 has no FI_MR_DMABUF", "not supported"],
            ),
            (
                DeviceSupport {
                    dma_buf: false,
                    interface: false,
                    ..whole
                },
                &[DirectBy::DmaBuf, DirectBy::Interface],
                &["as a dmabuf: ", "by the provider's CUDA interface: "],
            ),
            (
                DeviceSupport {
                    proves: false,
                    ..whole
                },
                &[],
                &["its bytes are not there"],
            ),
        ];
        let region = region(4096);
        for (support, asked, says) in cases {
            let net = Net::new(self::net(support));
            region.register_with(net.far()).unwrap();
            let offers: Vec<_> = net.offers().iter().map(|offer| offer.by).collect();
            assert_eq!(offers, asked, "{support:?}");
            let path = region.path_with(net.far()).expect("registered");
            let direct = net.offers().iter().any(|offer| offer.taken);
            assert_eq!(path.is_staged(), !direct, "{path}");
            for text in says {
                assert!(path.to_string().contains(text), "{path}");
            }
            // Its address is never in a descriptor.
            assert_eq!(region.lease(net.far().scope()).is_some(), direct);
            if direct {
                // SAFETY: the lease from above, once.
                unsafe { region.release(net.far().scope()) };
            }
            region.deregister_from(net.far().scope());

            let required = DeviceSupport {
                terms: Terms {
                    required: true,
                    ..support.terms
                },
                ..support
            };
            let net = Net::new(self::net(required));
            match region.register_with(net.far()) {
                Ok(()) => assert!(direct),
                Err(RegisterError::Device { reason, .. }) => {
                    assert!(
                        !direct && says.iter().all(|text| reason.contains(text)),
                        "{reason}"
                    );
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
}

#[test]
fn what_a_row_says_of_its_provider_is_heeded() {
    test("what_a_row_says_of_its_provider_is_heeded", || {
        let ipc = DeviceSupport {
            terms: Terms {
                cuda_ipc: true,
                offset_windows: true,
                ..DeviceSupport::default().terms
            },
            ..DeviceSupport::default()
        };
        let net = Net::new(self::net(ipc));
        let region = region(3 * 4096);
        region.register_with(net.far()).unwrap();
        let device_only = libfabric_sys::FI_HMEM_DEVICE_ONLY;
        assert_eq!(
            offered(&net).flags,
            libfabric_sys::FI_MR_DMABUF | device_only
        );

        // A window of such a provider is no dmabuf.
        let range = region.device_range().unwrap();
        let window = net.far().register_device(&range, Some(Access::WRITE));
        drop(window.unwrap());
        let offer = offered(&net);
        assert_eq!(
            (offer.by, offer.flags, offer.rights),
            (DirectBy::Interface, device_only, Some(Access::WRITE))
        );

        let before = net.offers().len();
        let virt = Region::device(4096).virtual_memory(true).build().unwrap();
        virt.register_with(net.far()).unwrap();
        let path = virt.path_with(net.far()).unwrap().to_string();
        assert!(
            path.contains("CUDA IPC does not take CUDA virtual memory"),
            "{path}"
        );
        assert_eq!(net.offers().len(), before, "it was never offered");
    });
}

// ---- sending ------------------------------------------------------------------------------------

/// Delivers and polls until nothing moves; what both sides said.
fn settle(rig: &mut Rig) -> (Vec<SendEvent>, Vec<ReceiveEvent>) {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut quiet = 0;
    while quiet < 4 {
        let before = sent.len() + received.len();
        let moved = rig.net.deliver(usize::MAX);
        for _ in 0..2 {
            rig.receiver().wait().wake();
            rig.receiver().poll(&mut received).unwrap();
            rig.sender().wait().wake();
            rig.sender().poll(&mut sent).unwrap();
        }
        let still = moved == 0 && sent.len() + received.len() == before;
        quiet = if still { quiet + 1 } else { 0 };
    }
    rig.net.check();
    (sent, received)
}

fn direct_net(form: Form, iov_limit: usize) -> NetConfig {
    NetConfig {
        form,
        iov_limit,
        inject_pays: true,
        ..net(DeviceSupport::default())
    }
}

#[test]
fn payloads_go_from_where_they_lie_and_are_never_injected() {
    test(
        "payloads_go_from_where_they_lie_and_are_never_injected",
        || {
            for form in [Form::Msg, Form::Rdm] {
                for (shape, iov_limit) in [(Shape::Iov, 4), (Shape::TwoMessages, 3)] {
                    let setup = Setup {
                        net: direct_net(form, iov_limit),
                        shape: Some(shape),
                        inject: Inject::UpTo(64),
                        receive_slots: 32,
                        ..Setup::default()
                    };
                    let mut rig = setup.connected();
                    let (_, injected) = rig.net.flagged_and_injected(rig.near);
                    let device = region(8192);
                    device.register_with(rig.net.near()).unwrap();
                    let host = SharedBufferManager::allocate(1, 16).unwrap();
                    host.region().register_with(rig.net.near()).unwrap();
                    let mut middle = host.try_acquire().unwrap();
                    middle[..5].copy_from_slice(b"hello");
                    // Odd places of the device's memory around memory of the host: each has the
                    // descriptor of its own.
                    let slices = [1..4, 4093..4101].map(|range| device.slice(range).unwrap());
                    let [first, last] = slices.clone();
                    let payload: Payload = [
                        Segment::from(first),
                        Segment::from(middle.freeze(5)),
                        Segment::from(last),
                    ]
                    .into_iter()
                    .collect();
                    let alone = device.slice(2..3).unwrap();
                    rig.sender().send_data(payload, b"head", 1).unwrap();
                    rig.sender()
                        .send_data(alone.clone().into(), b"tail", 2)
                        .unwrap();
                    let (sent, received) = settle(&mut rig);
                    let keys: Vec<_> = sent.iter().map(completed).collect();
                    assert_eq!(keys, [1, 2], "{sent:?}");
                    let [ReceiveEvent::Message(one), ReceiveEvent::Message(two)] = &received[..]
                    else {
                        panic!("{received:?}");
                    };
                    let whole = [
                        bytes_of(&slices[0]),
                        b"hello".to_vec(),
                        bytes_of(&slices[1]),
                    ];
                    assert_eq!(
                        (one.header(), one.payload()),
                        (&b"head"[..], &whole.concat()[..])
                    );
                    assert_eq!(
                        (two.header(), two.payload()),
                        (&b"tail"[..], &bytes_of(&alone)[..])
                    );
                    let (_, after) = rig.net.flagged_and_injected(rig.near);
                    // Headers that go by themselves are the host's memory.
                    let headers = if shape == Shape::TwoMessages { 2 } else { 0 };
                    assert_eq!(after, injected + headers, "{form:?} {shape:?}");
                }
            }
        },
    );
}

fn completed(event: &SendEvent) -> u64 {
    match event {
        SendEvent::Completed { key, .. } => *key,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_payload_goes_in_pieces_from_where_it_lies() {
    test("a_payload_goes_in_pieces_from_where_it_lies", || {
        for form in [Form::Msg, Form::Rdm] {
            let mut setup = Setup {
                net: NetConfig {
                    max_message: 100,
                    ..direct_net(form, 4)
                },
                receive_slots: 32,
                header_mode: HeaderMode::Fixed(4),
                long: Some((1, 20_000)),
                ..Setup::default()
            };
            if let Some(rma) = &mut setup.net.rma {
                rma.max_bytes = 1000;
            }
            let mut rig = setup.connected();
            let device = region(9000);
            device.register_with(rig.net.near()).unwrap();
            let slice = device.slice(501..8900).unwrap();
            rig.sender()
                .send_data(slice.clone().into(), b"head", 1)
                .unwrap();
            let (sent, received) = settle(&mut rig);
            assert_eq!(sent.iter().map(completed).collect::<Vec<_>>(), [1]);
            let [ReceiveEvent::Message(message)] = &received[..] else {
                panic!("{received:?}");
            };
            assert_eq!(message.header(), b"head");
            assert!(message.payload() == bytes_of(&slice), "another content");
        }
    });
}

// ---- receiving ----------------------------------------------------------------------------------

/// With a pool in a device's memory where long messages land.
fn device_pool_setup(form: Form, support: DeviceSupport, mode: HeaderMode) -> Setup {
    let region = Region::device(3 * 8192).build().unwrap();
    let mut setup = Setup {
        net: NetConfig {
            max_message: 100,
            form,
            ..net(support)
        },
        receive_slots: 32,
        header_mode: mode,
        header_bytes: 1024,
        long: Some((1, 8000)),
        long_device: Some(DeviceBufferManager::new(region, 8192).unwrap()),
        ..Setup::default()
    };
    if let Some(rma) = &mut setup.net.rma {
        rma.max_bytes = 1000;
        if form == Form::Rdm {
            // As verbs beneath `ofi_rxm`: no other writes a device's memory there.
            rma.access_ends = AccessEnds::WithKey;
        }
    }
    setup
}

fn host_pool(rig: &Rig, slots: u32, size: usize) -> SharedBufferManager {
    let pool = SharedBufferManager::allocate(slots, size).unwrap();
    pool.region().register_with(rig.net.near()).unwrap();
    pool
}

fn host_payload(pool: &SharedBufferManager, len: usize, seed: usize) -> Payload {
    let mut buffer = pool.try_acquire().expect("free");
    buffer[..len].copy_from_slice(&pattern(len, seed));
    buffer.freeze(len).into()
}

#[test]
fn long_messages_land_in_a_devices_memory() {
    test("long_messages_land_in_a_devices_memory", || {
        let fake = Fake::load();
        let flushes = || fake.number("fake_cuda_flushes").unwrap();
        let long_header = vec![b'h'; 700];
        let modes: [(HeaderMode, &[u8], u64); 4] = [
            (HeaderMode::Fixed(4), b"head", 0),
            (HeaderMode::Prefixed, b"header", 8),
            (HeaderMode::Prefixed, &long_header, 702 % 256),
            (HeaderMode::Raw, b"", 0),
        ];
        for form in [Form::Msg, Form::Rdm] {
            for (mode, header, misaligned) in modes {
                let setup = device_pool_setup(form, DeviceSupport::default(), mode);
                let pool = setup.long_device.clone().unwrap();
                let mut rig = setup.connected();
                let host = host_pool(&rig, 1, 8192);
                for (key, len) in [(1, 101), (2, 7000), (3, 4096)] {
                    let payload = host_payload(&host, len, key);
                    rig.sender().send_data(payload, header, key as u64).unwrap();
                    let before = flushes();
                    let (sent, received) = settle(&mut rig);
                    assert_eq!(sent.iter().map(completed).collect::<Vec<_>>(), [key as u64]);
                    let Ok([ReceiveEvent::DeviceMessage(message)]) = <[_; 1]>::try_from(received)
                    else {
                        panic!("another event");
                    };
                    assert_eq!(message.header(), header);
                    assert_eq!(message.payload().address() % 256, misaligned);
                    let payload = message.into_payload();
                    let mut bytes = vec![0; payload.len()];
                    payload.copy_to_host(&mut bytes, &stream()).unwrap();
                    assert!(bytes == pattern(len, key), "{len} bytes: other content");
                    assert_eq!(flushes(), before + 1, "flushed once, before it was told of");
                    // The peer could write this message, and nothing else.
                    let offer = offered(&rig.net);
                    assert_eq!(offer.rights, Some(Access::WRITE));
                    assert_eq!(offer.len, len + header.len() + mode.overhead());
                    assert!(!is_open(offer.fd), "its window is closed");
                }
                assert_eq!(pool.free_count(), pool.slots());
            }
        }
    });
}

/// What the table says of providers that no machine of ours has, over the direct path: to the host,
/// and from there to a device.
#[test]
fn every_provider_of_the_table_takes_a_devices_memory() {
    test("every_provider_of_the_table_takes_a_devices_memory", || {
        for row in PROVIDERS.iter().filter(|row| row.refused.is_none()) {
            let terms = Terms {
                cuda_ipc: row.memory.cuda_ipc,
                offset_windows: row.memory.offset_windows,
                ..DeviceSupport::default().terms
            };
            let support = DeviceSupport {
                terms,
                ..DeviceSupport::default()
            };
            let shape = match Shape::for_iov_limit(row.iov_limit) {
                Shape::Iov => Shape::Iov,
                // A device's memory has no room for headers.
                _ => Shape::TwoMessages,
            };
            let net = NetConfig {
                device: Some(support),
                max_message: 4000,
                ..NetConfig::of(row)
            };
            let mut rig = Setup {
                net,
                shape: Some(shape),
                ..device_pool_setup(net.form, support, HeaderMode::Fixed(4))
            }
            .connected();
            let device = region(8192);
            let scope = rig
                .sender()
                .conn()
                .and_then(|conn| conn.registrar().map(|own| own.scope()));
            device.register_with(rig.net.near()).unwrap();
            // Where nothing ends what a peer may write, it writes no device's memory.
            let long = match row.access_ends(row.endpoints[0]) {
                AccessEnds::WithEndpoint => "host",
                _ => "device",
            };
            for (key, range, lands) in [(1, 3..200, "host"), (2, 5..6000, long)] {
                let slice = device.slice(range).unwrap();
                let payload = slice.clone().into();
                rig.sender().send_data(payload, b"head", key).unwrap();
                let (sent, received) = settle(&mut rig);
                assert_eq!(
                    sent.iter().map(completed).collect::<Vec<_>>(),
                    [key],
                    "{}",
                    row.name
                );
                assert_eq!(landed(&received), [lands], "{}", row.name);
                let came = match &received[0] {
                    ReceiveEvent::Message(message) => message.payload().to_vec(),
                    ReceiveEvent::DeviceMessage(message) => {
                        let mut bytes = vec![0; message.payload().len()];
                        let payload = message.payload();
                        payload.copy_to_host(&mut bytes, &stream()).unwrap();
                        bytes
                    }
                    other => panic!("{other:?}"),
                };
                assert!(came == bytes_of(&slice), "{}: other content", row.name);
            }
            // A window of such a provider is never a dmabuf.
            let windows = rig.net.offers();
            let lands = long == "device";
            let window = windows.iter().rfind(|offer| offer.rights.is_some());
            let by = match row.memory.offset_windows {
                true => DirectBy::Interface,
                false => DirectBy::DmaBuf,
            };
            assert_eq!(
                window.map(|offer| offer.by),
                lands.then_some(by),
                "{}",
                row.name
            );
            let scoped = scope.is_some_and(|scope| device.is_registered(scope));
            assert_eq!(scoped, row.memory.endpoint_scope, "{}", row.name);
        }
    });
}

fn landed(events: &[ReceiveEvent]) -> Vec<&'static str> {
    let kind = |event: &ReceiveEvent| match event {
        ReceiveEvent::Message(_) => Some("host"),
        ReceiveEvent::DeviceMessage(_) => Some("device"),
        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => Some("end"),
        _ => None,
    };
    events.iter().filter_map(kind).collect()
}

#[test]
fn what_the_provider_does_not_write_comes_to_the_host() {
    test("what_the_provider_does_not_write_comes_to_the_host", || {
        let refusing = DeviceSupport {
            dma_buf: false,
            interface: false,
            ..DeviceSupport::default()
        };
        for form in [Form::Msg, Form::Rdm] {
            let mut rig = device_pool_setup(form, refusing, HeaderMode::Fixed(4)).connected();
            let host = host_pool(&rig, 1, 8200);
            for (key, len) in [(1, 5000), (2, 300), (3, 8100)] {
                let payload = host_payload(&host, len, key);
                let header = b"head";
                rig.sender().send_data(payload, header, key as u64).unwrap();
                let (sent, received) = settle(&mut rig);
                if len > 8000 {
                    // The host's slots are shorter than the device's, and the message is longer
                    // than both are now.
                    assert!(matches!(sent[..], [SendEvent::Failed { .. }]), "{sent:?}");
                    continue;
                }
                let [ReceiveEvent::Message(message)] = &received[..] else {
                    panic!("{received:?}");
                };
                assert!(message.payload() == pattern(len, key), "another content");
            }
            // Asked once, by each way.
            assert_eq!(rig.net.offers().len(), 2);
        }
    });
}

#[test]
fn messages_wait_for_a_buffer_of_the_device() {
    test("messages_wait_for_a_buffer_of_the_device", || {
        for form in [Form::Msg, Form::Rdm] {
            let setup = device_pool_setup(form, DeviceSupport::default(), HeaderMode::Fixed(4));
            let pool = setup.long_device.clone().unwrap();
            let mut rig = setup.connected();
            let host = host_pool(&rig, 1, 8192);
            let taken: Vec<_> = std::iter::from_fn(|| pool.try_acquire()).collect();
            assert_eq!(taken.len(), pool.slots());
            let payload = host_payload(&host, 3000, 1);
            rig.sender().send_data(payload, b"head", 1).unwrap();
            let (sent, received) = settle(&mut rig);
            assert!(sent.is_empty() && received.is_empty(), "{received:?}");
            drop(taken);
            let (sent, received) = settle(&mut rig);
            assert_eq!((sent.len(), landed(&received)), (1, vec!["device"]));
        }
    });
}

#[test]
fn a_message_that_cant_be_made_visible_ends_its_connection() {
    test(
        "a_message_that_cant_be_made_visible_ends_its_connection",
        || {
            let fake = Fake::load();
            for call in ["cuFlushGPUDirectRDMAWrites", "cuMemcpyDtoHAsync"] {
                let setup =
                    device_pool_setup(Form::Msg, DeviceSupport::default(), HeaderMode::Fixed(4));
                let pool = setup.long_device.clone().unwrap();
                let mut rig = setup.connected();
                let host = host_pool(&rig, 1, 8192);
                let payload = host_payload(&host, 3000, 1);
                rig.sender().send_data(payload, b"head", 1).unwrap();
                // The net's own look at the memory, when it is offered, comes first.
                let skip = i32::from(call == "cuMemcpyDtoHAsync");
                fake.fail_after(call, 700, skip);
                let (_, received) = settle(&mut rig);
                assert_eq!(landed(&received), ["end"], "{call}: {received:?}");
                assert_eq!(pool.free_count(), pool.slots());
            }
        },
    );
}

#[test]
fn a_peer_that_goes_in_the_middle_leaves_a_buffer_behind() {
    test(
        "a_peer_that_goes_in_the_middle_leaves_a_buffer_behind",
        || {
            for form in [Form::Msg, Form::Rdm] {
                let setup = device_pool_setup(form, DeviceSupport::default(), HeaderMode::Fixed(4));
                let pool = setup.long_device.clone().unwrap();
                let mut rig = setup.connected();
                let host = host_pool(&rig, 1, 8192);
                let payload = host_payload(&host, 3000, 1);
                rig.sender().send_data(payload, b"head", 1).unwrap();
                while pool.free_count() == pool.slots() {
                    rig.net.deliver(1);
                    rig.receiver().wait().wake();
                    rig.receiver().poll(&mut Vec::new()).unwrap();
                    rig.sender().wait().wake();
                    rig.sender().poll(&mut Vec::new()).unwrap();
                }
                let fd = offered(&rig.net).fd;
                assert!(is_open(fd), "the peer may write");
                let far = rig.far_conn();
                rig.sender = None;
                rig.net.flush(far, libc::ECONNRESET);
                rig.net.shut_down(far);
                let mut received = Vec::new();
                for _ in 0..8 {
                    rig.receiver().wait().wake();
                    rig.receiver().poll(&mut received).unwrap();
                }
                if form == Form::Msg {
                    assert_eq!(landed(&received), ["end"]);
                    assert_eq!(pool.free_count(), pool.slots());
                }
                rig.receiver = None;
                assert_eq!(pool.free_count(), pool.slots());
                assert!(!is_open(fd));
                rig.net.check();
            }
        },
    );
}

// ---- windows ------------------------------------------------------------------------------------

#[test]
fn what_peers_write_and_what_is_read_is_flushed_before_it_is_told_of() {
    test(
        "what_peers_write_and_what_is_read_is_flushed_before_it_is_told_of",
        || {
            let fake = Fake::load();
            let flushes = || fake.number("fake_cuda_flushes").unwrap();
            let mut setup = Setup {
                net: net(DeviceSupport::default()),
                receive_slots: 32,
                ..Setup::default()
            };
            setup.windows.windows = 2;
            let mut rig = setup.connected();
            let connection = rig.said.iter().find_map(|event| match event {
                ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                    Some(*connection)
                }
                _ => None,
            });
            let connection = connection.expect("connected");
            let (near, far) = (region(8192), region(8192));
            near.register_with(rig.net.near()).unwrap();
            let exposed = far.slice(4095..8192).unwrap();
            let rights = Access::READ | Access::WRITE;
            let memory = exposed.clone().into();
            let window = rig.receiver().expose(connection, memory, rights).unwrap();
            let remote = rig.sender().open_window(&window.descriptor()).unwrap();

            // A write tells nobody, with data the peer: what came is visible then.
            let slice = near.slice(7..107).unwrap();
            fill(&slice, 3);
            let write = |rig: &mut Rig, data| {
                let payload = slice.clone().into();
                let sender = rig.sender();
                sender
                    .write(payload, remote.at(5), data, Level::Delivered, 1)
                    .unwrap();
            };
            write(&mut rig, None);
            settle(&mut rig);
            assert_eq!(flushes(), 0, "nobody was told");
            write(&mut rig, Some(9));
            let (_, received) = settle(&mut rig);
            let wrote = |event: &ReceiveEvent| {
                matches!(
                    event,
                    ReceiveEvent::Window {
                        event: WindowEvent::PeerWrote { data: 9, .. },
                        ..
                    }
                )
            };
            assert!(received.iter().any(wrote), "{received:?}");
            assert_eq!(flushes(), 1);
            assert!(
                bytes_of(&exposed)[5..105] == pattern(100, 3),
                "other content"
            );

            let into = near.slice(4000..4100).unwrap();
            rig.sender()
                .read(into.clone().into(), remote.at(0), 2)
                .unwrap();
            let (sent, _) = settle(&mut rig);
            let [SendEvent::Window(WindowEvent::Read { key: 2, .. })] = &sent[..] else {
                panic!("{sent:?}");
            };
            assert_eq!(flushes(), 2);
            assert!(
                bytes_of(&into) == bytes_of(&exposed)[..100],
                "other content"
            );

            // What can't be made visible has failed.
            fake.fail("cuFlushGPUDirectRDMAWrites", 700);
            rig.sender().read(into.into(), remote.at(0), 3).unwrap();
            let (sent, _) = settle(&mut rig);
            let failed = matches!(
                sent[..],
                [SendEvent::Window(WindowEvent::ReadFailed { key: 3, .. })]
            );
            assert!(failed, "{sent:?}");
            fake.fail("cuFlushGPUDirectRDMAWrites", 700);
            write(&mut rig, Some(9));
            let (_, received) = settle(&mut rig);
            assert!(!received.iter().any(wrote), "{received:?}");
            assert_eq!(landed(&received), ["end"]);
        },
    );
}
