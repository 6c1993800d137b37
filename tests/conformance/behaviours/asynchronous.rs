//! A conversation of futures: sends resolve to their payloads, messages come one by one.

use fabricast::endpoint::CloseReason;
use fabricast::future::{AsyncSendEndpoint, Events, Executor};
use fabricast::{ReceiveEndpoint, SendEndpointZeroCopy};

use crate::common::{SOON, after, buffer, child, pattern, pool};
use crate::on::On;
use crate::receiver::listen;
use crate::sender::config;
use crate::table::Shown;
use crate::told::Told;

const SIZES: [usize; 3] = [1, 3000, 100_000];

pub(crate) fn one_round_trip(on: &On) -> Shown {
    let (mut receiver, addr) = on.listener("async receive", "peers=1 slots=20 depth=4");
    let mut sender = on.sender("async send", &addr, "");
    assert_eq!(sender.expect("resolved", 2 * SOON), SIZES.len().to_string());
    sender.finish(SOON);
    receiver.finish(SOON);
    Shown::Works
}

pub(crate) fn receive(told: &Told) {
    let domain = told.domain();
    let receiver: ReceiveEndpoint = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let executor = Executor::new().expect("an executor");
    let mut receiver = Events::new(receiver, &executor).expect("watched");
    executor.block_on(async {
        for (i, len) in SIZES.into_iter().enumerate() {
            let message = receiver
                .next_message()
                .await
                .expect("no end")
                .expect("no error");
            assert_eq!(message.header(), (i as u64).to_le_bytes());
            assert!(message.payload() == pattern(i as u64, len), "message {i}");
        }
        receiver.close(after(SOON)).await;
    });
}

pub(crate) fn send(told: &Told) {
    let domain = told.domain();
    let pool = pool(&domain, 4, 100_000);
    let executor = Executor::new().expect("an executor");
    let endpoint = SendEndpointZeroCopy::connect(&domain, told.to(), config(told)).expect("begins");
    let sender = AsyncSendEndpoint::new(endpoint, &executor).expect("watched");
    let reason = executor.block_on(async {
        for (i, len) in SIZES.into_iter().enumerate() {
            let number = i as u64;
            let payload = buffer(&pool, &pattern(number, len));
            let back = sender
                .send(payload, &number.to_le_bytes())
                .await
                .expect("sent");
            assert_eq!(back.len_bytes(), len);
        }
        sender.close(after(SOON)).await
    });
    assert_eq!(reason, CloseReason::Finished);
    child::tell(format!("resolved {}", SIZES.len()));
}
