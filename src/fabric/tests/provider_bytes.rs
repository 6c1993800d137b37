//! Addresses as providers say them: what `fi_getname` gives comes back, and nothing else is taken.

#![allow(unsafe_code)]

use proptest::prelude::*;

use super::super::info::{ProviderAddress, read_provider_address};
use super::*;

fn addr(text: &str) -> PeerAddr {
    text.parse().expect(text)
}

/// Each form of address, with the formats that have it.
fn rows() -> [(PeerAddr, &'static [u32]); 4] {
    [
        (
            addr("127.0.0.1:7471"),
            &[sys::FI_SOCKADDR_IN, sys::FI_SOCKADDR, sys::FI_FORMAT_UNSPEC],
        ),
        (
            addr("[fe80::1]:80"),
            &[
                sys::FI_SOCKADDR_IN6,
                sys::FI_SOCKADDR,
                sys::FI_FORMAT_UNSPEC,
            ],
        ),
        (addr("fi_shm://12:0:3"), &[sys::FI_ADDR_STR]),
        (
            addr("hex:00fe07"),
            &[
                sys::FI_SOCKADDR_IB,
                sys::FI_ADDR_IB_UD,
                sys::FI_ADDR_EFA,
                sys::FI_ADDR_PSMX2,
                sys::FI_ADDR_PSMX3,
                sys::FI_ADDR_OPX,
                sys::FI_ADDR_CXI,
            ],
        ),
    ]
}

#[test]
fn every_form_comes_back_in_its_own_formats_and_in_no_other() {
    // One more than the last that is known.
    for format in 0..=sys::FI_ADDR_UCX + 1 {
        for (addr, good) in rows() {
            let bytes = addr.to_provider_bytes().unwrap();
            let back = PeerAddr::from_provider_bytes(format, &bytes);
            let raw = rows()[3].1.contains(&format);
            let expected = match good.contains(&format) {
                true => Some(addr),
                // There any bytes are a name.
                false if raw => PeerAddr::from_raw(&bytes),
                false => None,
            };
            assert_eq!(back, expected, "{format} {addr}");
        }
    }
    assert_eq!(PeerAddr::any().to_provider_bytes(), None);
}

#[test]
fn the_bytes_are_those_that_a_provider_is_given() {
    for (addr, formats) in rows() {
        let given = ProviderAddress::new(&addr).unwrap();
        let bytes = addr.to_provider_bytes().unwrap();
        // SAFETY: the storage is longer than every address, all of it was written, and it lives.
        let storage =
            unsafe { std::slice::from_raw_parts(given.as_ptr().cast::<u8>(), bytes.len()) };
        assert_eq!(bytes, storage, "{addr}");
        // SAFETY: so many bytes are there.
        let read = unsafe { read_provider_address(formats[0], bytes.as_ptr(), bytes.len()) };
        assert_eq!(read, Some(addr));
    }
}

#[test]
fn the_bytes_of_the_two_that_are_most_used() {
    let bytes = addr("10.0.0.2:258").to_provider_bytes().unwrap();
    let family = (libc::AF_INET as u16).to_ne_bytes();
    assert_eq!(bytes[..2], family);
    assert_eq!(bytes[2..], [1, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    let bytes = addr("a://b").to_provider_bytes().unwrap();
    assert_eq!(bytes, b"a://b\0");
}

#[test]
fn what_is_cut_or_too_long_is_nobody() {
    for (addr, formats) in &rows()[..3] {
        let bytes = addr.to_provider_bytes().unwrap();
        for &format in *formats {
            for end in 0..bytes.len() {
                let cut = PeerAddr::from_provider_bytes(format, &bytes[..end]);
                assert_eq!(cut, None, "{format} {addr} cut at {end}");
            }
            let long = [&bytes[..], &[7]].concat();
            assert_eq!(PeerAddr::from_provider_bytes(format, &long), None, "{addr}");
        }
    }
    let raw = PeerAddr::from_provider_bytes(sys::FI_ADDR_EFA, &[1; 64]);
    assert_eq!(raw, PeerAddr::from_raw(&[1; 64]));
    for bytes in [&[][..], &[1; 65], &[1; 192]] {
        let raw = PeerAddr::from_provider_bytes(sys::FI_ADDR_EFA, bytes);
        assert_eq!(raw, None);
    }
}

#[test]
fn an_address_of_another_family_is_refused() {
    let v4 = addr("127.0.0.1:1").to_provider_bytes().unwrap();
    let v6 = addr("[::1]:1").to_provider_bytes().unwrap();
    for family in [libc::AF_UNSPEC, libc::AF_UNIX, libc::AF_IB, 0xffff] {
        for mut bytes in [v4.clone(), v6.clone()] {
            bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            let found = PeerAddr::from_provider_bytes(sys::FI_SOCKADDR, &bytes);
            assert_eq!(found, None, "{family}");
        }
    }
    // The family of the one, and the length of the other.
    let long = [&v4[..], &[0; IPV6_LEN - IPV4_LEN]].concat();
    for bytes in [&long[..], &v6[..IPV4_LEN]] {
        let found = PeerAddr::from_provider_bytes(sys::FI_SOCKADDR, bytes);
        assert_eq!(found, None);
    }
}

#[test]
fn what_names_nobody_is_not_taken() {
    let nobody = [
        "0.0.0.0:1",
        "127.0.0.1:0",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "[::]:1",
        "[::1]:0",
        "[ff02::1]:1",
    ];
    for text in nobody {
        let bytes = addr(text).to_provider_bytes().unwrap();
        let found = PeerAddr::from_provider_bytes(sys::FI_SOCKADDR, &bytes);
        assert_eq!(found, None, "{text}");
    }
}

#[test]
fn a_text_ends_with_one_0_or_more_and_has_a_scheme() {
    let text = |bytes: &[u8]| PeerAddr::from_provider_bytes(sys::FI_ADDR_STR, bytes);
    let good = Some(addr("fi_shm://12:0:3"));
    assert_eq!(text(b"fi_shm://12:0:3\0"), good);
    assert_eq!(text(b"fi_shm://12:0:3\0\0\0"), good);
    for bad in [
        &b""[..],
        b"\0",
        b"fi_shm://12:0:3",
        b"fi_shm://12:0:3\0x",
        b"fi_shm://12 0\0",
        b"fi_shm://\xff\0",
        b"127.0.0.1:80\0",
        b"hex://1\0",
        b"any\0",
    ] {
        assert_eq!(text(bad), None, "{bad:?}");
    }
    let long = [&b"fi_shm://"[..], &[b'1'; 56], &[0]].concat();
    assert_eq!(text(&long), None);
}

#[test]
fn a_scope_is_said_and_not_taken_over() {
    let bytes = addr("[fe80::1%7]:80").to_provider_bytes().unwrap();
    assert_eq!(bytes[SCOPE_AT..], 7u32.to_ne_bytes());
    let found = PeerAddr::from_provider_bytes(sys::FI_SOCKADDR_IN6, &bytes);
    assert_eq!(found, Some(addr("[fe80::1]:80")));
}

proptest! {
    #[test]
    fn no_bytes_panic_and_what_is_taken_is_right(
        format in 0..=sys::FI_ADDR_UCX + 1,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        exercise(format, &bytes);
    }

    #[test]
    fn bytes_that_are_nearly_right(
        row in 0..4usize,
        format in 0..=sys::FI_ADDR_UCX + 1,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = rows()[row].0.to_provider_bytes().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        exercise(format, &bytes);
    }
}
