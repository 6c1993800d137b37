//! Tokens: the cases that other implementations are tested with, the limits, round trips.

use proptest::prelude::*;

use super::*;

/// As another implementation writes it.
const VECTOR: &str = "7f0012345000:c00000:ofi1:verbs;ofi_rxm:020012340a00000100ff:deadbeef";

fn error(text: &str) -> TokenError {
    text.parse::<RdmaToken>().expect_err(text)
}

/// A token with one of its fields replaced.
fn with(at: usize, field: &str) -> String {
    let mut fields: Vec<&str> = VECTOR.split(':').collect();
    fields[at] = field;
    fields.join(":")
}

#[test]
fn the_token_of_others_is_read_and_written_as_they_do() {
    let token: RdmaToken = VECTOR.parse().unwrap();
    assert_eq!(token.base(), 0x7f00_1234_5000);
    assert_eq!(token.len(), 0x00c0_0000);
    assert_eq!(token.provider(), "verbs;ofi_rxm");
    let name = [2, 0, 0x12, 0x34, 10, 0, 0, 1, 0, 0xff];
    assert_eq!(token.name(), name);
    assert_eq!(token.key(), 0xdead_beef);
    assert_eq!(token.to_string(), VECTOR);
    let made = RdmaToken::new(
        0x7f00_1234_5000,
        0x00c0_0000,
        "verbs;ofi_rxm",
        &name,
        0xdead_beef,
    );
    assert_eq!(made, Ok(token));
}

#[test]
fn a_name_of_384_digits_is_the_longest() {
    let token: RdmaToken = with(4, &"a5".repeat(192)).parse().unwrap();
    assert_eq!(token.name(), [0xa5; RdmaToken::NAME_MAX]);
    let long = error(&with(4, &"a5".repeat(193)));
    assert_eq!(long, TokenError::NameTooLong { len: 193 });
}

#[test]
fn names_of_providers_are_taken_as_they_come() {
    for provider in ["rxm.1", "xnet.1", "tcp;ofi_rxm", "net", "shm", "a-b_c/d+"] {
        let token: RdmaToken = with(3, provider).parse().unwrap();
        assert_eq!(token.provider(), provider);
    }
}

#[test]
fn what_is_malformed_is_refused_and_it_is_said_where() {
    use TokenError as E;
    use TokenField as F;
    let character = |field, at, found| E::Character { field, at, found };
    for (text, expected) in [
        (String::new(), E::Empty),
        (format!("{VECTOR}:"), E::Fields { found: 7 }),
        (format!("{VECTOR}:0"), E::Fields { found: 7 }),
        ("0:1:ofi1:tcp:02".to_owned(), E::Fields { found: 5 }),
        ("0:1:ofi1".to_owned(), E::Fields { found: 3 }),
        ("0:1".to_owned(), E::Fields { found: 2 }),
        ("ofi1".to_owned(), E::Fields { found: 1 }),
        (with(0, ""), E::Missing { field: F::Base }),
        (with(1, ""), E::Missing { field: F::Len }),
        (with(3, ""), E::Missing { field: F::Provider }),
        (with(4, ""), E::Missing { field: F::Name }),
        (with(5, ""), E::Missing { field: F::Key }),
        (with(4, "020"), E::OddName { digits: 3 }),
        (with(4, "02zz"), character(F::Name, 2, 'z')),
        (with(4, "0x02"), character(F::Name, 1, 'x')),
        (with(3, "verbs ofi"), character(F::Provider, 5, ' ')),
        (with(3, "v\u{e9}"), character(F::Provider, 1, '\u{e9}')),
        (with(3, "tcp\0"), character(F::Provider, 3, '\0')),
        (with(0, "+1"), character(F::Base, 0, '+')),
        (with(0, " 1"), character(F::Base, 0, ' ')),
        (with(1, "-1"), character(F::Len, 0, '-')),
        (with(5, "1_0"), character(F::Key, 1, '_')),
        (format!("{VECTOR}\n"), character(F::Key, 8, '\n')),
        (
            with(1, "0"),
            E::Window {
                base: 0x7f00_1234_5000,
                len: 0,
            },
        ),
        (
            with(0, "ffffffffffffffff"),
            E::Window {
                base: u64::MAX,
                len: 0x00c0_0000,
            },
        ),
    ] {
        assert_eq!(error(&text), expected, "{text}");
    }
}

