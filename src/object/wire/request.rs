//! `Request`: what a client asks for.

use std::borrow::Cow;
use std::time::Duration;

use zerocopy::IntoBytes;

use super::layout::{MAGIC, RequestWire, checksum, checksum_code, checksum_kind, read};
use super::wire_error::field;
use super::{
    HEADER_LEN, ObjectWireError, PutRequest, REQUEST_PAYLOAD_MAX, TOKEN_MAX, TakeUpRequest,
};
use crate::object::store::{
    ChecksumKind, ListQuery, ObjectEtag, ObjectName, PutCondition, UploadKey, check_text, text_of,
};

/// The kinds.
pub(super) mod kind {
    pub(crate) const HEAD: u8 = 1;
    pub(crate) const GET: u8 = 2;
    pub(crate) const PUT: u8 = 3;
    pub(crate) const LIST: u8 = 4;
    pub(crate) const DELETE: u8 = 5;
    pub(crate) const CANCEL: u8 = 6;
    pub(crate) const TAKE_UP: u8 = 7;
}

/// Flag of a put: it begins the object; of a request to take one up: it begins anew.
const BEGINS: u8 = 1;
/// Flag of a put: it ends the object.
const ENDS: u8 = 2;
/// Flag of a put: the checksum that the whole content has is behind the texts.
const GIVEN: u8 = 4;
/// Bytes of it.
const GIVEN_LEN: usize = 8;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The client's number for it: it has no other request of that number.
    pub(crate) id: u64,
    /// How long the client waits, in milliseconds; 0: it does not say.
    pub(crate) budget_ms: u32,
    pub(crate) body: RequestBody,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestBody {
    Head {
        name: ObjectName,
    },
    /// Bytes `offset .. offset + len` of the object go into the token's window, from its start on.
    Get {
        name: ObjectName,
        offset: u64,
        len: u64,
        /// Only of this version.
        etag: Option<ObjectEtag>,
        checksum: Option<ChecksumKind>,
        token: String,
    },
    Put(PutRequest),
    TakeUp(TakeUpRequest),
    List(ListQuery),
    Delete {
        name: ObjectName,
        etag: Option<ObjectEtag>,
    },
    /// The request of the same number is of no use any more. There is no answer to this.
    Cancel,
}

impl Request {
    /// Understands what a client sent.
    ///
    /// # Errors
    /// [`ObjectWireError`], the first thing that is wrong.
    pub(crate) fn parse(header: &[u8], payload: &[u8]) -> Result<Self, ObjectWireError> {
        let of = |wire: &RequestWire| (wire.magic, wire.payload_len.get());
        let wire = read(header, of, payload.len())?;
        if payload.len() > REQUEST_PAYLOAD_MAX {
            let (said, len) = (REQUEST_PAYLOAD_MAX as u64, payload.len());
            return Err(ObjectWireError::PayloadLen { said, len });
        }
        let parts = RequestTexts::of(&wire, payload)?;
        let request = Self {
            id: wire.id.get(),
            budget_ms: wire.budget_ms.get(),
            body: body(&wire, &parts)?,
        };
        // One encoding: what was not looked at is 0.
        let mut again = [0; HEADER_LEN];
        request.header(&mut again);
        match again == *header {
            true => Ok(request),
            false => Err(ObjectWireError::Reserved { kind: wire.kind }),
        }
    }

    /// The header, and the payload behind what is in `payload`.
    pub(crate) fn encode(&self, header: &mut [u8; HEADER_LEN], payload: &mut Vec<u8>) {
        self.header(header);
        for part in self.parts() {
            payload.extend_from_slice(part.as_bytes());
        }
        if let Some(given) = self.given() {
            payload.extend_from_slice(&given.to_le_bytes());
        }
    }

