//! Misuse that does not compile: one file of `tests/ui` each, with what the compiler says.

use fabricast::{ReceiveEndpoint, SendEndpointZeroCopy};

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

/// Has one implementation for every type, and a second for those that are `Sync`.
trait OneUnlessSync<Which> {
    const NAMED: bool = true;
}

impl<T: ?Sized> OneUnlessSync<()> for T {}
impl<T: ?Sized + Sync> OneUnlessSync<u8> for T {}

/// Not a file of `tests/ui`, because the compiler's answer would name every private field on the way.
#[test]
fn endpoints_move_between_threads_and_are_not_shared() {
    fn is_send(_: Option<impl Send>) -> bool {
        true
    }
    assert!(is_send(None::<SendEndpointZeroCopy>) && is_send(None::<ReceiveEndpoint>));
    // The compiler could not tell which `_` is meant, and would refuse, if these were Sync.
    let named = [
        <SendEndpointZeroCopy as OneUnlessSync<_>>::NAMED,
        <ReceiveEndpoint as OneUnlessSync<_>>::NAMED,
    ];
    assert_eq!(named, [true, true]);
}
