//! `Checks`: what a client says of an object's content, compared with what came.
//!
//! And what it says that is not kept here: such a request is refused, by the field's name.

use std::fmt::Write;

use crc_fast::CrcAlgorithm;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, HeaderMap, HeaderName};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// What a field of a request asks to be compared.
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
const ALGORITHM: HeaderName = HeaderName::from_static("x-amz-sdk-checksum-algorithm");
const CHECKSUM: &str = "x-amz-checksum-";

/// The checksums of objects, by the end of their field's name.
const CHECKSUMS: [(HeaderName, fn() -> Sum); 5] = [
    (HeaderName::from_static("x-amz-checksum-crc32"), || {
        Sum::crc(CrcAlgorithm::Crc32IsoHdlc, 4)
    }),
    (HeaderName::from_static("x-amz-checksum-crc32c"), || {
        Sum::crc(CrcAlgorithm::Crc32Iscsi, 4)
    }),
    (HeaderName::from_static("x-amz-checksum-crc64nvme"), || {
        Sum::crc(CrcAlgorithm::Crc64Nvme, 8)
    }),
    (HeaderName::from_static("x-amz-checksum-sha1"), || {
        Sum::Sha1(Sha1::new())
    }),
    (HeaderName::from_static("x-amz-checksum-sha256"), || {
        Sum::Sha256(Sha256::new())
    }),
];

/// Fields of Amazon's that a request to put may have: they are about the request, or understood.
const UNDERSTOOD: [&str; 7] = [
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-rdma-token",
    "x-amz-request-payer",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-security-token",
    "x-amz-user-agent",
];

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    /// What the error is called in S3.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Refused {
    fn bad(code: &'static str, message: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            code,
            message,
        }
    }

    fn not_here(message: String) -> Self {
        Self {
            status: StatusCode::NOT_IMPLEMENTED,
            code: "NotImplemented",
            message,
        }
    }
}

/// A sum that grows with the bytes.
enum Sum {
    Crc(crc_fast::Digest, usize),
    Md5(Md5),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Sum {
    /// Of so many bytes.
    fn crc(algorithm: CrcAlgorithm, len: usize) -> Self {
        Self::Crc(crc_fast::Digest::new(algorithm), len)
    }

    /// How many bytes it has.
    fn len(&self) -> usize {
        match self {
            Self::Crc(_, len) => *len,
            Self::Md5(_) => 16,
            Self::Sha1(_) => 20,
            Self::Sha256(_) => 32,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(sum, _) => sum.update(bytes),
            Self::Md5(sum) => sum.update(bytes),
            Self::Sha1(sum) => sum.update(bytes),
            Self::Sha256(sum) => sum.update(bytes),
        }
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Crc(sum, len) => sum.finalize().to_be_bytes()[8 - len..].to_vec(),
            Self::Md5(sum) => sum.finalize().to_vec(),
            Self::Sha1(sum) => sum.finalize().to_vec(),
            Self::Sha256(sum) => sum.finalize().to_vec(),
        }
    }
}

/// One comparison.
struct Check {
    field: HeaderName,
    said: Vec<u8>,
    sum: Sum,
}

impl Check {
    /// Reads a field's value, which stands once. `None`: it is no such sum.
    fn read(
        headers: &HeaderMap,
        field: &HeaderName,
        sum: Sum,
        decode: fn(&str) -> Option<Vec<u8>>,
    ) -> Option<Self> {
        let mut values = headers.get_all(field).iter();
        let said = decode(values.next()?.to_str().ok()?.trim())?;
        let is_one = values.next().is_none() && said.len() == sum.len();
        let field = field.clone();
        is_one.then_some(Self { field, said, sum })
    }
}

/// All comparisons of an object.
#[derive(Default)]
pub(crate) struct Checks(Vec<Check>);