#[test]
fn a_number_has_16_digits_at_most() {
    for (at, field) in [
        (0, TokenField::Base),
        (1, TokenField::Len),
        (5, TokenField::Key),
    ] {
        let long = error(&with(at, "00000000000000001"));
        assert_eq!(long, TokenError::TooManyDigits { field, found: 17 });
    }
    let token: RdmaToken = with(5, "ffffffffffffffff").parse().unwrap();
    assert_eq!(token.key(), u64::MAX);
}

#[test]
fn a_text_has_512_characters_at_most() {
    let room = RdmaToken::TEXT_MAX - with(3, "").len();
    let longest = with(3, &"p".repeat(room));
    assert_eq!(longest.len(), 512);
    let token: RdmaToken = longest.parse().unwrap();
    assert_eq!(token.to_string(), longest);
    let long = error(&with(3, &"p".repeat(room + 1)));
    assert_eq!(long, TokenError::TooLong { len: 513 });
    // Whatever it is, it is not looked at.
    assert_eq!(error(&":".repeat(9999)), TokenError::TooLong { len: 9999 });
    let made = RdmaToken::new(1, 1, &"p".repeat(500), &[1], 1);
    assert_eq!(made, Err(TokenError::TooLong { len: 514 }));
}

#[test]
fn tokens_of_others_are_refused_by_name() {
    let uet = |found: &str| TokenError::Uet {
        found: found.into(),
    };
    let version = |found: &str| TokenError::Version {
        found: found.into(),
    };
    let format = |found: &str| TokenError::Format {
        found: found.into(),
    };
    let dc = "00007f0012345000:00c00000:0012ab34:0001:00beef:1:\
              fe80000000000000506b4b0300a1b2c3";
    assert_eq!(dc.len(), 81);
    for (text, expected) in [
        (dc, TokenError::CuObject),
        (&dc.to_uppercase(), TokenError::CuObject),
        ("0:100000:uet1:10.88.0.30:1234", uet("uet1")),
        ("0:100000:uet2", uet("uet2")),
        (&with(2, "ofi2"), version("ofi2")),
        (&with(2, "ofi10"), version("ofi10")),
        (&with(2, "ofi0"), version("ofi0")),
        (&with(2, "ofi1b"), version("ofi1b")),
        ("0:1:ofi2:x", version("ofi2")),
        ("ofi2:x", version("ofi2")),
        (&with(2, "ofi"), format("ofi")),
        (&with(2, "OFI1"), format("OFI1")),
        (&with(2, ""), format("")),
        (&with(2, "tcp"), format("tcp")),
        (&with(2, &"\u{e9}".repeat(99)), format(&"\u{e9}".repeat(16))),
        // One digit less is no token of cuObject's, and none of ours.
        (&dc[1..], format("0012ab34")),
        (&dc[..80], format("0012ab34")),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn errors_say_what_where_the_limit_and_what_to_do() {
    for (text, needed) in [
        (with(3, "a b"), &["' ' at 1", "provider", "spaces"][..]),
        (with(5, &"f".repeat(17)), &["17", "key", "16", "64 bits"]),
        (with(4, &"00".repeat(200)), &["200", "192", "name"]),
        (with(3, &"p".repeat(600)), &["512", "characters"]),
        (with(2, "ofi2"), &["\"ofi2\"", "ofi1", "newer"]),
        (with(2, "uet1"), &["\"uet1\"", "ofi1", "in band"]),
        (format!("{VECTOR}:"), &["7 fields", "6"]),
    ] {
        let said = error(&text).to_string();
        for part in needed {
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        }
    }
}

#[test]
fn other_ways_to_write_a_number_are_read_and_not_written() {
    let token: RdmaToken = VECTOR.parse().unwrap();
    let upper = VECTOR
        .replace("deadbeef", "DEADBEEF")
        .replace("0a00", "0A00");
    let zeros = with(0, "00007f0012345000").replace("c00000", "0000000000c00000");
    for text in [upper, zeros] {
        let read: RdmaToken = text.parse().unwrap();
        assert_eq!(read, token, "{text}");
        assert_eq!(read.to_string(), VECTOR);
    }
    let zero = RdmaToken::new(0, 1, "tcp", &[0], 0).unwrap();
    assert_eq!(zero.to_string(), "0:1:ofi1:tcp:00:0");
}

#[test]
fn fields_that_make_no_token_are_refused_where_they_come_from_us_too() {
    use TokenError as E;
    use TokenField as F;
    let new = |base, len, provider, name: &[u8]| {
        let made = RdmaToken::new(base, len, provider, name, 7);
        made.expect_err("no token")
    };
    let (at, found) = (1, ':');
    let field = F::Provider;
    for (error, expected) in [
        (new(0, 0, "tcp", &[1]), E::Window { base: 0, len: 0 }),
        (
            new(u64::MAX, 1, "tcp", &[1]),
            E::Window {
                base: u64::MAX,
                len: 1,
            },
        ),
        (new(0, 1, "", &[1]), E::Missing { field }),
        (new(0, 1, "a:b", &[1]), E::Character { field, at, found }),
        (new(0, 1, "tcp", &[]), E::Missing { field: F::Name }),
        (new(0, 1, "tcp", &[1; 193]), E::NameTooLong { len: 193 }),
    ] {
        assert_eq!(error, expected);
    }
    assert!(RdmaToken::new(u64::MAX - 1, 1, "tcp", &[1], 7).is_ok());
    assert!(RdmaToken::new(0, u64::MAX, "tcp", &[1], 7).is_ok());
}

#[test]
fn a_part_is_addressed_from_its_own_start_and_stays_inside() {
    let token = RdmaToken::new(0x1000, 100, "tcp", &[1, 2], 9).unwrap();
    let part = token.part(10..30).unwrap();
    assert_eq!(part.to_string(), "100a:14:ofi1:tcp:0102:9");
    assert_eq!(part.part(5..6).unwrap().base(), 0x100f);
    assert_eq!(token.part(0..100), Ok(token.clone()));
    let len = 100;
    let backwards = (30, 10);
    for (start, end) in [(0, 0), (100, 100), (99, 101), (0, u64::MAX), backwards] {
        let refused = token.part(start..end);
        assert_eq!(refused, Err(TokenError::Part { start, end, len }));
    }
}

#[test]
fn a_key_is_in_no_log() {
    let token: RdmaToken = VECTOR.parse().unwrap();
    let debug = format!("{token:?}");
    let key = token.key();
    for text in ["deadbeef".to_owned(), key.to_string(), format!("{key:X}")] {
        assert!(!debug.contains(&text), "{debug}");
    }
    assert!(debug.contains("verbs;ofi_rxm"), "{debug}");
}

prop_compose! {
    fn tokens()(
        base in any::<u64>(),
        len in 1..=u64::MAX,
        provider in "[!-9;-~]{1,71}",
        name in proptest::collection::vec(any::<u8>(), 1..=192),
        key in any::<u64>(),
        small in 0..64u32,
    ) -> RdmaToken {
        let (base, key) = (base >> small, key >> small);
        let len = len.min(u64::MAX - base).max(1);
        RdmaToken::new(base.min(u64::MAX - 1), len, &provider, &name, key).expect("a token")
    }
}

proptest! {
    #[test]
    fn a_token_survives_its_text(token in tokens(), format in any::<u8>()) {
        let text = token.to_string();
        prop_assert_eq!(text.parse(), Ok(token.clone()));
        prop_assert!(text.len() <= RdmaToken::TEXT_MAX);
        let exactly: RdmaToken = text.to_uppercase().replace("OFI1", "ofi1").parse().unwrap();
        prop_assert_eq!(exactly.name(), token.name());
        exercise(&[&[format], text.as_bytes()].concat());
    }

    #[test]
    fn no_text_panics(format in any::<u8>(), text in "\\PC{0,600}") {
        exercise(&[&[format], text.as_bytes()].concat());
    }

    #[test]
    fn no_text_that_is_nearly_one_panics(
        format in any::<u8>(),
        token in tokens(),
        at in any::<prop::sample::Index>(),
        patch in "[0-9a-f:;+ \u{e9}]{0,3}",
        cut in 0..4usize,
    ) {
        let mut text = token.to_string();
        let at = at.index(text.len());
        let end = (at + cut).min(text.len());
        text.replace_range(at..end, &patch);
        exercise(&[&[format], text.as_bytes()].concat());
        // What is taken differs from what is written in zeros and in case only.
        if let Ok(read) = text.parse::<RdmaToken>() {
            let plain = |text: &str| -> Vec<String> {
                let (numbers, others): (Vec<_>, Vec<_>) =
                    text.split(':').enumerate().partition(|(at, _)| [0, 1, 5].contains(at));
                let number = |(_, digits): (usize, &str)| {
                    digits.trim_start_matches('0').to_lowercase()
                };
                let numbers = numbers.into_iter().map(number);
                numbers.chain(others.into_iter().map(|(_, text)| text.to_owned())).collect()
            };
            prop_assert_eq!(plain(&text), plain(&read.to_string()));
        }
    }
}