    /// How long the client waits, where it said so.
    pub(crate) fn budget(&self) -> Option<Duration> {
        let ms = u64::from(self.budget_ms);
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    fn header(&self, header: &mut [u8; HEADER_LEN]) {
        let [name, other, etag] = self.parts().map(|part| part.len());
        let given = self.given().map_or(0, |_| GIVEN_LEN);
        // Each is checked to be short where it is made; what is longer is refused by who reads it.
        let len = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let mut wire = RequestWire {
            magic: MAGIC,
            kind: self.kind(),
            flags: 0,
            reserved: 0.into(),
            id: self.id.into(),
            payload_len: u32::try_from(name + other + etag + given)
                .unwrap_or(u32::MAX)
                .into(),
            budget_ms: self.budget_ms.into(),
            offset: 0.into(),
            len: 0.into(),
            total: 0.into(),
            upload: 0.into(),
            name_len: len(name).into(),
            other_len: len(other).into(),
            etag_len: len(etag).into(),
            condition: self.condition(),
            checksum: 0,
        };
        match &self.body {
            RequestBody::Get {
                offset,
                len,
                checksum,
                ..
            } => {
                (wire.offset, wire.len) = ((*offset).into(), (*len).into());
                wire.checksum = checksum_code(*checksum);
            }
            RequestBody::Put(put) => {
                wire.flags = u8::from(put.begins) * BEGINS + u8::from(put.ends) * ENDS;
                wire.flags |= put.given.map_or(0, |_| GIVEN);
                (wire.offset, wire.len) = (put.offset.into(), put.len.into());
                (wire.total, wire.upload) = (put.total.into(), put.upload.into());
                wire.checksum = checksum_code(put.checksum);
            }
            RequestBody::TakeUp(asked) => {
                wire.flags = u8::from(asked.anew) * BEGINS;
                (wire.total, wire.upload) = (asked.total.into(), asked.upload.into());
            }
            RequestBody::List(query) => wire.len = (query.limit as u64).into(),
            RequestBody::Head { .. } | RequestBody::Delete { .. } | RequestBody::Cancel => {}
        }
        header.copy_from_slice(wire.as_bytes());
    }

    fn given(&self) -> Option<u64> {
        match &self.body {
            RequestBody::Put(put) => put.given,
            _ => None,
        }
    }

    /// As the answer says it.
    pub(crate) fn kind(&self) -> u8 {
        match self.body {
            RequestBody::Head { .. } => kind::HEAD,
            RequestBody::Get { .. } => kind::GET,
            RequestBody::Put(_) => kind::PUT,
            RequestBody::TakeUp(_) => kind::TAKE_UP,
            RequestBody::List(_) => kind::LIST,
            RequestBody::Delete { .. } => kind::DELETE,
            RequestBody::Cancel => kind::CANCEL,
        }
    }

    fn condition(&self) -> u8 {
        let by_etag = |etag: &Option<ObjectEtag>| if etag.is_some() { 2 } else { 0 };
        match &self.body {
            RequestBody::Put(PutRequest { condition, .. })
            | RequestBody::TakeUp(TakeUpRequest { condition, .. }) => match condition {
                PutCondition::Any => 0,
                PutCondition::Absent => 1,
                PutCondition::Matches(_) => 2,
            },
            RequestBody::Get { etag, .. } | RequestBody::Delete { etag, .. } => by_etag(etag),
            _ => 0,
        }
    }

    /// Name, other text, etag.
    fn parts(&self) -> [Cow<'_, str>; 3] {
        if let RequestBody::TakeUp(asked) = &self.body {
            let etag = etag_of(&asked.condition);
            return [
                asked.name.as_str().into(),
                asked.key.to_string().into(),
                etag.into(),
            ];
        }
        self.texts().map(Cow::Borrowed)
    }

    /// The same, of those that have them as they are.
    fn texts(&self) -> [&str; 3] {
        match &self.body {
            RequestBody::Head { name } => [name.as_str(), "", ""],
            RequestBody::Get {
                name, token, etag, ..
            } => [
                name.as_str(),
                token,
                etag.as_ref().map_or("", ObjectEtag::as_str),
            ],
            RequestBody::Put(put) => [put.name.as_str(), &put.token, etag_of(&put.condition)],
            RequestBody::List(query) => [&query.prefix, &query.start_after, ""],
            RequestBody::Delete { name, etag } => [
                name.as_str(),
                "",
                etag.as_ref().map_or("", ObjectEtag::as_str),
            ],
            RequestBody::Cancel | RequestBody::TakeUp(_) => [""; 3],
        }
    }
}

fn etag_of(condition: &PutCondition) -> &str {
    match condition {
        PutCondition::Matches(etag) => etag.as_str(),
        PutCondition::Any | PutCondition::Absent => "",
    }
}

/// The three texts of a payload.
struct RequestTexts<'a> {
    name: &'a [u8],
    other: &'a [u8],
    etag: &'a [u8],
    given: Option<u64>,
}

impl<'a> RequestTexts<'a> {
    fn of(wire: &RequestWire, payload: &'a [u8]) -> Result<Self, ObjectWireError> {
        let [name, other, etag] =
            [wire.name_len, wire.other_len, wire.etag_len].map(|len| usize::from(len.get()));
        let has_given = wire.kind == kind::PUT && wire.flags & GIVEN != 0;
        let said = name + other + etag + if has_given { GIVEN_LEN } else { 0 };
        if said != payload.len() {
            let (said, len) = (said as u64, payload.len());
            return Err(ObjectWireError::PayloadLen { said, len });
        }
        let (name, rest) = payload.split_at(name);
        let (other, rest) = rest.split_at(other);
        let (etag, given) = rest.split_at(etag);
        // Nothing, or its 8 bytes.
        let given = given.try_into().ok().map(u64::from_le_bytes);
        Ok(Self {
            name,
            other,
            etag,
            given,
        })
    }