impl Checks {
    /// Reads what a request to put asks for. Its body is empty where the content comes by token:
    /// then what is said of the body is compared at once, and what is said of the object later.
    ///
    /// # Errors
    /// What can't be compared, and what is not kept.
    pub(crate) fn of(headers: &HeaderMap, is_by_token: bool) -> Result<Self, Refused> {
        refuse_what_is_not_kept(headers)?;
        let (mut of_body, mut of_object) = (Vec::new(), Vec::new());
        if headers.contains_key(CONTENT_MD5) {
            let check = Check::read(headers, &CONTENT_MD5, Sum::Md5(Md5::new()), from_base64);
            let message = "Content-MD5 is no MD5 in base64";
            of_body.push(check.ok_or_else(|| Refused::bad("InvalidDigest", message.to_owned()))?);
        }
        let text = |field| headers.get(field).map(|value| value.to_str().unwrap_or(""));
        if text(CONTENT_SHA256).is_some_and(|text| text != "UNSIGNED-PAYLOAD") {
            let sum = Sum::Sha256(Sha256::new());
            let check = Check::read(headers, &CONTENT_SHA256, sum, from_hex);
            let message = "x-amz-content-sha256 is neither UNSIGNED-PAYLOAD nor a SHA-256 in \
                           hexadecimal digits";
            of_body.push(check.ok_or_else(|| Refused::bad("InvalidRequest", message.to_owned()))?);
        }
        for (field, sum) in &CHECKSUMS {
            if headers.contains_key(field) {
                let check = Check::read(headers, field, sum(), from_base64);
                let message = || format!("{field} is no such checksum in base64");
                let refused = || Refused::bad("InvalidRequest", message());
                of_object.push(check.ok_or_else(refused)?);
            }
        }
        if let Some(algorithm) = text(ALGORITHM) {
            let wanted = format!("{CHECKSUM}{}", algorithm.to_ascii_lowercase());
            let is_there = of_object.iter().any(|check| check.field.as_str() == wanted);
            if !is_there {
                let message = format!("{ALGORITHM} is {algorithm:?}, and {wanted} is missing");
                return Err(Refused::bad("InvalidRequest", message));
            }
        }
        if is_by_token {
            Self(of_body).compare()?;
        } else {
            of_object.append(&mut of_body);
        }
        Ok(Self(of_object))
    }

    /// More of the content.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|check| check.sum.update(bytes));
    }

    /// Compares, at the end.
    pub(crate) fn compare(self) -> Result<(), Refused> {
        for Check { field, said, sum } in self.0 {
            let came = sum.bytes();
            if came == said {
                continue;
            }
            let (code, said, came) = match field == CONTENT_SHA256 {
                true => ("XAmzContentSHA256Mismatch", to_hex(&said), to_hex(&came)),
                false => ("BadDigest", to_base64(&said), to_base64(&came)),
            };
            let message = format!("{field} is {said}, of what came it is {came}");
            return Err(Refused::bad(code, message));
        }
        Ok(())
    }
}

/// What would be lost without a word, had the request been taken. Content-Type and other fields
/// that only describe (Cache-Control, Content-Disposition, Content-Language, Expires) are not kept
/// either, but clients send them unasked, and do without them.
fn refuse_what_is_not_kept(headers: &HeaderMap) -> Result<(), Refused> {
    for (field, value) in headers {
        let name = field.as_str();
        let value = value.to_str().unwrap_or("");
        let is_taken = match name {
            "x-amz-storage-class" => value == "STANDARD",
            "x-amz-content-sha256" => !value.starts_with("STREAMING"),
            _ if name.starts_with("x-amz-") => {
                UNDERSTOOD.contains(&name) || CHECKSUMS.iter().any(|(known, _)| known == field)
            }
            _ => field != CONTENT_ENCODING || value.eq_ignore_ascii_case("identity"),
        };
        if is_taken {
            continue;
        }
        let why = match name {
            "x-amz-copy-source" => "copies are not made here",
            "content-encoding" | "x-amz-content-sha256" | "x-amz-trailer" => {
                "bodies are taken as they are, neither encoded nor in signed chunks"
            }
            _ if name.starts_with("x-amz-meta-") => "metadata is not kept here",
            _ => "that is not kept here",
        };
        return Err(Refused::not_here(format!("{name}: {why}")));
    }
    Ok(())
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | usize::from(three.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            match digit <= three.len() {
                true => text.push(DIGITS[bits >> (18 - 6 * digit) & 63].into()),
                false => text.push('='),
            }
        }
    }
    text
}

/// `None`: it is not written as base64 is.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes();
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    (to_base64(&bytes) == text).then_some(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `None`: it is no row of hexadecimal digits, two a byte.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |two: &[u8]| match two {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_and_hexadecimal_digits_are_read_as_they_are_written() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (&[0xfb, 0xff, 0xfe], "+//+"),
        ] {
            assert_eq!(to_base64(bytes), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes), "{text}");
        }
        for wrong in ["Zg", "Zg=", "Zh==", "Zg===", "Z", "Zm9v\n", "Zm-v"] {
            assert_eq!(from_base64(wrong), None, "{wrong}");
        }
        assert_eq!(from_hex("00fFa9"), Some(vec![0, 255, 0xa9]));
        assert_eq!(to_hex(&[0, 255, 0xa9]), "00ffa9");
        for wrong in ["0", "0g", "+1", "000"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }
}
