//! Long messages that are to land in a GPU's memory by themselves: over tcp, which never writes
//! there.

use std::time::{Duration, Instant};

use fabricast::buffer::{DeviceBufferManager, SharedBufferManager};
use fabricast::endpoint::{DeviceDelivery, LongMessages, ReceiveConfig, SendConfig};
use fabricast::{Fabric, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent};

use super::fake::on_gpu;
use crate::pattern::pattern;

const LIMIT: Duration = Duration::from_secs(60);
const LONG: usize = 300_000;

fn device_pool(bytes: usize) -> DeviceBufferManager {
    let region = Region::device(bytes).build().expect("device memory");
    DeviceBufferManager::new(region, bytes).expect("a pool")
}

fn long_messages(device: DeviceBufferManager) -> LongMessages {
    let host = SharedBufferManager::allocate(1, LONG + 64).expect("a pool");
    LongMessages::new(host).on_device(device)
}

#[test]
fn what_cant_land_there_by_itself_is_copied() {
    let test = "landing::what_cant_land_there_by_itself_is_copied";
    on_gpu(test, &[], |gpu| {
        let stream = gpu.stream();
        let opened = Fabric::builder().provider("tcp").node("127.0.0.1").open();
        let domain = match opened {
            Ok(fabric) => fabric.open_domain().expect("a domain"),
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(4096).slots(24).credits(8))
            .connection(|c| c.max_connections(1));
        let any = || "127.0.0.1:0".parse().expect("an address");
        let pool = device_pool(LONG + 64);
        let twice = config
            .clone()
            .incoming(|i| i.long_messages(long_messages(pool.clone())))
            .incoming(|incoming| incoming.deliver_to(DeviceDelivery::new(pool.clone())));
        let refused =
            ReceiveEndpoint::listen(&domain, any(), twice).expect_err("one pool for both");
        assert!(refused.to_string().contains("deliver_to"), "{refused}");

        let config = config
            .incoming(|i| i.long_messages(long_messages(device_pool(LONG + 64))))
            .incoming(|incoming| incoming.deliver_to(DeviceDelivery::new(pool)));
        let mut receiver = ReceiveEndpoint::listen(&domain, any(), config).expect("listens");
        let at = receiver.local_addr();
        let mut sender =
            SendEndpointZeroCopy::connect(&domain, at, SendConfig::default()).expect("begins");
        let host = SharedBufferManager::allocate(1, LONG).expect("a pool");
        host.region().register(&domain).expect("registered");
        let mut buffer = host.try_acquire().expect("free");
        buffer.copy_from_slice(&pattern(LONG, 5));
        let mut payload = Some(buffer.freeze(LONG));
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let until = Instant::now() + LIMIT;
        let message = loop {
            assert!(Instant::now() < until, "{sent:?} {received:?}");
            sender.poll(&mut sent).expect("polls");
            receiver.poll(&mut received).expect("polls");
            if sender.is_connected()
                && let Some(payload) = payload.take()
            {
                sender.send_data(payload, b"head", 1).expect("taken");
            }
            let arrived = received.drain(..).find_map(|event| match event {
                ReceiveEvent::DeviceMessage(message) => Some(message),
                ReceiveEvent::Message(_) => panic!("not copied"),
                _ => None,
            });
            if let Some(message) = arrived {
                break message;
            }
        };
        assert_eq!(message.header(), b"head");
        let mut bytes = vec![0; LONG];
        let payload = message.into_payload();
        payload.copy_to_host(&mut bytes, &stream).expect("copied");
        assert!(bytes == pattern(LONG, 5), "other content");
        while !sent
            .iter()
            .any(|event| matches!(event, SendEvent::Completed { key: 1, .. }))
        {
            assert!(Instant::now() < until, "{sent:?}");
            sender.poll(&mut sent).expect("polls");
            receiver.poll(&mut received).expect("polls");
        }
    });
}