    fn name(&self) -> Result<ObjectName, ObjectWireError> {
        Ok(ObjectName::from_bytes(self.name)?)
    }

    fn text(bytes: &[u8]) -> Result<String, ObjectWireError> {
        let text = text_of(bytes)?;
        check_text(text)?;
        Ok(text.into())
    }

    /// The text of a token, which is judged where it is used.
    fn token(&self) -> Result<String, ObjectWireError> {
        if self.other.len() > TOKEN_MAX {
            return Err(field("token_len", self.other.len() as u64));
        }
        Ok(text_of(self.other)?.into())
    }

    fn key(&self) -> Result<UploadKey, ObjectWireError> {
        let text = std::str::from_utf8(self.other).ok();
        let key = text.and_then(|text| text.parse().ok());
        key.ok_or_else(|| field("upload_key", self.other.len() as u64))
    }

    /// A checksum that its kind can have.
    fn given(&self, kind: u8) -> Result<Option<u64>, ObjectWireError> {
        match self.given {
            Some(value) if kind == 0 => Err(field("given", value)),
            Some(value) => Ok(checksum(kind, value)?.map(|sum| sum.value)),
            None => Ok(None),
        }
    }

    fn condition(&self, code: u8) -> Result<PutCondition, ObjectWireError> {
        match code {
            0 => Ok(PutCondition::Any),
            1 => Ok(PutCondition::Absent),
            2 => Ok(PutCondition::Matches(ObjectEtag::from_bytes(self.etag)?)),
            other => Err(field("condition", other)),
        }
    }

    fn etag(&self, code: u8) -> Result<Option<ObjectEtag>, ObjectWireError> {
        match self.condition(code)? {
            PutCondition::Any => Ok(None),
            PutCondition::Absent => Err(field("condition", code)),
            PutCondition::Matches(etag) => Ok(Some(etag)),
        }
    }
}

fn body(wire: &RequestWire, parts: &RequestTexts<'_>) -> Result<RequestBody, ObjectWireError> {
    let (offset, len) = (wire.offset.get(), wire.len.get());
    let end = offset.checked_add(len).ok_or_else(|| field("len", len))?;
    match wire.kind {
        kind::HEAD => Ok(RequestBody::Head {
            name: parts.name()?,
        }),
        kind::GET => Ok(RequestBody::Get {
            name: parts.name()?,
            offset,
            len,
            etag: parts.etag(wire.condition)?,
            checksum: checksum_kind(wire.checksum)?,
            token: parts.token()?,
        }),
        kind::PUT => {
            if end > wire.total.get() {
                return Err(field("total", wire.total.get()));
            }
            Ok(RequestBody::Put(PutRequest {
                name: parts.name()?,
                offset,
                len,
                total: wire.total.get(),
                upload: wire.upload.get(),
                begins: wire.flags & BEGINS != 0,
                ends: wire.flags & ENDS != 0,
                condition: parts.condition(wire.condition)?,
                checksum: checksum_kind(wire.checksum)?,
                given: parts.given(wire.checksum)?,
                token: parts.token()?,
            }))
        }
        kind::LIST => Ok(RequestBody::List(ListQuery {
            prefix: RequestTexts::text(parts.name)?,
            start_after: RequestTexts::text(parts.other)?,
            limit: usize::try_from(len).map_err(|_| field("len", len))?,
        })),
        kind::DELETE => Ok(RequestBody::Delete {
            name: parts.name()?,
            etag: parts.etag(wire.condition)?,
        }),
        kind::CANCEL => Ok(RequestBody::Cancel),
        kind::TAKE_UP => Ok(RequestBody::TakeUp(TakeUpRequest {
            name: parts.name()?,
            total: wire.total.get(),
            upload: wire.upload.get(),
            key: parts.key()?,
            anew: wire.flags & BEGINS != 0,
            condition: parts.condition(wire.condition)?,
        })),
        other => Err(ObjectWireError::Kind(other)),
    }
}

/// What an answer to a request says, whose texts could not be understood.
pub(crate) fn id_and_kind(header: &[u8]) -> Option<(u64, u8)> {
    let wire = zerocopy::FromBytes::read_from_bytes(header).ok();
    wire.map(|wire: RequestWire| (wire.id.get(), wire.kind))
}
